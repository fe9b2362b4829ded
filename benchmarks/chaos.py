"""A server that is killed and started again under load: the client's own retries lose nothing.

    python benchmarks/chaos.py --kills 5 [--callers 6] [--every 10] [--record FILE] [--log FILE]

Several threads call with ``secateur.Client(max_attempts=None)`` while the server gets SIGKILL,
again and again, and starts anew on the same port. Its result cache is off: answers from it would
be over before a kill could meet them. Fails when a call raises, or when an answer differs from the
same request's answer in peace. Needs Linux.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from workload import TOLERANCE, good_requests

from secateur import Passage, RankedPassages
from secateur.bench.machine import commit, machine
from secateur.bench.serverprocess import ServerProcess, free_port
from secateur.client import Client

TIMEOUT_SECONDS = 600.0


@dataclass
class Load:
    """Calls of all threads. ``inside``: now in work. ``hit``: were in work at a kill."""

    client: Client
    requests: list[tuple[str, list[Passage]]]
    answers: list[RankedPassages]
    stop: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)
    inside: int = 0
    hit: int = 0
    done: int = 0
    longest: float = 0.0
    problems: list[str] = field(default_factory=list)

    def call_on(self, seed: int) -> None:
        """Call until ``stop`` is set."""
        random_ = random.Random(seed)
        while not self.stop.is_set():
            number = random_.randrange(len(self.requests))
            with self.lock:
                self.inside += 1
            started = time.monotonic()
            try:
                answer = self.client.rerank_and_prune(*self.requests[number])
                fault = difference(answer, self.answers[number])
            except Exception as error:  # noqa: BLE001 - any is a lost call
                fault = f"{type(error).__name__}: {error}"
            with self.lock:
                self.inside -= 1
                self.done += 1
                self.longest = max(self.longest, time.monotonic() - started)
                if fault:
                    self.problems.append(fault)

    def note_kill(self) -> None:
        """To be called just before a kill."""
        with self.lock:
            self.hit += self.inside


def difference(answer: RankedPassages, expected: RankedPassages) -> str:
    """What is wrong with an answer; empty when it is the expected one."""
    ours = {result.index: result for result in answer.results}
    theirs = {result.index: result for result in expected.results}
    if ours.keys() != theirs.keys():
        return f"answered passages {sorted(ours)}, not {sorted(theirs)}"
    for index, result in ours.items():
        logit, same = result.relevance_logit, theirs[index].relevance_logit
        if logit is None or same is None or abs(logit - same) > TOLERANCE:
            return f"passage {index}: logit {logit}, not {same}"
    return ""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Kill a server under load, again and again.")
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--callers", type=int, default=6, help="threads that call")
    parser.add_argument("--every", type=float, default=10.0, help="seconds of load before a kill")
    parser.add_argument("--record", type=Path, help="also write the JSON record to this file")
    parser.add_argument("--log", type=Path, help="the servers' log; a temporary file if unset")
    options = parser.parse_args(arguments)
    requests = [
        (request.query, [Passage(passage.text, passage.id) for passage in request.passages])
        for request in good_requests(12)
    ]
    with tempfile.TemporaryDirectory() as folder:
        log = options.log or Path(folder, "server.log")
        with ServerProcess(log, port=free_port(), cache_bytes=0) as server:
            server.start()
            server.wait_until_ready()
            with Client(server.target, timeout=TIMEOUT_SECONDS, max_attempts=None) as client:
                answers = [client.rerank_and_prune(*request) for request in requests]
                load = Load(client, requests, answers)
                with ThreadPoolExecutor(options.callers) as pool:
                    for seed in range(options.callers):
                        pool.submit(load.call_on, seed)
                    for _ in range(options.kills):
                        time.sleep(options.every)
                        load.note_kill()
                        server.kill()
                        server.start()
                        server.wait_until_ready()
                    time.sleep(options.every)
                    load.stop.set()
            code = server.stop()
    if code:
        load.problems.append(f"SIGTERM ended the server with {code}")
    if load.hit < options.kills:
        load.problems.append("the kills met too few calls to show anything")
    record = {
        "machine": machine(),
        "commit": commit(),
        "kills": options.kills,
        "callers": options.callers,
        "cache_bytes": 0,
        "calls": load.done,
        "calls_in_work_at_a_kill": load.hit,
        "longest_call_seconds": round(load.longest, 1),
        "problems": load.problems,
    }
    text = json.dumps(record, indent=2)
    print(text)
    if options.record:
        options.record.write_text(text + "\n", encoding="utf-8")
    return 1 if record["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
