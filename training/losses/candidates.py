"""Listwise loss of the passage score: a question's candidates compete (ListNet, top one)."""

from __future__ import annotations

from torch import Tensor

from secateur.training.losses.listwise import group_cross_entropy


def candidates_loss(scores: Tensor, relevant: Tensor, question: Tensor) -> Tensor:
    """Softmax of passage logits [B] over each question's candidates.

    relevant: 0 or 1 [B]. question: int64 [B], the batch-wide question of each row. A question
    with one candidate only, or without a relevant one, adds nothing.
    """
    size = question.bincount()
    alone = (size == 1)[question]
    return group_cross_entropy(scores, (relevant > 0) & ~alone, question)
