"""The commands end to end against a canned server: output, exit codes, messages."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from fake_service import NOT_SERVING, FakeService, answer, closed_port, served, status
from typer.testing import CliRunner

import secateur
from secateur import errors, types, v1
from secateur._convert import options_to_proto, passages_to_proto, ranked_from_proto
from secateur.cli import main
from secateur.cli.app import app
from secateur.cli.exits import extra_needed

Capture = pytest.CaptureFixture[str]

COMMAND = [sys.executable, "-m", "secateur"]


@pytest.fixture
def service() -> FakeService:
    return FakeService()


@pytest.fixture
def target(service: FakeService) -> Iterator[str]:
    with served(service) as address:
        yield address


@pytest.fixture
def passages(tmp_path: Path) -> str:
    path = tmp_path / "passages.jsonl"
    path.write_text('{"id": "a", "text": "Red valve. Lunch."}\n"Blue."\n', encoding="utf-8")
    return str(path)


class StubPruner:
    """Answers as the canned server does."""

    def rerank_and_prune(
        self, query: str, passages: Any, options: types.PruneOptions
    ) -> types.RankedPassages:
        request = v1.RerankAndPruneRequest(
            query=query, passages=passages_to_proto(passages), options=options_to_proto(options)
        )
        return ranked_from_proto(answer(request))


@pytest.fixture
def pruner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secateur.cli.app._load", lambda *_, **__: StubPruner())


# --- output ---


def test_prune_and_call_print_the_same(
    pruner: None, target: str, passages: str, capsys: Capture
) -> None:
    outputs = []
    for command in (["prune"], ["call", "--target", target]):
        for extra in ([], ["--json", "--include-tokens"]):
            assert main([*command, "-q", "red", passages, *extra]) == 0
            outputs.append(capsys.readouterr())
    assert outputs[:2] == outputs[2:]
    assert outputs[0].out.startswith("Query: red\n")
    assert "\n 1. 0.8808  a  1 of 2 sentences kept\n    Red valve. [-Lunch.-]\n" in outputs[0].out
    assert outputs[0].err == ""


def test_json_alone_is_on_stdout(target: str, passages: str, capsys: Capture) -> None:
    assert main(["call", "--target", target, "-q", "red", "--json", passages]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["results"][0]["sentences"][1]["reason"] == "below_threshold"
    assert value["results"][0]["tokens"] == []
    assert value["model"] == {"id": "fake", "revision": "r1", "dtype": "float32"}


def test_options_reach_the_server(
    service: FakeService, target: str, passages: str, capsys: Capture
) -> None:
    arguments = "--threshold 0.5 --keep-rule TOKEN_VOTE --top-k 2 --order input --min-sentences 1"
    arguments += " --neighbor-sentences 1 --min-relevance-score 0.2 --max-context-tokens 9"
    arguments += " --always-select-title --protected-pattern a --protected-pattern b"
    arguments += " --offset-unit utf16_code_unit --language de --truncate-query"
    arguments += " --include-tokens --include-sentence-text --json"
    assert main(["call", "--target", target, "-q", "red", passages, *arguments.split()]) == 0
    assert service.requests[0].options == v1.PruneOptions(
        threshold=0.5,
        keep_rule=v1.KeepRule.KEEP_RULE_TOKEN_VOTE,
        top_k=2,
        order=v1.ResultOrder.RESULT_ORDER_INPUT,
        min_sentences=1,
        neighbor_sentences=1,
        min_relevance_score=0.2,
        max_context_tokens=9,
        always_select_title=True,
        protected_patterns=["a", "b"],
        offset_unit=v1.OffsetUnit.OFFSET_UNIT_UTF16_CODE_UNIT,
        language="de",
        truncate_query=True,
        include_tokens=True,
        include_sentence_text=True,
    )


def test_info_of_a_running_server(service: FakeService, target: str, capsys: Capture) -> None:
    service.answers["GetModelInfo"] = v1.GetModelInfoResponse(
        id="fake",
        family="provence",
        score_source=v1.ScoreSource.SCORE_SOURCE_PASSAGE_HEAD,
        default_keep_rule=v1.KeepRule.KEEP_RULE_MEAN_PROBABILITY,
    )
    assert main(["info", "--target", target]) == 0
    assert "family                            provence" in capsys.readouterr().out
    assert main(["info", "--target", target, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["default_keep_rule"] == "mean_probability"
    assert main(["info", "--target", target, "--model", "m"]) == 2


def test_version_and_help(capsys: Capture) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"secateur {secateur.__version__}\n"
    assert main(["--help"]) == 0
    overview = capsys.readouterr().out
    for command in ("serve", "prune", "call", "demo", "info", "health"):
        assert f" {command} " in overview
        assert main([command, "--help"]) == 0


def test_typers_own_runner(target: str) -> None:
    result = CliRunner().invoke(app, ["call", "--target", target, "-q", "red", "-"], input="A.")
    assert result.exit_code == 0
    assert "Query: red" in result.output


# --- health ---


def test_health(service: FakeService, target: str, capsys: Capture) -> None:
    assert main(["health", "--target", target]) == 0
    assert capsys.readouterr().out == "SERVING\n"
    service.health.set("", NOT_SERVING)
    assert main(["health", "--target", target]) == 1
    assert capsys.readouterr().out == "NOT_SERVING\n"


def test_health_of_nothing(capsys: Capture) -> None:
    with closed_port() as target:
        assert main(["health", "--target", target, "--timeout", "5"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"secateur: cannot reach a server at {target}: ")


# --- exit codes ---


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["nonsense"],
        ["prune"],
        ["prune", "-q", "x", "--bogus", "-"],
        ["prune", "-q", "x", "--keep-rule", "vote", "-"],
        ["prune", "-q", "x", "/no/such/file"],
        ["call", "-q", "x", "/no/such/file"],
        ["call", "-q", "x", "--timeout", "0", "-"],
    ],
)
def test_wrong_usage_is_2(arguments: list[str], capsys: Capture) -> None:
    assert main(arguments) == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (
            errors.InvalidRequestError(
                [errors.FieldViolation("query", "is blank"), errors.FieldViolation("", "1 more")]
            ),
            2,
            "secateur: the request is refused:\n  query: is blank\n  1 more\n",
        ),
        (errors.NotImplementedOptionError("options.x"), 2, "secateur: options.x is not impl"),
        (errors.UnsupportedByModelError("options.x", "no"), 2, "secateur: options.x: no\n"),
        (errors.OverloadedError("full", retry_after_seconds=1), 1, "secateur: full\n"),
        (errors.CheckpointError("no config.json"), 1, "secateur: no config.json\n"),
        (errors.InvariantError("odd"), 1, "secateur: odd\nThis is a bug in Secateur; please"),
        (
            errors.MissingExtraError("serve", "torch"),
            1,
            "secateur: torch is not installed; run: pip install 'secateur[serve]'\n",
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_an_error_is_a_sentence_and_a_code(
    error: Exception,
    code: int,
    message: str,
    passages: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
) -> None:
    def failing(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr("secateur.cli.app._load", failing)
    assert main(["prune", "-q", "x", "--json", passages]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(message)


def test_errors_of_the_server(
    service: FakeService, target: str, passages: str, capsys: Capture
) -> None:
    service.answers["RerankAndPrune"] = status(grpc.StatusCode.INVALID_ARGUMENT, "query: is blank")
    assert main(["call", "--target", target, "-q", "", passages]) == 2
    assert (
        capsys.readouterr().err == "secateur: the request is refused:\n  request: query: is blank\n"
    )


def test_a_missing_extra_is_named() -> None:
    serve_named = pytest.raises(errors.MissingExtraError, match=r"no_such .*secateur\[serve\]")
    with serve_named, extra_needed("serve"):
        import no_such.inner  # type: ignore[import-not-found]  # noqa: F401
    # A module of our own that is missing is a bug, not the user's missing extra.
    with pytest.raises(ModuleNotFoundError, match="not_ours") as raised, extra_needed("serve"):
        import secateur.not_ours  # type: ignore[import-not-found]  # noqa: F401
    assert not isinstance(raised.value, errors.MissingExtraError)


# --- processes ---


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; from secateur.cli import main; code = main(['--help'])\n"
        "heavy = {'grpc', 'google.protobuf', 'numpy', 'torch', 'transformers', 'secateur.v1'}\n"
        "sys.exit(', '.join(heavy & set(sys.modules)) or code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_closed_pipe_is_quiet(target: str, passages: str) -> None:
    for extra in ([], ["--json"]):
        reader, writer = os.pipe()
        os.close(reader)
        try:
            done = subprocess.run(
                [*COMMAND, "call", "--target", target, "-q", "red", passages, *extra],
                stdout=writer,
                stderr=subprocess.PIPE,
                check=False,
            )
        finally:
            os.close(writer)
        assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_output_that_cannot_be_written_is_an_error(target: str, passages: str) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*COMMAND, "call", "--target", target, "-q", "red", "--json", passages],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr == "secateur: [Errno 28] No space left on device\n"


def test_ctrl_c_is_130_and_quiet(service: FakeService, target: str, passages: str) -> None:
    asked, gone = threading.Event(), threading.Event()

    def hang(_: Any, context: Any) -> v1.RerankAndPruneResponse:
        context.add_callback(gone.set)
        asked.set()
        assert gone.wait(30)
        return v1.RerankAndPruneResponse()

    service.answers["RerankAndPrune"] = hang
    # A background job ignores SIGINT and its children inherit that; a handler is not inherited.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen(
        [*COMMAND, "call", "--target", target, "-q", "red", passages],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        signal.signal(signal.SIGINT, before)
        assert asked.wait(30)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (130, b"", b"")
