"""The joint loss of the two heads.

Tokens of a batch are flat: ``margins`` [T] are keep minus drop logits of passage tokens,
``owner`` [T] the batch-wide sentence index of each, ``labels`` [S] 0 or 1 a sentence and
``passage`` [S] the batch row of each sentence. Every function returns a scalar mean.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def token_loss(margins: Tensor, owner: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy over passage tokens, each labelled as its sentence (Provence's loss)."""
    return functional.binary_cross_entropy_with_logits(margins, labels[owner].float())


def pooled(values: Tensor, owner: Tensor, sentences: int) -> Tensor:
    """Mean of ``values`` [T] over the tokens of each sentence: [S]."""
    zero = values.new_zeros(sentences)
    count = zero.index_add(0, owner, torch.ones_like(values)).clamp(min=1)
    return zero.index_add(0, owner, values) / count


def sentence_loss(margins: Tensor, owner: Tensor, labels: Tensor, positive_weight: float) -> Tensor:
    """Cross-entropy of the sentence's mean probability, which is what the keep rule reads.

    positive_weight: weight of a positive sentence against a negative one (they are rare).
    """
    mean = pooled(margins.sigmoid(), owner, len(labels)).clamp(1e-5, 1 - 1e-5)
    target = labels.float()
    weight = 1 + (positive_weight - 1) * target
    loss = functional.binary_cross_entropy(mean, target, weight=weight, reduction="sum")
    return loss / weight.sum()


def listwise_loss(margins: Tensor, owner: Tensor, labels: Tensor, passage: Tensor) -> Tensor:
    """Softmax over a passage's sentences by mean margin; target: uniform over positives.

    Zero when no passage of the batch has a positive sentence.
    """
    score = pooled(margins, owner, len(labels))
    rows = int(passage.max()) + 1
    largest = score.new_full((rows,), -torch.inf).scatter_reduce(0, passage, score, "amax")
    largest = largest.detach()
    exponent = (score - largest[passage]).exp()
    total = score.new_zeros(rows).index_add(0, passage, exponent)
    log_share = score - largest[passage] - total.log()[passage]  # [S]
    target = labels.float()
    positives = score.new_zeros(rows).index_add(0, passage, target)  # [rows]
    loss = -(log_share * target / positives[passage].clamp(min=1)).sum()
    return loss / (positives > 0).sum().clamp(min=1)


def score_loss(scores: Tensor, relevant: Tensor) -> Tensor:
    """Binary cross-entropy of the passage score [B] against relevance [B] (0 or 1)."""
    return functional.binary_cross_entropy_with_logits(scores, relevant)
