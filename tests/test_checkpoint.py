"""Checkpoint folders: files, shapes and settings, or what is wrong with them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from families_originals import write
from one_thread import one_thread  # noqa: F401 - a fixture
from safetensors.torch import load_file, save_file
from tiny import tiny_provence
from tokenizers import Tokenizer

from secateur import CheckpointError, KeepRule
from secateur.model.checkpoints.load import load_checkpoint
from secateur.model.pruner import Pruner

IDS = torch.tensor([[2, 4, 6, 3, 7, 8, 9, 3]])


def _rewrite(
    folder: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]
) -> None:
    file = folder / "model.safetensors"
    save_file(change(load_file(file)), file)


def _edit_config(folder: Path, **values: object) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def _bigger_tokenizer(folder: Path) -> None:
    file = folder / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.add_tokens(["seven", "eight"])
    tokenizer.save(str(file))


@pytest.mark.parametrize("prefix", ["", "model.", "module."])
@pytest.mark.parametrize("overrides", [{}, {"position_biased_input": True, "type_vocab_size": 2}])
def test_provence_layout_loads_with_the_same_logits(
    tmp_path: Path, prefix: str, overrides: dict[str, object]
) -> None:
    model = tiny_provence(tmp_path, **overrides)
    _rewrite(tmp_path, lambda state: {prefix + key: value for key, value in state.items()})
    checkpoint = load_checkpoint(tmp_path)
    mask, types = torch.ones_like(IDS), torch.zeros_like(IDS)
    with torch.inference_mode():
        ours, theirs = checkpoint.model(IDS, mask, types), model(IDS, mask, types)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    settings = checkpoint.settings
    assert (settings.default_threshold, settings.default_keep_rule) == (0.1, KeepRule.TOKEN_VOTE)
    assert settings.window_tokens == 64


def test_sharded_weights_load(tmp_path: Path) -> None:
    tiny_provence(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    keys = sorted(state)
    weight_map: dict[str, str] = {}
    for number, part in enumerate((keys[:10], keys[10:]), 1):
        name = f"model-{number:05d}-of-00002.safetensors"
        save_file({key: state[key] for key in part}, tmp_path / name)
        weight_map |= dict.fromkeys(part, name)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    loaded = load_checkpoint(tmp_path).model.state_dict()
    assert torch.equal(loaded["token.weight"], state["token_classifier.weight"])
    assert len(loaded) == len(state)


def test_float16_weights_run_in_float32(tmp_path: Path) -> None:
    tiny_provence(tmp_path)
    _rewrite(tmp_path, lambda state: {key: value.half() for key, value in state.items()})
    model = load_checkpoint(tmp_path).model
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_pruner_runs_any_such_checkpoint(tmp_path: Path) -> None:
    """Windows, not truncation: a passage of several windows of 64 tokens is scored to its end."""
    tiny_provence(tmp_path)
    text = "The red valve opens. " * 40
    result = Pruner.load(tmp_path).rerank_and_prune("what opens?", [text]).results[0]
    assert result.window_count > 2
    assert len(result.sentences) == 40
    assert all(sentence.probability is not None for sentence in result.sentences)


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda f: (f / "config.json").unlink(), "config.json"),
        (lambda f: (f / "config.json").write_text("{"), "not JSON"),
        (lambda f: (f / "config.json").write_text("[" * 100_000), "not JSON"),
        (lambda f: (f / "config.json").write_text("[]"), "expected an object, found list"),
        (lambda f: _edit_config(f, hidden_size="many"), "not a deberta-v2 config"),
        (
            lambda f: _edit_config(f, model_type="bert"),
            "model_type 'bert', but the keys deberta.* are those of 'deberta-v2'",
        ),
        (lambda f: (f / "model.safetensors").unlink(), "model.safetensors: no such file"),
        (lambda f: (f / "model.safetensors").write_bytes(b"pickle"), "not a safetensors file"),
        (lambda f: (f / "tokenizer.json").unlink(), "tokenizer.json: no such file"),
        (
            lambda f: (f / "tokenizer.json").rename(f / "spm.model"),
            "found spm.model: save the tokenizer with transformers' fast class",
        ),
        (lambda f: _edit_config(f, vocab_size=8), "shapes: deberta.embeddings.word_embeddings"),
        (_bigger_tokenizer, "tokens with ids up to 95, the model only 94 embeddings"),
        (lambda f: _edit_config(f, pad_token_id=10**6), "not a deberta-v2 config: Padding_idx"),
        (
            lambda f: _edit_config(f, max_position_embeddings=10**13),
            "max_position_embeddings is 10000000000000, the limit is 1048576 tokens",
        ),
        (
            lambda f: _rewrite(f, lambda s: {**s, "module.classifier.bias": torch.ones(1)}),
            "expected one tensor classifier.bias, found several",
        ),
        (
            lambda f: _rewrite(
                f, lambda s: {**s, "classifier.weight": s["classifier.weight"].to(torch.int8)}
            ),
            "not plain floats: classifier.weight is int8",
        ),
        (lambda f: (f / "tokenizer.json").write_text("{}"), "tokenizer.json"),
        (
            lambda f: _rewrite(f, lambda s: {k: v for k, v in s.items() if "token_cl" not in k}),
            "missing: token_classifier.bias, token_classifier.weight",
        ),
        (
            lambda f: _rewrite(f, lambda s: {**s, "extra.weight": torch.ones(1)}),
            "unknown: extra.weight",
        ),
        (lambda f: _edit_config(f, hidden_size=96, pooler_hidden_size=96), "shapes: "),
        (lambda f: _edit_config(f, secateur={"window_tokens": 65}), "must be in [16, 64]"),
        (lambda f: _edit_config(f, secateur={"default_threshold": 1.5}), "must be in [0, 1]"),
        (lambda f: _edit_config(f, secateur={"default_keep_rule": "loud"}), "'loud'"),
        (
            lambda f: _edit_config(f, secateur={"default_keep_rule": "sentence_head"}),
            "provence has",
        ),
        (lambda f: _edit_config(f, secateur={"window_tokens": "64"}), "window_tokens is '64'"),
        (lambda f: _edit_config(f, secateur={"default_threshold": "low"}), "must be a number"),
        (lambda f: _edit_config(f, secateur={"treshold": 0.1}), "treshold"),
        (lambda f: _edit_config(f, secateur=["x"]), '"secateur" must be an object'),
        (lambda f: _edit_config(f, secateur={"id": 5}), "id is 5, must be a text"),
        (lambda f: _edit_config(f, secateur={"id": ""}), "id is '', must be a text"),
        (
            lambda f: _edit_config(f, secateur={"languages": "en"}),
            "languages is 'en', must be a list of codes",
        ),
        (lambda f: _edit_config(f, secateur={"languages": [5]}), "languages is [5], must be"),
        (lambda f: _edit_config(f, secateur={"family": ["x"]}), "family is ['x'], must be one of"),
        (
            lambda f: _edit_config(f, secateur={"family": "provance"}),
            "must be one of secateur, pro",
        ),
    ],
)
def test_a_broken_folder_names_what_is_wrong(
    tmp_path: Path, break_it: Callable[[Path], object], message: str
) -> None:
    tiny_provence(tmp_path)
    break_it(tmp_path)
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(tmp_path)
    assert message in str(caught.value)


def test_the_largest_token_id_counts(tmp_path: Path) -> None:
    """A vocabulary with a gap may have few tokens and still an id beyond the embeddings."""
    write("plain-bert", tmp_path)
    file = tmp_path / "tokenizer.json"
    content = json.loads(file.read_text())
    vocabulary = content["model"]["vocab"]
    vocabulary["valve"] = len(vocabulary) + 7
    file.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=r"tokens with ids up to \d+, the model only"):
        load_checkpoint(tmp_path)


def test_a_missing_folder_is_named() -> None:
    with pytest.raises(CheckpointError, match="no checkpoint folder at 'nowhere'"):
        load_checkpoint("nowhere")
