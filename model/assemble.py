"""Token probabilities to sentences to one pruned passage."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from secateur.errors import InvariantError
from secateur.model import keep_rules
from secateur.model.prepared import PreparedPassage, PreparedQuery, WindowOutput
from secateur.types import (
    KeepRule,
    PassageError,
    PrunedPassage,
    ScoreSource,
    Sentence,
    TextSpan,
    TokenScore,
)

NOT_FINITE = PassageError("INTERNAL", "The model gave no finite score for this passage.")


def sigmoid(logit: float) -> float:
    """1 / (1 + e^-x) in float32, without overflow for any finite x."""
    x = np.float32(logit)
    small = np.exp(-np.abs(x))  # in [0, 1]
    return float(np.float32(1.0) / (1 + small) if x >= 0 else small / (1 + small))


def failed_passage(index: int, passage_id: str, error: PassageError) -> PrunedPassage:
    """The result of a passage that failed alone: no score, no sentences, no text."""
    return PrunedPassage(
        index=index,
        id=passage_id,
        relevance_score=None,
        relevance_logit=None,
        pruned_text="",
        sentences=(),
        kept_spans=(),
        compression_rate=0.0,
        all_pruned=False,
        error=error,
    )


def assemble_passage(
    query: PreparedQuery,
    prepared: PreparedPassage,
    outputs: Sequence[WindowOutput],
    score_source: ScoreSource,
) -> PrunedPassage:
    """The result for one passage from the outputs of all its windows, in order.

    Depends on nothing but its arguments. A score or probability that is not finite makes the
    passage fail alone, before anything is compared with it.
    """
    passage = prepared.passage
    probabilities = None if query.keep_rule is None else _token_probabilities(prepared, outputs)
    logit = _relevance_logit(outputs, score_source)
    if not all(value is None or np.isfinite(value).all() for value in (probabilities, logit)):
        return failed_passage(prepared.index, passage.id, NOT_FINITE)

    scores = _sentence_scores(query, prepared, probabilities)
    decision = keep_rules.decide(
        scores,
        rule=query.keep_rule,
        threshold=query.threshold,
        always_select_title=query.options.always_select_title,
        min_sentences=query.options.min_sentences,
        neighbor_sentences=query.options.neighbor_sentences,
        protected=prepared.protected,
    )
    spans = prepared.sentences
    runs = kept_runs(decision.kept)
    pruned_text = _pruned_text(passage.text, spans, runs)
    to_unit = prepared.offsets.from_code_point
    length = len(passage.text)
    blank = not len(spans)
    return PrunedPassage(
        index=prepared.index,
        id=passage.id,
        relevance_score=_relevance_score(logit, scores, score_source),
        relevance_logit=logit,
        pruned_text=pruned_text,
        sentences=_sentences(query, prepared, scores, decision),
        kept_spans=tuple(
            TextSpan(to_unit(int(spans[first, 0])), to_unit(int(spans[last, 1])))
            for first, last in runs
        ),
        compression_rate=0.0 if blank else 1.0 - len(pruned_text) / length,
        all_pruned=not blank and not runs,
        unscored_sentence_count=int(np.count_nonzero(~scores.scored)),
        window_count=len(prepared.windows),
        coarse_sentences=prepared.coarse,
        tokens=(
            _tokens(query, prepared, probabilities)
            if query.options.include_tokens and probabilities is not None
            else ()
        ),
    )


def _sentence_scores(
    query: PreparedQuery, prepared: PreparedPassage, probabilities: NDArray[np.float32] | None
) -> keep_rules.SentenceScores:
    count = len(prepared.sentences)
    if probabilities is None:
        return keep_rules.unscored(count)
    pieces = None
    if query.mean_of_pieces:
        sizes = [window.passage_token_count for window in prepared.windows]
        pieces = np.repeat(np.arange(len(sizes)), sizes)
    return keep_rules.pool(probabilities, prepared.token_sentences, count, query.threshold, pieces)


def kept_runs(kept: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Maximal runs of kept sentences as (first, last), both inclusive."""
    edges = np.diff(np.concatenate([[0], kept.astype(np.int8), [0]]))
    firsts = np.flatnonzero(edges == 1)
    lasts = np.flatnonzero(edges == -1) - 1
    return list(zip(firsts.tolist(), lasts.tolist(), strict=True))


