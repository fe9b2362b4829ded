"""The torch step on a tiny model whose outputs can be told by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from families_originals import write
from torch import Tensor, nn

from secateur.errors import InvariantError
from secateur.model.batching import run_within_memory
from secateur.model.engine import EncodedWindow, WindowOutput
from secateur.model.pruner import load_engine
from secateur.model.scorer import TorchScorer, to_device
from secateur.model.two_heads import TwoHeadModel
from secateur.types import Passage, PruneOptions


class TinyEncoder(nn.Module):
    """Hidden states (0, id)."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.seen: list[tuple[Tensor, Tensor, Tensor | None]] = []

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> SimpleNamespace:
        assert not torch.is_grad_enabled()
        self.seen.append((input_ids, attention_mask, token_type_ids))
        ids = input_ids.to(self.weight.dtype) * self.weight
        return SimpleNamespace(last_hidden_state=torch.stack([torch.zeros_like(ids), ids], -1))


class SumScore(nn.Module):
    """The sum of the ids that the mask shows, in hundredths, times a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, hidden: Tensor, attention_mask: Tensor) -> Tensor:
        return (hidden[:, :, 1] * attention_mask * self.weight).sum(dim=1) / 100


def tiny_model(**changes: Any) -> TwoHeadModel:
    """Token logits are the hidden states: (0, id)."""
    token = nn.Linear(2, 2, bias=False)
    nn.init.eye_(token.weight)
    parts: dict[str, Any] = {"encoder": TinyEncoder(), "score": SumScore(), "token": token}
    return TwoHeadModel(**{**parts, "token_types": True, **changes})


def encoder_of(model: TwoHeadModel) -> TinyEncoder:
    assert isinstance(model.encoder, TinyEncoder)
    return model.encoder


def window(
    passage: Sequence[int], query: Sequence[int] = (7,), sentences: np.ndarray | None = None
) -> EncodedWindow:
    ids = np.array([2, *query, 3, *passage, 3], dtype=np.int64)
    types = np.array([0] * (len(query) + 2) + [1] * (len(passage) + 1), dtype=np.int64)
    place = slice(len(query) + 2, len(query) + 2 + len(passage))
    return EncodedWindow(ids, types, place, sentences)


def test_one_padded_pass() -> None:
    """Rows are padded with the pad id and masked; types continue as 0."""
    model = tiny_model()
    TorchScorer(model, pad_id=9).run([window([4, 5, 6]), window([8])])
    ((ids, mask, types),) = encoder_of(model).seen
    assert ids.tolist() == [[2, 7, 3, 4, 5, 6, 3], [2, 7, 3, 8, 3, 9, 9]]
    assert mask.tolist() == [[1] * 7, [1] * 5 + [0] * 2]
    assert types is not None
    assert types.tolist() == [[0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 1, 1, 0, 0]]


@pytest.mark.parametrize(("longest", "length"), [(None, 16), (16, 16), (12, 12), (9, 9)])
def test_rows_on_cuda_are_aligned(
    monkeypatch: pytest.MonkeyPatch, longest: int | None, length: int
) -> None:
    """To 8 tokens, but not beyond the encoder's positions; the outputs are the same."""
    model = tiny_model()
    scorer = TorchScorer(model, longest=longest)
    windows = [window([4, 5, 6, 7, 8]), window([1])]
    plain = scorer.run(windows)
    copies = []

    def copy(array: np.ndarray, device: torch.device) -> Tensor:
        copies.append(device)
        return torch.from_numpy(array)

    monkeypatch.setattr(scorer, "device", torch.device("cuda:1"))
    monkeypatch.setattr("secateur.model.scorer.to_device", copy)
    aligned = scorer.run(windows)
    assert encoder_of(model).seen[1][0].shape == (2, length)
    assert copies == [torch.device("cuda:1")]
    for ours, theirs in zip(aligned, plain, strict=True):
        assert ours.relevance_logit == theirs.relevance_logit
        np.testing.assert_array_equal(ours.keep_probabilities, theirs.keep_probabilities)


