"""Against an earlier run on the same rows: averages lie, the risk is the item that got worse."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from secateur.training.evaluation.items import Item
from secateur.training.evaluation.metrics import DIGITS
from secateur.training.evaluation.prune import PruneResult


@dataclass(frozen=True, slots=True)
class Baseline:
    """An earlier result. f1: its strict micro F1; per_item: each row's strict F1, by id."""

    name: str
    f1: float
    per_item: dict[str, float]


@dataclass(frozen=True, slots=True)
class ItemChange:
    """One row's F1 before and now; its texts are those of this run."""

    before: float
    now: Item

    @property
    def change(self) -> float:
        """Of the F1, both sides rounded as in JSON."""
        return round(round(self.now.f1, DIGITS) - self.before, DIGITS)


@dataclass(frozen=True, slots=True)
class Comparison:
    """This run minus the baseline.

    f1_drop: fall of the strict micro F1, negative for a rise. least, greatest, mean: of the
    change of the items' F1. worse: items that fell, the deepest fall first.
    """

    baseline: str
    baseline_f1: float
    f1_drop: float
    max_f1_drop: float
    least: float
    greatest: float
    mean: float
    worse: tuple[ItemChange, ...]

    @property
    def passed(self) -> bool:
        """Whether the F1 fell by no more than allowed."""
        return self.f1_drop <= self.max_f1_drop


def load_baseline(path: Path, ids: Iterable[str]) -> Baseline:
    """Read what ``secateur evaluate prune --json`` wrote about the rows with these ids.

    Raises ValueError for a file that holds something else, or is about other rows.
    """
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: not JSON: {error}") from None
    foreign = f"{path}: not a result of `secateur evaluate prune --json`"
    if not isinstance(result, dict) or not isinstance(result.get("per_item"), dict):
        raise ValueError(f"{foreign}: it has no per_item")
    numbers = {"f1": result.get("f1"), **result["per_item"]}
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise ValueError(f"{foreign}: {name} must be a number from 0 to 1")
    here, there = set(ids), set(result["per_item"])
    faults = [
        f"{len(extra)} only in {where} (such as {min(extra)})"
        for extra, where in ((here - there, "the data"), (there - here, "the baseline"))
        if extra
    ]
    if faults:
        raise ValueError(f"{path}: a result of other rows: {', '.join(faults)}")
    return Baseline(str(path), float(result["f1"]), result["per_item"])


def compare(result: PruneResult, baseline: Baseline, max_f1_drop: float) -> Comparison:
    """Compare a result with a baseline of the same rows.

    Numbers are rounded as in JSON first, so that a run equals its own result.
    """
    pairs = [ItemChange(before=baseline.per_item[item.id], now=item) for item in result.items]
    changes = [pair.change for pair in pairs]
    return Comparison(
        baseline=baseline.name,
        baseline_f1=baseline.f1,
        f1_drop=round(baseline.f1 - round(result.f1, DIGITS), DIGITS),
        max_f1_drop=max_f1_drop,
        least=min(changes),
        greatest=max(changes),
        mean=sum(changes) / len(changes),
        worse=tuple(
            sorted((pair for pair in pairs if pair.change < 0), key=lambda pair: pair.change)
        ),
    )
