"""Distillation of the passage score, pointwise (Provence keeps its teacher's score so)."""

from __future__ import annotations

from torch import Tensor


def teacher_score_loss(scores: Tensor, teacher: Tensor) -> Tensor:
    """Mean squared error of passage logits [B] to a teacher's; NaN marks rows without one."""
    known = ~teacher.isnan()
    difference = (scores - teacher.nan_to_num()) * known
    return difference.square().sum() / known.sum().clamp(min=1)
