"""How ``secateur bench`` measures a server: a fake engine, a server with the fake model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
from bench_harness import SHORT, WORKLOAD, Clock
from server_harness import serving

from secateur.bench.callers import Calls, call_all
from secateur.bench.serverprocess import ServerProcess
from secateur.bench.serving import (
    REQUEST_PASSAGES,
    REQUESTS,
    measure_small_request,
    message_of,
    requests_of,
    serve_round,
)
from secateur.bench.workload import Query, Workload
from secateur.errors import SecateurError


def test_queries_are_cut_into_requests() -> None:
    passages = tuple(f"p{n}" for n in range(12))
    workload = Workload("w", (Query("a", passages, "w:1"), Query("b", passages[:1], "w:2")))
    requests = requests_of(workload)
    assert [len(request.passages) for request in requests[:5]] == [5, 5, 2, 1, 5]
    assert requests[0] == requests[4]
    assert len(requests) == max(REQUESTS.values())
    assert all(len(request.passages) <= REQUEST_PASSAGES for request in requests)


@dataclass
class TimedEngine:
    """Stands for Pruner and Client: each call takes the next of ``seconds``."""

    clock: Clock
    seconds: Iterator[float]
    calls: list[tuple[str, int]] = field(default_factory=list)

    def rerank_and_prune(self, query: str, passages: Sequence[str], options: Any) -> None:
        self.clock.now += next(self.seconds)
        self.calls.append((query, len(passages)))


def test_a_round_of_the_server() -> None:
    """The loop takes all requests; callers take the first so many of the same."""
    clock = Clock()
    engine: Any = TimedEngine(clock, iter([0.5] * 64))
    requests = requests_of(WORKLOAD)
    asked: list[tuple[str, Sequence[bytes], int]] = []

    def call(target: str, messages: Sequence[bytes], callers: int) -> Calls:
        asked.append((target, messages, callers))
        return Calls(10.0, (1.0,), 85)

    served = serve_round(engine, "host:1", requests, tuple(REQUESTS), clock, call)
    passages = sum(len(request.passages) for request in requests)
    assert served.loop == passages / 32.0
    assert served.efficiency == 8.5 / served.loop
    assert [(target, len(messages), n) for target, messages, n in asked] == [
        ("host:1", REQUESTS[n], n) for n in REQUESTS
    ]
    assert asked[0][1][0] == message_of(requests[0])


def test_a_small_request_is_compared_pair_by_pair() -> None:
    """The machine gets slower: medians of the sides would hide what the server adds."""
    clock, pauses = Clock(), list[float]()
    engine: Any = TimedEngine(clock, iter([0.010, 0.050, 0.090]))
    client: Any = TimedEngine(clock, iter([0.012, 0.053, 0.096]))
    small = measure_small_request(engine, client, 3, clock, pauses.append)
    assert small.repeats == 3
    assert small.engine_ms == pytest.approx(50)
    assert small.server_ms == pytest.approx(53)
    assert small.added_ms == pytest.approx(3)
    assert engine.calls == client.calls == [("When are fruit trees pruned?", 5)] * 3
    assert len(pauses) == 6


def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    with (
        ServerProcess(tmp_path / "log", threads=0) as server,
        pytest.raises(SecateurError, match=r"(?s)did not start.*--threads: .*not '0'"),
    ):
        server.start()


async def test_callers_share_the_requests() -> None:
    messages = [message_of(Query("red valve", SHORT, "x:1"))] * 5
    async with serving(cache_bytes=0) as server:
        calls = await call_all(f"127.0.0.1:{server.port}", messages, 3)
        assert server.app.gate.inside == 0
    assert calls.passages == 10
    assert len(calls.call_seconds) == 5
    assert 0 < max(calls.call_seconds) <= calls.seconds


async def test_a_call_that_fails_ends_the_callers() -> None:
    messages = [message_of(Query(" ", SHORT, "x:1"))]
    async with serving() as server:
        with pytest.raises(grpc.aio.AioRpcError, match="query"):
            await call_all(f"127.0.0.1:{server.port}", messages, 2)
