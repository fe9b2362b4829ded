"""One run of the benchmark: load every side, take the times in turns, make the record."""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch

from secateur.bench.machine import commit, machine
from secateur.bench.opponents import Reranker, process_side, reranker_side
from secateur.bench.ours import engine_side, load_modes, token_counts
from secateur.bench.process import PlainProcess
from secateur.bench.record import CROSSENCODER, CROSSENCODER_1, PROCESS, Measured, engine_name
from secateur.bench.serverprocess import ServerProcess
from secateur.bench.serving import (
    REQUESTS,
    Served,
    SmallRequest,
    call_in_process,
    measure_small_request,
    requests_of,
    run_module,
    serve_round,
)
from secateur.bench.timing import Clock, Tell, alternate, at_once
from secateur.bench.workload import Workload
from secateur.client import Client
from secateur.errors import SecateurError
from secateur.model.checkpoints.source import resolve
from secateur.model.modes import LINEAR
from secateur.server.cpus import available_cpus

SMALL_REQUESTS_A_ROUND: Final = 40
"""200 in five rounds."""

_SERVER_ROUNDS: Final = 3
"""At most, of the default mode; each other mode has one."""

_MEMORY_QUERIES: Final = 2


class Bench:
    """A workload, and every side that takes it. The default mode is that of ``Pruner.load()``.

    rounds: >= 1. model: a checkpoint folder with Provence's keys; the embedded one when unset.
    Raises ValueError for a query that the engine refuses, CheckpointError.
    """

    def __init__(
        self,
        workload: Workload,
        *,
        rounds: int,
        tell: Tell,
        model: str | None = None,
        clock: Clock = time.perf_counter,
    ) -> None:
        self._workload, self._rounds, self._model = workload, rounds, model
        self._clock, self._tell = clock, tell
        self._threads = available_cpus()
        torch.set_num_threads(self._threads)
        self.pruners, self._unavailable = load_modes(model, tuple(LINEAR))
        self.mode = next(iter(self.pruners))
        self._pruner = self.pruners[self.mode]
        tokens, cut_tokens = token_counts(self._pruner, workload)
        folder = resolve(model).folder
        reranker = Reranker(folder)
        process = PlainProcess(
            folder, self._pruner.engine.splitter, self._pruner.info.default_threshold or 0.0
        )
        self.sides = [
            reranker_side(CROSSENCODER, reranker, 32, cut_tokens),
            reranker_side(CROSSENCODER_1, reranker, 1, cut_tokens),
            process_side(PROCESS, process, workload),
            *(engine_side(engine_name(mode), p, tokens) for mode, p in self.pruners.items()),
        ]

    def run(self) -> dict[str, Any]:
        """Measure everything and return the record."""
        first = self._workload.queries[0]
        for side in self.sides:
            side.one(replace(first, passages=first.passages[:2]))  # warm up
        by_query = alternate(self.sides, self._workload, self._rounds, self._clock, self._tell)
        together = at_once(self.sides, self._workload, self._clock, self._tell)
        served, small = self._serve()
        info = self._pruner.info
        measured = Measured(
            workload=self._workload,
            mode=self.mode,
            sides=self.sides,
            by_query=by_query,
            together=together,
            served=served,
            small=small,
            memory_mb={mode: self._memory(mode) for mode in self.pruners},
            unavailable=self._unavailable,
        )
        return {
            "machine": {**machine(), "torch": torch.__version__, "threads": self._threads},
            "commit": commit(),
            "model": f"{info.id}@{info.revision}",
            **measured.record(),
        }

    def _serve(self) -> tuple[dict[str, list[Served]], SmallRequest]:
        """The server's rounds by mode, and the small request in the default mode."""
        requests = requests_of(self._workload)
        served: dict[str, list[Served]] = {}
        small: list[SmallRequest] = []
        for mode, pruner in self.pruners.items():
            default = mode == self.mode
            callers = tuple(REQUESTS) if default else (max(REQUESTS),)
            rounds = min(self._rounds, _SERVER_ROUNDS) if default else 1
            with tempfile.TemporaryDirectory() as folder, self._server(folder, mode) as server:
                server.start()
                server.wait_until_ready()
                served[mode] = []
                for number in range(rounds):
                    served[mode].append(
                        serve_round(
                            pruner, server.target, requests, callers, self._clock, call_in_process
                        )
                    )
                    self._tell(f"server, round {number + 1} of {rounds}: {mode}")
                if default:
                    with Client(server.target) as client:
                        repeats = SMALL_REQUESTS_A_ROUND * self._rounds
                        small.append(measure_small_request(pruner, client, repeats, self._clock))
                    self._tell(f"small request, {repeats} times: {mode}")
                if code := server.stop():
                    raise SecateurError(f"SIGTERM ended the server with {code}")
        return served, small[0]

    def _server(self, folder: str, mode: str) -> ServerProcess:
        """On the defaults, but without the cache: the workload repeats itself."""
        settings: dict[str, Any] = {} if self._model is None else {"model": self._model}
        log = Path(folder, "server.log")
        return ServerProcess(log, dtype=mode, threads=self._threads, cache_bytes=0, **settings)

    def _memory(self, mode: str) -> float:
        """Largest memory in MiB of a process that answers the first queries in this mode."""
        queries = self._workload.queries[:_MEMORY_QUERIES]
        given = {
            "model": self._model,
            "mode": mode,
            "threads": self._threads,
            "queries": [[query.text, query.passages] for query in queries],
        }
        self._tell(f"memory: {mode}")
        return float(run_module("secateur.bench.memory", given)) / 1_024
