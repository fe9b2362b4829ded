"""The torch step on a tiny model whose outputs can be told by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from secateur.model.engine import EncodedWindow
from secateur.model.scorer import TorchScorer


class TinyModel(nn.Module):
    """Score: the sum of the ids that the mask shows, in hundredths; token logits: (0, id)."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.seen: list[tuple[Tensor, Tensor, Tensor]] = []

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor
    ) -> tuple[Tensor, Tensor]:
        assert not torch.is_grad_enabled()
        self.seen.append((input_ids, attention_mask, token_type_ids))
        ids = input_ids.to(self.weight.dtype) * self.weight
        score = (ids * attention_mask).sum(dim=1) / 100
        return score, torch.stack([torch.zeros_like(ids), ids], dim=-1)


def window(passage: Sequence[int], query: Sequence[int] = (7,)) -> EncodedWindow:
    ids = np.array([2, *query, 3, *passage, 3], dtype=np.int64)
    types = np.array([0] * (len(query) + 2) + [1] * (len(passage) + 1), dtype=np.int64)
    return EncodedWindow(ids, types, slice(len(query) + 2, len(query) + 2 + len(passage)))


def test_one_padded_pass() -> None:
    """Rows are padded with the pad id and masked; types continue as 0."""
    model = TinyModel()
    TorchScorer(model, pad_id=9).run([window([4, 5, 6]), window([8])])
    ((ids, mask, types),) = model.seen
    assert ids.tolist() == [[2, 7, 3, 4, 5, 6, 3], [2, 7, 3, 8, 3, 9, 9]]
    assert mask.tolist() == [[1] * 7, [1] * 5 + [0] * 2]
    assert types.tolist() == [[0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 1, 1, 0, 0]]


def test_outputs() -> None:
    """Raw logit, and the second class's softmax of the passage tokens alone."""
    first, second = TorchScorer(TinyModel()).run([window([0, 1, 2]), window([3])])
    assert first.relevance_logit == pytest.approx(0.18)
    assert first.keep_probabilities is not None
    assert first.keep_probabilities.dtype == np.float32
    assert first.keep_probabilities.tolist() == pytest.approx([0.5, 0.731059, 0.880797], abs=1e-6)
    assert second.keep_probabilities is not None
    assert second.keep_probabilities.tolist() == pytest.approx([0.952574], abs=1e-6)
    assert TorchScorer(TinyModel()).run([]) == []


def test_batched_equals_single() -> None:
    """F12: alone, together, reversed, the same numbers to the last bit of this model."""
    scorer = TorchScorer(TinyModel())
    batch = [window(list(range(n))) for n in (3, 40, 300)]
    alone = [scorer.run([w])[0] for w in batch]
    together = scorer.run(batch)
    backwards = scorer.run(batch[::-1])[::-1]
    for a, b, c in zip(alone, together, backwards, strict=True):
        assert a.relevance_logit == b.relevance_logit == c.relevance_logit
        np.testing.assert_array_equal(a.keep_probabilities, b.keep_probabilities)
        np.testing.assert_array_equal(a.keep_probabilities, c.keep_probabilities)


def test_bfloat16_activations_are_float32() -> None:
    """F16: bfloat16's softmax gives exactly 1.0 from a logit of 6.5."""
    model = TinyModel()
    (output,) = TorchScorer(model, dtype="bfloat16").run([window([7, 8])])
    assert model.weight.dtype == torch.bfloat16
    assert output.keep_probabilities is not None
    first, second = output.keep_probabilities.tolist()
    assert 0.999 < first < second < 1.0


def test_unknown_dtypes_are_refused() -> None:
    """float16 overflows on this CPU; int8 has not landed."""
    with pytest.raises(ValueError, match="'float16' is unknown; use one of float32, bfloat16"):
        TorchScorer(TinyModel(), dtype="float16")


def test_out_of_memory_is_memory_error() -> None:
    """Only this step knows torch's own error; the batcher retries on MemoryError."""

    class Greedy(TinyModel):
        def forward(self, *args: Tensor, **kwargs: Tensor) -> tuple[Tensor, Tensor]:
            raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(MemoryError):
        TorchScorer(Greedy()).run([window([1])])
