"""Distillation of the passage score, pairwise: Margin-MSE (arXiv 2010.02666)."""

from __future__ import annotations

from torch import Tensor


def teacher_margin_loss(scores: Tensor, teacher: Tensor, question: Tensor) -> Tensor:
    """Mean squared error of score differences within a question to the teacher's.

    scores, teacher: logits [B], NaN where the teacher is silent; question: int64 [B]. Every
    ordered pair of candidates counts; zero without any pair. Unlike the pointwise loss it
    leaves the scale's origin free.
    """
    known = ~teacher.isnan()
    gap = scores - teacher.nan_to_num()  # [B]; the pair's error is the gap's difference
    pair = (question[:, None] == question[None, :]) & known[:, None] & known[None, :]
    pair.fill_diagonal_(False)
    error = (gap[:, None] - gap[None, :]).square() * pair
    return error.sum() / pair.sum().clamp(min=1)
