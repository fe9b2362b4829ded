"""What an operator sees: metrics, request ids, log lines."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import re
import signal
import socket
import threading
import urllib.request
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from fakes import StubSplitter, make_engine
from prometheus_client.parser import text_string_to_metric_families
from server_harness import (
    PATIENCE,
    error_of,
    rerank_request,
    serving,
    settings_for_test,
)

from secateur.server.app import serve
from secateur.server.calls import request_id_of
from secateur.server.logs import FIELDS, REQUEST_ID, JsonFormatter, TextFormatter, configure
from secateur.server.metrics import RECENT_REQUESTS, Metrics
from secateur.server.settings import SettingsError
from secateur.v1 import rerank_prune_pb2 as pb

QUERY = "what opens the valve"
RED = "The red handle opens the valve. Lunch is at noon."


def samples(metrics: Metrics) -> dict[tuple[str, ...], float]:
    """Every sample by its name and label values, zeros left out."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.value and not sample.name.endswith("_created")
    }


async def test_a_call_is_counted_from_its_arrival_to_its_answer() -> None:
    async with serving() as server:
        before = samples(server.app.metrics)
        answer = await server.rerank(QUERY, [RED, RED, "Noon."])
        after = samples(server.app.metrics)

    def added(*name: str) -> float:
        return after.get(name, 0) - before.get(name, 0)

    assert added("secateur_requests_total", "RerankAndPrune", "OK") == 1
    assert added("secateur_request_seconds_count", "RerankAndPrune") == 1
    assert added("secateur_batch_tokens_sum") == answer.usage.input_tokens == 19 + 19 + 9
    assert added("secateur_batch_tokens_count") == len(server.scorer.batches)
    assert added("secateur_inference_seconds_count") == len(server.scorer.batches)
    assert added("secateur_batch_padding_share_sum") == pytest.approx(
        sum(1 - sum(batch) / (max(batch) * len(batch)) for batch in server.scorer.batches)
    )
    assert added("secateur_input_tokens_sum") == answer.usage.input_tokens
    passage_tokens = 12 + 12 + 2
    assert added("secateur_kept_token_ratio_sum") == pytest.approx(
        answer.usage.kept_tokens / passage_tokens
    )
    assert added("secateur_tokens_saved_total") == passage_tokens - answer.usage.kept_tokens
    assert added("secateur_queue_seconds_count") == 1
    assert not any(name[0] == "secateur_errors_total" for name in after)


async def test_streams_are_counted_too() -> None:
    async with serving() as server:
        before = samples(server.app.metrics)
        messages = [
            pb.RerankAndPruneStreamRequest(start=pb.StreamStart(query=QUERY)),
            *[
                pb.RerankAndPruneStreamRequest(
                    passages=pb.PassageBatch(passages=[pb.Passage(text=RED)])
                )
            ]
            * 2,
        ]
        call = server.stub.RerankAndPruneStream(iter(messages), timeout=PATIENCE)
        *_, last = [response async for response in call]
        after = samples(server.app.metrics)
    assert after["secateur_requests_total", "RerankAndPruneStream", "OK"] == 1
    tokens = ("secateur_input_tokens_sum",)
    assert after[tokens] - before[tokens] == last.summary.usage.input_tokens


async def test_failures_are_counted_by_reason(caplog: pytest.LogCaptureFixture) -> None:
    def poison(windows: Any) -> None:
        if any(window.token_count == 9 for window in windows):
            raise RuntimeError("no kernel")

    async with serving(max_concurrent_calls=1) as server:
        scorer = server.scorer
        await error_of(server.rerank("", [RED]))
        await error_of(server.rerank(QUERY, [RED], max_context_tokens=5))
        scorer.fail = poison
        await server.rerank(QUERY, [RED, "Noon."])
        scorer.fail = None
        scorer.started.clear()
        scorer.gate = threading.Event()
        gone = server.stub.RerankAndPrune(rerank_request(QUERY, [RED]))
        waiting = asyncio.ensure_future(gone)
        await asyncio.to_thread(scorer.started.wait, PATIENCE)
        await error_of(server.rerank(QUERY, [RED]))
        while not server.left.empty():
            server.left.get_nowait()
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await asyncio.wait_for(server.left.get(), PATIENCE)
        scorer.gate.set()
        await server.rerank(QUERY, [RED])
        found = samples(server.app.metrics)
    requests = {name[2]: n for name, n in found.items() if name[0] == "secateur_requests_total"}
    assert requests == {
        "INVALID_ARGUMENT": 1,
        "UNIMPLEMENTED": 1,
        "OK": 2,
        "RESOURCE_EXHAUSTED": 1,
        "CANCELLED": 1,
    }
    errors = {name[1]: n for name, n in found.items() if name[0] == "secateur_errors_total"}
    assert errors == {"INVALID_REQUEST": 1, "OPTION_NOT_IMPLEMENTED": 1, "OVERLOADED": 1}
    assert found["secateur_passage_errors_total", "INTERNAL"] == 1


