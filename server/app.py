"""Assembly of a server, and its life: listen, load, warm up, serve, drain, exit."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from secateur.errors import CheckpointError, InvariantError, MissingExtraError
from secateur.model.engine import Engine
from secateur.server.batcher import Batcher
from secateur.server.gate import Gate, State
from secateur.server.pipeline import Pipeline
from secateur.server.service import RerankPruneService
from secateur.server.settings import ServerSettings, SettingsError, describe
from secateur.types import ModelInfo, Passage, PrunedPassage, PruneOptions
from secateur.v1 import rerank_prune_pb2 as pb
from secateur.v1 import rerank_prune_pb2_grpc as pb_grpc

logger = logging.getLogger(__name__)

SERVICE: Final = pb.DESCRIPTOR.services_by_name["RerankPruneService"].full_name
"""Full name of the service, as health checks and reflection know it."""

_INT32_MAX: Final = 2**31 - 1
_LAST_BYTES_SECONDS: Final = 1.0
_SERVING: Final = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING: Final = health_pb2.HealthCheckResponse.NOT_SERVING
_WARM_UP = (
    ("what opens the valve?", "The red handle opens the valve. Lunch is at noon."),
    ("what opens the valve?", "The hall is quiet today. " * 40),
)


class App:
    """One server. Create and use it inside one running event loop.

    load_engine: blocking; called once, off the loop.
    """

    def __init__(
        self, settings: ServerSettings, load_engine: Callable[[ServerSettings], Engine]
    ) -> None:
        self.settings = settings
        self.gate = Gate(max_calls=settings.max_concurrent_calls, on_change=self._state_changed)
        self.dead = asyncio.Event()
        self._load_engine = load_engine
        self.service = RerankPruneService(settings, self.gate)
        self._health = health.aio.HealthServicer()  # type: ignore[attr-defined]
        self._server = grpc.aio.server(options=_options(settings))
        self._pool = ThreadPoolExecutor(
            max_workers=min(4, settings.threads), thread_name_prefix="secateur-prepare"
        )
        self.batcher: Batcher | None = None
        self._health_changes: set[asyncio.Task[None]] = set()

    async def start(self) -> int:
        """Listen, answering NOT_SERVING and UNAVAILABLE, and return the port.

        Raises SettingsError when the address cannot be listened on.
        """
        await self._set_health(_NOT_SERVING)
        pb_grpc.add_RerankPruneServiceServicer_to_server(self.service, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        if self.settings.reflection:
            names = (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
            reflection.enable_server_reflection(names, self._server)
        host, port = self.settings.host, self.settings.port
        try:
            bound = self._server.add_insecure_port(address(host, port))
        except RuntimeError as error:
            logger.debug("cannot listen", exc_info=error)
            bound = 0
        if not bound:
            raise SettingsError(
                f"cannot listen on {address(host, port)}: the port is in use, "
                "or the host is no address of this machine"
            )
        await self._server.start()
        return bound

    async def warm_up(self) -> ModelInfo:
        """Load the model, send real passages the whole way, and only then turn SERVING.

        Raises what loading raises, and InvariantError when the warm-up gives no score.
        """
        loop = asyncio.get_running_loop()
        engine = await loop.run_in_executor(self._pool, self._load_engine, self.settings)
        batcher = Batcher(
            engine.run,
            max_batch_tokens=self.settings.max_batch_tokens,
            max_batch_windows=self.settings.max_batch_windows,
            max_queue_tokens=self.settings.max_queue_tokens,
            on_death=self._worker_died,
        )
        batcher.start()
        self.batcher = batcher
        pipeline = Pipeline(engine, batcher, self._pool)
        for query, text in _WARM_UP:
            passages = [Passage(text)]
            started = batcher.clock()
            ranked = await pipeline.rerank_and_prune(
                query, passages, PruneOptions(), started=started
            )
            if [_is_scored(result) for result in ranked.results] != [True]:
                raise InvariantError("the warm-up passage was not scored; this is a bug")
            logger.info("warm-up pass: %.1f ms", ranked.timing.total_ms)
        self.service.pipeline = pipeline
        self.gate.advance(State.SERVING)
        return engine.info

    async def drain(self, hurry: asyncio.Event | None = None) -> int:
        """Turn NOT_SERVING, refuse new calls, let those inside finish, stop; how many were cut.

        Waits at most ``drain_seconds``, less when ``hurry`` is set meanwhile.
        """
        self.gate.advance(State.DRAINING)
        waits: list[asyncio.Task[object]] = [asyncio.create_task(self.gate.wait_idle())]
        if hurry is not None:
            waits.append(asyncio.create_task(hurry.wait()))
        await asyncio.wait(
            waits, timeout=self.settings.drain_seconds, return_when=asyncio.FIRST_COMPLETED
        )
        for wait in waits:
            wait.cancel()
        cut = self.gate.inside
        # The last answers may still be on their way, and health watchers never leave.
        await self._server.stop(0 if cut else _LAST_BYTES_SECONDS)
        if self.batcher is not None:
            await self.batcher.close()
        self._pool.shutdown(wait=False, cancel_futures=True)
        await asyncio.gather(*self._health_changes)
        return cut

    def _worker_died(self) -> None:
        self.gate.advance(State.DEAD)
        self.dead.set()

    def _state_changed(self, state: State) -> None:
        logger.info("state: %s", state.name)
        status = _SERVING if state is State.SERVING else _NOT_SERVING
        change = asyncio.create_task(self._set_health(status))
        self._health_changes.add(change)
        change.add_done_callback(self._health_changes.discard)

    async def _set_health(self, status: health_pb2.HealthCheckResponse.ServingStatus) -> None:
        for service in ("", SERVICE):
            await self._health.set(service, status)


def load_engine(settings: ServerSettings) -> Engine:
    """Load the model that the settings name. Blocking.

    Raises CheckpointError, MissingExtraError.
    """
    from secateur.model import pruner  # with torch, so only for a real server

    return pruner.load_engine(
        settings.model,
        dtype=settings.dtype,
        device=settings.device,
        limits=settings.limits,
        num_threads=settings.threads,
    )


async def serve(
    settings: ServerSettings,
    *,
    load_engine: Callable[[ServerSettings], Engine] = load_engine,
    announce: Callable[[str], None] = lambda line: print(line, flush=True),
) -> int:
    """Serve until SIGTERM or SIGINT and return the exit code.

    announce: gets the settings, then one line ``listening on host:port`` with the real port
        once health answers, then one line ``ready: ...`` once calls are let in.
    Exit codes: 0 after a drain (a second signal ends the drain at once), 1 when the server could
    not start or its worker died.
    """
    announce(describe(settings))
    app = App(settings, load_engine)
    stop, hurry = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (hurry if stop.is_set() else stop).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    try:
        announce(f"listening on {address(settings.host, await app.start())}")
        try:
            died = await _live(app, stop, announce)
        finally:
            cut = await app.drain(hurry)
            if cut:
                logger.warning("%d calls were cut off at the end of the drain", cut)
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
    return 1 if died else 0


async def _live(app: App, stop: asyncio.Event, announce: Callable[[str], None]) -> bool:
    """Warm up and serve until ``stop`` or the worker's death; whether it died."""
    warming = asyncio.create_task(app.warm_up())
    stopping = asyncio.create_task(stop.wait())
    dying = asyncio.create_task(app.dead.wait())
    try:
        await asyncio.wait((warming, stopping), return_when=asyncio.FIRST_COMPLETED)
        if warming.done():
            info = warming.result()
            announce(f"ready: {info.id}, {info.dtype} on {info.device}")
            await asyncio.wait((stopping, dying), return_when=asyncio.FIRST_COMPLETED)
        return app.dead.is_set()
    finally:
        for task in (warming, stopping, dying):
            task.cancel()
        await asyncio.gather(warming, stopping, dying, return_exceptions=True)


def run(settings: ServerSettings) -> int:
    """:func:`serve` with logging and an event loop of its own; one sentence on what went wrong."""
    logging.basicConfig(
        level=settings.log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    try:
        return asyncio.run(serve(settings))
    except (SettingsError, CheckpointError, MissingExtraError) as error:
        print(f"secateur: {error}", file=sys.stderr)
    return 1


def address(host: str, port: int) -> str:
    """``host:port``, with brackets around an IPv6 host."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def _options(settings: ServerSettings) -> list[tuple[str, int]]:
    # The service refuses what is over the limit with a sentence of its own. The transport, which
    # refuses with less grace, has its limit further up and only bounds the memory.
    return [
        (
            "grpc.max_receive_message_length",
            min(2 * settings.max_receive_message_bytes, _INT32_MAX),
        ),
        ("grpc.max_send_message_length", settings.max_send_message_bytes),
        ("grpc.so_reuseport", 0),  # else a second server would share the port unnoticed
    ]


def _is_scored(result: PrunedPassage) -> bool:
    return result.error is None and any(s.probability is not None for s in result.sentences)
