"""benchmarks/gpu.py on a CPU: the same steps with a tiny model."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from secateur.model.batching import BatchBudget

SCRIPT = Path(__file__).resolve().parents[1] / "benchmarks" / "gpu.py"
SMOKE = ["--device", "cpu", "--smoke"]


@pytest.fixture(scope="module")
def gpu() -> Iterator[ModuleType]:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("gpu", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    sys.modules["gpu"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["gpu"]


def rows_of(record: dict[str, Any]) -> list[dict[str, Any]]:
    (model,) = record["models"]
    rows: list[dict[str, Any]] = model["rows"]
    return rows


def test_smoke(gpu: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every side in every dtype; float32 says what transformers says, bfloat16 nearly so."""
    path = tmp_path / "gpu.json"
    gpu.main([*SMOKE, "--record", str(path)])
    printed = capsys.readouterr()
    record = json.loads(path.read_text(encoding="utf-8"))
    assert json.loads(printed.out) == record
    assert record["machine"]["device"] == "cpu"
    rows = rows_of(record)
    assert len(printed.err.splitlines()) == len(rows)
    one = [("stock", 256), ("stock", 1_024), ("engine", 256), ("engine", 1_024)]
    found = [(row["dtype"], row["side"], row.get("batch_tokens")) for row in rows]
    assert found == [
        (dtype, *names)
        for dtype in ("float32", "bfloat16")
        for names in (*one, ("end_to_end", None), ("alone", None))
    ]
    for row in rows:
        exact = row["dtype"] == "float32"
        if row["side"] == "alone":
            assert row["windows"] == 8
            assert row["max_probability_difference"] < (1e-5 if exact else 0.05)
            assert row["max_logit_difference"] < (1e-4 if exact else 0.2)
            continue
        assert row["passages_per_second"]["min"] > 0
        if row["side"] == "end_to_end":
            continue
        assert row["max_logit_difference"] < (1e-4 if exact else 0.2)
        assert row["equal_decisions"] >= (1 if exact else 0.8)
        assert exact or row["max_logit_difference"] > 1e-3
        assert row["peak_memory_mb"] is None


def test_out_of_time(gpu: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(gpu, "LIMIT_SECONDS", -1.0)
    path = tmp_path / "gpu.json"
    gpu.main([*SMOKE, "--record", str(path)])
    rows = rows_of(json.loads(path.read_text(encoding="utf-8")))
    assert {row["unavailable"] for row in rows} == {"out of time"}
    assert len(rows) == 12


def test_out_of_memory_is_a_row(gpu: ModuleType, tmp_path: Path) -> None:
    """The stock classes may need more than the device has; the rest goes on."""
    gpu.write_provence(tmp_path, gpu.TINY)
    texts = gpu.passages_of_words(8, 30)
    subject = gpu.Measurement(str(tmp_path), texts, 0.77, "cpu")
    for error in (MemoryError, torch.OutOfMemoryError):

        def full(windows: object, error: type[Exception] = error) -> None:
            raise error

        assert subject._row(full, 256, float("inf")) == {"unavailable": "out of memory"}
    desk = subject.work._desk
    verdicts = subject.work.verdicts(subject.work.run(desk.run, BatchBudget(256, 64)))
    kept = {flag for group in verdicts.values() for verdict in group for flag in verdict.kept}
    assert kept == {True, False}  # else equal decisions would mean nothing


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "torch finds no CUDA device here; this script measures one"),
        (["--device", "cpu"], "--device cpu is for --smoke only; this measures CUDA"),
    ],
)
def test_without_cuda(
    gpu: ModuleType, monkeypatch: pytest.MonkeyPatch, arguments: list[str], sentence: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as caught:
        gpu.main(arguments)
    assert caught.value.code == sentence
