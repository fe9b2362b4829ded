"""Assembly of a server, and its life: listen, load, warm up, serve, drain, exit."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from secateur.errors import CheckpointError, MissingExtraError
from secateur.model.batching import BatchBudget
from secateur.model.calibration import CalibrationError
from secateur.model.engine import Engine
from secateur.server import logs, security, warmup
from secateur.server.batcher import THREADS, Batcher
from secateur.server.cache import WindowCache
from secateur.server.calls import Calls
from secateur.server.decoding import DecodingInterceptor
from secateur.server.gate import Gate, State
from secateur.server.metrics import Metrics
from secateur.server.pipeline import Pipeline
from secateur.server.search.services import NAMES as SEARCH_NAMES
from secateur.server.search.services import SearchServices
from secateur.server.service import RerankPruneService
from secateur.server.settings import ServerSettings, SettingsError, describe
from secateur.types import ModelInfo, ModelRef
from secateur.v1 import rerank_prune_pb2 as pb
from secateur.v1 import rerank_prune_pb2_grpc as pb_grpc

logger = logging.getLogger(__name__)

SERVICE: Final = pb.DESCRIPTOR.services_by_name["RerankPruneService"].full_name
"""Full name of the service, as health checks and reflection know it."""

_INT32_MAX: Final = 2**31 - 1
_STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_LAST_BYTES_SECONDS: Final = 1.0
_IDLE_THREAD_SECONDS: Final = 0.5
_SERVING: Final = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING: Final = health_pb2.HealthCheckResponse.NOT_SERVING


class App:
    """One server. Create and use it inside one running event loop.

    load_engine: blocking; called once, off the loop. Raises SettingsError for TLS files or
    tokens that cannot be used.
    """

    def __init__(
        self, settings: ServerSettings, load_engine: Callable[[ServerSettings], Engine]
    ) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.gate = Gate(max_calls=settings.max_concurrent_calls, on_change=self._state_changed)
        self.dead = asyncio.Event()
        self._load_engine = load_engine
        calls = Calls(self.metrics)
        self.service = RerankPruneService(settings, self.gate, calls)
        self.search = SearchServices(settings, self.gate, calls)
        self._health = health.aio.HealthServicer()  # type: ignore[attr-defined]
        self._credentials = security.credentials(settings)
        self._server = grpc.aio.server(
            options=_options(settings),
            interceptors=(*security.interceptors(settings, calls), DecodingInterceptor(calls)),
        )
        self._pool = ThreadPoolExecutor(
            max_workers=min(4, settings.threads), thread_name_prefix=f"{THREADS}prepare"
        )
        self.batcher: Batcher | None = None
        self._health_changes: set[asyncio.Task[None]] = set()
        self._close_metrics: Callable[[], None] = lambda: None

    async def start(self) -> int:
        """Listen, answering NOT_SERVING and UNAVAILABLE, and return the port.

        Raises SettingsError when the address cannot be listened on.
        """
        await self._set_health(_NOT_SERVING)
        pb_grpc.add_RerankPruneServiceServicer_to_server(self.service, self._server)
        self.search.add_to(self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        if self.settings.reflection:
            names = (SERVICE, *SEARCH_NAMES, health.SERVICE_NAME, reflection.SERVICE_NAME)
            reflection.enable_server_reflection(names, self._server)
        where = address(self.settings.host, self.settings.port)
        try:
            if self._credentials is None:
                bound = self._server.add_insecure_port(where)
            else:
                bound = self._server.add_secure_port(where, self._credentials)
        except RuntimeError as error:
            logger.debug("cannot listen", exc_info=error)
            bound = 0
        if not bound:
            raise _cannot_listen(where)
        await self._server.start()
        loop = asyncio.get_running_loop()
        self.metrics.watch(
            calls=lambda: self.gate.inside, tasks=lambda: len(asyncio.all_tasks(loop))
        )
        return bound

    def offer_metrics(self) -> int | None:
        """Offer the metrics where the settings say and return the port; ``None`` when nowhere.

        Raises SettingsError when the address cannot be listened on.
        """
        host, port = self.settings.host, self.settings.metrics_port
        if port is None:
            return None
        try:
            bound, self._close_metrics = self.metrics.serve(host, port)
        except OSError as error:
            logger.debug("cannot listen", exc_info=error)
            raise _cannot_listen(address(host, port)) from None
        return bound

    async def warm_up(self) -> ModelInfo:
        """Load the model, send real passages the whole way, and only then turn SERVING.

        Raises what loading raises, CheckpointError when the model's scores are not finite, and
        InvariantError when the warm-up gives no score for another reason.
        """
        loop = asyncio.get_running_loop()
        engine = await loop.run_in_executor(self._pool, self._load_engine, self.settings)
        if self.settings.max_query_tokens is not None:
            most = min(self.settings.max_query_tokens, engine.info.max_query_tokens)
            engine.info = replace(engine.info, max_query_tokens=most)
        budget = BatchBudget(self.settings.max_batch_tokens, self.settings.max_batch_windows)
        batcher = Batcher(
            engine.run,
            max_batch_tokens=budget.tokens,
            max_batch_windows=budget.windows,
            max_queue_tokens=self.settings.max_queue_tokens,
            on_death=self._worker_died,
            metrics=self.metrics,
        )
        batcher.start()
        self.batcher = batcher
        model = ModelRef(engine.info.id, engine.info.revision, engine.info.dtype)
        cache = WindowCache(self.settings.cache_bytes, model, self.metrics)
        logger.info("result cache: %s", f"{cache.max_bytes} bytes" if cache.max_bytes else "off")
        pipeline = Pipeline(engine, batcher, cache, self._pool, self.metrics)
        await warmup.run_passages(pipeline)
        if engine.info.device != "cpu":
            await warmup.run_lengths(pipeline, budget)
        await self.search.load(self._pool)
        self.search.serve(pipeline)
        self.service.pipeline = pipeline
        self.gate.advance(State.SERVING)
        return engine.info

    async def drain(self, hurry: asyncio.Event | None = None) -> int:
        """Turn NOT_SERVING, refuse new calls, let those inside finish, stop; how many were cut.

        Waits at most ``drain_seconds``, less when ``hurry`` is set meanwhile, and then a second
        more for the last answers. Calls that are cut get UNAVAILABLE, so that another server may
        answer them. A pass that runs is not waited for.
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
        if self.batcher is not None:
            await self.batcher.close()
        await self.search.close()
        # The last answers may still be on their way, and health watchers never leave.
        await self._server.stop(_LAST_BYTES_SECONDS)
        self._pool.shutdown(wait=False, cancel_futures=True)
        await asyncio.gather(*self._health_changes)
        await asyncio.to_thread(self._close_metrics)
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
        for service in ("", SERVICE, *SEARCH_NAMES):
            await self._health.set(service, status)


