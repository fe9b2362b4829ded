"""Numbers of a pruning evaluation, each against one worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from secateur.training.bm25 import Bm25
from secateur.training.evaluation.arrays import SentenceArrays
from secateur.training.evaluation.bootstrap import bootstrap_interval
from secateur.training.evaluation.items import items, worst
from secateur.training.evaluation.lexical import best_cut, question_bm25
from secateur.training.evaluation.metrics import (
    Bools,
    Floats,
    Scores,
    fractions,
    macro_scores,
    micro_scores,
)
from secateur.training.evaluation.prune import evaluate_prune, f1_interval
from secateur.training.evaluation.rows import LabelledRow
from secateur.training.evaluation.scoring import ScoredRow
from secateur.training.evaluation.sweep import THRESHOLDS, best, sweep
from secateur.types import KeepRule

MEAN, VOTE, MAJORITY = KeepRule.MEAN_PROBABILITY, KeepRule.TOKEN_VOTE, KeepRule.MAJORITY


def bools(text: str) -> Bools:
    return np.array([character == "1" for character in text])


def row(name: str, labels: str, **more: Any) -> LabelledRow:
    """Sentences ``S0. S1. …`` of three characters with a space between them."""
    values = {
        "id": name,
        "question": f"what is {name}?",
        "title": "",
        "passage": " ".join(f"S{i}." for i in range(len(labels))),
        "sentences": tuple((4 * i, 4 * i + 3) for i in range(len(labels))),
        "labels": tuple(label == "1" for label in labels),
        "relevant": "1" in labels,
    }
    return LabelledRow(**{**values, **more})


def scored(labelled: LabelledRow, *sentences: list[float]) -> ScoredRow:
    """A row with the given token probabilities of each of its sentences."""
    return ScoredRow(
        labelled,
        np.array([np.mean(sentence) if sentence else np.nan for sentence in sentences]),
        np.array([p for sentence in sentences for p in sentence], dtype=np.float32),
        np.repeat(np.arange(len(sentences)), [len(sentence) for sentence in sentences]),
    )


# At threshold 0.5 the mean rule keeps 101, 01 and 00.
ROWS = [
    scored(row("a", "110", optional=(2,), kind="fact"), [0.9, 0.9], [0.2, 0.1], [0.6]),
    scored(row("b", "01", kind="why", answers=((5, 6),)), [0.1], [0.7, 0.2, 0.9]),
    scored(row("c", "00", kind="why"), [0.1], [0.2]),
]


def equals(scores: Scores, precision: float, recall: float, f1: float, f2: float) -> bool:
    found = (scores.precision, scores.recall, scores.f1, scores.f2)
    return found == pytest.approx((precision, recall, f1, f2))


# --- precision, recall, F1, F2 ---


def test_micro_scores_pool_all_sentences() -> None:
    # one true positive, one false positive, two false negatives
    assert equals(micro_scores(bools("11000"), bools("10110")), 1 / 2, 1 / 3, 2 / 5, 5 / 14)


def test_scores_of_nothing() -> None:
    """Rightly keeping nothing is perfect; a fraction of nothing is 0 otherwise."""
    assert equals(micro_scores(bools("00"), bools("00")), 1, 1, 1, 1)
    assert equals(micro_scores(bools("01"), bools("00")), 0, 0, 0, 0)
    assert equals(micro_scores(bools("00"), bools("01")), 0, 0, 0, 0)


def test_macro_scores_average_rows() -> None:
    # rows 10|11|00 with labels 11|10|00: (1, 1/2, 2/3, 5/9), (1/2, 1, 2/3, 5/6), all 1
    kept, labels, starts = bools("101100"), bools("111000"), np.array([0, 2, 4])
    expected = (2.5 / 3, 2.5 / 3, (4 / 3 + 1) / 3, (5 / 9 + 5 / 6 + 1) / 3)
    assert equals(macro_scores(kept, labels, starts), *expected)


def test_what_is_not_counted_changes_nothing() -> None:
    counted = bools("1101")
    scores = micro_scores(bools("1010"), bools("1101"), counted)
    assert scores == micro_scores(bools("1000")[counted], bools("1101")[counted])
    assert equals(scores, 1, 1 / 3, 1 / 2, 5 / 13)


# --- a whole result ---


def test_a_result_by_hand() -> None:
    result = evaluate_prune(ROWS, MEAN, 0.5)
    model = result.overall.model
    assert equals(model.strict, 2 / 3, 2 / 3, 2 / 3, 2 / 3)
    assert equals(model.lenient, 1, 2 / 3, 4 / 5, 5 / 7)
    assert equals(model.macro, 5 / 6, 5 / 6, 5 / 6, 5 / 6)
    assert equals(model.macro_lenient, 1, 5 / 6, 8 / 9, 23 / 27)
    # "S0. S2." of 11 characters, "S1." and nothing of 7; 3 of 5, 3 of 4 and 0 of 2 tokens
    assert model.compression == pytest.approx((4 / 11 + 4 / 7 + 1) / 3)
    assert model.token_compression == pytest.approx((2 / 5 + 1 / 4 + 1) / 3)
    assert model.answer_kept == 1.0
    assert (result.overall.items, result.documents) == (3, 2)  # b and c share their passage

    everything = result.overall.keep_everything
    assert equals(everything.strict, 3 / 7, 1, 3 / 5, 15 / 19)
    assert (everything.compression, everything.token_compression) == (0.0, 0.0)


def test_kinds_are_measured_apart() -> None:
    by_kind = evaluate_prune(ROWS, MEAN, 0.5).by_kind
    assert list(by_kind) == ["fact", "why"]
    assert by_kind["fact"].items == 1
    assert equals(by_kind["fact"].model.strict, 1 / 2, 1 / 2, 1 / 2, 1 / 2)
    assert equals(by_kind["why"].model.strict, 1, 1, 1, 1)
    assert equals(by_kind["why"].keep_everything.strict, 1 / 4, 1, 2 / 5, 5 / 8)


def test_no_kinds_no_breakdown() -> None:
    plain = [replace(r, row=replace(r.row, kind="")) for r in ROWS]
    assert evaluate_prune(plain, MEAN, 0.5).by_kind == {}


@pytest.mark.parametrize(
    ("kept", "expected"),
    [
        ("111 111", 1.0),
        ("110 000", 0.5),  # the answer of the first row spans its first two sentences
        ("100 010", 0.5),  # one of two answers is enough
        ("101 100", 0.0),
    ],
)
def test_answers_lie_wholly_in_kept_sentences(kept: str, expected: float) -> None:
    rows = [
        scored(row("a", "110", answers=((1, 6),)), [0.1], [0.1], [0.1]),
        scored(row("b", "011", answers=((4, 6), (9, 10))), [0.1], [0.1], [0.1]),
    ]
    assert SentenceArrays.of(rows).answer_kept(bools(kept.replace(" ", ""))) == expected


def test_no_answers_no_share() -> None:
    assert SentenceArrays.of([ROWS[0]]).answer_kept(bools("111")) is None


# --- decisions and the sweep ---


def random_rows() -> list[ScoredRow]:
    random = np.random.default_rng(3)
    rows = []
    for number in range(40):
        labels = "".join(random.choice(["0", "1"], size=random.integers(1, 7)))
        # a sentence may be without tokens
        tokens = [random.random(random.integers(0, 4)).tolist() for _ in labels]
        rows.append(scored(row(str(number), labels), *tokens))
    return rows


@pytest.mark.parametrize("rule", list(KeepRule))
@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.8, 0.99, 1.0])
def test_all_rows_at_once_decide_as_one_by_one(rule: KeepRule, threshold: float) -> None:
    rows = random_rows()
    together = SentenceArrays.of(rows).kept(rule, threshold)
    assert together.tolist() == np.concatenate([r.kept(rule, threshold) for r in rows]).tolist()


def test_means_are_those_of_service() -> None:
    """Not every model's mean is the mean over all tokens, so it is never computed again."""
    given = replace(scored(row("a", "10"), [0.9], [0.1]), means=np.array([0.2, 0.8]))
    assert given.kept(MEAN, 0.5).tolist() == [False, True]
    assert given.kept(VOTE, 0.5).tolist() == [True, False]


