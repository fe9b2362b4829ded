"""The life of a server: health, warm-up, drain, death, signals."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from fakes import FakeScorer, make_engine
from google.protobuf import descriptor_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from server_harness import (
    PATIENCE,
    details_of,
    error_of,
    rerank_request,
    serving,
    settings_for_test,
)

from secateur.errors import CheckpointError, InvariantError, UnavailableError
from secateur.model.engine import Engine
from secateur.model.prepared import EncodedWindow, WindowOutput
from secateur.server.app import SERVICE, App, address, run, serve
from secateur.server.gate import Gate, State
from secateur.server.settings import ServerSettings, SettingsError
from secateur.server.warmup import lengths
from secateur.v1 import rerank_prune_pb2 as pb
from secateur.v1 import rerank_prune_pb2_grpc as pb_grpc

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
QUERY = "what opens the valve"
RED = "The red handle opens the valve. Lunch is at noon."


def test_the_service_name() -> None:
    assert SERVICE == "secateur.v1.RerankPruneService"


async def test_health_is_red_until_a_real_pass_is_done() -> None:
    """F20: health that is green before the model is warm."""
    scorer = FakeScorer(gate=threading.Event())
    assert scorer.gate is not None
    async with serving(scorer=scorer, warm=False) as server:
        assert await server.health() == await server.health(SERVICE) == NOT_SERVING
        error = await error_of(server.rerank(QUERY, [RED]))
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert details_of(error)["ErrorInfo"].reason == "UNAVAILABLE"
        info = server.stub.GetModelInfo(pb.GetModelInfoRequest(), timeout=PATIENCE)
        assert (await error_of(info)).code() is grpc.StatusCode.UNAVAILABLE
        warming = asyncio.create_task(server.app.warm_up())
        await asyncio.to_thread(scorer.started.wait, PATIENCE)
        assert await server.health() == await server.health(SERVICE) == NOT_SERVING
        scorer.gate.set()
        assert (await warming).id == "fake"
        assert await server.health() == await server.health(SERVICE) == SERVING
        assert scorer.batches
        assert (await server.rerank(QUERY, [RED])).results


async def passes_of_the_warm_up(scorer: FakeScorer, **info: Any) -> list[list[int]]:
    """Token counts of the windows of every batch."""
    async with serving(
        scorer=scorer, warm=False, engine_parts=info, max_batch_tokens=128, max_batch_windows=3
    ) as server:
        await server.app.warm_up()
        return list(scorer.batches)


async def test_the_warm_up_runs_every_length_off_the_cpu() -> None:
    """A full batch of each, the longest first, that a GPU has chosen its kernels by then."""
    passages = await passes_of_the_warm_up(FakeScorer(), window_tokens=100)
    batches = await passes_of_the_warm_up(FakeScorer(), window_tokens=100, device="cuda:0")
    assert batches == [*passages, [100], [64, 64], [32, 32, 32]]


async def test_a_length_that_does_not_fit_into_memory_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Shorter passages can be served all the same."""

    def out_of_memory(windows: Sequence[EncodedWindow]) -> None:
        if any(window.token_count == 100 for window in windows):
            raise MemoryError

    scorer = FakeScorer(fail=out_of_memory)
    assert (await passes_of_the_warm_up(scorer, window_tokens=100, device="mps"))[-1] == [32] * 3
    assert "windows of 100 tokens cannot be run: the model ran out of memory" in caplog.text


@pytest.mark.parametrize(
    ("window_tokens", "expected"),
    [(512, [512, 256, 128, 64, 32]), (33, [33, 32]), (32, [32]), (20, [20])],
)
def test_lengths_of_the_warm_up(window_tokens: int, expected: list[int]) -> None:
    assert lengths(window_tokens) == expected


async def test_a_warm_up_that_scores_nothing_is_no_warm_up() -> None:
    """F20: a pass that fails must not turn health green."""

    def broken(windows: Any) -> None:
        raise RuntimeError("no kernel")

    async with serving(scorer=FakeScorer(fail=broken), warm=False) as server:
        with pytest.raises(InvariantError):
            await server.app.warm_up()
        assert await server.health() == NOT_SERVING


async def test_broken_weights_are_the_checkpoints_fault() -> None:
    """A model of NaN stopped the start with "this is a bug"."""

    class NotFinite(FakeScorer):
        def run(self, windows: Sequence[EncodedWindow]) -> list[WindowOutput]:
            return [replace(output, relevance_logit=math.nan) for output in super().run(windows)]

    async with serving(scorer=NotFinite(), warm=False) as server:
        with pytest.raises(CheckpointError, match="not finite; the weights are broken"):
            await server.app.warm_up()
        assert await server.health() == NOT_SERVING


async def test_health_turns_red_when_the_worker_dies() -> None:
    """F20: health that is green after the worker died."""

    class Death(BaseException):
        pass

    def die(windows: Any) -> None:
        raise Death

    async with serving() as server:
        health: Any = health_pb2_grpc.HealthStub(server.channel)
        watch = health.Watch(health_pb2.HealthCheckRequest(service=SERVICE), timeout=PATIENCE)
        assert (await watch.read()).status == SERVING
        server.scorer.fail = die
        error = await error_of(server.rerank(QUERY, [RED]))
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert (await watch.read()).status == NOT_SERVING
        assert await server.health() == NOT_SERVING
        assert server.app.dead.is_set()
        error = await error_of(server.rerank(QUERY, [RED]))
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        watch.cancel()


