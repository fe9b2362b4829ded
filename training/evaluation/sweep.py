"""Every keep rule at every threshold, and the best pair."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from secateur.training.evaluation.arrays import SentenceArrays
from secateur.training.evaluation.metrics import micro_scores
from secateur.training.evaluation.scoring import ScoredRow
from secateur.types import KeepRule

THRESHOLDS = tuple(round(0.01 * step, 2) for step in range(1, 100))
"""0.01 … 0.99"""


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One keep rule at one threshold: strict micro scores, all fractions.

    compression, token_compression: mean over rows, see ``SentenceArrays.compression``.
    """

    threshold: float
    keep_rule: KeepRule
    precision: float
    recall: float
    f1: float
    f2: float
    compression: float
    token_compression: float


def sweep(rows: Sequence[ScoredRow], rules: Sequence[KeepRule]) -> list[SweepPoint]:
    """A point for each pair: by ``THRESHOLDS`` ascending, then in the order of ``rules``.

    Raises ValueError without rows.
    """
    arrays = SentenceArrays.of(rows)
    points = []
    for threshold in THRESHOLDS:
        for rule, kept in zip(rules, arrays.kept_by_rules(rules, threshold), strict=True):
            scores = micro_scores(kept, arrays.labels)
            points.append(
                SweepPoint(
                    threshold=threshold,
                    keep_rule=rule,
                    precision=scores.precision,
                    recall=scores.recall,
                    f1=scores.f1,
                    f2=scores.f2,
                    compression=arrays.compression(kept),
                    token_compression=arrays.token_compression(kept),
                )
            )
    return points


def best(points: Sequence[SweepPoint]) -> SweepPoint:
    """The highest F1; ties go to the lower threshold, then to the earlier rule."""
    return max(points, key=lambda point: (point.f1, -point.threshold))
