"""Precision, recall, F1 and F2 over sentences, pooled over all rows or averaged over them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Bools = NDArray[np.bool_]
Counts = NDArray[np.int64]
Floats = NDArray[np.float64]

DIGITS = 6
"""Decimals in JSON: a comparison of runs should not see the noise of another CPU."""


@dataclass(frozen=True, slots=True)
class Scores:
    """Fractions in [0, 1]. F2 weighs recall twice as much as precision."""

    precision: float
    recall: float
    f1: float
    f2: float


def fractions(true_positive: Counts, false_positive: Counts, false_negative: Counts) -> Floats:
    """Precision, recall, F1 and F2 of confusion counts of any one shape: float64 [4, ...].

    F_b = (1 + b²) TP / ((1 + b²) TP + b² FN + FP). Where nothing was to be kept and nothing
    was, all four are 1; a fraction of nothing is 0 otherwise.
    """
    tp, fp, fn = (
        np.asarray(count, dtype=np.float64)
        for count in (true_positive, false_positive, false_negative)
    )
    pairs = (
        (tp, tp + fp),
        (tp, tp + fn),
        (2 * tp, 2 * tp + fp + fn),
        (5 * tp, 5 * tp + fp + 4 * fn),
    )
    parts = [np.divide(top, whole, out=np.zeros_like(tp), where=whole > 0) for top, whole in pairs]
    return np.where(tp + fp + fn == 0, 1.0, np.stack(parts))


def micro_scores(kept: Bools, labels: Bools, counted: Bools | None = None) -> Scores:
    """Scores of all sentences in one pool; all arguments bool [sentences].

    counted: the sentences that count; all of them without it.
    """
    return _scores(fractions(*confusion(kept, labels, np.array([0]), counted))[:, 0])


def macro_scores(
    kept: Bools, labels: Bools, row_starts: Counts, counted: Bools | None = None
) -> Scores:
    """The mean over rows of each row's own scores.

    row_starts: int64 [rows], ascending, the first sentence of each row, which has at least one.
    """
    return _scores(fractions(*confusion(kept, labels, row_starts, counted)).mean(axis=1))


def confusion(
    kept: Bools, labels: Bools, row_starts: Counts, counted: Bools | None = None
) -> tuple[Counts, Counts, Counts]:
    """True positives, false positives and false negatives by row: int64 [rows] each."""
    cells = (kept & labels, kept & ~labels, ~kept & labels)
    tp, fp, fn = (
        np.add.reduceat((cell if counted is None else cell & counted).astype(np.int64), row_starts)
        for cell in cells
    )
    return tp, fp, fn


def _scores(values: Floats) -> Scores:
    precision, recall, f1, f2 = values.tolist()
    return Scores(precision, recall, f1, f2)
