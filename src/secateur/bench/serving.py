"""The server beside the engine in this process: throughput under callers, and a small request."""

from __future__ import annotations

import base64
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

from secateur import _convert
from secateur.bench.callers import Calls
from secateur.bench.ours import OPTIONS
from secateur.bench.serverprocess import environment
from secateur.bench.timing import Clock
from secateur.bench.workload import Query, Workload, passages_of_words
from secateur.client import Client
from secateur.errors import SecateurError
from secateur.model.pruner import Pruner
from secateur.v1 import RerankAndPruneRequest

REQUEST_PASSAGES = 5
"""Passages of one request; a query with more is several requests."""

REQUESTS = {1: 16, 8: 32, 32: 64}
"""Callers at the same time, and how many requests they send together."""

SMALL_PASSAGES, SMALL_WORDS = 5, 100

_MOST_CALLERS = max(REQUESTS)
_PAUSE_SECONDS = 0.01
"""Between two small requests, so that the threads of one side sleep before the other's turn."""


@dataclass(frozen=True, slots=True)
class Served:
    """One round: passages a second of the loop in process, and the calls by number of callers."""

    loop: float
    calls: dict[int, Calls]

    @property
    def efficiency(self) -> float:
        """The server's passages a second with the most callers, as a share of the loop's."""
        calls = self.calls[_MOST_CALLERS]
        return calls.passages / calls.seconds / self.loop


@dataclass(frozen=True, slots=True)
class SmallRequest:
    """Medians in milliseconds; ``added_ms`` is the median of the differences pair by pair."""

    repeats: int
    engine_ms: float
    server_ms: float
    added_ms: float


def requests_of(workload: Workload) -> list[Query]:
    """The workload as requests of at most five passages, repeated to the most that are sent."""
    parts = [
        Query(query.text, query.passages[start : start + REQUEST_PASSAGES], query.where)
        for query in workload.queries
        for start in range(0, len(query.passages), REQUEST_PASSAGES)
    ]
    return list(islice(cycle(parts), max(REQUESTS.values())))


def serve_round(
    pruner: Pruner,
    target: str,
    requests: Sequence[Query],
    callers: Sequence[int],
    clock: Clock,
    call: Callable[[str, Sequence[bytes], int], Calls],
) -> Served:
    """The requests in a loop in this process, then by each number of callers through the server.

    target: a server with the same model, dtype and threads. call: :func:`call_in_process`.
    """
    began = clock()
    for request in requests:
        pruner.rerank_and_prune(request.text, request.passages, OPTIONS)
    loop = sum(len(request.passages) for request in requests) / (clock() - began)
    messages = [message_of(request) for request in requests]
    return Served(loop, {n: call(target, messages[: REQUESTS[n]], n) for n in callers})


def message_of(query: Query) -> bytes:
    """The serialised request."""
    return RerankAndPruneRequest(
        query=query.text,
        passages=_convert.passages_to_proto(query.passages),
        options=_convert.options_to_proto(OPTIONS),
    ).SerializeToString()


def call_in_process(target: str, requests: Sequence[bytes], callers: int) -> Calls:
    """Run :mod:`secateur.bench.callers`. Raises SecateurError with its last words when it fails."""
    given = {
        "target": target,
        "callers": callers,
        "requests": [base64.b64encode(request).decode("ascii") for request in requests],
    }
    calls = run_module("secateur.bench.callers", given)
    return Calls(calls["seconds"], tuple(calls["call_seconds"]), calls["passages"])


def run_module(module: str, given: object) -> Any:
    """What ``python -m module`` prints as JSON when it gets ``given`` as JSON."""
    done = subprocess.run(  # noqa: S603 - our own command
        [sys.executable, "-m", module],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
    )
    if done.returncode:
        raise SecateurError(f"{module} failed\n{done.stderr[-2_000:].rstrip()}")
    return json.loads(done.stdout)


def measure_small_request(
    pruner: Pruner,
    client: Client,
    repeats: int,
    clock: Clock,
    pause: Callable[[float], None] = time.sleep,
) -> SmallRequest:
    """One query with five passages of 100 words: the engine here and the server, in turns.

    client: of an idle server with the same model. ``server_ms`` is what a user of ``Client``
    waits, conversion of the types included.
    """
    query, passages = "When are fruit trees pruned?", passages_of_words(SMALL_PASSAGES, SMALL_WORDS)
    pairs: list[tuple[float, ...]] = []
    for _ in range(repeats):
        times = []
        for side in (pruner, client):
            pause(_PAUSE_SECONDS)
            began = clock()
            side.rerank_and_prune(query, passages, OPTIONS)
            times.append(1_000 * (clock() - began))
        pairs.append(tuple(times))
    return SmallRequest(
        repeats=repeats,
        engine_ms=statistics.median(engine for engine, _ in pairs),
        server_ms=statistics.median(server for _, server in pairs),
        added_ms=statistics.median(server - engine for engine, server in pairs),
    )
