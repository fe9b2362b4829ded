"""Single rows: their own F1, and what exactly went wrong in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from secateur.training.evaluation.arrays import SentenceArrays
from secateur.training.evaluation.metrics import Bools, Floats, confusion, fractions
from secateur.training.evaluation.rows import LabelledRow

WORST = 20
"""How many of the worst items a result shows."""


@dataclass(frozen=True, slots=True)
class Item:
    """One row's mistakes. f1: strict. dropped: sentences that should have been kept, in order.

    wrongly_kept: sentences that should not have been.
    """

    id: str
    question: str
    f1: float
    dropped: tuple[str, ...]
    wrongly_kept: tuple[str, ...]


def item_f1(arrays: SentenceArrays, kept: Bools) -> Floats:
    """Strict F1 of each row: float64 [rows]; 1 where nothing was to be kept and nothing was."""
    f1: Floats = fractions(*confusion(kept, arrays.labels, arrays.row_starts))[2]
    return f1


def items(rows: Sequence[LabelledRow], arrays: SentenceArrays, kept: Bools) -> list[Item]:
    """Every row with its mistakes, in order."""
    decisions = np.split(kept, arrays.row_starts[1:])
    f1 = item_f1(arrays, kept).tolist()
    return [_item(*parts) for parts in zip(rows, decisions, f1, strict=True)]


def worst(every: Sequence[Item]) -> list[Item]:
    """The ``WORST`` lowest F1, most mistakes first among equals; none without a mistake."""
    faulty = [item for item in every if item.f1 < 1]
    faulty.sort(key=lambda item: (item.f1, -len(item.dropped) - len(item.wrongly_kept)))
    return faulty[:WORST]


def _item(row: LabelledRow, kept: Bools, f1: float) -> Item:
    decisions = list(enumerate(zip(kept.tolist(), row.labels, strict=True)))
    return Item(
        id=row.id,
        question=row.question,
        f1=f1,
        dropped=tuple(row.text(i) for i, (is_kept, label) in decisions if label and not is_kept),
        wrongly_kept=tuple(
            row.text(i) for i, (is_kept, label) in decisions if is_kept and not label
        ),
    )