async def test_a_drain_finishes_what_is_inside_and_refuses_the_rest() -> None:
    async with serving() as server:
        scorer = server.scorer
        scorer.gate = threading.Event()
        inside = asyncio.create_task(server.rerank(QUERY, [RED] * 5))
        await asyncio.to_thread(scorer.started.wait, PATIENCE)
        draining = asyncio.create_task(server.app.drain())
        await asyncio.sleep(0)
        assert await server.health() == NOT_SERVING
        error = await error_of(server.rerank(QUERY, [RED]))
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert "shutting down" in str(error.details())
        scorer.gate.set()
        assert len((await inside).results) == 5
        assert await draining == 0


async def test_a_drain_lets_an_open_stream_finish() -> None:
    async with serving() as server:
        call = server.stub.RerankAndPruneStream(timeout=PATIENCE)
        opening = pb.StreamStart(query=QUERY)
        batch = pb.PassageBatch(passages=[pb.Passage(text=RED)])
        await call.write(pb.RerankAndPruneStreamRequest(start=opening))
        await call.write(pb.RerankAndPruneStreamRequest(passages=batch))
        assert (await call.read()).result.index == 0
        draining = asyncio.create_task(server.app.drain())
        await asyncio.sleep(0)
        await call.write(pb.RerankAndPruneStreamRequest(passages=batch))
        await call.done_writing()
        assert (await call.read()).result.index == 1
        assert len((await call.read()).summary.ranking) == 2
        assert await draining == 0


async def test_a_drain_out_of_time_cuts_what_is_inside() -> None:
    async with serving(drain_seconds=0) as server:
        scorer = server.scorer
        scorer.gate = threading.Event()
        inside = asyncio.create_task(server.rerank(QUERY, [RED]))
        await asyncio.to_thread(scorer.started.wait, PATIENCE)
        assert await server.app.drain() == 1
        error = await error_of(inside)
        assert error.code() is grpc.StatusCode.UNAVAILABLE  # so that another server may answer it
        assert "shutting down" in str(error.details())
        scorer.gate.set()


async def test_reflection_tells_the_contract() -> None:
    async def names(channel: grpc.aio.Channel) -> set[str]:
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        call = stub.ServerReflectionInfo(iter([request]), timeout=PATIENCE)
        responses = [response async for response in call]
        return {service.name for service in responses[0].list_services_response.service}

    async with serving() as server:
        assert await names(server.channel) >= {
            SERVICE,
            "grpc.health.v1.Health",
            "grpc.reflection.v1alpha.ServerReflection",
        }
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(server.channel)
        request = reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE)
        call = stub.ServerReflectionInfo(iter([request]), timeout=PATIENCE)
        files = (await call.read()).file_descriptor_response
        found = descriptor_pb2.FileDescriptorProto.FromString(files.file_descriptor_proto[0])
        assert found.package == "secateur.v1"
    async with serving(reflection=False) as server:
        error = await error_of(names(server.channel))
        assert error.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_a_port_in_use_is_one_sentence() -> None:
    async with serving(warm=False) as server:
        second = App(settings_for_test(port=server.port), lambda settings: make_engine())
        with pytest.raises(SettingsError, match=f"127.0.0.1:{server.port}: the port is in use"):
            await second.start()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_serve_ends_with_zero_after_a_signal(number: signal.Signals) -> None:
    lines: list[str] = []

    def announce(line: str) -> None:
        lines.append(line)
        if line.startswith("ready"):
            os.kill(os.getpid(), number)

    async with asyncio.timeout(PATIENCE):
        code = await serve(
            settings_for_test(), load_engine=lambda settings: make_engine(), announce=announce
        )
    assert code == 0
    assert "port                             = 0" in lines[0]
    host, _, port = lines[1].removeprefix("listening on ").partition(":")
    assert host == "127.0.0.1"
    assert int(port) > 0
    assert lines[2:] == ["ready: fake, float32 on cpu"]


async def test_a_second_signal_ends_the_drain() -> None:
    scorer = FakeScorer()
    signals = 0
    calls: list[asyncio.Task[Any]] = []
    target = ""

    def announce(line: str) -> None:
        nonlocal target
        if line.startswith("listening on "):
            target = line.removeprefix("listening on ")
        if line.startswith("ready"):
            scorer.started.clear()
            scorer.gate = threading.Event()
            calls.append(asyncio.create_task(call_and_stop()))

    async def call_and_stop() -> None:
        nonlocal signals
        async with grpc.aio.insecure_channel(target) as channel:
            stub: Any = pb_grpc.RerankPruneServiceStub(channel)
            call = stub.RerankAndPrune(rerank_request(QUERY, [RED]))
            await asyncio.to_thread(scorer.started.wait, PATIENCE)
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)
            signals = 2
            await error_of(call)

    async with asyncio.timeout(PATIENCE):
        code = await serve(
            settings_for_test(drain_seconds=3_600),
            load_engine=lambda settings: make_engine(scorer=scorer),
            announce=announce,
        )
        assert scorer.gate is not None
        scorer.gate.set()
        await asyncio.gather(*calls)
    assert (code, signals) == (0, 2)


