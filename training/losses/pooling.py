"""What the sentence losses share: the mean over a sentence's tokens.

Tokens of a batch are flat. Throughout this package ``margins`` [T] are keep minus drop logits
of passage tokens, ``owner`` [T] is the batch-wide sentence index of each, ``targets`` [S] is
the probability in [0, 1] that a sentence is to be kept, and ``passage`` [S] the batch row of
each sentence. Every loss returns a scalar mean.
"""

from __future__ import annotations

import torch
from torch import Tensor


def pooled(values: Tensor, owner: Tensor, sentences: int) -> Tensor:
    """Mean of ``values`` [T] over the tokens of each sentence: [S]; 0 for one without tokens."""
    zero = values.new_zeros(sentences)
    count = zero.index_add(0, owner, torch.ones_like(values)).clamp(min=1)
    return zero.index_add(0, owner, values) / count
