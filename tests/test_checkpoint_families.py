"""Families are told by config and keys, tolerant of prefixes; what is unknown is named."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from families_originals import KINDS, build, save, state
from one_thread import one_thread  # noqa: F401 - a fixture
from torch import Tensor

from secateur import CheckpointError, KeepRule, ScoreSource
from secateur.model.checkpoints.detect import strip_wrappers
from secateur.model.checkpoints.load import Checkpoint, load_checkpoint
from secateur.model.pruner import Pruner, load_engine

State = Mapping[str, Tensor]


def made(kind: str) -> tuple[dict[str, Tensor], Any, dict[str, Any]]:
    model, tokenizer, config = build(KINDS[kind])
    return state(model), tokenizer, dict(config)


def load(
    folder: Path,
    kind: str,
    *,
    rename: Callable[[str], str] = str,
    drop: str = "\0",
    add: State | None = None,
    **config_changes: Any,
) -> Checkpoint:
    tensors, tokenizer, config = made(kind)
    tensors = {rename(k): v for k, v in tensors.items() if drop not in k} | dict(add or {})
    return load_checkpoint(save(folder, tensors, tokenizer, {**config, **config_changes}))


@pytest.mark.parametrize("prefix", ["", "model.", "module.", "module.model.", "_orig_mod."])
@pytest.mark.parametrize("kind", KINDS)
def test_prefixes_of_training_tools(tmp_path: Path, kind: str, prefix: str) -> None:
    found = load(tmp_path, kind, rename=lambda key: prefix + key)
    plain = load(tmp_path / "plain", kind)
    assert found.family.name == KINDS[kind].family
    ours, theirs = found.model.state_dict(), plain.model.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)


@pytest.mark.parametrize(
    ("key", "bare"),
    [
        ("model.layers.0.attn.Wqkv.weight", "model.layers.0.attn.Wqkv.weight"),  # ModernBERT's own
        ("model.model.layers.0.x", "model.layers.0.x"),
        ("module.model.deberta.x", "deberta.x"),
        ("model.module.deberta.x", "deberta.x"),
        ("model.ranking_model.model.layers.0.x", "ranking_model.model.layers.0.x"),
        ("model.something.else", "model.something.else"),
    ],
)
def test_only_real_prefixes_go(key: str, bare: str) -> None:
    assert strip_wrappers(key) == bare


@pytest.mark.parametrize("kind", ["provence", "xprovence", "opensearch_highlighter"])
def test_keys_tell_the_family_without_a_name(tmp_path: Path, kind: str) -> None:
    """A config without the family's name, as a re-saved checkpoint has."""
    model_type = KINDS[kind].config(64).model_type
    found = load(tmp_path, kind, architectures=None, model_type=model_type)
    assert found.family.name == kind


def test_legacy_open_provence_keys_lack_their_prefix(tmp_path: Path) -> None:
    found = load(
        tmp_path,
        "open_provence",
        rename=lambda key: key.removeprefix("ranking_model."),
        add={"pruning_head.pooling_weights": torch.ones(3)},
    )
    assert found.family.name == "open_provence"
    assert found.layout.checkpoint_key("score.head.dense.weight") == (
        "ranking_model.head.dense.weight"
    )


@pytest.mark.parametrize(
    ("changes", "threshold"),
    [
        ({}, 0.1),
        ({"default_threadshold": 0.2}, 0.2),
        ({"default_threshold": 0.4}, 0.4),
        ({"default_threadshold": 0.2, "default_threshold": 0.4}, 0.4),
        ({"default_threshold": 0.0, "default_threadshold": 0.2}, 0.0),
    ],
)
def test_open_provence_states_its_threshold(
    tmp_path: Path, changes: dict[str, Any], threshold: float
) -> None:
    """Its code knows two spellings with two defaults; the right spelling comes first."""
    assert load(tmp_path, "open_provence", **changes).settings.default_threshold == threshold


def test_open_provence_with_its_encoder_in_the_config_itself(tmp_path: Path) -> None:
    """Without base_model_config nothing is fetched: config.json must then hold the encoder."""
    encoder = KINDS["open_provence"].config(KINDS["open_provence"].tokenizer().get_vocab_size())
    found = load(
        tmp_path,
        "open_provence",
        **{**encoder.to_dict(), "model_type": "open_provence"},
        base_model_config=None,
    )
    assert found.layout.encoder.model_type == "modernbert"
    with pytest.raises(CheckpointError, match="shapes: "):
        load(tmp_path / "bare", "open_provence", base_model_config=None)


