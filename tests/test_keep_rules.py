"""Keep rules and the order in which they apply."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secateur.model.keep_rules import Decision, SentenceScores, decide, passes, pool
from secateur.types import KeepReason, KeepRule

STRICT = [KeepRule.MEAN_PROBABILITY, KeepRule.TOKEN_VOTE, KeepRule.MAJORITY]


def scores(*probability: float | None) -> SentenceScores:
    """Sentences of one token each."""
    scored = np.array([p is not None for p in probability], dtype=np.bool_)
    values = np.array([np.nan if p is None else p for p in probability], dtype=np.float64)
    return SentenceScores(values, values, scored)


def decided(given_scores: SentenceScores, **changes: Any) -> Decision:
    settings: dict[str, Any] = {
        "rule": KeepRule.MEAN_PROBABILITY,
        "threshold": 0.5,
        "always_select_title": False,
        "min_sentences": 0,
        "neighbor_sentences": 0,
        "protected": np.zeros(len(given_scores.scored), dtype=np.bool_),
    }
    return decide(given_scores, **(settings | changes))


def letters(decision: Decision) -> str:
    """The first letter of each reason; dropped sentences are `b`."""
    kept = [reason != KeepReason.BELOW_THRESHOLD for reason in decision.reasons]
    assert kept == decision.kept.tolist()
    return "".join(reason.value[0] for reason in decision.reasons)


def test_pooling() -> None:
    """Mean and share over the sentence's own tokens; nothing else counts."""
    pooled = pool(
        np.array([0.25, 0.75, 1.0, 0.5, 0.125], dtype=np.float32),
        np.array([0, 0, -1, 2, 0]),
        sentence_count=3,
        threshold=0.25,
    )
    assert pooled.scored.tolist() == [True, False, True]
    assert pooled.probability[[0, 2]].tolist() == [0.375, 0.5]
    assert pooled.vote_share[[0, 2]].tolist() == [1 / 3, 1.0]


@pytest.mark.parametrize(
    ("rule", "threshold", "expected"),
    [
        # three sentences of the tokens below: means 0.3, 0.5, 0.44; shares depend on t
        (KeepRule.MEAN_PROBABILITY, 0.45, [False, True, False]),
        (KeepRule.MEAN_PROBABILITY, 0.25, [True, True, True]),
        (KeepRule.TOKEN_VOTE, 0.45, [False, True, True]),
        (KeepRule.TOKEN_VOTE, 0.3, [True, True, True]),
        (KeepRule.MAJORITY, 0.45, [False, False, True]),
        (KeepRule.MAJORITY, 0.3, [False, False, True]),
        (KeepRule.SENTENCE_HEAD, 0.5, [False, True, False]),
        (KeepRule.SENTENCE_HEAD, 0.75, [False, True, False]),
    ],
)
def test_rules(rule: KeepRule, threshold: float, expected: list[bool]) -> None:
    """Each rule as its name says, on the same probabilities."""
    p = np.array([0, 0, 0.9, 0.0, 1.0, 0.6, 0.6, 0.125], dtype=np.float32)
    pooled = pool(p, np.array([0, 0, 0, 1, 1, 2, 2, 2]), 3, threshold)
    assert passes(rule, pooled, threshold).tolist() == expected


@pytest.mark.parametrize("rule", list(KeepRule))
def test_threshold_zero_keeps_every_scored_sentence(rule: KeepRule) -> None:
    """F17: p may underflow to exactly 0, and 0 > 0 is false."""
    assert passes(rule, scores(0.0, None, 1.0, 1e-30), 0.0).tolist() == [True, False, True, True]


@pytest.mark.parametrize("rule", STRICT)
def test_threshold_one_keeps_none(rule: KeepRule) -> None:
    """F17: not even a sentence whose every token has p = 1."""
    pooled = pool(np.ones(4, dtype=np.float32), np.array([0, 0, 1, 1]), 2, threshold=1.0)
    assert passes(rule, pooled, 1.0).tolist() == [False, False]