def test_copies_to_cuda_are_pinned_and_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[Any] = []

    def pin(tensor: Tensor) -> Tensor:
        steps.append("pin")
        return tensor

    def to(tensor: Tensor, device: torch.device, *, non_blocking: bool = False) -> Tensor:
        steps.append((device.type, non_blocking))
        return tensor

    monkeypatch.setattr(Tensor, "pin_memory", pin)
    monkeypatch.setattr(Tensor, "to", to)
    assert to_device(np.arange(3), torch.device("cuda")).tolist() == [0, 1, 2]
    to_device(np.arange(3), torch.device("mps"))
    assert steps == ["pin", ("cuda", True), ("mps", False)]


def test_an_encoder_without_types_gets_none() -> None:
    """XLM-R has one type embedding: a 1 would be out of its range."""
    model = tiny_model(token_types=False)
    TorchScorer(model).run([window([4])])
    assert encoder_of(model).seen[0][2] is None


def test_outputs() -> None:
    """Raw logit, and the second class's softmax of the passage tokens alone."""
    first, second = TorchScorer(tiny_model()).run([window([0, 1, 2]), window([3])])
    assert first.relevance_logit == pytest.approx(0.18)
    assert first.keep_probabilities is not None
    assert first.keep_probabilities.dtype == np.float32
    assert first.keep_probabilities.tolist() == pytest.approx([0.5, 0.731059, 0.880797], abs=1e-6)
    assert second.keep_probabilities is not None
    assert second.keep_probabilities.tolist() == pytest.approx([0.952574], abs=1e-6)
    assert TorchScorer(tiny_model()).run([]) == []


def test_heads_that_are_missing() -> None:
    """A plain reranker has no probabilities, a sentence highlighter no score."""
    (plain,) = TorchScorer(tiny_model(token=None)).run([window([1, 2])])
    assert plain.keep_probabilities is None
    assert plain.relevance_logit == pytest.approx(0.18)
    (bare,) = TorchScorer(tiny_model(score=None)).run([window([1, 2])])
    assert bare.relevance_logit is None
    assert bare.keep_probabilities is not None


def test_sentences_are_scored_by_their_mean_vector() -> None:
    """Every token has its sentence's probability: sigmoid(2), sigmoid(5); a space's is 0.5."""
    scorer = TorchScorer(tiny_model(pools_sentences=True))
    given = [
        window([1, 3, 0, 5], sentences=np.array([4, 4, -1, 5])),
        window([2], sentences=np.array([0])),
        window([9], sentences=np.array([-1])),
    ]
    found = [output.keep_probabilities for output in scorer.run(given)]
    assert [None if p is None else p.tolist() for p in found] == [
        pytest.approx([0.880797, 0.880797, 0.5, 0.993307], abs=1e-6),
        pytest.approx([0.880797], abs=1e-6),
        [0.5],
    ]
    with pytest.raises(InvariantError, match="this is a bug"):
        scorer.run([window([1])])


def test_batched_equals_single() -> None:
    """F12: alone, together, reversed, the same numbers to the last bit of this model."""
    scorer = TorchScorer(tiny_model())
    batch = [window(list(range(n))) for n in (3, 40, 300)]
    alone = [scorer.run([w])[0] for w in batch]
    together = scorer.run(batch)
    backwards = scorer.run(batch[::-1])[::-1]
    for a, b, c in zip(alone, together, backwards, strict=True):
        assert a.relevance_logit == b.relevance_logit == c.relevance_logit
        np.testing.assert_array_equal(a.keep_probabilities, b.keep_probabilities)
        np.testing.assert_array_equal(a.keep_probabilities, c.keep_probabilities)


