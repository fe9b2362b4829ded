"""All rows of a set as flat arrays over their sentences, so that a decision is one operation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from secateur.model.keep_rules import SentenceScores, passes
from secateur.training.evaluation.metrics import Bools, Counts, Floats
from secateur.training.evaluation.rows import LabelledRow
from secateur.training.evaluation.scoring import ScoredRow, sentence_scores
from secateur.types import KeepRule


@dataclass(frozen=True, slots=True, eq=False)
class SentenceArrays:
    """The sentences of all rows, one after the other. At least one row.

    means: float64 [sentences], see :class:`ScoredRow`. probabilities: float32 [tokens].
    token_sentences: int64 [tokens], index among all sentences.
    token_counts: int64 [sentences]. labels, optional: bool [sentences].
    row_starts: int64 [rows], each row's first sentence. passage_lengths: int64 [rows].
    lengths: int64 [sentences], code points of the sentence. gaps: int64 [sentences], code points
    between it and the next one of its row, 0 after the last.
    answers: int64 [answers, 3], row, first sentence and end of the range that holds the answer.
    """

    means: Floats
    probabilities: NDArray[np.float32]
    token_sentences: Counts
    token_counts: Counts
    labels: Bools
    optional: Bools
    row_starts: Counts
    lengths: Counts
    gaps: Counts
    passage_lengths: Counts
    answers: Counts

    @classmethod
    def of(cls, rows: Sequence[ScoredRow]) -> SentenceArrays:
        """Lay the rows out in the order given. Raises ValueError without any row."""
        if not rows:
            raise ValueError("no rows to measure")
        counts = [len(row.row.sentences) for row in rows]
        row_starts = np.cumsum([0, *counts[:-1]])
        firsts = row_starts.tolist()
        spans = [np.array(row.row.sentences, dtype=np.int64) for row in rows]
        token_sentences = np.concatenate(
            [row.token_sentences + first for row, first in zip(rows, firsts, strict=True)]
        )
        return cls(
            means=np.concatenate([row.means for row in rows]),
            probabilities=np.concatenate([row.probabilities for row in rows]),
            token_sentences=token_sentences,
            token_counts=np.bincount(token_sentences, minlength=sum(counts)),
            labels=np.concatenate([row.labels for row in rows]),
            optional=np.concatenate([_mask(row.row) for row in rows]),
            row_starts=row_starts,
            lengths=np.concatenate([span[:, 1] - span[:, 0] for span in spans]),
            gaps=np.concatenate([np.append(span[1:, 0] - span[:-1, 1], 0) for span in spans]),
            passage_lengths=np.array([len(row.row.passage) for row in rows]),
            answers=np.concatenate(
                [
                    _answers(index, row.row, first)
                    for index, (row, first) in enumerate(zip(rows, firsts, strict=True))
                ]
            ),
        )

    def kept(self, rule: KeepRule, threshold: float) -> Bools:
        """What service would keep: bool [sentences]; equal to ``ScoredRow.kept`` of each row."""
        return self.kept_by_rules((rule,), threshold)[0]

    def kept_by_rules(self, rules: Sequence[KeepRule], threshold: float) -> list[Bools]:
        """:meth:`kept` for each rule; the tokens are pooled once."""
        scores = sentence_scores(self.means, self.probabilities, self.token_sentences, threshold)
        return [self._passes(rule, scores, threshold) | ~scores.scored for rule in rules]

    def _passes(self, rule: KeepRule, scores: SentenceScores, threshold: float) -> Bools:
        if rule != KeepRule.SENTENCE_HEAD:
            return passes(rule, scores, threshold)
        # The one rule that looks at a passage's other sentences.
        columns = (scores.probability, scores.vote_share, scores.scored)
        parts = zip(*(np.split(column, self.row_starts[1:]) for column in columns), strict=True)
        return np.concatenate([passes(rule, SentenceScores(*part), threshold) for part in parts])

    def compression(self, kept: Bools) -> float:
        """Mean over rows of ``compression_rate``: 1 − code points of the pruned text / of all."""
        with_gaps = np.where(kept, self.lengths + self.gaps, 0)
        last = np.maximum.reduceat(np.where(kept, np.arange(len(kept)), -1), self.row_starts)
        # The gap after the last kept sentence is no part of the pruned text.
        surplus = np.where(last >= 0, self.gaps[last], 0)
        characters = np.add.reduceat(with_gaps, self.row_starts) - surplus
        return float(np.mean(1 - characters / self.passage_lengths))

    def token_compression(self, kept: Bools) -> float:
        """Mean over rows of 1 − tokens in kept sentences / in all; 0 for a row without tokens."""
        whole = np.add.reduceat(self.token_counts, self.row_starts)
        left = np.add.reduceat(np.where(kept, self.token_counts, 0), self.row_starts)
        return float(np.mean(1 - np.where(whole > 0, left / np.maximum(whole, 1), 1.0)))

    def answer_kept(self, kept: Bools) -> float | None:
        """Share of the rows with an answer of which at least one lies in kept sentences only.

        ``None`` when no row has a located answer.
        """
        if not len(self.answers):
            return None
        before = np.concatenate([[0], np.cumsum(kept)])
        row, first, end = self.answers.T
        whole = before[end] - before[first] == end - first
        return len(np.unique(row[whole])) / len(np.unique(row))


def _mask(row: LabelledRow) -> Bools:
    mask = np.zeros(len(row.sentences), dtype=np.bool_)
    mask[list(row.optional)] = True
    return mask


def _answers(index: int, row: LabelledRow, first: int) -> Counts:
    """[answers, 3]; an answer of white space between two sentences belongs to none: left out."""
    spans = np.array(row.sentences, dtype=np.int64)
    answers = np.array(row.answers, dtype=np.int64).reshape(-1, 2)
    start = np.searchsorted(spans[:, 1], answers[:, 0], side="right")
    end = np.searchsorted(spans[:, 0], answers[:, 1], side="left")
    table = np.stack([np.full(len(answers), index), start + first, end + first], axis=1)
    return table[end > start]
