"""Faults that inference servers really have, each through a whole server (F18 to F25).

More of F18, F19, F20 and F23 stand in test_server_rpc, test_server_batcher, test_server_life and
test_server_errors.
"""

from __future__ import annotations

import ast
import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
from fakes import FakeScorer, StubTokenizer, make_engine
from grpc_health.v1 import health_pb2
from server_harness import (
    PATIENCE,
    details_of,
    error_of,
    fields_of,
    serving,
    settings_for_test,
)
from tiny import tiny_tokenizer

from secateur import Client
from secateur.errors import InvariantError
from secateur.model.engine import Engine
from secateur.model.prepared import EncodedWindow, WindowOutput
from secateur.model.tokenization import FastTokenizer, TokenizedText
from secateur.server.app import load_engine
from secateur.server.settings import ServerSettings
from secateur.types import PrunedPassage

ROOT = Path(__file__).parents[1]
QUERY = "what opens the valve"
RED = "The red handle opens the valve. Lunch is at noon."


async def test_f18_a_request_over_the_limit_is_refused_before_any_work() -> None:
    async with serving(max_receive_message_bytes=10_000) as server:
        info = await asyncio.to_thread(ask_for_info, server.port)
        assert info.limits.max_passages == 1_000
        error = await error_of(server.rerank(QUERY, [RED * 300]))
        found = details_of(error)["ErrorInfo"]
        assert (found.reason, found.metadata["limit"]) == ("MESSAGE_TOO_LARGE", "10000")
        assert "RerankAndPruneStream" in str(error.details())
        assert server.scorer.batches == []


def ask_for_info(port: int) -> Any:
    with Client(f"127.0.0.1:{port}") as client:
        return client.model_info()


async def test_f19_after_a_cancel_at_most_one_batch_runs() -> None:
    """By counting forward passes: the one that ran at the cancel, and none of the other 49."""
    async with serving(max_batch_windows=1) as server:
        scorer = server.scorer
        scorer.gate = threading.Event()
        call = asyncio.create_task(server.rerank(QUERY, [RED] * 50))
        await asyncio.to_thread(scorer.started.wait, PATIENCE)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await asyncio.wait_for(server.left.get(), PATIENCE)
        scorer.gate.set()
        await server.rerank(QUERY, ["Noon."])
        assert len(scorer.batches) == 2
        assert server.batcher.queued_tokens == 0


async def test_f20_a_warm_up_without_results_is_no_success() -> None:
    """`all([])` is true, so "no result failed" would say that nothing works well."""

    class Silent(Engine):
        def rank(self, *_: Any) -> tuple[tuple[PrunedPassage, ...], int]:
            return (), 0

    def load(settings: ServerSettings) -> Engine:
        engine = make_engine(limits=settings.limits)
        engine.__class__ = Silent
        return engine

    async with serving(load=load, warm=False) as server:
        with pytest.raises(InvariantError):
            await server.app.warm_up()
        assert await server.health() == health_pb2.HealthCheckResponse.NOT_SERVING
        error = await error_of(server.rerank(QUERY, [RED]))
        assert error.code() is grpc.StatusCode.UNAVAILABLE


async def test_f21_threads_share_one_fast_tokenizer() -> None:
    """One that is reconfigured per call raises "Already borrowed" under load."""
    texts = ["the red valve opens " * (1 + n % 7) for n in range(40)]
    async with serving(
        threads=8, engine_parts={"tokenizer": FastTokenizer(tiny_tokenizer())}
    ) as server:
        together = await asyncio.gather(
            *(server.rerank("what opens", [text], include_tokens=True) for text in texts)
        )
        for text, answer in zip(texts, together, strict=True):
            (alone,) = (await server.rerank("what opens", [text], include_tokens=True)).results
            assert answer.results[0] == alone
            assert not alone.HasField("error")