def test_bfloat16_is_for_the_encoder_alone() -> None:
    """F16: bfloat16's softmax is exactly 1.0 from a logit of 6.5; its heads round scores."""
    model = tiny_model()
    (output,) = TorchScorer(model, dtype="bfloat16").run([window([7, 8])])
    assert {p.dtype for p in model.encoder.parameters()} == {torch.bfloat16}
    heads = [p for name, p in model.named_parameters() if not name.startswith("encoder.")]
    assert len(heads) == 2
    assert {p.dtype for p in heads} == {torch.float32}
    assert output.relevance_logit == pytest.approx(0.3, abs=1e-7)  # bfloat16: 0.30078125
    assert output.keep_probabilities is not None
    first, second = output.keep_probabilities.tolist()
    assert 0.999 < first < second < 1.0


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_logits_that_are_not_finite_give_no_probability(value: float) -> None:
    """The softmax of (-inf, 0) is a clean 1.0: it would be kept, and look sure."""
    model = tiny_model()
    assert isinstance(model.token, nn.Linear)
    with torch.no_grad():
        model.token.weight[0, 0] = value
    (output,) = TorchScorer(model).run([window([1, 2])])
    assert output.keep_probabilities is not None
    assert np.isnan(output.keep_probabilities).all()


def test_unknown_dtypes_are_refused() -> None:
    """float16 overflows in DeBERTa, with results that are not finite."""
    with pytest.raises(ValueError, match=r"65,504.*use one of auto, float32, bfloat16, int8"):
        TorchScorer(tiny_model(), dtype="float16")
    with pytest.raises(ValueError, match=r"'int4' is unknown; use one of auto"):
        TorchScorer(tiny_model(), dtype="int4")


class Broken(TinyEncoder):
    """Fails with ``error``; without one it asks the CPU for four petabytes."""

    def __init__(self, error: Exception | None) -> None:
        super().__init__()
        self.error = error

    def forward(  # type: ignore[override]
        self, *args: Tensor, **kwargs: Tensor
    ) -> SimpleNamespace:
        if self.error is not None:
            raise self.error
        return SimpleNamespace(last_hidden_state=torch.empty(10**15))


@pytest.mark.parametrize(
    "error",
    [
        None,
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("MPS backend out of memory (MPS allocated: 9 GB)"),
    ],
)
def test_out_of_memory_is_memory_error(error: Exception | None) -> None:
    """Only this step knows torch's own errors; the batcher retries on MemoryError."""
    with pytest.raises(MemoryError):
        TorchScorer(tiny_model(encoder=Broken(error))).run([window([1])])


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
@pytest.mark.parametrize("kind", ["open_provence", "open_provence-bert", "zilliz_highlight"])
def test_low_precision_alone_as_in_a_batch(kind: str, dtype: str, tmp_path: Path) -> None:
    """Encoders that would be padded, too: padding moves sums by an ulp, rounding makes it more."""
    write(kind, tmp_path)
    engine = load_engine(tmp_path, dtype=dtype)
    query = engine.prepare_query("what opens the valve?", PruneOptions())
    texts = [Passage("valve opens ! code 77 hall quiet " * n) for n in (1, 2, 5, 3)]
    windows = [w for p in engine.prepare_passages(query, texts) for w in p.windows]
    for window_, together in zip(windows, engine.run(windows), strict=True):
        (alone,) = engine.run([window_])
        assert alone.relevance_logit == pytest.approx(together.relevance_logit, abs=1e-5)
        assert alone.keep_probabilities == pytest.approx(together.keep_probabilities, abs=1e-5)


def test_another_failure_is_not_out_of_memory() -> None:
    with pytest.raises(RuntimeError, match="no kernel"):
        TorchScorer(tiny_model(encoder=Broken(RuntimeError("no kernel")))).run([window([1])])


def test_cpu_out_of_memory_halves_the_batch() -> None:
    """A passage that fits alone is scored although its batch does not fit."""

    class Small(TinyEncoder):
        def forward(self, input_ids: Tensor, *args: Any, **kwargs: Any) -> SimpleNamespace:
            if len(input_ids) > 1:
                torch.empty(10**15)
            return super().forward(input_ids, *args, **kwargs)

    scorer = TorchScorer(tiny_model(encoder=Small()))
    windows = [window([n]) for n in (4, 5, 6)]
    outputs = run_within_memory(scorer.run, windows)
    assert all(isinstance(output, WindowOutput) for output in outputs)