async def test_the_queue_is_told_as_it_is() -> None:
    async with serving() as server:
        scorer = server.scorer
        scorer.gate = threading.Event()
        calls = [asyncio.create_task(server.rerank(QUERY, ["Noon."]))]
        await asyncio.to_thread(scorer.started.wait, PATIENCE)
        calls.append(asyncio.create_task(server.rerank(QUERY, [RED] * 3)))
        for _ in calls:
            await asyncio.wait_for(server.enqueued.get(), PATIENCE)
        found = samples(server.app.metrics)
        assert found["secateur_queue_tokens",] == 3 * 19
        assert found["secateur_queue_windows",] == 3
        scorer.gate.set()
        await asyncio.gather(*calls)
        found = samples(server.app.metrics)
        assert ("secateur_queue_tokens",) not in found
        assert ("secateur_queue_windows",) not in found


@pytest.mark.parametrize(
    ("counts", "p95"),
    [([], 0), ([7], 7), (range(1, 101), 95), ([1] * RECENT_REQUESTS + [9] * RECENT_REQUESTS, 9)],
)
def test_p95_of_input_tokens(counts: Any, p95: int) -> None:
    metrics = Metrics()
    for count in counts:
        metrics.answered(input_tokens=count, passage_tokens=0, kept_tokens=0, queue_seconds=0)
    assert samples(metrics).get(("secateur_input_tokens_p95",), 0) == p95


async def test_metrics_have_a_port_of_their_own() -> None:
    """They are announced, served in Prometheus's form, and gone after the drain."""
    lines: list[str] = []
    pages: list[str] = []

    def fetch(where: str) -> str:
        with urllib.request.urlopen(f"http://{where}/metrics", timeout=PATIENCE) as response:
            return str(response.read().decode())

    async def look() -> None:
        where = next(line for line in lines if line.startswith("metrics on "))
        pages.append(await asyncio.to_thread(fetch, where.removeprefix("metrics on ")))
        app_stop()

    def announce(line: str) -> None:
        lines.append(line)
        if line.startswith("ready"):
            looks.append(asyncio.create_task(look()))

    def app_stop() -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    looks: list[asyncio.Task[None]] = []
    async with asyncio.timeout(PATIENCE):
        code = await serve(
            settings_for_test(metrics_port=0),
            load_engine=lambda settings: make_engine(),
            announce=announce,
        )
        await asyncio.gather(*looks)
    assert code == 0
    families = {family.name for family in text_string_to_metric_families(pages[0])}
    assert {"secateur_requests", "secateur_batch_tokens", "secateur_input_tokens_p95"} <= families
    host, _, port = lines[2].removeprefix("metrics on ").rpartition(":")
    with pytest.raises(ConnectionRefusedError), socket.create_connection((host, int(port))):
        pass


async def test_a_metrics_port_in_use_is_one_sentence() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        port = held.getsockname()[1]
        with pytest.raises(SettingsError, match=f"127.0.0.1:{port}: the port is in use"):
            await serve(settings_for_test(metrics_port=port), announce=lambda line: None)


async def test_without_the_setting_there_is_no_metrics_port() -> None:
    async with serving(warm=False) as server:
        assert server.app.offer_metrics() is None


