"""Families through the server and the command line: warm-up, capabilities, refusals, conversion."""

from __future__ import annotations

import json
from pathlib import Path

import grpc
import pytest
from families_originals import write
from one_thread import one_thread  # noqa: F401 - a fixture
from server_harness import PATIENCE, details_of, error_of, serving

from secateur._convert import model_info_from_proto, ranked_from_proto
from secateur.cli import main
from secateur.model.engine import Engine
from secateur.model.pruner import load_engine
from secateur.server.settings import ServerSettings
from secateur.types import KeepRule, ScoreSource
from secateur.v1 import rerank_prune_pb2 as pb

TEXTS = ("The red valve opens. Lunch was late.", "The hall is quiet.")
Capture = pytest.CaptureFixture[str]


def loader(folder: Path) -> object:
    def load(settings: ServerSettings) -> Engine:
        return load_engine(folder, limits=settings.limits)

    return load


async def test_a_server_with_a_plain_reranker(tmp_path: Path) -> None:
    """It warms up, says what it cannot do, refuses that, and ranks."""
    write("plain-bert", tmp_path)
    async with serving(load=loader(tmp_path)) as server:  # type: ignore[arg-type]
        message = await server.stub.GetModelInfo(pb.GetModelInfoRequest(), timeout=PATIENCE)
        assert not message.HasField("default_threshold")
        info = model_info_from_proto(message)
        assert (info.can_rerank, info.can_prune, info.keep_rules) == (True, False, ())
        assert (info.default_threshold, info.default_keep_rule) == (None, None)
        for options in ({}, {"threshold": 0.3}):
            error = await error_of(server.rerank("valve", TEXTS, **options))
            assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
            details = details_of(error)["ErrorInfo"]
            assert details.reason == "UNSUPPORTED_BY_MODEL"
            assert details.metadata["field"] == "options.threshold"
        found = ranked_from_proto(await server.rerank("valve", TEXTS, threshold=0.0))
        assert (found.applied_threshold, found.applied_keep_rule) == (0.0, None)
        assert [result.pruned_text in TEXTS for result in found.results] == [True, True]
        assert all(result.relevance_logit is not None for result in found.results)


async def test_a_server_with_a_sentence_highlighter(tmp_path: Path) -> None:
    write("opensearch_highlighter", tmp_path)
    async with serving(load=loader(tmp_path)) as server:  # type: ignore[arg-type]
        found = ranked_from_proto(await server.rerank("valve", TEXTS))
        assert found.score_source is ScoreSource.BEST_SENTENCE
        assert found.applied_keep_rule is KeepRule.SENTENCE_HEAD
        for result in found.results:
            assert (result.relevance_logit, result.error) == (None, None)
            assert all(sentence.vote_share is None for sentence in result.sentences)


def test_info_prints_a_checkpoint(tmp_path: Path, capsys: Capture) -> None:
    write("zilliz_highlight", tmp_path / "zilliz")
    assert main(["info", "--model", str(tmp_path / "zilliz")]) == 0
    rows = dict(line.split(None, 1) for line in capsys.readouterr().out.splitlines())
    assert {name: rows[name] for name in ("id", "family", "can_prune", "window_tokens")} == {
        "id": "zilliz",
        "family": "zilliz_highlight",
        "can_prune": "yes",
        "window_tokens": "64",
    }
    assert (rows["default_threshold"], rows["default_keep_rule"]) == ("0.5", "mean_probability")
    assert rows["keep_rules"] == "mean_probability, token_vote, majority"
    assert rows["max_passages"] == "1,000"


def test_info_prints_what_there_is_not(tmp_path: Path, capsys: Capture) -> None:
    write("plain-bert", tmp_path)
    assert main(["info", "--model", str(tmp_path)]) == 0
    rows = dict(line.split(None, 1) for line in capsys.readouterr().out.splitlines())
    names = ("can_prune", "keep_rules", "default_threshold", "default_keep_rule")
    assert [rows[name] for name in names] == ["no", "-", "-", "-"]
    assert main(["info", "--model", str(tmp_path), "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["can_prune"] is False
    assert "default_threshold" not in value


def test_prune_with_a_plain_reranker(tmp_path: Path, capsys: Capture) -> None:
    """Its tokens have no probabilities to count by: the summary does without them."""
    write("plain-bert", tmp_path)
    (tmp_path / "texts.txt").write_text("\n\n".join(TEXTS))
    command = ["prune", "--model", str(tmp_path), "-q", "valve", str(tmp_path / "texts.txt")]
    assert main(command) == 2
    assert "set it to 0 to rank passages" in capsys.readouterr().err
    assert main([*command, "--threshold", "0"]) == 0
    out = capsys.readouterr().out
    assert "Kept 3 of 3 sentences · characters" in out
    assert "threshold 0 · rule -" in out


def test_convert(tmp_path: Path, capsys: Capture) -> None:
    write("provence", tmp_path / "theirs")
    command = ["convert", "--model", str(tmp_path / "theirs"), "--out", str(tmp_path / "ours")]
    assert main([*command, "--dtype", "float16"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{tmp_path / 'ours'}: theirs, provence, ")
    assert first.endswith("parameters in float16")
    assert second.startswith("largest difference of a logit over ")
    assert second.endswith("(bound 0.05)")
    assert main(["info", "--model", str(tmp_path / "ours")]) == 0
    assert "provence" in capsys.readouterr().out
    assert main(command) == 1
    assert "is there already" in capsys.readouterr().err
    assert main([*command, "--dtype", "int8"]) == 2
    assert "use one of float32, float16" in capsys.readouterr().err


def test_an_unknown_folder_is_told_once(tmp_path: Path, capsys: Capture) -> None:
    write("plain-bert", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["architectures"] = ["SomebodysReranker"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert main(["info", "--model", str(tmp_path)]) == 1
    told = capsys.readouterr().err
    assert "no known checkpoint layout: found model_type 'bert'" in told
    assert "opensearch_highlighter on bert: bert.*" in told