def test_xprovence_with_robertas_own_head(tmp_path: Path) -> None:
    """``classifier.*`` may be RoBERTa's two layers on the first token, too."""
    head = {
        "classifier.dense.weight": torch.randn(48, 48),
        "classifier.dense.bias": torch.randn(48),
        "classifier.out_proj.weight": torch.randn(1, 48),
        "classifier.out_proj.bias": torch.randn(1),
    }
    tensors, tokenizer, config = made("xprovence")
    tensors = {k: v for k, v in tensors.items() if not k.startswith("classifier.")} | head
    model = load_checkpoint(save(tmp_path, tensors, tokenizer, config)).model
    ids = torch.tensor([[0, 7, 2, 9, 2]])
    with torch.inference_mode():
        hidden = model.encoder(input_ids=ids).last_hidden_state[:, 0]
        inner = torch.tanh(
            hidden @ head["classifier.dense.weight"].T + head["classifier.dense.bias"]
        )
        expected = inner @ head["classifier.out_proj.weight"].T + head["classifier.out_proj.bias"]
        score, _ = model(ids, torch.ones_like(ids), torch.zeros_like(ids))
    assert score is not None
    torch.testing.assert_close(score, expected[:, 0])


@pytest.mark.parametrize(
    ("kind", "rules", "threshold", "rule", "source"),
    [
        ("provence", 3, 0.1, KeepRule.TOKEN_VOTE, ScoreSource.PASSAGE_HEAD),
        ("xprovence", 3, 0.3, KeepRule.TOKEN_VOTE, ScoreSource.PASSAGE_HEAD),
        ("open_provence", 3, 0.1, KeepRule.MEAN_PROBABILITY, ScoreSource.PASSAGE_HEAD),
        ("zilliz_highlight", 3, 0.5, KeepRule.MEAN_PROBABILITY, ScoreSource.PASSAGE_HEAD),
        ("opensearch_highlighter", 1, 0.5, KeepRule.SENTENCE_HEAD, ScoreSource.BEST_SENTENCE),
        ("plain-bert", 0, None, None, ScoreSource.PASSAGE_HEAD),
    ],
)
def test_capabilities_and_defaults(
    tmp_path: Path,
    kind: str,
    rules: int,
    threshold: float | None,
    rule: KeepRule | None,
    source: ScoreSource,
) -> None:
    tensors, tokenizer, config = made(kind)
    info = load_engine(save(tmp_path / "its-name", tensors, tokenizer, config)).info
    assert (info.id, info.family, info.can_rerank) == ("its-name", KINDS[kind].family, True)
    assert info.can_prune == (rules > 0)
    assert len(info.keep_rules) == rules
    assert (info.default_threshold, info.default_keep_rule) == (threshold, rule)
    assert info.score_source is source


@pytest.mark.parametrize(
    ("kind", "window", "query"),
    [
        ("provence", 64, 30),
        ("xprovence", 64, 30),
        ("zilliz_highlight", 64, 30),
        ("plain-bert", 64, 30),
    ],
)
def test_windows_fit_the_positions(tmp_path: Path, kind: str, window: int, query: int) -> None:
    """XLM-R's 66 position embeddings take 64 tokens: ids start at the padding's plus one."""
    tensors, tokenizer, config = made(kind)
    info = load_engine(save(tmp_path, tensors, tokenizer, config)).info
    assert (info.window_tokens, info.max_query_tokens) == (window, query)


def test_a_config_states_a_shorter_window(tmp_path: Path) -> None:
    assert load(tmp_path, "open_provence", max_length=32).settings.window_tokens == 32
    folder = tmp_path / "own"
    assert load(folder, "xprovence", secateur={"window_tokens": 48}).settings.window_tokens == 48
    with pytest.raises(CheckpointError, match=r"window_tokens is 66, must be in \[16, 64\]"):
        load(tmp_path / "long", "xprovence", secateur={"window_tokens": 66})


