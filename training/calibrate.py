"""Choose threshold and keep rule on labelled rows for a target that the user states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from secateur.errors import SecateurError
from secateur.model.calibration import Calibration
from secateur.training.evaluation.metrics import DIGITS
from secateur.training.evaluation.sweep import SweepPoint
from secateur.types import ModelInfo

BEST_OF = {"precision": "recall", "recall": "compression", "compression": "f1"}
"""What a target may bound, and the measure that is made as high as possible under it."""


@dataclass(frozen=True, slots=True)
class Target:
    """``measure`` (a key of ``BEST_OF``) must be at least ``least``, in (0, 1]."""

    measure: str
    least: float

    @classmethod
    def parse(cls, text: str) -> Target:
        """From ``recall=0.95``. Raises ValueError that says what is allowed."""
        measure, _, value = text.partition("=")
        try:
            least = float(value)
        except ValueError:
            least = -1.0
        if measure not in BEST_OF or not 0 < least <= 1:  # also refuses NaN
            allowed = ", ".join(f"{name}=X" for name in BEST_OF)
            raise ValueError(f"{text!r} is none of {allowed}, with X above 0 and at most 1")
        return cls(measure, least)

    def __str__(self) -> str:
        return f"{self.measure}={self.least}"


def choose(points: Sequence[SweepPoint], target: Target) -> SweepPoint:
    """The point that meets the target with the highest ``BEST_OF`` measure.

    Ties go to the earlier point, which of a sweep has the lower threshold.
    Raises SecateurError with the nearest reachable value when no point meets it.
    """
    met = [point for point in points if getattr(point, target.measure) >= target.least]
    if not met:
        nearest = max(points, key=lambda point: float(getattr(point, target.measure)))
        raise SecateurError(
            f"{target} cannot be met on these rows: the highest {target.measure} is "
            f"{getattr(nearest, target.measure):.4f}, at threshold {nearest.threshold:g} with "
            f"{nearest.keep_rule}"
        )
    return max(met, key=lambda point: float(getattr(point, BEST_OF[target.measure])))


def calibration_of(info: ModelInfo, target: Target, point: SweepPoint, rows: int) -> Calibration:
    """What goes into the file: the chosen point for this model."""
    return Calibration(
        model=info.id,
        revision=info.revision,
        threshold=point.threshold,
        keep_rule=point.keep_rule,
        target=str(target),
        precision=round(point.precision, DIGITS),
        recall=round(point.recall, DIGITS),
        f1=round(point.f1, DIGITS),
        compression=round(point.compression, DIGITS),
        rows=rows,
    )