def load_engine(settings: ServerSettings) -> Engine:
    """Load the model that the settings name. Blocking.

    Raises CheckpointError, MissingExtraError, and SettingsError for a calibration that cannot be
    read or was made for other weights.
    """
    from secateur.model import pruner  # with torch, so only for a real server

    try:
        return pruner.load_engine(
            settings.model,
            dtype=settings.dtype,
            device=settings.device,
            limits=settings.limits,
            num_threads=settings.threads,
            calibration=settings.calibration,
        )
    except CalibrationError as error:
        raise SettingsError(f"calibration: {error}") from None


async def serve(
    settings: ServerSettings,
    *,
    load_engine: Callable[[ServerSettings], Engine] = load_engine,
    announce: Callable[[str], None] = lambda line: print(line, flush=True),
) -> int:
    """Serve until SIGTERM or SIGINT and return the exit code.

    announce: gets the settings, then one line ``listening on host:port`` with the real port
        once health answers, one line ``metrics on host:port`` where they are offered, and one
        line ``ready: ...`` once calls are let in.
    Exit codes: 0 after a drain (a second signal ends the drain at once), 1 when the server could
    not start or its worker died.
    """
    announce(describe(settings))
    app = App(settings, load_engine)
    stop, hurry = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (hurry if stop.is_set() else stop).set()

    loop = asyncio.get_running_loop()
    for number in _STOP_SIGNALS:
        loop.add_signal_handler(number, on_signal)
    try:
        announce(f"listening on {address(settings.host, await app.start())}")
        try:
            if metrics_port := app.offer_metrics():
                announce(f"metrics on {address(settings.host, metrics_port)}")
            died = await _live(app, stop, announce)
        finally:
            cut = await app.drain(hurry)
            if cut:
                logger.warning("%d calls were cut off at the end of the drain", cut)
    finally:
        for number in _STOP_SIGNALS:
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


def run(
    settings: ServerSettings, *, load_engine: Callable[[ServerSettings], Engine] = load_engine
) -> int:
    """:func:`serve` with logging and an event loop of its own; one sentence on what went wrong.

    From the end of the drain on, further signals are ignored: they must not change the code.
    Does not return, but ends the process with the same code, when a thread is still at work for
    a call that was cut off: Python would wait for it, longer than the grace of whoever runs us.
    """
    logs.configure(settings.log_level, settings.log_format)
    code = 1
    try:
        code = asyncio.run(_serve_once(settings, load_engine))
    except (SettingsError, CheckpointError, MissingExtraError) as error:
        print(f"secateur: {error}", file=sys.stderr)
    if _threads_at_work():
        logger.warning("exiting while a thread is still at work")
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


async def _serve_once(
    settings: ServerSettings, load_engine: Callable[[ServerSettings], Engine]
) -> int:
    try:
        return await serve(settings, load_engine=load_engine)
    finally:
        for number in _STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)


def _threads_at_work() -> bool:
    """Whether one of our threads goes on after its pool was closed; idle ones end at once."""
    ours = [thread for thread in threading.enumerate() if thread.name.startswith(THREADS)]
    until = time.monotonic() + _IDLE_THREAD_SECONDS
    for thread in ours:
        thread.join(max(0.0, until - time.monotonic()))
    return any(thread.is_alive() for thread in ours)


def _cannot_listen(where: str) -> SettingsError:
    return SettingsError(
        f"cannot listen on {where}: the port is in use, or the host is no address of this machine"
    )


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
        # A caller that has vanished without a word must not keep its place for ever.
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.http2.max_pings_without_data", 0),  # no bound on the pings of a waiting call
        # Milvus pings its providers every 30 s, busy or not; gRPC would hang up on it.
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", 20_000),
        ("grpc.so_reuseport", 0),  # else a second server would share the port unnoticed
    ]