def test_f22_the_server_never_forks() -> None:
    """A fork after threads have started copies their locks as they are, held for ever."""
    forking = {"multiprocessing", "os.fork", "os.forkpty", "pty", "concurrent.futures.process"}
    faults = []
    for folder in ("server", "model"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                names: list[str] = []
                if isinstance(node, ast.Import):
                    names = [alias.name for alias in node.names]
                elif isinstance(node, ast.ImportFrom):
                    names = [f"{node.module}", *(f"{node.module}.{a.name}" for a in node.names)]
                elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                    names = [f"{node.value.id}.{node.attr}", node.attr]
                faults += [
                    f"{path.name}: {name}" for name in names if name in forking | {"fork"}
                    or name.endswith("ProcessPoolExecutor")
                ]  # fmt: skip
    assert not faults


def test_f22_the_model_gets_the_threads_of_the_settings() -> None:
    """By itself torch takes the host's CPUs, whatever the container may use."""
    import torch

    before = torch.get_num_threads()
    try:
        for threads in (1, 3):
            load_engine(settings_for_test(threads=threads))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


async def test_f23_no_inside_reaches_the_caller() -> None:
    """Neither of a passage that fails alone nor of a whole call."""

    def poison(windows: Sequence[EncodedWindow]) -> None:
        raise OSError(13, "Permission denied", "/secret/path")

    class Broken(StubTokenizer):
        def encode(self, text: str) -> TokenizedText:
            if "sesame" in text:
                raise LookupError("/secret/path")
            return super().encode(text)

    async with serving(engine_parts={"tokenizer": Broken()}) as server:
        server.scorer.fail = poison
        answer = await server.rerank(QUERY, [RED, "Open sesame."])
        assert all(result.HasField("error") for result in answer.results)
        assert "secret" not in str(answer)
        error = await error_of(server.rerank("Open sesame", [RED]))
        assert error.code() is grpc.StatusCode.INTERNAL
        assert "secret" not in str(error.details()) + str(error.trailing_metadata())


@pytest.mark.parametrize("data", [b"\xff\xff\xff", b"\x0a\x02\xff\xfe"])
async def test_f23_bytes_that_are_no_message_are_refused_in_our_words(data: bytes) -> None:
    """gRPC itself would tell the caller the raw exception."""
    async with serving() as server:
        path = "/secateur.v1.RerankPruneService/"
        channel: Any = server.channel
        for method in ("RerankAndPrune", "Highlight"):
            error = await error_of(channel.unary_unary(path + method)(data))
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert fields_of(error) == ["message"]
            assert "Decode" not in str(error.details())
        call = channel.stream_stream(path + "RerankAndPruneStream")(iter([data]))
        error = await error_of(call.read())
        assert fields_of(error) == ["message"]
        count = server.app.metrics.registry.get_sample_value(
            "secateur_errors_total", {"reason": "INVALID_REQUEST"}
        )
        assert count == 3


OFFLINE = """
import socket, sys
from secateur.server.app import run
from secateur.server.settings import load_settings

def refuse(*arguments, **options):
    print("looked for another host:", arguments, flush=True)
    raise OSError("no network")

socket.getaddrinfo = socket.create_connection = socket.socket.connect = refuse
sys.exit(run(load_settings(port=0)))
"""


def test_f24_the_server_starts_and_answers_without_a_network(tmp_path: Path) -> None:
    """With an empty home: nothing is downloaded, and nobody is asked."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SECATEUR_", "HF_", "TRANSFORMERS_"))
    }
    with subprocess.Popen(
        [sys.executable, "-c", OFFLINE],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**environment, "HOME": str(tmp_path / "home"), "XDG_CACHE_HOME": str(tmp_path)},
    ) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith("listening on "):
                target = line.removeprefix("listening on ").strip()
            if line.startswith("ready"):
                break
        with Client(target, timeout=PATIENCE) as client:
            assert client.rerank_and_prune(QUERY, [RED]).results[0].relevance_score is not None
        process.terminate()
        rest, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, errors
    assert "another host" not in "".join([*lines, rest])
    assert list(tmp_path.iterdir()) == []


async def test_f25_no_answer_is_taken_from_another_call() -> None:
    """With the cache on: another query is scored anew; what hits still obeys its own options."""
    async with serving(cache_bytes=1 << 20) as server:
        seen, hits = [], []
        for query, options in (
            (QUERY, {}),
            (QUERY, {"threshold": 0.0}),
            ("is lunch at noon", {}),
            (QUERY, {"language": "de"}),
        ):
            answer = await server.rerank(query, [RED], **options)
            hits.append(answer.usage.cached_passage_count)
            seen.append([sentence.kept for sentence in answer.results[0].sentences])
        assert seen == [[True, False], [True, True], [False, True], [True, False]]
        assert hits == [0, 1, 0, 1]
        assert [len(batch) for batch in server.scorer.batches] == [1, 1]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
async def test_a_passage_without_a_finite_score_fails_alone(bad: float) -> None:
    class Sick(FakeScorer):
        def run(self, windows: Sequence[EncodedWindow]) -> list[WindowOutput]:
            outputs = super().run(windows)
            for position, window in enumerate(windows):
                if window.token_count == 9:
                    outputs[position] = WindowOutput(bad, outputs[position].keep_probabilities)
                if window.token_count == 10:
                    keep = outputs[position].keep_probabilities
                    assert keep is not None
                    keep[0] = bad
            return outputs

    async with serving(scorer=Sick()) as server:
        answer = await server.rerank(QUERY, ["Noon.", RED, "It rains.", RED])
        assert [result.index for result in answer.results] == [1, 3, 0, 2]
        for result in answer.results[2:]:
            assert result.error.code == grpc.StatusCode.INTERNAL.value[0]
            assert not result.HasField("relevance_score")
        count = server.app.metrics.registry.get_sample_value("secateur_not_finite_passages_total")
        assert count == 2
        (alone,) = (await server.rerank(QUERY, [RED])).results
        alone.index = 1
        assert answer.results[0] == alone


class NativePanicError(BaseException):
    """As pyo3's, which is no ``Exception``."""


async def test_a_panic_of_native_code_is_contained() -> None:
    class Panicking(StubTokenizer):
        def encode(self, text: str) -> TokenizedText:
            if "panic" in text:
                raise NativePanicError("index out of bounds")
            return super().encode(text)

    async with serving(engine_parts={"tokenizer": Panicking()}) as server:
        answer = await server.rerank(QUERY, ["Do not panic.", RED])
        assert [result.index for result in answer.results] == [1, 0]
        assert answer.results[1].error.code == grpc.StatusCode.INTERNAL.value[0]
        assert "bounds" not in str(answer)
        error = await error_of(server.rerank("panic", [RED]))
        assert error.code() is grpc.StatusCode.INTERNAL
        assert (await server.rerank(QUERY, [RED])).results


@pytest.mark.parametrize(
    "text",
    [
        "\x00 valve.",
        "\ufffe\uffff valve.",
        "\U0010ffff valve.",
        "valve" + "\u0301" * 5_000,
        "\u202e valve.\u202c",
        "\ufeffvalve. \ufdd0",
        "v\u200da\u200dl\u200dv\u200de.",
    ],
)
async def test_unclean_unicode_is_answered_and_harms_no_neighbour(text: str) -> None:
    async with serving() as server:
        answer = await server.rerank(QUERY, [text, RED], threshold=0.0)
        by_index = {result.index: result for result in answer.results}
        assert by_index[0].pruned_text == text.strip()
        (alone,) = (await server.rerank(QUERY, [RED], threshold=0.0)).results
        alone.index = 1
        assert by_index[1] == alone


async def test_out_of_memory_ends_with_the_passage_that_does_not_fit() -> None:
    """F11, through the server: halves, then single windows, then only its own error."""

    def too_little(windows: Sequence[EncodedWindow]) -> None:
        if sum(window.token_count for window in windows) > 30:
            raise MemoryError

    async with serving() as server:
        server.scorer.fail = too_little
        answer = await server.rerank(QUERY, [RED, "valve " * 30, RED, "Noon."])
        assert [result.index for result in answer.results] == [0, 2, 3, 1]
        assert answer.results[-1].error.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]


