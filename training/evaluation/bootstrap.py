"""Bootstrap intervals: how much a number depends on which rows happen to be in the set."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from secateur.training.evaluation.metrics import Floats

RESAMPLES = 1_000
SEED = 0


def bootstrap_interval(units: Floats, statistic: Callable[[Floats], Floats]) -> tuple[float, float]:
    """95 % percentile interval of a statistic of sums over units drawn with replacement.

    units: float64 [units, values]; what belongs together (rows of one document) is one unit.
    statistic: from the sums of a resample, [resamples, values], to [resamples].
    The same units in the same order give the same interval.
    """
    random = np.random.default_rng(SEED)
    count = len(units)
    sums = [units[random.integers(count, size=count)].sum(axis=0) for _ in range(RESAMPLES)]
    low, high = np.quantile(statistic(np.stack(sums)), [0.025, 0.975]).tolist()
    return low, high