def test_a_sweep_holds_every_pair() -> None:
    points = sweep(ROWS, [MEAN, MAJORITY])
    assert [point.threshold for point in points[::2]] == list(THRESHOLDS)
    assert {point.keep_rule for point in points[::2]} == {MEAN}
    middle = next(p for p in points if (p.threshold, p.keep_rule) == (0.5, MEAN))
    result = evaluate_prune(ROWS, MEAN, 0.5).overall.model
    assert (middle.f1, middle.recall) == (result.strict.f1, result.strict.recall)
    assert (middle.compression, middle.token_compression) == (
        result.compression,
        result.token_compression,
    )


def test_ties_go_to_the_lower_threshold_then_the_first_rule() -> None:
    # perfect from 0.25 (p > t fails at t = p) to 0.74, under every rule
    rows = [scored(row("a", "10"), [0.75], [0.25])]
    points = sweep(rows, [VOTE, MEAN, MAJORITY])
    assert sum(point.f1 == 1 for point in points) == 3 * 50
    assert (best(points).threshold, best(points).keep_rule) == (0.25, VOTE)
    assert best(points[::-1]).threshold == 0.25


# --- single items ---


def test_items_hold_the_texts_of_their_mistakes() -> None:
    labelled = [r.row for r in ROWS]
    every = items(labelled, SentenceArrays.of(ROWS), bools("1010100"))
    assert [item.f1 for item in every] == pytest.approx([0.5, 1.0, 1.0])
    assert (every[0].dropped, every[0].wrongly_kept) == (("S1.",), ("S2.",))
    assert (every[1].dropped, every[1].wrongly_kept) == ((), ())


