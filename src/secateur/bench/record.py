"""From what was measured to the record: rates, ratios, agreement, as JSON."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from secateur.bench.agreement import Verdict, agreement
from secateur.bench.serving import (
    REQUEST_PASSAGES,
    REQUESTS,
    SMALL_PASSAGES,
    SMALL_WORDS,
    Served,
    SmallRequest,
)
from secateur.bench.timing import Pass, Side, Spread, digits, percentile, rate, speedup
from secateur.bench.workload import Workload

CROSSENCODER = "crossencoder"
CROSSENCODER_1 = "crossencoder_batch_1"
PROCESS = "process"
EXACT = "float32"
"""The mode that the others are compared with; it is itself compared with the plain way."""

NOTES = {
    "rounds": "each round takes every second query, the other half the next time; all sides of a "
    "round take the same ones, and a speedup is the median of the ratios within a round",
    "tokens": "without padding; the engine and process read long passages to their end in several "
    "windows, the CrossEncoder cuts them at 512 tokens and prunes nothing",
    "process": "Provence's process() written on stock transformers classes, float32, batches of 32",
    "reference": "equal_decisions, equal_top10 and max_logit_difference compare with it: float32 "
    "with process, decisions and logits on passages of one window; other modes with float32, all",
    "server": "callers share the cores with the server; its result cache is off",
    "peak_memory_mb": "MiB of a process of its own that loads the model and answers two queries",
}


def engine_name(mode: str) -> str:
    """Of the engine's side in a mode."""
    return f"engine_{mode}"


@dataclass(frozen=True, kw_only=True)
class Measured:
    """All times and answers of a run.

    mode: the default one. by_query, together: passes by side, one call a query and one for all.
    served, memory_mb: by mode. unavailable: modes that do not run here, and why.
    """

    workload: Workload
    mode: str
    sides: Sequence[Side]
    by_query: Mapping[str, Sequence[Pass]]
    together: Mapping[str, Sequence[Pass]]
    served: Mapping[str, Sequence[Served]]
    small: SmallRequest
    memory_mb: Mapping[str, float]
    unavailable: Mapping[str, str]

    def record(self) -> dict[str, Any]:
        """JSON values. The keys at the top that stand in ``modes``, too, are the default mode's."""
        verdicts = {
            side.name: _verdicts(side, self.by_query[side.name]) for side in self.sides if side.read
        }
        modes = {mode: self._mode(mode, verdicts) for mode in self.served}
        default = modes[self.mode]
        shown = ("mode", "speedup_vs_crossencoder", "speedup_vs_process", "server_efficiency")
        return {
            "data": self.workload.name,
            "queries": len(self.workload.queries),
            "passages": self.workload.passage_count,
            "rounds": len(self.by_query[CROSSENCODER]),
            **{key: default[key] for key in shown},
            "modes": {
                **modes,
                **{
                    mode: {"mode": mode, "unavailable": reason}
                    for mode, reason in self.unavailable.items()
                },
            },
            "one_call_a_query": self._rates(self.by_query),
            "all_queries_in_one_call": {
                "queries": len(self.together[CROSSENCODER][0].queries),
                **self._rates(self.together),
            },
            "server": {
                "request_passages": REQUEST_PASSAGES,
                **{mode: _server(rounds) for mode, rounds in self.served.items()},
            },
            "small_request": {
                "mode": self.mode,
                "passages": SMALL_PASSAGES,
                "words": SMALL_WORDS,
                "repeats": self.small.repeats,
                "engine_ms": digits(self.small.engine_ms),
                "server_ms": digits(self.small.server_ms),
                "added_ms": digits(self.small.added_ms),
            },
            "notes": NOTES,
        }

    def _mode(
        self, mode: str, verdicts: Mapping[str, Mapping[int, Sequence[Verdict]]]
    ) -> dict[str, Any]:
        name = engine_name(mode)
        passes = self.by_query[name]
        calls = [1_000 * seconds for one in passes for seconds in one.seconds]
        exact = mode == EXACT
        reference = verdicts[PROCESS if exact else engine_name(EXACT)]
        same = asdict(agreement(verdicts[name], reference, single_windows=exact))
        ratios = {
            f"speedup_vs_{opponent}": speedup(self.by_query[opponent], passes)
            for opponent in (CROSSENCODER, CROSSENCODER_1, PROCESS)
        }
        return {
            "mode": mode,
            **{name: digits(ratio) for name, ratio in ratios.items()},
            "server_efficiency": digits(
                statistics.median(served.efficiency for served in self.served[mode])
            ),
            "reference": PROCESS if exact else EXACT,
            **{key: None if share is None else digits(share) for key, share in same.items()},
            "p50_ms": digits(percentile(calls, 50)),
            "p95_ms": digits(percentile(calls, 95)),
            "peak_memory_mb": round(self.memory_mb[mode], 1),
        }

    def _rates(self, passes: Mapping[str, Sequence[Pass]]) -> dict[str, Any]:
        passages = [len(query.passages) for query in self.workload.queries]
        return {
            side.name: {
                "passages_per_second": rate(passes[side.name], passages).to_json(),
                "tokens_per_second": rate(passes[side.name], side.tokens).to_json(),
            }
            for side in self.sides
        }


def _server(rounds: Sequence[Served]) -> dict[str, Any]:
    """One mode: the loop in process, and each number of callers."""
    callers: dict[str, Any] = {}
    for count in rounds[0].calls:
        calls = [served.calls[count] for served in rounds]
        times = [1_000 * seconds for one in calls for seconds in one.call_seconds]
        callers[str(count)] = {
            "requests": REQUESTS[count],
            "passages_per_second": Spread.of([c.passages / c.seconds for c in calls]).to_json(),
            "p50_ms": digits(percentile(times, 50)),
            "p95_ms": digits(percentile(times, 95)),
        }
    return {
        "in_process_loop": Spread.of([served.loop for served in rounds]).to_json(),
        "callers": callers,
        "efficiency": Spread.of([served.efficiency for served in rounds]).to_json(),
    }


def _verdicts(side: Side, passes: Sequence[Pass]) -> dict[int, list[Verdict]]:
    """Of a side that prunes, by query; the latest answer to each."""
    if side.read is None:
        return {}
    return {
        query: side.read(answer)
        for one in passes
        for query, answer in zip(one.queries, one.answers, strict=True)
    }