async def test_the_request_id_comes_back_and_stands_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.handler.setFormatter(JsonFormatter())
    with caplog.at_level(logging.INFO, "secateur"):
        async with serving() as server:
            caplog.clear()
            for query, code in ((QUERY, "OK"), ("", "INVALID_ARGUMENT")):
                call = server.stub.RerankAndPrune(
                    rerank_request(query, [RED]), metadata=(("x-request-id", f"id-{code}"),)
                )
                assert await call.code() is grpc.StatusCode[code]
                assert ("x-request-id", f"id-{code}") in tuple(await call.trailing_metadata())
                assert "x-request-id" not in dict(await call.initial_metadata())
    ended = [json.loads(line) for line in caplog.text.splitlines() if "call ended" in line]
    assert [line["request_id"] for line in ended] == ["id-OK", "id-INVALID_ARGUMENT"]
    assert [line["code"] for line in ended] == ["OK", "INVALID_ARGUMENT"]
    assert ended[1]["reason"] == "INVALID_REQUEST"
    assert {line["method"] for line in ended} == {"RerankAndPrune"}
    assert all(line["seconds"] >= 0 for line in ended)


async def test_a_failure_in_a_thread_is_logged_with_the_request_id(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Brittle(StubSplitter):
        def split(self, text: str, language: str = "") -> Any:
            if "crash" in text:
                raise RuntimeError("cannot split")
            return super().split(text, language)

    caplog.handler.setFormatter(JsonFormatter())
    async with serving(engine_parts={"splitter": Brittle()}) as server:
        caplog.clear()
        await server.stub.RerankAndPrune(
            rerank_request(QUERY, ["A crash."]), metadata=(("x-request-id", "abc"),)
        )
    (line,) = [json.loads(text) for text in caplog.text.splitlines() if "internal error" in text]
    assert line["request_id"] == "abc"
    assert "cannot split" in line["traceback"]


@pytest.mark.parametrize(
    "given", ["", "a b", "x\ny", "é", "x" * 129, '{"a":1}', b"bytes", None, "../x/"]
)
def test_an_odd_request_id_is_replaced(given: str | bytes | None) -> None:
    """It goes into the log: a line feed or a quote there would forge lines."""
    metadata = [] if given is None else [("x-request-id", given)]
    made = request_id_of(metadata)
    assert re.fullmatch(r"[0-9a-f]{32}", made)
    assert request_id_of([("x-request-id", made), ("x-request-id", "second")]) == made


def record(message: str, **extra: Any) -> logging.LogRecord:
    made = logging.LogRecord("secateur.x", logging.WARNING, "f", 1, message, None, None)
    made.created = 0.25
    vars(made).update(extra)
    return made


@pytest.fixture
def _in_a_call() -> Iterator[None]:
    outside = REQUEST_ID.set("abc")
    yield
    REQUEST_ID.reset(outside)


@pytest.mark.usefixtures("_in_a_call")
def test_the_form_of_lines() -> None:
    line = JsonFormatter().format(record("two\nlines", **{FIELDS: {"code": "OK"}}))
    assert json.loads(line) == {
        "time": "1970-01-01T00:00:00.250Z",
        "level": "warning",
        "logger": "secateur.x",
        "message": "two\nlines",
        "request_id": "abc",
        "code": "OK",
    }
    assert "\n" not in line
    text = TextFormatter().format(record("hello", **{FIELDS: {"code": "OK"}}))
    assert text.endswith("WARNING secateur.x: hello code=OK [abc]")
    REQUEST_ID.set("")
    assert TextFormatter().format(record("hello")).endswith("secateur.x: hello")


@pytest.mark.parametrize(("form", "begins"), [("json", '{"time"'), ("text", "20")])
def test_configure(monkeypatch: pytest.MonkeyPatch, form: Any, begins: str) -> None:
    output = io.StringIO()
    monkeypatch.setattr("sys.stderr", output)
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "level", root.level)
    configure("info", form)
    logging.getLogger("secateur.x").info("hello")
    logging.getLogger("secateur.x").debug("silence")
    assert output.getvalue().startswith(begins)
    assert len(output.getvalue().splitlines()) == 1