def _pruned_text(text: str, spans: NDArray[np.int64], runs: Sequence[tuple[int, int]]) -> str:
    """The source's own text of each run, each followed by the source's gap, except the last."""
    if not runs:
        return ""
    pieces = [
        text[int(spans[first, 0]) : int(spans[last + 1, 0])] for (first, last), _ in pairwise(runs)
    ]
    first, last = runs[-1]
    pieces.append(text[int(spans[first, 0]) : int(spans[last, 1])])
    return "".join(pieces)


def _token_probabilities(
    prepared: PreparedPassage, outputs: Sequence[WindowOutput]
) -> NDArray[np.float32]:
    """Keep probabilities of all passage tokens: float32 [tokens]."""
    parts = [output.keep_probabilities for output in outputs]
    sizes = [None if part is None else part.shape for part in parts]
    if sizes != [(window.passage_token_count,) for window in prepared.windows]:
        raise InvariantError(f"window outputs of the wrong sizes {sizes}; this is a bug")
    empty = np.zeros(0, dtype=np.float32)
    probabilities = np.concatenate([empty, *(part for part in parts if part is not None)])
    if len(probabilities) != len(prepared.token_sentences):
        raise InvariantError("the windows do not cover the passage's tokens; this is a bug")
    return probabilities.astype(np.float32, copy=False)


def _relevance_logit(outputs: Sequence[WindowOutput], source: ScoreSource) -> float | None:
    """The highest raw logit of all windows; NaN if one is not finite; ``None`` without any."""
    if source != ScoreSource.PASSAGE_HEAD or not outputs:
        return None
    logits = [output.relevance_logit for output in outputs]
    if any(logit is None for logit in logits):
        raise InvariantError("a passage head without a logit; this is a bug")
    values = np.array(logits, dtype=np.float64)
    return float(values.max()) if np.isfinite(values).all() else float("nan")


def _relevance_score(
    logit: float | None, scores: keep_rules.SentenceScores, source: ScoreSource
) -> float | None:
    if source == ScoreSource.BEST_SENTENCE and scores.scored.any():
        return float(np.nanmax(scores.probability))
    return None if logit is None else sigmoid(logit)


def _sentences(
    query: PreparedQuery,
    prepared: PreparedPassage,
    scores: keep_rules.SentenceScores,
    decision: keep_rules.Decision,
) -> tuple[Sentence, ...]:
    text = prepared.passage.text
    to_unit = prepared.offsets.from_code_point
    with_text = query.options.include_sentence_text
    by_tokens = query.keep_rule != KeepRule.SENTENCE_HEAD
    return tuple(
        Sentence(
            start_offset=to_unit(start),
            end_offset=to_unit(end),
            probability=probability if scored else None,
            vote_share=vote_share if scored and by_tokens else None,
            kept=kept,
            reason=reason,
            text=text[start:end] if with_text else "",
        )
        for (start, end), probability, vote_share, scored, kept, reason in zip(
            prepared.sentences.tolist(),
            scores.probability.tolist(),
            scores.vote_share.tolist(),
            scores.scored.tolist(),
            decision.kept.tolist(),
            decision.reasons,
            strict=True,
        )
    )


def _tokens(
    query: PreparedQuery, prepared: PreparedPassage, probabilities: NDArray[np.float32]
) -> tuple[TokenScore, ...]:
    """Every scored token, from the first non-space character that it covers."""
    owned = prepared.token_sentences >= 0
    to_unit = prepared.offsets.from_code_point
    return tuple(
        TokenScore(to_unit(start), to_unit(end), p, p > query.threshold)
        for start, end, p in zip(
            prepared.token_starts[owned].tolist(),
            prepared.token_ends[owned].tolist(),
            probabilities[owned].astype(np.float64).tolist(),
            strict=True,
        )
    )
