"""Any family becomes a folder of ours that loads as the same family and answers the same."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from families_originals import KINDS, build, save, state, write
from one_thread import one_thread  # noqa: F401 - a fixture
from safetensors import SafetensorError
from safetensors.torch import load_file

from secateur import CheckpointError
from secateur.model.checkpoints import convert as module
from secateur.model.checkpoints.convert import convert
from secateur.model.checkpoints.load import load_checkpoint
from secateur.model.pruner import Pruner
from secateur.types import PruneOptions

TEXTS = ["The red valve opens. 弁は青い。 Lunch was late.", "Cafe\u0301 open. " * 30]


@pytest.mark.parametrize("kind", KINDS)
def test_round_trip(tmp_path: Path, kind: str) -> None:
    write(kind, tmp_path / "theirs")
    done = convert(tmp_path / "theirs", tmp_path / "ours")
    assert (done.id, done.family, done.dtype) == ("theirs", KINDS[kind].family, "float32")
    assert done.score_difference in {None, 0.0}
    assert done.token_difference in {None, 0.0}
    assert sorted(path.name for path in (tmp_path / "ours").iterdir()) == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    ]
    before, after = load_checkpoint(tmp_path / "theirs"), load_checkpoint(tmp_path / "ours")
    assert after.settings == replace(before.settings, revision=after.settings.revision)
    options = PruneOptions(threshold=None if before.family.can_prune else 0)
    answers = [
        Pruner.load(tmp_path / name).rerank_and_prune("What is the Code?", TEXTS, options).results
        for name in ("theirs", "ours")
    ]
    assert answers[0] == answers[1]


def test_settings_of_the_config_survive(tmp_path: Path) -> None:
    """A shorter window, a threshold of its own, languages."""
    model, tokenizer, config = build(KINDS["open_provence"])
    own = {"languages": ["en", "ja"], "id": "a-name"}
    changed = {**config, "max_length": 48, "default_threadshold": 0.2, "secateur": own}
    save(tmp_path / "theirs", state(model), tokenizer, changed)
    convert(tmp_path / "theirs", tmp_path / "ours")
    settings = load_checkpoint(tmp_path / "ours").settings
    assert (settings.id, settings.window_tokens, settings.default_threshold) == ("a-name", 48, 0.2)
    assert settings.languages == ("en", "ja")


def test_float16_is_half_the_size_and_measured(tmp_path: Path) -> None:
    write("provence", tmp_path / "theirs")
    done = convert(tmp_path / "theirs", tmp_path / "ours", dtype="float16")
    assert done.token_difference is not None
    assert 0 < done.token_difference < done.bound == 0.05
    tensors = load_file(tmp_path / "ours" / "model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {torch.float16}


def test_what_float16_cannot_hold_is_refused(tmp_path: Path) -> None:
    """A weight above 65,504 becomes infinite; nothing is left behind."""
    model, tokenizer, config = build(KINDS["plain-bert"])
    tensors = state(model)
    tensors["classifier.bias"] = torch.full((1,), 1e6)
    save(tmp_path / "theirs", tensors, tokenizer, config)
    with pytest.raises(CheckpointError, match=r"as float16 a score logit moves by inf"):
        convert(tmp_path / "theirs", tmp_path / "ours", dtype="float16")
    assert [path.name for path in tmp_path.iterdir()] == ["theirs"]
    convert(tmp_path / "theirs", tmp_path / "ours")


def test_a_difference_above_the_bound_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("xprovence", tmp_path / "theirs")
    monkeypatch.setitem(module.BOUNDS, "float16", 1e-9)
    with pytest.raises(CheckpointError, match=r"logit moves by .*, the bound is 1e-09"):
        convert(tmp_path / "theirs", tmp_path / "ours", dtype="float16")
    assert not (tmp_path / "ours").exists()


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    write("plain-bert", tmp_path / "theirs")
    before = (tmp_path / "theirs" / "config.json").read_text()
    with pytest.raises(CheckpointError, match="is there already; give the name of a new folder"):
        convert(tmp_path / "theirs", tmp_path / "theirs")
    (tmp_path / "ours.partial").mkdir()
    with pytest.raises(CheckpointError, match="left by a conversion; remove it"):
        convert(tmp_path / "theirs", tmp_path / "ours")
    assert (tmp_path / "ours.partial").is_dir()
    assert (tmp_path / "theirs" / "config.json").read_text() == before
    with pytest.raises(ValueError, match="'bfloat16' is unknown; use one of float32, float16"):
        convert(tmp_path / "theirs", tmp_path / "ours", dtype="bfloat16")


def test_config_says_family_and_encoder(tmp_path: Path) -> None:
    write("zilliz_highlight", tmp_path / "theirs")
    convert(tmp_path / "theirs", tmp_path / "ours")
    config = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert config["model_type"] == "xlm-roberta"
    assert config["secateur"]["family"] == "zilliz_highlight"
    assert "base_model_config" not in config
    keys = load_file(tmp_path / "ours" / "model.safetensors").keys()
    assert {key.partition(".")[0] for key in keys} == {"ranking_model", "pruning_head"}


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """safetensors and tokenizers have errors of their own for it; nothing is left behind."""

    def full(*_: object, **__: object) -> None:
        raise SafetensorError("I/O error: No space left on device")

    write("plain-bert", tmp_path / "theirs")
    monkeypatch.setattr(module, "save_file", full)
    with pytest.raises(CheckpointError, match="cannot be written: I/O error: No space left"):
        convert(tmp_path / "theirs", tmp_path / "ours")
    assert [path.name for path in tmp_path.iterdir()] == ["theirs"]
