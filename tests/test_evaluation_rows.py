"""Labelled rows are read, checked and scored as service would."""

from __future__ import annotations

import json
import lzma
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import make_engine

from secateur.errors import InvalidRequestError, SecateurError, UnsupportedByModelError
from secateur.model.pruner import Pruner
from secateur.training.evaluation.arrays import SentenceArrays
from secateur.training.evaluation.calls import MAX_CALL_CHARACTERS, MAX_CALL_PASSAGES, calls
from secateur.training.evaluation.rows import LabelledRow, load_rows
from secateur.training.evaluation.scoring import score_rows
from secateur.types import Passage, PruneOptions, ResultOrder, TextSpan

ROW: dict[str, Any] = {
    "id": "r",
    "question": " what opens? ",
    "title": "Red_valve",
    "passage": "The hall is quiet.  The valve opens today. A pump.",
    "answers": [{"text": "valve opens", "start": 24}],
    "relevant": True,
}
OWN = {"sentences": [[0, 18], [20, 50]], "labels": [1, 0]}


def write(folder: Path, *rows: Any) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


# --- reading ---


def test_a_row_without_sentences_is_split_and_labelled_by_its_answers(tmp_path: Path) -> None:
    rows, skipped = load_rows(write(tmp_path, {**ROW, "kind": "fact"}))
    assert skipped == 0
    assert rows == [
        LabelledRow(
            id="r",
            question="what opens?",
            title="Red valve",
            passage=ROW["passage"],
            sentences=((0, 18), (20, 42), (43, 50)),
            labels=(False, True, False),
            relevant=True,
            answers=((24, 35),),
            kind="fact",
        )
    ]
    assert rows[0].text(1) == "The valve opens today."


@pytest.mark.parametrize(
    ("change", "labels", "answers"),
    [
        (OWN, (True, False), ((24, 35),)),  # own labels stand, whatever the answers say
        ({**OWN, "labels": None}, (False, True), ((24, 35),)),
        ({"answers": [{"text": "valve opens", "start": None}]}, (False, True, False), ((24, 35),)),
        ({"answers": [{"text": "A pump"}]}, (False, False, True), ((43, 49),)),
        ({**OWN, "answers": [{"text": "nowhere", "start": None}]}, (True, False), ()),
        ({"relevant": False}, (False, False, False), ()),
        ({**OWN, "relevant": False}, (False, False), ()),
        ({"answers": [], "relevant": False, "lang": "tlh"}, (False, False, False), ()),
    ],
)
def test_labels_and_answers(
    change: dict[str, Any], labels: tuple[bool, ...], answers: tuple[Any, ...], tmp_path: Path
) -> None:
    (row,), skipped = load_rows(write(tmp_path, {**ROW, **change}))
    assert (row.labels, row.answers, skipped) == (labels, answers, 0)


@pytest.mark.parametrize(
    "change",
    [
        {"question": " "},
        {"passage": "\n", "answers": None},
        {"answers": []},
        {**OWN, "labels": [0, 0]},
        {"answers": [{"text": "nowhere", "start": None}]},
    ],
)
def test_unusable_rows_are_counted(change: dict[str, Any], tmp_path: Path) -> None:
    rows, skipped = load_rows(write(tmp_path, ROW, {**ROW, **change}))
    assert (len(rows), skipped) == (1, 1)


def test_only_relevant_leaves_rows_out_uncounted(tmp_path: Path) -> None:
    path = write(tmp_path, ROW, {**ROW, "relevant": False}, {**ROW, "answers": []})
    assert len(load_rows(path)[0]) == 2
    rows, skipped = load_rows(path, only_relevant=True)
    assert (len(rows), skipped) == (1, 1)


def test_ids_are_unique_and_lines_stand_in(tmp_path: Path) -> None:
    nameless = {key: value for key, value in ROW.items() if key != "id"}
    rows, _ = load_rows(write(tmp_path, ROW, nameless, ROW, {**ROW, "id": 7}))
    assert [row.id for row in rows] == ["r", "line 2", "r#2", "7"]


def test_xz_files_are_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl.xz"
    path.write_bytes(lzma.compress(json.dumps(ROW).encode()))
    assert len(load_rows(path)[0]) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"question": None}, "question must be text"),
        ({"passage": 3}, "passage must be text"),
        ({"relevant": 1}, "relevant must be true or false"),
        ({"kind": 3}, "kind must be text"),
        ({"sentences": []}, "sentences must be a list"),
        ({"sentences": [[0, -1]]}, r"sentences\[0\] must be \[start, end\]"),
        ({"labels": [1]}, "labels need the sentences"),
        ({**OWN, "labels": [1, 2]}, "labels must be a list of 0 and 1"),
        ({**OWN, "labels": [1]}, "1 labels for 2 sentences"),
        ({"optional": [3]}, "optional must be a list of sentence indexes below 3"),
        ({"optional": [True]}, "optional must be a list of sentence indexes"),
        ({"answers": [{"start": 3}]}, r"answers\[0\] must have text"),
        ({"answers": "valve"}, "answers must be a list"),
    ],
)
def test_a_faulty_row_names_file_line_and_field(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=rf"rows\.jsonl, line 2: {message}"):
        load_rows(write(tmp_path, ROW, {**ROW, **change}))