@pytest.mark.parametrize(
    ("kind", "drop", "message"),
    [
        ("provence", "token_classifier", "missing: token_classifier.bias, token_classifier.weight"),
        ("provence", "pooler", "missing: pooler.dense.bias, pooler.dense.weight"),
        ("xprovence", "roberta.pooler", "missing: roberta.pooler.dense.bias"),
        ("open_provence", "pruning_head", "missing: pruning_head.classifier.bias"),
        ("open_provence", "ranking_model.head", "missing: ranking_model.head.dense.weight"),
        ("opensearch_highlighter", "layer.1.output", "missing: bert.encoder.layer.1.output.LayerN"),
        ("plain-bert", "classifier.bias", "expected plain_reranker on bert"),
    ],
)
def test_incomplete_layouts_name_what_is_missing(
    tmp_path: Path, kind: str, drop: str, message: str
) -> None:
    with pytest.raises(CheckpointError) as caught:
        load(tmp_path, kind, drop=drop)
    assert message in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def classifier(labels: int) -> dict[str, Tensor]:
    return {"classifier.weight": torch.ones(labels, 48), "classifier.bias": torch.ones(labels)}


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("provence", {"drop": "deberta."}),
        ("plain-bert", {"add": classifier(3)}),
        ("plain-bert", {"add": classifier(2), "architectures": ["BertForSequenceClassification"]}),
        ("plain-bert", {"add": classifier(2), "architectures": ["BertForTokenClassification"]}),
        ("plain-bert", {"architectures": ["BertForTokenClassification"]}),
        ("plain-bert", {"architectures": ["SomebodysReranker"]}),
        ("plain-bert", {"drop": "classifier"}),
        ("plain-modernbert", {"add": {"token_classifier.weight": torch.ones(2, 48)}}),
        ("open_provence", {"drop": "pruning_head", "model_type": "x", "architectures": None}),
        ("provence", {"rename": lambda key: f"net.{key}"}),
    ],
)
def test_unknown_layouts_list_what_is_known(
    tmp_path: Path, kind: str, changes: dict[str, Any]
) -> None:
    """A classifier of two labels is no highlighter, one with other code no plain reranker."""
    with pytest.raises(CheckpointError) as caught:
        load(tmp_path, kind, **changes)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path}: no known checkpoint layout: found model_type")
    for family in ("provence on deberta-v2: deberta.*, pooler", "plain_reranker on", "bert.*, cl"):
        assert family in message


def test_a_family_on_another_encoder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="provence is served on deberta-v2, but this encoder"):
        load(tmp_path, "xprovence", model_type="Provence", architectures=["Provence"])


def test_a_stated_family_wins(tmp_path: Path) -> None:
    """How one says what config and keys cannot: here that a query is to stay as it is."""
    found = load(tmp_path, "provence", secateur={"family": "secateur"})
    assert found.family.name == "secateur"
    assert found.family.normalize_query("What, Now?") == "What, Now?"
    assert not found.family.by_sentence


def test_what_training_saves_is_ours(tmp_path: Path) -> None:
    """A run's folder has Provence's keys, but its queries were never normalised."""
    names = ["DebertaV2ForRerankAndPrune"]
    found = load(tmp_path, "provence", architectures=names, model_type="deberta-v2")
    assert found.family.name == "secateur"


def test_keys_that_nothing_needs(tmp_path: Path) -> None:
    """Pre-training heads, stored positions, a pooler beside XLM-R's own head."""
    extra = {
        "lm_head.bias": torch.ones(3),
        "roberta.embeddings.position_ids": torch.ones(1, 66),
        "roberta.pooler.dense.weight": torch.ones(48, 48),
    }
    assert load(tmp_path, "plain-xlm-roberta", add=extra).family.name == "plain_reranker"
    with pytest.raises(CheckpointError, match=r"unknown: roberta\.encoder\.layer\.9\.x"):
        load(
            tmp_path / "more", "plain-xlm-roberta", add={"roberta.encoder.layer.9.x": torch.ones(1)}
        )


def test_how_to_call_the_encoder_is_not_the_configs(tmp_path: Path) -> None:
    """Some configs ask for tuples, or for chunks that only some lengths divide into."""
    tensors, tokenizer, config = made("provence")
    odd = {"return_dict": False, "torchscript": True, "chunk_size_feed_forward": 7}
    save(tmp_path / "odd", tensors, tokenizer, {**config, **odd, "output_attentions": True})
    save(tmp_path / "plain", tensors, tokenizer, config)
    answers = [
        Pruner.load(tmp_path / name).rerank_and_prune("valve", ["The red valve opens."]).results
        for name in ("odd", "plain")
    ]
    assert answers[0] == answers[1]


def test_no_padding_id(tmp_path: Path) -> None:
    """XLM-R counts positions from it."""
    with pytest.raises(CheckpointError, match="not a xlm-roberta config"):
        load(tmp_path, "xprovence", pad_token_id=None)


def test_two_tensors_of_one_place(tmp_path: Path) -> None:
    """A legacy key beside the same one with its prefix: neither may win in silence."""
    extra = {"classifier.bias": torch.ones(1)}
    with pytest.raises(CheckpointError, match=r"one tensor ranking_model\.classifier\.bias, found"):
        load(tmp_path, "open_provence", add=extra)
