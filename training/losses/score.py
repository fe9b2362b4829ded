"""Pointwise loss of the passage score."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


def score_loss(scores: Tensor, relevant: Tensor) -> Tensor:
    """Binary cross-entropy of passage logits [B] against relevance [B] (0 or 1)."""
    return functional.binary_cross_entropy_with_logits(scores, relevant)
