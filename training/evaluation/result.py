"""A pruning result as JSON. docs/evaluation.md is the contract of its keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from secateur.training.evaluation.compare import Comparison
from secateur.training.evaluation.items import Item
from secateur.training.evaluation.metrics import DIGITS
from secateur.training.evaluation.prune import Breakdown, Measurement, PruneResult
from secateur.training.evaluation.sweep import SweepPoint


def prune_json(
    result: PruneResult,
    about: dict[str, Any],
    points: Sequence[SweepPoint] = (),
    comparison: Comparison | None = None,
) -> dict[str, Any]:
    """The result as dictionaries, lists and numbers, fractions rounded to ``DIGITS``.

    about: further keys, such as model and data. points: of a sweep, if there was one.
    """
    overall = _breakdown(result.overall)
    overall["baselines"]["bm25"]["threshold"] = result.bm25_threshold
    value: dict[str, Any] = {
        **overall,
        "threshold": result.threshold,
        "keep_rule": result.keep_rule,
        "documents": result.documents,
        "interval": list(result.interval),
        **about,
    }
    if result.by_kind:
        value["by_kind"] = {kind: _breakdown(part) for kind, part in result.by_kind.items()}
    if points:
        value["by_threshold"] = [asdict(point) for point in points]
    if comparison is not None:
        value["comparison"] = _comparison(comparison)
    value["worst"] = [asdict(item) for item in result.worst]
    value["per_item"] = {item.id: item.f1 for item in result.items}
    rounded_value: dict[str, Any] = rounded(value)
    return rounded_value


def rounded(value: Any) -> Any:
    """The same with every float in it rounded to ``DIGITS``."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item) for item in value]
    return round(value, DIGITS) if isinstance(value, float) else value


def _breakdown(part: Breakdown) -> dict[str, Any]:
    return {
        **_measurement(part.model),
        "items": part.items,
        "baselines": {
            "keep_everything": _measurement(part.keep_everything),
            "bm25": _measurement(part.bm25),
        },
    }


def _measurement(measurement: Measurement) -> dict[str, Any]:
    values = asdict(measurement)
    return {**values.pop("strict"), **values}


def _comparison(comparison: Comparison) -> dict[str, Any]:
    return {
        "baseline": comparison.baseline,
        "baseline_f1": comparison.baseline_f1,
        "f1_drop": comparison.f1_drop,
        "max_f1_drop": comparison.max_f1_drop,
        "passed": comparison.passed,
        "change": {
            "min": comparison.least,
            "max": comparison.greatest,
            "mean": comparison.mean,
        },
        "worse": [_worse(pair.before, pair.now) for pair in comparison.worse],
    }


def _worse(before: float, now: Item) -> dict[str, Any]:
    return {**asdict(now), "f1_before": before}