def test_the_worst_come_first_and_the_perfect_not_at_all() -> None:
    rows = [scored(row(str(n), "1000"), *[[0.1]] * 4) for n in range(30)]
    kept = np.concatenate([bools("1000"), bools("1100"), bools("0100"), bools("0110")])
    kept = np.concatenate([kept, np.tile(bools("0000"), 26)])
    found = worst(items([r.row for r in rows], SentenceArrays.of(rows), kept))
    assert len(found) == 20
    assert [item.id for item in found[:4]] == ["3", "2", "4", "5"]
    assert not {"0", "1"} & {item.id for item in found}


# --- BM25 ---


def test_bm25_collects_the_sentences_of_a_question() -> None:
    """Rows of one question are one collection, so that their scores can be compared."""
    texts = ("red a.", "b c d.")
    rows = [
        replace(row(str(n), "1"), question="red?", passage=text, sentences=((0, len(text)),))
        for n, text in enumerate(texts)
    ]
    rows.insert(1, row("other", "10"))
    scores = question_bm25(rows)
    assert scores[[0, 3]] == pytest.approx(Bm25(texts).scores("red?"))
    assert scores[1:3].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("scores", "labels", "cut"),
    [
        ([2, 1, 1, 0], "1100", 1),  # equal scores go together: 2/3, 4/5, 2/3
        ([3, 2, 1], "100", 3),
        ([3, 2, 1, 0], "1001", 3),  # 2/3 at 3 and at 0: the higher keeps less
        ([1, 2], "00", 2),
    ],
)
def test_best_cut(scores: list[float], labels: str, cut: float) -> None:
    assert best_cut(np.array(scores, dtype=np.float64), bools(labels)) == cut


# --- intervals ---


def mean_of(sums: Floats) -> Floats:
    means: Floats = sums[:, 0] / 100
    return means


def test_the_interval_of_a_mean() -> None:
    """Of 100 values, half 0 and half 1: 0.5 ± 1.96 * 0.05, and the same each time."""
    units = np.repeat([[0.0], [1.0]], 50, axis=0)
    low, high = bootstrap_interval(units, mean_of)
    assert (low, high) == pytest.approx((0.402, 0.598), abs=0.015)
    assert bootstrap_interval(units, mean_of) == (low, high)


def test_rows_of_one_document_are_drawn_together() -> None:
    right, wrong = scored(row("a", "10"), [0.9], [0.1]), scored(row("b", "01"), [0.9], [0.1])
    other = replace(wrong, row=replace(wrong.row, passage="T0. T1."))
    for rows, spread in (([right, wrong], False), ([right, other], True)):
        arrays = SentenceArrays.of(rows)
        low, high = f1_interval([r.row for r in rows], arrays, arrays.kept(MEAN, 0.5))
        assert ((low, high) == (0.0, 1.0)) is spread
        assert ((low, high) == (0.5, 0.5)) is not spread


def test_fractions_take_any_shape() -> None:
    counts = np.array([[1, 0], [2, 0]])
    assert fractions(counts, counts, counts)[2].tolist() == [[0.5, 1.0], [0.5, 1.0]]
