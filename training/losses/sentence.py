"""Balanced cross-entropy of whole sentences."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from secateur.training.losses.pooling import pooled


def sentence_loss(
    margins: Tensor, owner: Tensor, targets: Tensor, positive_weight: float
) -> Tensor:
    """Cross-entropy of the sentence's mean probability, which is what the keep rule reads.

    positive_weight: weight of a sentence of target 1 against one of target 0 (kept ones are
    rare); targets between are weighted between.
    """
    mean = pooled(margins.sigmoid(), owner, len(targets)).clamp(1e-5, 1 - 1e-5)
    weight = 1 + (positive_weight - 1) * targets
    loss = functional.binary_cross_entropy(mean, targets, weight=weight, reduction="sum")
    return loss / weight.sum()