def test_a_row_is_an_object(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"rows\.jsonl, line 1: must be an object, not list"):
        load_rows(write(tmp_path, [ROW]))


# --- scoring ---


@pytest.fixture
def pruner() -> Pruner:
    return Pruner(make_engine())


def test_scored_rows_decide_as_service(pruner: Pruner, tmp_path: Path) -> None:
    """Every rule at several thresholds, and the compression, equal those of the public call."""
    other = {**ROW, "id": "o", "question": "the pump", "passage": " A pump.\n\nThe valve opens. "}
    rows, _ = load_rows(write(tmp_path, ROW, {**other, "answers": [{"text": "pump"}]}, ROW))
    scored = score_rows(pruner, rows)
    assert [item.row for item in scored] == rows
    arrays = SentenceArrays.of(scored)
    for rule in pruner.info.keep_rules:
        for threshold in (0.0, 0.1, 0.4, 0.95, 1.0):
            options = PruneOptions(threshold=threshold, keep_rule=rule)
            results = [
                pruner.rerank_and_prune(
                    row.question,
                    [
                        Passage(
                            row.passage, "", row.title, tuple(TextSpan(*s) for s in row.sentences)
                        )
                    ],
                    options,
                ).results[0]
                for row in rows
            ]
            expected = [[sentence.kept for sentence in r.sentences] for r in results]
            assert [item.kept(rule, threshold).tolist() for item in scored] == expected
            mean = np.mean([r.compression_rate for r in results])
            assert arrays.compression(arrays.kept(rule, threshold)) == pytest.approx(mean)


def test_rows_of_a_question_share_a_call(
    pruner: Pruner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions = []
    original = pruner.rerank_and_prune

    def watched(question: str, passages: Any, options: PruneOptions) -> Any:
        assert options.order == ResultOrder.INPUT
        questions.append((question, len(passages)))
        return original(question, passages, options)

    monkeypatch.setattr(pruner, "rerank_and_prune", watched)
    rows, _ = load_rows(write(tmp_path, ROW, {**ROW, "question": "b"}, {**ROW, "title": "x"}))
    scored = score_rows(pruner, rows)
    assert questions == [("what opens?", 2), ("b", 1)]
    assert [item.row.title for item in scored] == ["Red valve", "Red valve", "x"]


def test_calls_are_bounded() -> None:
    assert list(calls([])) == []
    assert list(calls([1] * (MAX_CALL_PASSAGES + 1)))[1] == [MAX_CALL_PASSAGES]
    half = MAX_CALL_CHARACTERS // 2
    assert list(calls([half, half, 1, 3 * half, 1])) == [[0, 1], [2], [3], [4]]


def test_a_model_that_cannot_prune_is_refused(pruner: Pruner, tmp_path: Path) -> None:
    rows, _ = load_rows(write(tmp_path, ROW))
    pruner.info = replace(pruner.info, can_prune=False)
    with pytest.raises(UnsupportedByModelError, match="cannot prune"):
        score_rows(pruner, rows)


def test_a_refused_row_is_named(pruner: Pruner, tmp_path: Path) -> None:
    faulty = {**ROW, "id": "bad", "title": "a" * 10_000}
    rows, _ = load_rows(write(tmp_path, ROW, faulty))
    with pytest.raises(InvalidRequestError, match=r"^row bad: title: "):
        score_rows(pruner, rows)


def test_a_refused_question_names_its_row(pruner: Pruner, tmp_path: Path) -> None:
    rows, _ = load_rows(write(tmp_path, ROW, {**ROW, "id": "bad", "question": "\u200b"}))
    with pytest.raises(InvalidRequestError, match=r"^row bad: query: "):
        score_rows(pruner, rows)


def test_a_failed_row_is_an_error(
    pruner: Pruner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that fails in the model must not count as one that was pruned away."""

    def fail(windows: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(pruner.engine, "run", fail)
    rows, _ = load_rows(write(tmp_path, ROW))
    with pytest.raises(SecateurError, match=r"^row r: The passage does not fit"):
        score_rows(pruner, rows)
