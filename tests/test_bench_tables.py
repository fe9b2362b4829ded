"""docs/performance.md has the numbers of the records and no others."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "benchmarks" / "tables.py"

GROWTH: dict[str, Any] = {
    "mode": "int8",
    "passages": [{"size": 5, "tokens": 500, "ms": {"median": 50.0, "min": 40.0, "max": 60.0}}],
    "words": [{"size": 1_000, "tokens": 1_500, "ms": {"median": 150, "min": 150, "max": 150}}],
    "callers": [{"size": 32, "passages_per_second": {"median": 100.0, "min": 90, "max": 110}}],
}


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The script, whose records lie in an empty folder."""
    spec = importlib.util.spec_from_file_location("tables", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "RECORDS", tmp_path)
    return module


def test_the_document_has_what_was_recorded(
    tables: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a new record: python benchmarks/tables.py"""
    monkeypatch.undo()
    assert tables.main(["--check"]) == 0


def test_every_block_stands_in_the_document(tables: ModuleType) -> None:
    document = tables.DOCUMENT.read_text(encoding="utf-8")
    for name in tables.BLOCKS:
        assert document.count(f"<!-- {name} -->\n") == 1


def test_without_a_record_nothing_is_claimed(tables: ModuleType) -> None:
    document = tables.filled(tables.DOCUMENT.read_text(encoding="utf-8"))
    assert document.count(f"\n{tables.MISSING}\n") == len(tables.BLOCKS)
    assert not [line for line in document.split("\n") if line.startswith("| ---")]


def test_blocks_are_made_anew(tables: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "growth.json").write_text(json.dumps(GROWTH))
    document = "before\n<!-- sizing -->\n\nold | 7 |\n\n<!-- end -->\nafter\n"
    assert tables.filled(document) == (
        "before\n<!-- sizing -->\n\n"
        "| passages of 100 words a call | ms alone | calls/s at 70% load |\n"
        "| --- | ---: | ---: |\n"
        "| 5 | 50 | 14 |\n\n"
        "<!-- end -->\nafter\n"
    )
    rows = tables.filled("<!-- growth -->\n<!-- end -->\n")
    assert "| passages of 100 words: 5 | 50 | 40 | 60 | 100 |" in rows
    assert "| words of one passage: 1,000 | 150 | 150 | 150 | 100 |" in rows


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), ("x", "x"), (12_345.6, "12,346"), (99.95, "100"), (3.14159, "3.14"), (2, "2")],
)
def test_numbers(tables: ModuleType, value: object, text: str) -> None:
    assert tables.number(value) == text