async def test_an_item_above_the_batch_budget_ends() -> None:
    """F11, through the server."""
    async with serving(max_batch_tokens=10) as server:
        answer = await server.rerank(QUERY, [RED, "valve " * 200, "Noon."])
        assert len(answer.results) == 3
        assert not any(result.HasField("error") for result in answer.results)


async def test_every_limit_names_itself() -> None:
    """Each violation has a path, a reason and, in ErrorInfo, the limit."""
    flags: dict[str, Any] = {
        "max_passages": 2,
        "max_passage_characters": 40,
        "max_request_characters": 200,
        "max_query_characters": 30,
        "max_title_characters": 5,
        "max_id_characters": 4,
        "max_protected_patterns": 1,
        "max_protected_pattern_characters": 3,
    }
    async with serving(**flags) as server:
        for query, texts, options, path, limit in (
            ("valve", ["a"] * 3, {}, "passages", 2),
            ("valve", ["a", "b" * 41], {}, "passages[1].text", 40),
            ("v" * 31, ["a"], {}, "query", 30),
            ("valve", ["a"], {"protected_patterns": ["a", "b"]}, "options.protected_patterns", 1),
            (
                "valve",
                ["a"],
                {"protected_patterns": ["abcd"]},
                "options.protected_patterns[0]",
                3,
            ),
        ):
            error = await error_of(server.rerank(query, texts, **options))
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert fields_of(error) == [path]
            metadata = details_of(error)["ErrorInfo"].metadata
            assert (metadata["field"], metadata["limit"]) == (path, str(limit))
        assert server.scorer.batches == []
