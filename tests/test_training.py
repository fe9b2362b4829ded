"""Rows become labelled windows, losses equal their plain form, a run resumes exactly."""

from __future__ import annotations

import json
import lzma
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tiny import tiny_bert, tiny_tokenizer
from torch.nn import functional

from secateur.model.checkpoint import load_checkpoint
from secateur.training import losses
from secateur.training.config import TrainConfig
from secateur.training.data import (
    Example,
    WindowEncoder,
    add_negatives,
    example_from_row,
    length_bucketed_batches,
    read_rows,
)
from secateur.training.export import export
from secateur.training.train import collate, train
from secateur.types import KeepRule


def split(text: str, language: str) -> list[tuple[int, int]]:
    """Sentences end at a full stop; enough for rows made here."""
    spans, start = [], 0
    for part in text.split(". "):
        spans.append((start, min(start + len(part) + 1, len(text))))
        start += len(part) + 2
    return spans


ROW: dict[str, Any] = {
    "question": "what opens?",
    "title": "Red_valve",
    "passage": "The hall is quiet. The valve opens today. A pump.",
    "answers": [{"text": "valve opens", "start": 23}],
    "relevant": True,
}


def test_a_sentence_that_overlaps_an_answer_is_positive() -> None:
    example = example_from_row(ROW, split)
    assert example is not None
    assert example.labels == (0, 1, 0)
    assert example.title == "Red valve"


@pytest.mark.parametrize(
    ("change", "labels"),
    [
        ({"answers": [{"text": "valve opens", "start": None}]}, (0, 1, 0)),
        ({"answers": [{"text": "nowhere", "start": None}]}, None),
        ({"question": " "}, None),
        ({"answers": []}, None),
        ({"relevant": False}, (0, 0, 0)),
        ({"sentences": [[0, 18], [19, 49]], "labels": [1, 0]}, (1, 0)),
        ({"sentences": [[0, 18], [19, 49]], "labels": [0, 0]}, None),
    ],
)
def test_odd_rows(change: dict[str, Any], labels: tuple[int, ...] | None) -> None:
    example = example_from_row({**ROW, **change}, split)
    assert (example and example.labels) == labels


def test_windows_cut_at_sentences_and_keep_every_sentence() -> None:
    sentences = [(i * 16, i * 16 + 15) for i in range(12)]
    passage = " ".join(["the valve is re"] * 12)
    example = Example("what is red?", "hall", passage, tuple(sentences), (0, 1) * 6)
    windows = WindowEncoder(tiny_tokenizer(), 32).windows(example)
    assert all(len(window) <= 32 for window in windows)
    assert np.concatenate([window.labels for window in windows]).tolist() == [0, 1] * 6
    for window in windows:
        inside = window.sentence[window.sentence >= 0]
        assert set(inside) == set(range(len(window.labels)))
        assert window.token_type_ids[window.sentence >= 0].min() == 1


def test_negatives_pair_a_question_with_another_passage() -> None:
    examples = [Example(f"q{i}", "t", f"p{i}", ((0, 2),), (1,)) for i in range(8)]
    negatives = add_negatives(examples, 0.5, random.Random(0))
    assert 0 < len(negatives) <= 4
    assert all(n.query[1:] != n.passage[1:] and not n.relevant for n in negatives)


def test_batches_hold_every_window_once_within_the_budget() -> None:
    lengths = [random.Random(1).randrange(5, 60) for _ in range(200)]
    batches = length_bucketed_batches(lengths, 128, random.Random(0), pool=64)
    assert sorted(index for batch in batches for index in batch) == list(range(200))
    assert all(max(lengths[i] for i in batch) * len(batch) <= 128 for batch in batches)


