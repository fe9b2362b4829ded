"""Which arithmetic `auto` takes, and what is refused."""

from __future__ import annotations

import json
import runpy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import tiny_provence

from secateur.errors import CheckpointError
from secateur.model import kernels
from secateur.model.checkpoints.load import load_checkpoint
from secateur.model.modes import RECORD, Measured, check_mode, fastest, read_record
from secateur.model.pruner import Pruner

GOOD = Measured(speedup=2.0, equal_decisions=0.995, f1_lost=0.001)


@pytest.fixture
def cpuinfo(tmp_path: Path) -> Path:
    path = tmp_path / "cpuinfo"
    path.write_text("processor : 0\nflags : fpu avx512_bf16 avx512_vnni\n", encoding="utf-8")
    return path


def record(speedup: float = 2.0, equal: float = 0.995, lost: float = 0.001) -> dict[str, Any]:
    return {"speedup": speedup, "equal_decisions": equal, "f1_lost": lost}


def test_the_fastest_that_passed(cpuinfo: Path) -> None:
    slower = Measured(1.5, 1.0, 0.0)
    assert fastest({"int8": GOOD, "bfloat16": slower}, "cpu", cpuinfo) == "int8"
    assert fastest({}, "cpu", cpuinfo) == "float32"


@pytest.mark.parametrize(
    "measured", [Measured(2, 0.989, 0), Measured(2, 1, 0.006), Measured(0.9, 1, 0)]
)
def test_a_bar_that_was_missed(measured: Measured, cpuinfo: Path) -> None:
    assert fastest({"int8": measured}, "cpu", cpuinfo) == "float32"


def test_a_cpu_without_the_units(cpuinfo: Path, tmp_path: Path) -> None:
    cpuinfo.write_text("flags : fpu avx2\n", encoding="utf-8")
    assert fastest({"int8": GOOD}, "cpu", cpuinfo) == "float32"
    assert fastest({"int8": GOOD}, "cpu", tmp_path / "none") == "float32"


def test_a_gpu_takes_bfloat16() -> None:
    assert fastest({"int8": GOOD}, "cuda:0") == "bfloat16"
    assert fastest({}, "mps") == "float32"


def test_what_is_refused() -> None:
    check_mode("auto", "cuda")
    with pytest.raises(ValueError, match="runs on the CPU only, not on 'cuda'"):
        check_mode("int8", "cuda")
    with pytest.raises(ValueError, match="'fp8' is unknown"):
        check_mode("fp8")


def test_records(tmp_path: Path) -> None:
    assert read_record(tmp_path, "r") == {}
    path = tmp_path / RECORD
    path.write_text(json.dumps({"revision": "r", "modes": {"int8": record()}}), encoding="utf-8")
    assert read_record(tmp_path, "r") == {"int8": GOOD}
    assert read_record(tmp_path, "other weights") == {}


@pytest.mark.parametrize(
    "text",
    [
        "[",
        "[]",
        '{"revision": "r"}',
        '{"revision": "r", "modes": {"int8": {}}}',
        '{"revision": "r", "modes": {"int8": {"speedup": "x"}}}',
        '{"revision": "r", "modes": {"int4": {"speedup":2,"equal_decisions":1,"f1_lost":0}}}',
        '{"revision": "r", "modes": {"int8": {"speedup": 1' + "0" * 400 + "}}}",
        "[" * 100_000,
    ],
)
def test_bad_records(tmp_path: Path, text: str) -> None:
    (tmp_path / RECORD).write_text(text, encoding="utf-8")
    with pytest.raises(CheckpointError, match=RECORD):
        read_record(tmp_path, "r")


def test_every_mode_serves(tmp_path: Path) -> None:
    """With the same decisions but for rounding, and ``auto`` says which it is."""
    tiny_provence(tmp_path)
    text = "the red valve opens today . the blue pump is quiet . who closes the hall ?"
    found = {}
    for mode in ("float32", "bfloat16", "int8", "auto"):
        pruner = Pruner.load(tmp_path, dtype=mode)
        (found[mode],) = pruner.rerank_and_prune("what opens the valve ?", [text]).results
        assert pruner.info.dtype == ("float32" if mode == "auto" else mode)
    exact = found["float32"]
    assert found["auto"] == exact
    for mode in ("bfloat16", "int8"):
        for ours, theirs in zip(exact.sentences, found[mode].sentences, strict=True):
            assert ours.probability is not None
            assert ours.probability == pytest.approx(theirs.probability, abs=0.05)


