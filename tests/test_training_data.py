"""Rows become labelled examples, negatives, documents, windows and batches."""

from __future__ import annotations

import lzma
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny import tiny_tokenizer

from secateur.training.batches import bucketed_batches, collate, padded_tokens
from secateur.training.config import DataSet
from secateur.training.data import Example, example_from_row, read_rows, soften
from secateur.training.encoding import Window, WindowEncoder, pack_sentences
from secateur.training.negatives import NegativeSource, join
from secateur.training.plan import by_question, choose, draw_window, set_examples


def split(text: str, language: str) -> list[tuple[int, int]]:
    """Sentences end at a full stop; enough for rows made here."""
    spans, start = [], 0
    for part in text.split(". "):
        spans.append((start, min(start + len(part) + 1, len(text))))
        start += len(part) + 2
    return spans


ROW: dict[str, Any] = {
    "question": "what opens?",
    "title": "Red_valve",
    "passage": "The hall is quiet. The valve opens today. A pump.",
    "answers": [{"text": "valve opens", "start": 23}],
    "relevant": True,
}


def made(query: str, passage: str, *, title: str = "", targets: tuple[float, ...] = (1.0,)) -> Any:
    """An example of one sentence a target, each of ten characters."""
    sentences = tuple((i * 11, i * 11 + 10) for i in range(len(targets)))
    return Example(query, title, passage, sentences, targets, any(targets))


def test_a_sentence_that_overlaps_an_answer_is_positive() -> None:
    example = example_from_row({**ROW, "qid": "7"}, split)
    assert example == Example(
        query="what opens?",
        title="Red valve",
        passage=ROW["passage"],
        sentences=((0, 18), (19, 41), (42, 49)),
        targets=(0.0, 1.0, 0.0),
        relevant=True,
        answers=("valve opens",),
        question="7",
    )


@pytest.mark.parametrize(
    ("change", "targets"),
    [
        ({"answers": [{"text": "valve opens", "start": None}]}, (0, 1, 0)),
        ({"answers": [{"text": "nowhere", "start": None}]}, None),
        ({"question": " "}, None),
        ({"answers": []}, None),
        ({"relevant": False}, (0, 0, 0)),
        ({"relevant": False, "answers": [{"text": "nowhere", "start": None}]}, (0, 0, 0)),
        ({"sentences": [[0, 18], [19, 49]], "labels": [1, 0]}, (1, 0)),
        ({"sentences": [[0, 18], [19, 49]], "labels": [0, 0]}, None),
    ],
)
def test_odd_rows(change: dict[str, Any], targets: tuple[int, ...] | None) -> None:
    example = example_from_row({**ROW, **change}, split)
    assert (example and example.targets) == targets


