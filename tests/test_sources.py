"""Names become rows: files by name, data sets of Hugging Face without a network, clear errors."""

from __future__ import annotations

import json
import lzma
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import datasets
import pytest

from secateur.training.sources import read_source

SQUAD = [
    {
        "id": "1",
        "title": "Valve",
        "context": "The valve opens. Lunch.",
        "question": "what opens?",
        "answers": {"text": ["valve", "The valve"], "answer_start": [4, 0]},
    },
    {
        "id": "2",
        "title": "Valve",
        "context": "The valve opens. Lunch.",
        "question": "who?",
        "answers": {"text": [], "answer_start": []},
    },
]
SQUAD_AS_ROWS = [
    {
        "id": "1",
        "title": "Valve",
        "passage": "The valve opens. Lunch.",
        "question": "what opens?",
        "answers": [{"text": "valve", "start": 4}, {"text": "The valve", "start": 0}],
        "relevant": True,
    },
    {
        "id": "2",
        "title": "Valve",
        "passage": "The valve opens. Lunch.",
        "question": "who?",
        "answers": [],
        "relevant": False,
    },
]
OURS: dict[str, Any] = {
    "question": "what opens?",
    "title": None,
    "passage": "The valve opens. Lunch.",
    "sentences": [[0, 16], [17, 23]],
    "labels": [1, 0],
    "optional": [1],
    "relevant": True,
}


@pytest.fixture(autouse=True)
def _offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What HF_HUB_OFFLINE=1 and HF_HOME set when the library is imported."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()


def write_lines(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


@pytest.mark.parametrize("name", ["sets/a", "sets/a.jsonl"])
def test_a_file_with_and_without_its_suffix(name: str, tmp_path: Path) -> None:
    write_lines(tmp_path / "sets/a.jsonl", [OURS])
    assert list(read_source(name, tmp_path)) == [OURS]
    assert list(read_source(str(tmp_path / name), Path("elsewhere"))) == [OURS]


def test_a_compressed_file_comes_first(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", [{}])
    with lzma.open(tmp_path / "a.jsonl.xz", "wt", encoding="utf-8") as file:
        file.write(json.dumps(OURS))
    (tmp_path / "a").mkdir()
    assert list(read_source("a", tmp_path)) == [OURS]


def test_a_missing_file_says_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^a: no such file: \S+/a\.jsonl\.xz or \S+/a\.jsonl$"):
        read_source("a", tmp_path)
    with pytest.raises(ValueError, match=r"^a\.jsonl: no such file: \S+/a\.jsonl$"):
        read_source("a.jsonl", tmp_path)


def test_squads_columns_become_our_row(tmp_path: Path) -> None:
    datasets.Dataset.from_list(SQUAD).save_to_disk(tmp_path / "one")
    assert list(read_source("hf:one", tmp_path)) == SQUAD_AS_ROWS


def test_splits_of_a_saved_data_set(tmp_path: Path) -> None:
    first, second = (datasets.Dataset.from_list([row]) for row in SQUAD)
    datasets.DatasetDict({"train": first, "dev": second}).save_to_disk(tmp_path / "both")
    assert list(read_source("hf:both", tmp_path)) == SQUAD_AS_ROWS[:1]
    assert list(read_source("hf:both#dev", tmp_path)) == SQUAD_AS_ROWS[1:]
    with pytest.raises(ValueError, match="hf:both#test: no split 'test'; there are train, dev"):
        read_source("hf:both#test", tmp_path)


@pytest.mark.parametrize("streaming", [False, True])
def test_a_folder_of_data_files(streaming: bool, tmp_path: Path) -> None:
    answered = {
        "passage": "The valve.",
        "question": "what?",
        "answers": [{"text": "x", "start": 0}],
    }
    write_lines(tmp_path / "ours/train.jsonl", [OURS, answered])
    rows = list(read_source("hf:ours", tmp_path, streaming=streaming))
    # A column that a row lacks comes back as null, which our format reads as absent.
    assert [{k: v for k, v in row.items() if v is not None} for row in rows] == [
        {name: value for name, value in OURS.items() if value is not None},
        {**answered, "relevant": True},
    ]


def test_a_part_of_a_split(tmp_path: Path) -> None:
    write_lines(tmp_path / "ours/validation.jsonl", [OURS, {**OURS, "question": "why?"}])
    rows = list(read_source("hf:ours#validation[1:]", tmp_path))
    assert [row["question"] for row in rows] == ["why?"]


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"text": "a", "label": 1}, "row 1: columns text, label are not understood; expected"),
        ({"passage": "a", "answers": ["b"]}, "row 1: answers: expected a list of"),
        (
            {"question": "q", "context": "c", "answers": {"text": ["a"], "answer_start": [1, 2]}},
            "row 1: answers: expected a list of",
        ),
    ],
)
def test_records_of_an_unknown_shape(record: dict[str, Any], message: str, tmp_path: Path) -> None:
    datasets.Dataset.from_list([record]).save_to_disk(tmp_path / "odd")
    with pytest.raises(ValueError, match=f"^hf:odd: {message}"):
        list(read_source("hf:odd", tmp_path))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("hf:", "expected hf:NAME"),
        ("hf:name#", "expected hf:NAME"),
        ("hf:owner/name", "the Hugging Face hub cannot be reached and the data set is not in the"),
        ("hf:empty", "no data files in "),
        ("hf:ours#test", "Unknown split \"test\". Should be one of ['train']."),
        ("hf:ours:other", "BuilderConfig 'other' not found. Available: ['default']"),
        ("hf:saved#train", "this saved data set has no splits"),
        ("hf:saved:other", "a saved data set has no configurations"),
        ("hf:ours@v1", "a folder has no revisions"),
        ("hf:broken", "JSON parse error"),
    ],
)
def test_a_source_that_cannot_be_read_is_one_sentence(
    source: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    write_lines(tmp_path / "ours/train.jsonl", [OURS])
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/train.jsonl").write_text('{"a": 1}\nno JSON\n')
    datasets.Dataset.from_list(SQUAD).save_to_disk(tmp_path / "saved")
    with pytest.raises(ValueError, match=f"^{source}: [^\n]*{re.escape(message)}[^\n]*$"):
        read_source(source, tmp_path)


def test_parts_of_a_name_reach_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def load(name: str, config: str | None, **given: Any) -> list[dict[str, Any]]:
        calls.append((name, config, given))
        return [OURS]

    monkeypatch.setattr(datasets, "load_dataset", load)
    list(read_source("hf:owner/name:config@v1.0#train[:10]", tmp_path, streaming=True))
    list(read_source("hf:name@abc", tmp_path))
    assert calls == [
        ("owner/name", "config", {"revision": "v1.0", "split": "train[:10]", "streaming": True}),
        ("name", None, {"revision": "abc", "split": "train", "streaming": False}),
    ]


def test_an_unknown_data_set_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: Any, **__: Any) -> None:
        raise datasets.exceptions.DatasetNotFoundError("Dataset 'o/n' doesn't exist\nor is gated")

    monkeypatch.setattr(datasets, "load_dataset", load)
    with pytest.raises(ValueError, match=r"^hf:o/n: no folder .*o/n, and no data set of this name"):
        read_source("hf:o/n", tmp_path)
