"""Cross-entropy over passage tokens, the pruning loss of Provence (arXiv 2501.16214)."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


def token_loss(margins: Tensor, owner: Tensor, targets: Tensor) -> Tensor:
    """Binary cross-entropy of each token [T], with its sentence's target.

    Long sentences weigh more, and the few kept ones hardly move the mean: learns slowly alone.
    """
    return functional.binary_cross_entropy_with_logits(margins, targets[owner])
