"""A small workload for tests of ``secateur.bench``, and a clock that shows what it is told."""

from __future__ import annotations

from dataclasses import dataclass

from secateur.bench.workload import Query, Workload

SHORT = ("The red valve opens. A pump is quiet today.", "Code 7 is blue. What was the hall?")
LONG = "The blue pump closes the hall today. " * 9 + "Who was quiet? Code 9 opens."
CUT = "the red valve " * 40 + "is blue."
WORKLOAD = Workload(
    "tiny",
    (
        Query("what opens the valve?", (*SHORT, LONG), "tiny:1"),
        Query("who is quiet today?", (LONG, *SHORT[::-1]), "tiny:2"),
        Query("which code is blue?", SHORT, "tiny:3"),
    ),
)


@dataclass
class Clock:
    """Shows what it is told."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now
