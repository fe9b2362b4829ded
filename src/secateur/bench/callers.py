"""Callers of a server, in a process of their own: ``python -m secateur.bench.callers``.

Reads a JSON object from standard input: ``target``, ``callers`` and ``requests``, serialised
messages in base64. Each caller sends one request after another, the next one that nobody has sent
yet, all over one connection; requests are built and answers are read outside the time that is
taken, so that a call costs little here. Writes a JSON object: ``seconds`` from the first call to
the last answer, ``call_seconds`` of each, ``passages`` answered. Fails when a call does.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import grpc

from secateur import v1

METHOD = "/secateur.v1.RerankPruneService/RerankAndPrune"

_TIMEOUT_SECONDS = 600.0
_OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


@dataclass(frozen=True, slots=True)
class Calls:
    """What some callers did together."""

    seconds: float
    call_seconds: tuple[float, ...]
    passages: int


async def call_all(target: str, requests: Sequence[bytes], callers: int) -> Calls:
    """Send the requests, so many callers at a time.

    Raises grpc.aio.AioRpcError for a call that fails, RuntimeError for an answer that lacks a
    passage or has one that failed.
    """
    answers: list[tuple[bytes, bytes]] = []
    times: list[float] = []
    waiting = iter(requests)
    async with grpc.aio.insecure_channel(target, options=_OPTIONS) as channel:
        await asyncio.wait_for(channel.channel_ready(), _TIMEOUT_SECONDS)
        method: Any = channel.unary_unary(METHOD, None, None)  # bytes in, bytes out

        async def caller() -> None:
            for request in waiting:
                began = time.perf_counter()
                answer = await method(request, timeout=_TIMEOUT_SECONDS)
                times.append(time.perf_counter() - began)
                answers.append((request, answer))

        started = time.perf_counter()
        await asyncio.gather(*(caller() for _ in range(callers)))
        seconds = time.perf_counter() - started
    return Calls(seconds, tuple(times), sum(_answered(*pair) for pair in answers))


def _answered(request: bytes, answer: bytes) -> int:
    """How many passages were asked for and answered."""
    asked = len(v1.RerankAndPruneRequest.FromString(request).passages)
    results = v1.RerankAndPruneResponse.FromString(answer).results
    if len(results) != asked or any(result.HasField("error") for result in results):
        raise RuntimeError(f"of {asked} passages not all were answered")
    return asked


def main() -> None:
    given = json.load(sys.stdin)
    requests = [base64.b64decode(text) for text in given["requests"]]
    calls = asyncio.run(call_all(given["target"], requests, given["callers"]))
    print(json.dumps(asdict(calls)))


if __name__ == "__main__":
    main()