async def test_serve_ends_with_one_when_the_worker_dies() -> None:
    class Death(BaseException):
        pass

    calls: list[asyncio.Task[None]] = []
    scorer = FakeScorer()
    target = ""

    def die(windows: Any) -> None:
        raise Death

    async def call() -> None:
        async with grpc.aio.insecure_channel(target) as channel:
            stub: Any = pb_grpc.RerankPruneServiceStub(channel)
            error = await error_of(stub.RerankAndPrune(rerank_request(QUERY, [RED])))
            assert error.code() is grpc.StatusCode.UNAVAILABLE

    def announce(line: str) -> None:
        nonlocal target
        if line.startswith("listening on "):
            target = line.removeprefix("listening on ")
        if line.startswith("ready"):
            scorer.fail = die
            calls.append(asyncio.create_task(call()))

    async with asyncio.timeout(PATIENCE):
        code = await serve(
            settings_for_test(),
            load_engine=lambda settings: make_engine(scorer=scorer),
            announce=announce,
        )
        await asyncio.gather(*calls)
    assert code == 1


STUCK = """
import sys, threading
from fakes import FakeScorer, make_engine
from server_harness import settings_for_test
from secateur.server.app import run

def stuck(windows):
    if any(len(window.input_ids[window.passage_tokens]) == 3 for window in windows):
        print("a pass is running", flush=True)
        threading.Event().wait()

def load(settings):
    if sys.argv[1:] == ["load"]:
        print("the model is loading", flush=True)
        threading.Event().wait()
    return make_engine(scorer=FakeScorer(fail=stuck))

sys.exit(run(settings_for_test(drain_seconds=0), load_engine=load))
"""


@pytest.mark.parametrize("moment", ["pass", "load"])
def test_work_that_goes_on_does_not_hold_up_the_exit(moment: str) -> None:
    """A pass in work at the end of the drain used to be waited for, past every grace time."""
    tests = Path(__file__).parent
    command = [sys.executable, "-c", STUCK, moment]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tests,
        env={**os.environ, "PYTHONPATH": str(tests)},
    ) as process:
        assert process.stdout is not None
        target = ""
        for line in process.stdout:
            if line.startswith("listening on "):
                target = line.removeprefix("listening on ").strip()
            if line.startswith(("the model is loading", "ready")):
                break
        with grpc.insecure_channel(target) as channel:
            stub: Any = pb_grpc.RerankPruneServiceStub(channel)
            if moment == "pass":
                call = stub.RerankAndPrune.future(rerank_request(QUERY, ["Hall. Noon"]))
                assert next(process.stdout) == "a pass is running\n"
            process.terminate()
            _, errors = process.communicate(timeout=PATIENCE)
            if moment == "pass":
                assert call.exception().code() is grpc.StatusCode.UNAVAILABLE
    assert process.returncode == 0, errors
    assert "exiting while a thread is still at work" in errors


@pytest.fixture
def signals_put_back() -> Iterator[None]:
    """The process of the tests outlives ``run``."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("signals_put_back")
def test_a_signal_after_the_drain_does_not_change_the_exit_code() -> None:
    """A second SIGTERM between the drain and the process's end used to kill it with -15."""

    def stopped(settings: ServerSettings) -> Engine:
        os.kill(os.getpid(), signal.SIGTERM)
        return make_engine()

    assert run(settings_for_test(), load_engine=stopped) == 0
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(os.getpid(), number)


@pytest.mark.usefixtures("signals_put_back")
def test_run_says_in_one_sentence_why_it_cannot_start(capsys: pytest.CaptureFixture[str]) -> None:
    def missing(settings: ServerSettings) -> Engine:
        raise CheckpointError("no folder /models/x")

    assert run(settings_for_test(), load_engine=missing) == 1
    assert capsys.readouterr().err.endswith("secateur: no folder /models/x\n")


def test_serving_loads_no_torch_before_the_model(tmp_path: Path) -> None:
    """The port answers health checks while torch is still being imported."""
    code = "import sys, secateur.server.app; print('torch' in sys.modules)"
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True)
    assert result.stdout == "False\n"


def test_a_gate_never_goes_back() -> None:
    async def check() -> None:
        states: list[State] = []
        gate = Gate(max_calls=1, on_change=states.append)
        with pytest.raises(UnavailableError), gate.enter():
            pass
        assert gate.advance(State.SERVING)
        assert gate.advance(State.DRAINING)
        assert not gate.advance(State.SERVING)
        with pytest.raises(UnavailableError), gate.enter():
            pass
        assert states == [State.SERVING, State.DRAINING]

    asyncio.run(check())


def test_addresses() -> None:
    assert address("127.0.0.1", 1) == "127.0.0.1:1"
    assert address("::1", 1) == "[::1]:1"
    assert address("[::]", 1) == "[::]:1"
