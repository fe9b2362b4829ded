"""Protobuf to domain types and back, field by field."""

from __future__ import annotations

from dataclasses import fields

import grpc
import pytest

from secateur import types
from secateur.errors import FieldViolation
from secateur.server import convert
from secateur.v1 import rerank_prune_pb2 as pb


def test_unset_is_none_and_zero_is_zero() -> None:
    unset = convert.prune_options(pb.PruneOptions(), [])
    assert unset == types.PruneOptions()
    zero = convert.prune_options(pb.PruneOptions(threshold=0.0, min_relevance_score=0.0), [])
    assert (zero.threshold, zero.min_relevance_score) == (0.0, 0.0)


def test_a_threshold_keeps_its_digits() -> None:
    """F17: a proto float turns 0.1 into 0.100000001."""
    message = pb.PruneOptions.FromString(pb.PruneOptions(threshold=0.1).SerializeToString())
    assert convert.prune_options(message, []).threshold == 0.1


def test_every_option_arrives() -> None:
    options = types.PruneOptions(
        threshold=0.25,
        keep_rule=types.KeepRule.MAJORITY,
        top_k=3,
        min_relevance_score=0.5,
        order=types.ResultOrder.INPUT,
        always_select_title=True,
        min_sentences=1,
        neighbor_sentences=2,
        max_context_tokens=4,
        protected_patterns=("a", "b"),
        offset_unit=types.OffsetUnit.UTF8_BYTE,
        language="de",
        truncate_query=True,
        include_tokens=True,
        include_sentence_text=True,
    )
    default = types.PruneOptions()
    for field in fields(options):
        assert getattr(options, field.name) != getattr(default, field.name), field.name
    message = pb.PruneOptions(
        threshold=0.25,
        keep_rule=pb.KEEP_RULE_MAJORITY,
        top_k=3,
        min_relevance_score=0.5,
        order=pb.RESULT_ORDER_INPUT,
        always_select_title=True,
        min_sentences=1,
        neighbor_sentences=2,
        max_context_tokens=4,
        protected_patterns=["a", "b"],
        offset_unit=pb.OFFSET_UNIT_UTF8_BYTE,
        language="de",
        truncate_query=True,
        include_tokens=True,
        include_sentence_text=True,
    )
    assert convert.prune_options(message, []) == options


@pytest.mark.parametrize("name", ["keep_rule", "order", "offset_unit"])
def test_an_unknown_enum_number_is_a_violation(name: str) -> None:
    faults: list[FieldViolation] = []
    message = pb.PruneOptions()
    setattr(message, name, 99)
    convert.prune_options(message, faults)
    assert [fault.field for fault in faults] == [f"options.{name}"]
    assert faults[0].description.startswith("99 is not a known value; known: ")


def test_a_highlight_request_has_defaults() -> None:
    parsed = convert.highlight_request(pb.HighlightRequest(query="q"))
    assert parsed.highlighting == convert.Highlighting(
        "<mark>", "</mark>", types.FragmentFormat.NONE
    )
    assert convert.rerank_request(pb.RerankAndPruneRequest()).highlighting is None
    unknown = convert.highlight_request(pb.HighlightRequest(fragment_format=9))  # type: ignore[arg-type]
    assert [fault.field for fault in unknown.violations] == ["fragment_format"]


def test_passages_arrive_whole() -> None:
    message = pb.Passage(
        id="i", text="t\u00e9", title="T", sentences=[pb.TextSpan(start_offset=0, end_offset=2)]
    )
    assert convert.passages([message]) == (
        types.Passage("t\u00e9", "i", "T", (types.TextSpan(0, 2),)),
    )


def test_a_result_keeps_unset_apart_from_zero() -> None:
    sentence = types.Sentence(0, 1, None, None, kept=True, reason=types.KeepReason.UNSCORED)
    scored = types.Sentence(1, 2, 0.0, 0.0, kept=False, reason=types.KeepReason.BELOW_THRESHOLD)
    result = types.PrunedPassage(
        index=7,
        id="x",
        relevance_score=0.0,
        relevance_logit=-800.0,
        pruned_text="a",
        sentences=(sentence, scored),
        kept_spans=(types.TextSpan(0, 1),),
        compression_rate=0.5,
        all_pruned=False,
        unscored_sentence_count=1,
        window_count=2,
        coarse_sentences=True,
        tokens=(types.TokenScore(0, 1, 0.25, relevant=True),),
    )
    message = convert.pruned_passage(result)
    assert message.HasField("relevance_score")
    assert message.relevance_logit == -800.0
    assert not message.sentences[0].HasField("probability")
    assert not message.sentences[0].HasField("vote_share")
    assert message.sentences[1].HasField("probability")
    assert message.sentences[0].reason == pb.KEEP_REASON_UNSCORED
    assert not message.HasField("error")
    assert (message.index, message.window_count, message.coarse_sentences) == (7, 2, True)
    assert message.tokens[0].relevant


@pytest.mark.parametrize("code", list(grpc.StatusCode))
def test_a_failed_passage_carries_its_status(code: grpc.StatusCode) -> None:
    result = types.PrunedPassage(
        index=0,
        id="",
        relevance_score=None,
        relevance_logit=None,
        pruned_text="",
        sentences=(),
        kept_spans=(),
        compression_rate=0.0,
        all_pruned=False,
        error=types.PassageError(code.name, "why"),
    )
    message = convert.pruned_passage(result)
    assert (message.error.code, message.error.message) == (code.value[0], "why")
    assert not message.HasField("relevance_score")
    assert not message.HasField("relevance_logit")


def test_model_info_tells_all_limits() -> None:
    limits = types.Limits(max_passages=5)
    info = types.ModelInfo(
        id="m",
        revision="r",
        family="f",
        dtype="float32",
        device="cpu",
        can_rerank=True,
        can_prune=True,
        score_source=types.ScoreSource.BEST_SENTENCE,
        languages=("en",),
        window_tokens=64,
        max_query_tokens=30,
        default_threshold=0.1,
        default_keep_rule=types.KeepRule.TOKEN_VOTE,
        keep_rules=(types.KeepRule.TOKEN_VOTE,),
        limits=limits,
    )
    message = convert.model_info(
        info,
        max_request_bytes=1,
        max_response_bytes=2,
        max_concurrent_calls=3,
        max_queue_tokens=4,
    )
    assert (message.max_request_bytes, message.max_response_bytes) == (1, 2)
    assert (message.max_concurrent_calls, message.max_queue_tokens) == (3, 4)
    assert {f.name for f in fields(limits)} == {f.name for f in message.limits.DESCRIPTOR.fields}
    for field in fields(limits):
        assert getattr(message.limits, field.name) == getattr(limits, field.name)
    assert message.score_source == pb.SCORE_SOURCE_BEST_SENTENCE
    assert list(message.keep_rules) == [pb.KEEP_RULE_TOKEN_VOTE]
    assert (message.max_request_bytes, message.max_response_bytes) == (1, 2)
