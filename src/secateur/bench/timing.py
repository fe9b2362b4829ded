"""Timed passes: every side takes the same queries in turn, and only ratios within a round count."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from secateur.bench.agreement import Verdict
from secateur.bench.workload import Query, Workload

Clock = Callable[[], float]
"""Seconds from some fixed moment."""

Tell = Callable[[str], None]
"""Gets a line on what was done."""


@dataclass(frozen=True, slots=True)
class Side:
    """One way of doing the work.

    one: answer a query. all: answer many in one call. tokens: of each query's model input, by
    number, without padding. read: what an answer of ``one`` says of each passage; ``None`` for a
    side that prunes nothing.
    """

    name: str
    one: Callable[[Query], Any]
    all: Callable[[Sequence[Query]], object]
    tokens: Sequence[int]
    read: Callable[[Any], list[Verdict]] | None = None


@dataclass(frozen=True, slots=True)
class Pass:
    """One side's way through some queries, by number, in one call each or in one for all.

    seconds: of each call. answers: of ``Side.one``, a query each; empty for one call.
    """

    queries: tuple[int, ...]
    seconds: tuple[float, ...]
    answers: tuple[Any, ...] = ()

    @property
    def total(self) -> float:
        """Seconds of the pass."""
        return sum(self.seconds)


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, smallest and largest of some measurements."""

    median: float
    min: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of at least one value."""
        return cls(statistics.median(values), min(values), max(values))

    def to_json(self) -> dict[str, float]:
        """Rounded to four digits."""
        return {name: digits(getattr(self, name)) for name in ("median", "min", "max")}


def alternate(
    sides: Sequence[Side], workload: Workload, rounds: int, clock: Clock, tell: Tell
) -> dict[str, list[Pass]]:
    """A pass of each side in each round, one call a query; the sides take turns in a round."""
    passes: dict[str, list[Pass]] = {side.name: [] for side in sides}
    for number in range(rounds):
        queries = workload.of_round(number)
        for side in sides:
            seconds, answers = [], []
            for query in queries:
                began = clock()
                answers.append(side.one(workload.queries[query]))
                seconds.append(clock() - began)
            passes[side.name].append(Pass(queries, tuple(seconds), tuple(answers)))
            tell(f"round {number + 1} of {rounds}: {side.name} {sum(seconds):.1f} s")
    return passes


def at_once(
    sides: Sequence[Side], workload: Workload, clock: Clock, tell: Tell
) -> dict[str, list[Pass]]:
    """One pass of each side, with all queries of the first round in one call."""
    numbers = workload.of_round(0)
    queries = [workload.queries[number] for number in numbers]
    passes: dict[str, list[Pass]] = {}
    for side in sides:
        began = clock()
        side.all(queries)
        seconds = clock() - began
        passes[side.name] = [Pass(numbers, (seconds,))]
        tell(f"{len(queries)} queries in one call: {side.name} {seconds:.1f} s")
    return passes


def rate(passes: Sequence[Pass], amounts: Sequence[int]) -> Spread:
    """What a second does, by round. amounts: passages or tokens of each query, by number."""
    return Spread.of([sum(amounts[query] for query in p.queries) / p.total for p in passes])


def speedup(opponent: Sequence[Pass], ours: Sequence[Pass]) -> float:
    """How many times as fast we are: the median over rounds of the ratio within a round."""
    ratios = [theirs.total / own.total for theirs, own in zip(opponent, ours, strict=True)]
    return statistics.median(ratios)


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least ``share`` percent of the values do not exceed."""
    return sorted(values)[max(0, math.ceil(len(values) * share / 100) - 1)]


def digits(value: float) -> float:
    """Four significant digits: more would claim what no timing holds."""
    return float(f"{value:.4g}")