@pytest.mark.parametrize(
    ("probabilities", "expected"),
    [
        ((0.04, 0.0499), [False, False]),
        ((0.04, 0.05), [False, True]),
        ((0.3, 0.3), [True, False]),
        ((None, 0.2), [False, True]),
        ((None, None), [False, False]),
        ((), []),
    ],
)
def test_sentence_head_keeps_the_best_when_none_passes(
    probabilities: tuple[float | None, ...], expected: list[bool]
) -> None:
    """The best one only from 0.05, ties take the earlier, never an unscored one."""
    assert passes(KeepRule.SENTENCE_HEAD, scores(*probabilities), 0.5).tolist() == expected


def test_title_is_kept_only_with_another_sentence() -> None:
    """An irrelevant passage must not survive by its title alone."""
    assert letters(decided(scores(0.1, 0.9), always_select_title=True)) == "ta"
    assert letters(decided(scores(0.1, 0.2), always_select_title=True)) == "bb"
    assert letters(decided(scores(0.9, 0.2), always_select_title=True)) == "ab"
    assert letters(decided(scores(0.9), always_select_title=True)) == "a"
    assert letters(decided(scores(), always_select_title=True)) == ""


def test_min_sentences_fills_up_with_the_best() -> None:
    """Ties take the earlier; kept ones count; unscored ones neither count nor fill."""
    assert letters(decided(scores(0.1, 0.3, 0.3, 0.9), min_sentences=2)) == "bmba"
    assert letters(decided(scores(0.1, 0.3, 0.3, 0.2), min_sentences=3)) == "bmmm"
    assert letters(decided(scores(0.1, None, 0.2), min_sentences=2)) == "mum"
    assert letters(decided(scores(0.1), min_sentences=2**31 - 1)) == "m"


def test_neighbors_do_not_chain() -> None:
    """Neighbours of a neighbour stay out; those of title and minimum come along."""
    assert letters(decided(scores(0, 0, 0.9, 0, 0, 0), neighbor_sentences=1)) == "bnanbb"
    assert letters(decided(scores(0, 0, 0, 0, 0.9), neighbor_sentences=1, min_sentences=2)) == (
        "mnbna"
    )
    found = decided(scores(0, 0, 0, 0, 0.9), neighbor_sentences=1, always_select_title=True)
    assert letters(found) == "tnbna"
    assert letters(decided(scores(0.9, 0, 0), neighbor_sentences=2**31 - 1)) == "ann"
    assert letters(decided(scores(0, 0), neighbor_sentences=5)) == "bb"


def test_protected_and_unscored_come_last() -> None:
    """They are kept, but pull no title, minimum or neighbour with them."""
    protected = np.array([False, False, True, True])
    found = decided(
        scores(0, None, 0, 0.9),
        protected=protected,
        always_select_title=True,
    )
    assert letters(found) == "tupa"
    found = decided(scores(0, None, 0, 0), protected=protected, neighbor_sentences=1)
    assert letters(found) == "bupp"


@given(
    st.lists(st.none() | st.floats(0, 1), max_size=12),
    st.sampled_from(STRICT),
    st.floats(0, 1),
    st.fixed_dictionaries(
        {
            "always_select_title": st.booleans(),
            "min_sentences": st.integers(0, 4),
            "neighbor_sentences": st.integers(0, 3),
        }
    ),
)
def test_decisions_hold_together(
    probabilities: list[float | None],
    rule: KeepRule,
    threshold: float,
    others: dict[str, Any],
) -> None:
    """Unscored ones are always kept, the minimum is reached, reason and kept agree."""
    given_scores = scores(*probabilities)
    found = decided(given_scores, rule=rule, threshold=threshold, **others)
    letters(found)
    assert found.kept[~given_scores.scored].all()
    scored_count = int(given_scores.scored.sum())
    assert int((found.kept & given_scores.scored).sum()) >= min(
        others["min_sentences"], scored_count
    )
    assert found.kept[passes(rule, given_scores, threshold)].all()
