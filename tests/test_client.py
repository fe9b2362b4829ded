"""The client's requests and answers, against a real gRPC server with canned answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import grpc
import pytest
from fake_service import (
    FakeService,
    served,
)
from google.rpc import status_pb2

from secateur import errors, types, v1
from secateur._proto_enums import PROTO_ENUMS, from_number, proto_prefix, to_number
from secateur.client import Client
from secateur.types import Passage, PruneOptions, TextSpan

Code = grpc.StatusCode


@pytest.fixture
def service() -> FakeService:
    return FakeService()


@pytest.fixture
def client(service: FakeService) -> Iterator[Client]:
    with served(service) as target, Client(target) as client:
        yield client


@pytest.mark.parametrize("enum", PROTO_ENUMS, ids=lambda enum: enum.__name__)
def test_every_enum_member_has_its_number(enum: Any) -> None:
    names = {name for name, number in PROTO_ENUMS[enum].items() if number}
    assert names == {proto_prefix(enum) + member.name for member in enum}
    assert [from_number(enum, to_number(member)) for member in enum] == list(enum)
    assert from_number(enum, 0) is None
    assert from_number(enum, 99) is None


def test_options_cover_the_contract() -> None:
    ours = {field.name for field in fields(PruneOptions)}
    assert ours == {field.name for field in v1.PruneOptions.DESCRIPTOR.fields}


@pytest.mark.parametrize(
    ("domain", "proto"),
    [
        (types.RankedPassages, v1.RerankAndPruneResponse),
        (types.PrunedPassage, v1.PrunedPassage),
        (types.Sentence, v1.Sentence),
        (types.TokenScore, v1.TokenScore),
        (types.HighlightedPassages, v1.HighlightResponse),
        (types.HighlightedPassage, v1.HighlightedPassage),
        (types.HighlightSpan, v1.HighlightSpan),
        (types.StreamSummary, v1.StreamSummary),
        (types.RankedPassage, v1.RankedPassage),
        (types.Usage, v1.Usage),
        (types.Timing, v1.Timing),
        (types.ModelRef, v1.ModelRef),
        (types.Limits, v1.Limits),
    ],
)
def test_domain_results_have_the_proto_fields(domain: Any, proto: Any) -> None:
    assert {f.name for f in fields(domain)} == {f.name for f in proto.DESCRIPTOR.fields}


def test_request_arrives_as_given(service: FakeService, client: Client) -> None:
    options = PruneOptions(
        threshold=0.0,
        keep_rule=types.KeepRule.TOKEN_VOTE,
        top_k=3,
        min_relevance_score=0.0,
        order=types.ResultOrder.INPUT,
        always_select_title=True,
        min_sentences=1,
        neighbor_sentences=2,
        protected_patterns=("a+", "b"),
        offset_unit=types.OffsetUnit.UTF8_BYTE,
        language="en",
        truncate_query=True,
        include_tokens=True,
        include_sentence_text=True,
    )
    client.rerank_and_prune(
        "q?", ["One.", Passage("Two.", "id", "Title", (TextSpan(0, 4),))], options
    )
    assert service.requests == [
        v1.RerankAndPruneRequest(
            query="q?",
            passages=[
                v1.Passage(text="One."),
                v1.Passage(
                    text="Two.",
                    id="id",
                    title="Title",
                    sentences=[v1.TextSpan(start_offset=0, end_offset=4)],
                ),
            ],
            options=v1.PruneOptions(
                threshold=0.0,
                keep_rule=v1.KeepRule.KEEP_RULE_TOKEN_VOTE,
                top_k=3,
                min_relevance_score=0.0,
                order=v1.ResultOrder.RESULT_ORDER_INPUT,
                always_select_title=True,
                min_sentences=1,
                neighbor_sentences=2,
                protected_patterns=["a+", "b"],
                offset_unit=v1.OffsetUnit.OFFSET_UNIT_UTF8_BYTE,
                language="en",
                truncate_query=True,
                include_tokens=True,
                include_sentence_text=True,
            ),
        )
    ]
    assert service.requests[0].options.HasField("threshold")  # 0 is not unset


def test_unset_options_stay_unset(service: FakeService, client: Client) -> None:
    client.rerank_and_prune("q", [])
    assert not service.requests[0].options.HasField("threshold")
    assert service.requests[0].options.keep_rule == v1.KeepRule.KEEP_RULE_UNSPECIFIED


def test_answer_becomes_domain_types(client: Client) -> None:
    answer = client.rerank_and_prune(
        "q", [Passage("Ä one. Two.", id="a"), " "], PruneOptions(include_tokens=True)
    )
    first, blank = answer.results
    assert first == types.PrunedPassage(
        index=0,
        id="a",
        relevance_score=0.8808,
        relevance_logit=2.0,
        pruned_text="Ä one.",
        sentences=(
            types.Sentence(0, 6, 0.9, 1.0, True, types.KeepReason.ABOVE_THRESHOLD),
            types.Sentence(7, 11, 0.01, 0.0, False, types.KeepReason.BELOW_THRESHOLD),
        ),
        kept_spans=(TextSpan(0, 6),),
        compression_rate=1 - 6 / 11,
        all_pruned=False,
        tokens=(types.TokenScore(0, 6, 0.9, True), types.TokenScore(6, 11, 0.01, False)),
    )
    assert blank.relevance_score is None
    assert blank.relevance_logit is None
    assert blank.sentences == ()
    assert answer.applied_keep_rule is types.KeepRule.MEAN_PROBABILITY
    assert answer.score_source is types.ScoreSource.PASSAGE_HEAD
    assert answer.model == types.ModelRef("fake", "r1", "float32")
    assert answer.usage == types.Usage(2, 20, 4, 0)
    assert answer.timing == types.Timing(0.5, 1.5, 7.0, 9.0)


def test_a_failed_passage_and_an_unscored_sentence(service: FakeService, client: Client) -> None:
    failed = v1.PrunedPassage(
        error=status_pb2.Status(code=8, message="too big"),
        sentences=[v1.Sentence(end_offset=1, kept=True, reason=v1.KeepReason.KEEP_REASON_UNSCORED)],
    )
    service.answers["RerankAndPrune"] = v1.RerankAndPruneResponse(
        results=[failed],
        applied_keep_rule=v1.KeepRule.KEEP_RULE_MEAN_PROBABILITY,
        score_source=v1.ScoreSource.SCORE_SOURCE_PASSAGE_HEAD,
    )
    [result] = client.rerank_and_prune("q", ["a"]).results
    assert result.error == types.PassageError("RESOURCE_EXHAUSTED", "too big")
    assert result.sentences[0].probability is None
    assert result.sentences[0].reason is types.KeepReason.UNSCORED


def test_an_enum_value_of_a_newer_server_is_an_error(service: FakeService, client: Client) -> None:
    service.answers["RerankAndPrune"] = v1.RerankAndPruneResponse(
        applied_keep_rule=77,  # type: ignore[arg-type]
        score_source=v1.ScoreSource.SCORE_SOURCE_PASSAGE_HEAD,
    )
    with pytest.raises(errors.SecateurError, match="KeepRule number 77"):
        client.rerank_and_prune("q", ["a"])


def test_highlight(service: FakeService, client: Client) -> None:
    service.answers["Highlight"] = v1.HighlightResponse(
        results=[
            v1.HighlightedPassage(
                index=1,
                id="b",
                relevance_score=0.5,
                relevance_logit=0.0,
                spans=[v1.HighlightSpan(start_offset=2, end_offset=4)],
                fragments=["<b>x</b>"],
            )
        ],
        applied_keep_rule=v1.KeepRule.KEEP_RULE_MAJORITY,
        score_source=v1.ScoreSource.SCORE_SOURCE_BEST_SENTENCE,
        warnings=[v1.Warning.WARNING_UNSUPPORTED_SCRIPT],
    )
    answer = client.highlight(
        "q", ["a", "b"], pre_tag="<b>", fragment_format=types.FragmentFormat.HTML_ESCAPED
    )
    assert answer.results == (
        types.HighlightedPassage(
            1, "b", 0.5, 0.0, (types.HighlightSpan(2, 4, None),), ("<b>x</b>",)
        ),
    )
    assert answer.warnings == (types.WarningCode.UNSUPPORTED_SCRIPT,)
    [request] = service.requests
    assert (request.pre_tag, request.post_tag) == ("<b>", "")
    assert request.fragment_format == v1.FragmentFormat.FRAGMENT_FORMAT_HTML_ESCAPED


def test_model_info(service: FakeService, client: Client) -> None:
    service.answers["GetModelInfo"] = v1.GetModelInfoResponse(
        id="fake",
        family="provence",
        can_rerank=True,
        score_source=v1.ScoreSource.SCORE_SOURCE_PASSAGE_HEAD,
        languages=["en"],
        window_tokens=512,
        default_threshold=0.1,
        default_keep_rule=v1.KeepRule.KEEP_RULE_MEAN_PROBABILITY,
        keep_rules=[v1.KeepRule.KEEP_RULE_MEAN_PROBABILITY, v1.KeepRule.KEEP_RULE_MAJORITY],
        limits=v1.Limits(max_passages=7),
    )
    info = client.model_info()
    assert (info.id, info.family, info.window_tokens) == ("fake", "provence", 512)
    assert info.keep_rules == (types.KeepRule.MEAN_PROBABILITY, types.KeepRule.MAJORITY)
    assert info.limits.max_passages == 7


def test_all_values_that_cannot_be_sent_are_named(service: FakeService, client: Client) -> None:
    with pytest.raises(errors.InvalidRequestError) as raised:
        client.rerank_and_prune(
            "q", ["ok", "a\ud800", Passage("x", "i", sentences=(TextSpan(0, 2**31),))]
        )
    assert [v.field for v in raised.value.violations] == [
        "passages[1].text",
        "passages[2].sentences[0].end_offset",
    ]
    with pytest.raises(errors.InvalidRequestError) as raised:
        client.rerank_and_prune("q", [], PruneOptions(top_k=2**31, min_sentences=-(2**40)))
    assert [v.field for v in raised.value.violations] == [
        "options.top_k",
        "options.min_sentences",
    ]
    with pytest.raises(errors.InvalidRequestError, match="query: character 1 is a lone surr"):
        client.rerank_and_prune("a\udfff", [])
    assert service.requests == []


def test_one_string_in_place_of_passages_is_refused(client: Client) -> None:
    with pytest.raises(TypeError, match="not one string"):
        client.rerank_and_prune("q", "One passage.")


@pytest.mark.parametrize(
    "arguments",
    [
        {"timeout": 0},
        {"timeout": float("inf")},
        {"timeout": float("nan")},
        {"max_message_bytes": 0},
        {"max_attempts": 0},
    ],
)
def test_half_specified_settings_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(arguments))):
        Client("localhost:1", **arguments)