def test_losses_equal_their_plain_form() -> None:
    torch.manual_seed(0)
    margins = torch.randn(9)
    owner = torch.tensor([0, 0, 1, 1, 1, 2, 3, 3, 4])
    labels = torch.tensor([1, 0, 0, 0, 1])
    passage = torch.tensor([0, 0, 0, 1, 1])
    token, sentence, listwise = [], [], []
    means = [margins[owner == s].mean() for s in range(5)]
    for s in range(5):
        p = margins[owner == s].sigmoid().mean()
        sentence.append(-2 * p.log() if labels[s] else -(1 - p).log())
        target = labels[s].float()
        token += [
            functional.binary_cross_entropy_with_logits(m, target) for m in margins[owner == s]
        ]
    for row in range(2):
        members = [s for s in range(5) if passage[s] == row]
        share = torch.stack([means[s] for s in members]).log_softmax(0)
        listwise.append(-share[[bool(labels[s]) for s in members]].mean())
    assert losses.token_loss(margins, owner, labels) == pytest.approx(torch.stack(token).mean())
    expected = torch.stack(sentence).sum() / (2 * 2 + 3)
    assert losses.sentence_loss(margins, owner, labels, 2.0) == pytest.approx(expected)
    assert losses.listwise_loss(margins, owner, labels, passage) == pytest.approx(
        torch.stack(listwise).mean()
    )


def test_listwise_loss_without_a_positive_is_zero() -> None:
    zero = torch.zeros(2, dtype=torch.long)
    loss = losses.listwise_loss(torch.randn(3), torch.tensor([0, 0, 1]), zero, zero)
    assert float(loss) == 0.0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "stages: at least one"),
        ({"stages": [{"name": "a", "max_length": 32}], "batch_token": 1}, "batch_token"),
        ({"stages": [{"name": "a", "max_len": 32}]}, "stages[0]"),
        ({"stages": [{"name": "a", "max_length": 32, "sets": [{"file": "x"}]}]}, "sets[0]"),
    ],
)
def test_an_unknown_setting_is_an_error(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=r"\w") as caught:
        TrainConfig.from_dict(values)
    assert message in str(caught.value)


def test_bad_json_names_its_line(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"a": 1}\n{')
    with pytest.raises(ValueError, match=r"x\.jsonl:2"):
        list(read_rows(tmp_path / "x.jsonl"))


def _write_set(folder: Path) -> None:
    with lzma.open(folder / "toy.jsonl.xz", "wt") as file:
        for number in range(24):
            row = {**ROW, "question": f"what opens {number}?"}
            file.write(json.dumps(row) + "\n")


def test_a_stopped_run_resumes_to_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped after a checkpoint and started again, a run ends as if it had never stopped."""
    tiny_bert(tmp_path / "bert")
    monkeypatch.setattr("secateur.training.train.packaged_minilm", lambda: tmp_path / "bert")
    _write_set(tmp_path)
    stage = {"name": "a", "max_length": 48, "sets": [{"name": "toy", "negatives": 0.2}]}
    config = TrainConfig.from_dict({"stages": [stage], "batch_tokens": 128, "checkpoint_every": 3})
    train(config, tmp_path, tmp_path / "whole", split, 1)

    calls = 0

    def stop_at_five(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 5:
            raise KeyboardInterrupt
        return collate(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr("secateur.training.train.collate", stop_at_five)
        with pytest.raises(KeyboardInterrupt):
            train(config, tmp_path, tmp_path / "parts", split, 1)
    train(config, tmp_path, tmp_path / "parts", split, 1)
    whole = load_file(tmp_path / "whole" / "model" / "model.safetensors")
    parts = load_file(tmp_path / "parts" / "model" / "model.safetensors")
    assert all(torch.equal(whole[key], parts[key]) for key in whole)

    other = TrainConfig.from_dict({"stages": [stage], "seed": 5})
    with pytest.raises(ValueError, match="another config"):
        train(other, tmp_path, tmp_path / "whole", split, 1)

    export(
        tmp_path / "whole" / "model",
        tmp_path / "shipped",
        model_id="toy",
        threshold=0.3,
        keep_rule=KeepRule.MEAN_PROBABILITY,
        window_tokens=48,
    )
    settings = load_checkpoint(tmp_path / "shipped").settings
    assert (settings.id, settings.window_tokens) == ("toy", 48)
