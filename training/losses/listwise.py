"""Sentences of one passage compete: which of them answer?"""

from __future__ import annotations

import torch
from torch import Tensor

from secateur.training.losses.pooling import pooled


def group_cross_entropy(values: Tensor, positive: Tensor, group: Tensor) -> Tensor:
    """Softmax of ``values`` [N] within each group; target: uniform over its positives.

    positive: bool [N]; group: int64 [N] in [0, groups). Mean over the groups that have a
    positive; zero when none has.
    """
    groups = int(group.max()) + 1
    largest = values.new_full((groups,), -torch.inf).scatter_reduce(0, group, values, "amax")
    largest = largest.detach()
    total = values.new_zeros(groups).index_add(0, group, (values - largest[group]).exp())
    log_share = values - largest[group] - total.clamp(min=1e-30).log()[group]  # [N]
    target = positive.to(values.dtype)
    positives = values.new_zeros(groups).index_add(0, group, target)  # [groups]
    loss = -(log_share * target / positives[group].clamp(min=1)).sum()
    return loss / (positives > 0).sum().clamp(min=1)


def listwise_loss(margins: Tensor, owner: Tensor, targets: Tensor, passage: Tensor) -> Tensor:
    """Group cross-entropy of the sentences' mean margins within a passage.

    Positive are sentences of target 0.5 or more.
    """
    score = pooled(margins, owner, len(targets))
    return group_cross_entropy(score, targets >= 0.5, passage)