@pytest.mark.parametrize("mode", ["float32", "bfloat16", "int8"])
def test_autocast_of_the_caller_changes_nothing(tmp_path: Path, mode: str) -> None:
    """It holds in the caller's thread only: passages alone and together would differ."""
    tiny_provence(tmp_path)
    pruner = Pruner.load(tmp_path, dtype=mode)
    passages = ["the red valve opens .", "the hall is quiet ."]
    expected = pruner.rerank_and_prune("what opens ?", passages).results
    with torch.autocast("cpu", torch.bfloat16):
        assert pruner.rerank_and_prune("what opens ?", passages).results == expected


def test_auto_follows_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_provence(tmp_path)
    revision = load_checkpoint(tmp_path).settings.revision
    path = tmp_path / RECORD
    values = {"revision": revision, "modes": {"bfloat16": record()}}
    path.write_text(json.dumps(values), encoding="utf-8")
    monkeypatch.setattr("secateur.model.modes._NEEDS", {})
    assert Pruner.load(tmp_path).info.dtype == "bfloat16"


class TestRecordScript:
    """benchmarks/modes.py, from results to what ``auto`` reads."""

    RATES: Mapping[str, Any] = {
        f"engine_{mode}": {"passages_per_second": {"median": rate}}
        for mode, rate in (("float32", 20.0), ("int8", 50.0))
    }
    BENCH: Mapping[str, Any] = {
        "machine": {"cpu": "a CPU"},
        "one_call_a_query": RATES,
        "modes": {"int8": {"equal_decisions": 0.995}},
    }

    @staticmethod
    def result(dtype: str, f1: float, threshold: float = 0.4) -> dict[str, Any]:
        model = {"id": "m", "revision": "r", "dtype": dtype}
        common = {"data": "/some/where/set.jsonl", "keep_rule": "majority", "items": 9}
        return {"model": model, "f1": f1, "threshold": threshold, **common}

    def written(self, tmp_path: Path, int8: dict[str, Any]) -> None:
        path = Path(__file__).resolve().parents[1] / "benchmarks" / "modes.py"
        for name, values in (
            ("bench", self.BENCH),
            ("float32", self.result("float32", 0.66)),
            ("int8", int8),
        ):
            (tmp_path / name).write_text(json.dumps(values), encoding="utf-8")
        runpy.run_path(str(path))["main"](
            [
                f"--bench={tmp_path / 'bench'}",
                f"--float32={tmp_path / 'float32'}",
                f"--mode=int8={tmp_path / 'int8'}",
                f"--to={tmp_path}",
            ]
        )

    def test_it_is_read_again(self, tmp_path: Path) -> None:
        self.written(tmp_path, self.result("int8", 0.657))
        assert read_record(tmp_path, "r") == {"int8": Measured(2.5, 0.995, 0.003)}
        assert "/" not in json.loads((tmp_path / RECORD).read_text())["data"]

    def test_results_that_differ_in_more_than_the_mode(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="not what float32 was measured on: threshold"):
            self.written(tmp_path, self.result("int8", 0.657, threshold=0.5))
        with pytest.raises(ValueError, match="the result is of float32"):
            self.written(tmp_path, self.result("float32", 0.657))


@pytest.mark.parametrize("mode", ["float32", "bfloat16", "int8"])
def test_one_pass_compiles_every_kernel(tmp_path: Path, mode: str) -> None:
    """The server's warm-up relies on it: no later input may wait for a compiler."""
    tiny_provence(tmp_path)
    pruner = Pruner.load(tmp_path, dtype=mode)
    query, text = "what opens the valve ?", "the red valve opens today . "
    pruner.rerank_and_prune(query, [text])
    before = compiled_variants()
    assert before["biased_softmax"] > 0
    pruner.rerank_and_prune(query, [text * n for n in (1, 2, 7, 30)])
    assert compiled_variants() == before


def compiled_variants() -> dict[str, int]:
    loops = {name: item for name, item in vars(kernels).items() if hasattr(item, "signatures")}
    return {name: len(loop.signatures) for name, loop in loops.items()}
