"""From sentence probabilities to keep and drop. Pure functions on arrays.

The order in which rules apply is part of the contract: threshold, title, minimum, neighbours,
protected, unscored; a sentence's reason is the first rule that kept it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from secateur.errors import InvariantError
from secateur.types import KeepReason, KeepRule

BEST_SENTENCE_FLOOR = 0.05
"""SENTENCE_HEAD keeps the best sentence when none passes and it reaches this probability."""


_REASONS = tuple(KeepReason)


@dataclass(frozen=True, slots=True, eq=False)
class SentenceScores:
    """Pooled token probabilities by sentence.

    probability: float64 [sentences], the mean p of the sentence's tokens, or the mean over its
        pieces of their means; NaN when unscored.
    vote_share: float64 [sentences], the share of its tokens with p > threshold; NaN likewise.
    scored: bool [sentences], false for a sentence without tokens.
    """

    probability: NDArray[np.float64]
    vote_share: NDArray[np.float64]
    scored: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Decision:
    """kept: bool [sentences]; reasons: one for each sentence."""

    kept: NDArray[np.bool_]
    reasons: tuple[KeepReason, ...]


def pool(
    probabilities: NDArray[np.float32],
    token_sentences: NDArray[np.int64],
    sentence_count: int,
    threshold: float,
    pieces: NDArray[np.int64] | None = None,
) -> SentenceScores:
    """Pool token probabilities by sentence, whatever windows the tokens were scored in.

    probabilities: float32 [tokens]. token_sentences: int64 [tokens], -1 for no sentence.
    pieces: int64 [tokens], the window of each token; given, the probability of a sentence is
    the mean over its windows of the mean over its tokens there, else over all its tokens.
    Comparisons and sums are in double precision, so that ``p > t`` means the numbers reported.
    """
    owned = token_sentences >= 0
    sentence = token_sentences[owned]
    p = probabilities[owned].astype(np.float64)
    counts = np.bincount(sentence, minlength=sentence_count)
    sums = np.bincount(sentence, weights=p, minlength=sentence_count)
    votes = np.bincount(sentence, weights=p > threshold, minlength=sentence_count)
    scored = counts > 0
    divisor = np.where(scored, counts, 1)
    mean = sums / divisor if pieces is None else _mean_of_pieces(p, sentence, pieces[owned], scored)
    return SentenceScores(
        probability=np.where(scored, mean, np.nan),
        vote_share=np.where(scored, votes / divisor, np.nan),
        scored=scored,
    )


def unscored(sentence_count: int) -> SentenceScores:
    """The scores of a model that scores no sentences."""
    none = np.full(sentence_count, np.nan)
    return SentenceScores(none, none, np.zeros(sentence_count, dtype=np.bool_))


def _mean_of_pieces(
    p: NDArray[np.float64],
    sentence: NDArray[np.int64],
    piece: NDArray[np.int64],
    scored: NDArray[np.bool_],
) -> NDArray[np.float64]:
    """Mean over pieces of the mean over tokens: float64 [sentences], 0 where unscored."""
    pairs, index = np.unique(np.stack([sentence, piece]), axis=1, return_inverse=True)
    index = index.reshape(-1)  # [tokens]
    means = np.bincount(index, weights=p) / np.bincount(index)  # [sentence-piece pairs]
    count = len(scored)
    sums = np.bincount(pairs[0], weights=means, minlength=count)
    return sums / np.maximum(np.bincount(pairs[0], minlength=count), 1)


def passes(rule: KeepRule | None, scores: SentenceScores, threshold: float) -> NDArray[np.bool_]:
    """Which sentences the keep rule keeps: bool [sentences]; never an unscored one.

    threshold: in [0, 1]. 0 keeps every scored sentence under every rule, although p may
    underflow to 0; 1 keeps none under the strict rules.
    """
    scored = scores.scored
    if threshold == 0.0:
        return scored.copy()
    probability = np.where(scored, scores.probability, -1.0)
    share = np.where(scored, scores.vote_share, -1.0)
    if rule == KeepRule.MEAN_PROBABILITY:
        return probability > threshold
    if rule == KeepRule.TOKEN_VOTE:
        return share > threshold
    if rule == KeepRule.MAJORITY:
        return share > 0.5
    if rule == KeepRule.SENTENCE_HEAD:
        kept: NDArray[np.bool_] = probability >= threshold
        if len(kept) and not kept.any():
            best = int(np.argmax(probability))
            kept[best] = bool(probability[best] >= BEST_SENTENCE_FLOOR)
        return kept
    raise InvariantError(f"a keep rule without a meaning: {rule!r}; this is a bug")


def decide(
    scores: SentenceScores,
    *,
    rule: KeepRule | None,
    threshold: float,
    always_select_title: bool,
    min_sentences: int,
    neighbor_sentences: int,
    protected: NDArray[np.bool_],
) -> Decision:
    """Apply all rules in their fixed order.

    rule: ``None`` only with threshold 0, for a model that scores no sentences.
    always_select_title: keep the first sentence when the threshold kept another one.
    min_sentences: then fill up with the most probable scored ones; ties take the earlier.
    neighbor_sentences: then keep this many on each side of those kept so far.
    protected: bool [sentences], kept in any case; last, whatever was not scored is kept.
    """
    count = len(scores.scored)
    codes = np.full(count, _REASONS.index(KeepReason.BELOW_THRESHOLD))
    kept = np.zeros(count, dtype=np.bool_)

    def keep(chosen: NDArray[np.bool_], reason: KeepReason) -> None:
        codes[chosen & ~kept] = _REASONS.index(reason)
        kept[chosen] = True

    keep(passes(rule, scores, threshold), KeepReason.ABOVE_THRESHOLD)
    if always_select_title and kept[1:].any():
        keep(np.arange(count) == 0, KeepReason.TITLE)
    keep(_fill_up(scores, kept, min_sentences), KeepReason.MIN_SENTENCES)
    keep(_neighbors(kept, neighbor_sentences), KeepReason.NEIGHBOR)
    keep(protected, KeepReason.PROTECTED)
    keep(~scores.scored, KeepReason.UNSCORED)
    return Decision(kept=kept, reasons=tuple(_REASONS[code] for code in codes))


def _fill_up(
    scores: SentenceScores, kept: NDArray[np.bool_], min_sentences: int
) -> NDArray[np.bool_]:
    """The best scored sentences that are missing to ``min_sentences`` kept scored ones."""
    chosen = np.zeros(len(kept), dtype=np.bool_)
    missing = min_sentences - int(np.count_nonzero(kept & scores.scored))
    if missing > 0:
        candidates = np.flatnonzero(scores.scored & ~kept)
        order = np.argsort(-scores.probability[candidates], kind="stable")
        chosen[candidates[order[:missing]]] = True
    return chosen


def _neighbors(kept: NDArray[np.bool_], distance: int) -> NDArray[np.bool_]:
    """Everything at most ``distance`` sentences away from a kept one."""
    count = len(kept)
    centres = np.flatnonzero(kept)
    depth = np.zeros(count + 1, dtype=np.int64)  # +1 where a reach begins, -1 after its end
    np.add.at(depth, np.maximum(centres - distance, 0), 1)
    np.add.at(depth, np.minimum(centres + distance + 1, count), -1)
    covered: NDArray[np.bool_] = np.cumsum(depth)[:count] > 0
    return covered
