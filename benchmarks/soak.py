"""Hours of mixed load on a real server: nothing lost, nothing mixed up, nothing left behind.

    python benchmarks/soak.py --minutes 20 [--callers 8] [--record FILE] [--log FILE]
    python benchmarks/soak.py --requests 5000 [--callers 8] [--record FILE] [--log FILE]

Starts ``secateur serve`` with the embedded model and calls it with good, streamed, bad, huge,
hurried and cancelled requests, several at a time. Its result cache holds about half of what the
good requests need: it is full from the start, and the model still works. Fails when an answer is
lost, differs from the same request's answer alone, or is out of order; when the server's memory
grows by more than 5 % after the warm-up, which is the first quarter of the time or requests; when
tasks, threads, open files, queued tokens or calls are left at the end; when the cache was of no
use, or never had to make room; or when SIGTERM does not end it with 0. Needs Linux (/proc).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from workload import Known, bad_requests, faults, good_requests, huge_request

from secateur import v1
from secateur.bench.machine import commit, machine
from secateur.bench.serverprocess import ServerProcess

KINDS = {"good": 60, "stream": 8, "bad": 10, "huge": 2, "hurried": 8, "cancelled": 12}
"""What is called, and how often of 100."""

OK, BUSY, LATE, GONE, REFUSED = (
    grpc.StatusCode.OK.name,
    grpc.StatusCode.RESOURCE_EXHAUSTED.name,
    grpc.StatusCode.DEADLINE_EXCEEDED.name,
    grpc.StatusCode.CANCELLED.name,
    grpc.StatusCode.INVALID_ARGUMENT.name,
)
EXPECTED = {
    "good": {OK, BUSY},
    "stream": {OK, BUSY},
    "bad": {REFUSED},
    "huge": {OK, BUSY},
    "hurried": {OK, BUSY, LATE},
    "cancelled": {OK, BUSY, GONE},
}
"""How each kind may end; BUSY only with the delay after which to try again."""

CACHE_BYTES = 1 << 18
CACHE_METRICS = ("bytes", "entries", "hits_total", "misses_total", "evictions_total")
KNOWN_REQUESTS = 96
PATIENCE = 300.0
HUGE_TOKENS = 12_000
MAX_GROWTH = 0.05
WARM_UP_SHARE = 0.25


@dataclass
class Tally:
    """What was sent, how it ended, and what was wrong."""

    sent: Counter[str] = field(default_factory=Counter)
    ended: Counter[tuple[str, str]] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def end(self, kind: str, outcome: str, error: grpc.aio.AioRpcError | None = None) -> None:
        """Note how a call ended."""
        self.ended[kind, outcome] += 1
        if outcome not in EXPECTED[kind]:
            details = error.details() if error is not None else ""
            self.problems.append(f"{kind} ended with {outcome}: {details}")


class Caller:
    """One of several that call at the same time, each one call after another."""

    def __init__(
        self, channel: grpc.aio.Channel, known: Sequence[Known], tally: Tally, seed: int
    ) -> None:
        self._stub: Any = v1.RerankPruneServiceStub(channel)
        self._known = known
        self._bad_requests = bad_requests()
        self._huge_request = huge_request(HUGE_TOKENS)
        self._tally = tally
        self._random = random.Random(seed)

    async def run(self, over: Callable[[], bool]) -> None:
        """Call until it is over; the last call is waited for."""
        while not over():
            (kind,) = self._random.choices(list(KINDS), weights=list(KINDS.values()))
            self._tally.sent[kind] += 1
            try:
                await getattr(self, f"_{kind}")()
            except grpc.aio.AioRpcError as error:
                self._tally.end(kind, error.code().name, error)
                if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
                    await asyncio.sleep(0.2)
            except asyncio.CancelledError:
                self._tally.end(kind, GONE)
            else:
                self._tally.end(kind, OK)

    async def _good(self) -> None:
        known = self._random.choice(self._known)
        started = time.monotonic()
        answer = await self._stub.RerankAndPrune(known.request, timeout=PATIENCE)
        self._tally.seconds.append(time.monotonic() - started)
        self._tally.problems += faults(known, answer)

    async def _stream(self) -> None:
        known = self._random.choice(self._known)
        request = known.request
        call = self._stub.RerankAndPruneStream(timeout=PATIENCE)
        await call.write(
            v1.RerankAndPruneStreamRequest(
                start=v1.StreamStart(query=request.query, options=request.options)
            )
        )
        for passage in request.passages:
            batch = v1.PassageBatch(passages=[passage])
            await call.write(v1.RerankAndPruneStreamRequest(passages=batch))
        await call.done_writing()
        *results, last = [message async for message in call]
        by_index = {message.result.index: message.result for message in results}
        ranked = [by_index[line.index] for line in last.summary.ranking]
        if len(results) != len(by_index):
            self._tally.problems.append("a stream answered a passage twice")
        self._tally.problems += faults(known, v1.RerankAndPruneResponse(results=ranked))

    async def _bad(self) -> None:
        await self._stub.RerankAndPrune(self._random.choice(self._bad_requests), timeout=PATIENCE)

    async def _huge(self) -> None:
        self._huge_request.passages[0].title = str(self._random.random())  # never cached
        answer = await self._stub.RerankAndPrune(self._huge_request, timeout=PATIENCE)
        if len(answer.results) != 1 or not answer.results[0].HasField("relevance_score"):
            self._tally.problems.append("a huge passage was not scored")

    async def _hurried(self) -> None:
        request = self._random.choice(self._known).request
        await self._stub.RerankAndPrune(request, timeout=self._random.uniform(0.01, 1.0))

    async def _cancelled(self) -> None:
        call = self._stub.RerankAndPrune(self._random.choice(self._known).request)
        await asyncio.sleep(self._random.uniform(0.0, 0.5))
        call.cancel()
        await call


@dataclass(frozen=True)
class Idle:
    """What a server without calls holds."""

    tasks: int
    threads: int
    open_files: int
    queue_tokens: int
    calls: int

    @classmethod
    def of(cls, server: ServerProcess) -> Idle:
        """What it holds now."""
        metrics = server.metrics()
        return cls(
            tasks=int(metrics["secateur_tasks"]),
            threads=server.threads(),
            open_files=server.open_files(),
            queue_tokens=int(metrics["secateur_queue_tokens"]),
            calls=int(metrics["secateur_calls"]),
        )

    def left_behind(self, before: Idle) -> list[str]:
        """What there is more of than before."""
        return [
            f"{name}: {getattr(before, name)} before, {getattr(self, name)} after"
            for name in vars(before)
            if getattr(self, name) > getattr(before, name)
        ]


async def soak(
    server: ServerProcess, *, seconds: float, requests: int | None, callers: int
) -> dict[str, Any]:
    """Run the load on a server that is ready; the record, whose ``problems`` are empty if it held.

    seconds: how long, unless ``requests`` says how many calls. Times are of the good calls.
    """
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    tally = Tally()
    memory: list[tuple[float, float, int]] = []  # share of the run, seconds, bytes
    async with grpc.aio.insecure_channel(server.target, options=options) as channel:
        stub: Any = v1.RerankPruneServiceStub(channel)
        known = []
        for request in good_requests(KNOWN_REQUESTS):
            answer = await stub.RerankAndPrune(request, timeout=PATIENCE)
            known.append(Known(request, answer))
        before = await asyncio.to_thread(Idle.of, server)
        started = time.monotonic()

        def share() -> float:
            if requests is not None:
                return tally.sent.total() / requests
            return (time.monotonic() - started) / seconds

        async def watch_memory() -> None:
            while True:
                size = server.resident_bytes()
                memory.append((share(), time.monotonic() - started, size))
                await asyncio.sleep(min(0.1, seconds / 60))

        watch = asyncio.create_task(watch_memory())
        loads = (Caller(channel, known, tally, seed) for seed in range(callers))
        await asyncio.gather(*(load.run(lambda: share() >= 1) for load in loads))
        took = time.monotonic() - started
        watch.cancel()
        memory.append((1.0, took, server.resident_bytes()))
        # A call that was cancelled last may still be on its way out.
        after = await asyncio.to_thread(Idle.of, server)
        for _ in range(50):
            if not after.left_behind(before):
                break
            await asyncio.sleep(0.2)
            after = await asyncio.to_thread(Idle.of, server)
        metrics = await asyncio.to_thread(server.metrics)
    warm = [size for at, _, size in memory if WARM_UP_SHARE <= at <= 2 * WARM_UP_SHARE]
    last = [size for at, _, size in memory if at >= 1 - WARM_UP_SHARE / 2]
    growth = statistics.median(last) / statistics.median(warm) - 1
    problems = [*tally.problems, *after.left_behind(before)]
    ended = Counter[str]()
    for (kind, _), count in tally.ended.items():
        ended[kind] += count
    problems += [
        f"{kind}: {count} sent, {ended[kind]} ended"
        for kind, count in tally.sent.items()
        if count != ended[kind]
    ]
    if growth > MAX_GROWTH:
        problems.append(f"memory grew by {growth:.1%} after the warm-up")
    cache = {name: int(metrics[f"secateur_cache_{name}"]) for name in CACHE_METRICS}
    if not (cache["hits_total"] and cache["evictions_total"]):
        problems.append(f"the cache was not put to use: {cache}")
    times = sorted(tally.seconds)
    return {
        "seconds": round(took, 1),
        "callers": callers,
        "calls": {
            kind: {end: n for (name, end), n in sorted(tally.ended.items()) if name == kind}
            for kind in KINDS
        },
        "good_call_seconds": {
            f"p{share}": round(times[(len(times) * share - 1) // 100], 3) for share in (50, 95, 99)
        },
        "memory_mib": {
            "after_warm_up": round(statistics.median(warm) / 2**20, 1),
            "at_the_end": round(statistics.median(last) / 2**20, 1),
            "growth": round(growth, 4),
            "by_minute": [
                round(statistics.median(sizes) / 2**20, 1)
                for sizes in _by_minute([(at, size) for _, at, size in memory])
            ],
        },
        "cache": {"max_bytes": CACHE_BYTES, **cache},
        "idle_before": vars(before),
        "idle_after": vars(after),
        "problems": problems,
    }


def _by_minute(memory: Sequence[tuple[float, int]]) -> list[list[int]]:
    minutes: dict[int, list[int]] = {}
    for at, size in memory:
        minutes.setdefault(int(at // 60), []).append(size)
    return [minutes[minute] for minute in sorted(minutes)]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Mixed load on a real server, for long.")
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--requests", type=int, help="so many calls instead of minutes")
    parser.add_argument("--callers", type=int, default=8, help="calls at the same time")
    parser.add_argument("--record", type=Path, help="also write the JSON record to this file")
    parser.add_argument("--log", type=Path, help="the server's log; a temporary file if unset")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        log = options.log or Path(folder, "server.log")
        with ServerProcess(log, cache_bytes=CACHE_BYTES) as server:
            server.start()
            server.wait_until_ready()
            record = asyncio.run(
                soak(
                    server,
                    seconds=60 * options.minutes,
                    requests=options.requests,
                    callers=options.callers,
                )
            )
            code = server.stop()
        if code:
            record["problems"].append(f"SIGTERM ended the server with {code}")
        if "internal error" in log.read_text(encoding="utf-8"):
            record["problems"].append("the server's log has internal errors")
    record = {"machine": machine(), "commit": commit(), **record}
    text = json.dumps(record, indent=2)
    print(text)
    if options.record:
        options.record.write_text(text + "\n", encoding="utf-8")
    return 1 if record["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