def test_bad_json_names_its_line(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"a": 1}\n{')
    with pytest.raises(ValueError, match=r"x\.jsonl:2"):
        list(read_rows(tmp_path / "x.jsonl"))


def test_incomplete_labels_are_softened_where_the_passage_is_relevant() -> None:
    example = made("q", "p", targets=(0.0, 1.0, 0.0))
    assert soften(example, 0.3, 0.6).targets == (0.6, 1.0, 0.3)
    assert soften(made("q", "p", targets=(1.0, 0.0)), 0.3, 0.6).targets == (1.0, 0.3)
    irrelevant = made("q", "p", targets=(0.0, 0.0))
    assert soften(irrelevant, 0.3, 0.6) is irrelevant


def test_hard_negatives_are_of_the_article_or_close_to_the_question() -> None:
    about = [made(f"where is valve {i}", f"valve {i} text", title="valves") for i in range(3)]
    near = made("x", "where is the red pump kept", title="pump")
    far = [made("x", f"nothing shared {i}", title=f"other {i}") for i in range(20)]
    rng = random.Random(0)
    source = NegativeSource([*about, near, *far], rng, depth=3)
    asked = made("where is the pump", "in the cellar", title="valves")
    drawn = {n.passage for _ in range(40) for n in source.draw(asked, 1, 1.0)}
    assert near.passage in drawn
    assert {example.passage for example in about} & drawn
    assert not {example.passage for example in far} & drawn
    assert {n.passage for _ in range(40) for n in source.draw(asked, 1, 0.0)} & {
        example.passage for example in far
    }


def test_a_negative_never_holds_the_answer_and_has_no_positive() -> None:
    asked = replace(made("q", "the code is 77"), answers=("77",), question="k")
    others = [made("x", "also 77 here", targets=(1.0, 0.0)), made("x", "free", targets=(1.0, 0.0))]
    source = NegativeSource([asked, *others], random.Random(0))
    drawn = source.draw(asked, 9, 0.5)
    assert [(n.query, n.passage, n.targets, n.relevant, n.question) for n in drawn] == [
        ("q", "free", (0.0, 0.0), False, "k")
    ]


def test_a_passage_of_the_question_itself_is_no_negative() -> None:
    """Another candidate may answer, too, whichever question the passage came with first."""
    shared = made("other question", "first here, then there")
    candidates = [replace(made("q", f"{n} candidate"), question="k") for n in ("one", "two")]
    candidates.append(replace(made("q", shared.passage), question="k"))
    stranger = made("x", "free")
    source = NegativeSource([shared, *candidates, stranger], random.Random(0))
    assert {n.passage for _ in range(9) for n in source.draw(candidates[0], 9, 0.5)} == {"free"}
    asked_twice = [made("same words?", "p"), made("same words?", "p2")]
    assert NegativeSource(asked_twice, random.Random(0)).draw(asked_twice[0], 9, 0.5) == []


def test_a_joined_document_keeps_its_owners_targets_and_all_sentences() -> None:
    one = made("q", "aaaaaaaaa. bbbbbbbbb.", targets=(0.0, 1.0))
    two = made("x", "ccccccccc.", targets=(1.0,))
    document = join([two, one], 1)
    assert document.query == "q"
    assert document.targets == (0.0, 0.0, 1.0)
    texts = [document.passage[start:end] for start, end in document.sentences]
    assert texts == ["ccccccccc.", "aaaaaaaaa.", "bbbbbbbbb."]


def test_candidates_of_a_question_stay_together() -> None:
    examples = [replace(made("q", f"p{i}"), question=f"k{i // 3}") for i in range(12)]
    groups = by_question([*examples, made("q", "alone"), made("q", "alone too")])
    assert [len(group) for group in groups] == [3, 3, 3, 3, 1, 1]
    first = choose(groups, 0, 6, random.Random(4))
    rest = choose(groups, sum(map(len, first)), 0, random.Random(4))
    assert sorted(e.passage for g in first + rest for e in g) == sorted(
        e.passage for g in groups for e in g
    )
    assert sum(map(len, first)) >= 6


def test_a_later_stage_skips_what_an_earlier_one_took() -> None:
    rows = [{**ROW, "question": f"what opens {i}?"} for i in range(12)]
    asked = [
        [group[0].query for group in set_examples(item, rows, split, random.Random(draws), 5)]
        for draws, item in enumerate([DataSet(name="s", rows=7), DataSet(name="s", skip=7)])
    ]
    assert sorted(asked[0] + asked[1]) == sorted(row["question"] for row in rows)


def test_a_set_gets_its_share_of_negatives_and_joined_documents() -> None:
    rows = [{**ROW, "question": f"what opens {i}?", "passage": f"Number {i}."} for i in range(40)]
    rows = [{**r, "answers": [{"text": f"Number {i}", "start": 0}]} for i, r in enumerate(rows)]
    item = DataSet(name="s", rows=20, negatives=1.5, joined=0.5)
    groups = set_examples(item, rows, split, random.Random(1), 1)
    assert len(groups) == 20
    assert {len(group) for group in groups} == {2, 3}
    joined = [group[0] for group in groups if "\n\n" in group[0].passage]
    assert 4 <= len(joined) <= 16
    assert all(sum(example.targets) == 1 for example in joined)
    with pytest.raises(ValueError, match="set s: no usable row"):
        set_examples(item, [], split, random.Random(1), 1)


def test_windows_cut_at_sentences_and_keep_every_sentence() -> None:
    sentences = [(i * 16, i * 16 + 15) for i in range(12)]
    passage = " ".join(["the valve is re"] * 12)
    example = Example("what is red?", "hall", passage, tuple(sentences), (0, 1) * 6, True)
    windows = WindowEncoder(tiny_tokenizer(), 32).windows(example)
    assert all(len(window) <= 32 for window in windows)
    assert np.concatenate([window.targets for window in windows]).tolist() == [0, 1] * 6
    for window in windows:
        inside = window.sentence[window.sentence >= 0]
        assert set(inside) == set(range(len(window.targets)))
        assert window.token_type_ids[window.sentence >= 0].min() == 1


def test_a_long_title_leaves_room_for_the_passage() -> None:
    example = Example("what is red? " * 9, "hall " * 40, "the valve is red", ((0, 16),), (1,), True)
    for length in (16, 40, 66):
        windows = WindowEncoder(tiny_tokenizer(), length).windows(example)
        assert windows
        assert all(len(window) <= length for window in windows)


@pytest.mark.parametrize(
    ("counts", "groups"),
    [
        ([3, 3, 3], [(0, 1), (2, 2)]),
        ([9, 1], [(0, 0), (1, 1)]),
        ([0, 6, 0], [(0, 2)]),
        ([], []),
    ],
)
def test_sentences_are_packed_greedily(counts: list[int], groups: list[tuple[int, int]]) -> None:
    assert pack_sentences(counts, 6) == groups


def window(length: int, targets: tuple[float, ...] = (0.0,), teacher: float = np.nan) -> Window:
    """Two head tokens, then one token a sentence and filling of the last one."""
    sentence = np.full(length, -1)
    sentence[2:] = np.minimum(np.arange(length - 2), len(targets) - 1)
    ids = np.arange(length)
    return Window(ids, np.ones(length), sentence, np.array(targets, np.float32), teacher)


def test_batches_hold_every_question_once_within_the_budget() -> None:
    rng = random.Random(1)
    units = [[window(rng.randrange(5, 40)) for _ in range(rng.randrange(1, 4))] for _ in range(200)]
    batches = bucketed_batches(units, 128, random.Random(0), pool=64)
    assert sorted(id(unit) for batch in batches for unit in batch) == sorted(map(id, units))
    assert all(padded_tokens(batch) <= 128 for batch in batches)


def test_a_question_above_the_budget_is_a_batch_of_its_own() -> None:
    units = [[window(60)] * 4, [window(10)], [window(10)]]
    batches = bucketed_batches(units, 128, random.Random(0))
    assert sorted(len(batch) for batch in batches) == [1, 2]


def test_collate_numbers_sentences_and_questions_across_the_batch() -> None:
    batch = collate(
        [[window(4, (0.0, 1.0)), window(3, (0.25,), 2.5)], [window(3, (0.0,))]], pad_id=9
    )
    assert batch["owner"].tolist() == [[-1, -1, 0, 1], [-1, -1, 2, -1], [-1, -1, 3, -1]]
    assert batch["input_ids"][1].tolist() == [0, 1, 2, 9]
    assert batch["attention_mask"].sum(1).tolist() == [4, 3, 3]
    assert batch["targets"].tolist() == [0.0, 1.0, 0.25, 0.0]
    assert batch["passage"].tolist() == [0, 0, 1, 2]
    assert batch["question"].tolist() == [0, 0, 1]
    assert batch["relevant"].tolist() == [1.0, 0.0, 0.0]
    assert batch["teacher"].isnan().tolist() == [True, False, True]


def test_a_window_with_a_kept_sentence_is_drawn_three_times_of_four_or_by_chance() -> None:
    windows = [window(4, (1.0,)), window(4, (0.0,))]
    rng = random.Random(0)
    drawn = [draw_window(windows, rng).relevant for _ in range(800)]
    assert 650 < sum(drawn) < 750  # 0.75 + 0.25 / 2 of 800 is 700


SPANS = {"answers": None, "sentences": [[0, 18], [19, 41], [42, 49]], "labels": [0, 1, 0]}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([1], "must be an object, not list"),
        ({**ROW, "question": None}, "question must be text"),
        ({**ROW, "relevant": "no"}, "relevant must be true or false"),
        ({**ROW, "qid": [1]}, "qid must be text"),
        ({**ROW, "answers": ["valve"]}, r"answers\[0\] must have text"),
        ({**ROW, **SPANS, "sentences": None}, "labels need the sentences"),
        ({**ROW, **SPANS, "sentences": [0, 18]}, r"sentences\[0\] must be \[start, end\]"),
        ({**ROW, **SPANS, "labels": [0, 1]}, "2 labels for 3 sentences"),
        ({**ROW, **SPANS, "labels": [0, 2, 0]}, "labels must be a list of 0 and 1"),
        ({**ROW, **SPANS, "sentences": [[0, 18], [15, 41], [42, 49]]}, r"\[1\] starts before"),
        ({**ROW, **SPANS, "sentences": [[0, 18], [19, 41], [42, 99]]}, "within the 49 characters"),
        ({**ROW, **SPANS, "sentences": [[0, 18], [25, 41], [42, 49]]}, r"text in \[18, 25\]"),
        ({**ROW, **SPANS, "sentences": [[0, 18], [18, 19], [19, 49]]}, "nothing but white space"),
        ({**ROW, **SPANS, "sentences": [[0, 18], [19, 20], [20, 41]]}, r"text in \[41, 49\]"),
    ],
)
def test_a_row_of_the_wrong_shape_is_named(row: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"set toy, row 2: .*{message}"):
        set_examples(DataSet(name="toy"), [ROW, row], split, random.Random(1), 1)


def test_an_answer_may_leave_out_its_start() -> None:
    row = {**ROW, "answers": [{"text": "valve opens"}]}
    (group,) = set_examples(DataSet(name="toy"), [row], split, random.Random(1), 1)
    assert group[0].targets == (0.0, 1.0, 0.0)


def test_skipping_every_row_is_an_error() -> None:
    with pytest.raises(ValueError, match="set toy: skip = 3 passes over all 1 rows"):
        set_examples(DataSet(name="toy", skip=3), [ROW], split, random.Random(1), 1)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.jsonl", b'{"a": "\xe9"}', "x.jsonl: not valid UTF-8"),
        ("x.jsonl.xz", b"no xz", "x.jsonl.xz: not a whole xz file"),
        ("x.jsonl.xz", lzma.compress(b"{}")[:-9], "x.jsonl.xz: not a whole xz file"),
    ],
)
def test_a_damaged_file_is_named(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        list(read_rows(tmp_path / name))
