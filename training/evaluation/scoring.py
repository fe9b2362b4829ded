"""Run a model over labelled rows once; every threshold and keep rule is then arithmetic."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from secateur.errors import InvalidRequestError, SecateurError, UnsupportedByModelError
from secateur.model.keep_rules import SentenceScores, passes, pool
from secateur.model.pruner import Pruner
from secateur.training.evaluation.calls import calls, refusal
from secateur.training.evaluation.rows import LabelledRow
from secateur.types import KeepRule, Passage, PrunedPassage, PruneOptions, ResultOrder, TextSpan

_OPTIONS = PruneOptions(include_tokens=True, truncate_query=True, order=ResultOrder.INPUT)


@dataclass(frozen=True, slots=True, eq=False)
class ScoredRow:
    """A row after the model.

    means: float64 [sentences], the probability of each as service gives it, NaN when unscored.
    probabilities: float32 [tokens], p of each passage token that belongs to a sentence.
    token_sentences: int64 [tokens], the index of that sentence.
    """

    row: LabelledRow
    means: NDArray[np.float64]
    probabilities: NDArray[np.float32]
    token_sentences: NDArray[np.int64]

    @property
    def labels(self) -> NDArray[np.bool_]:
        """Which sentences should be kept: bool [sentences]."""
        return np.array(self.row.labels, dtype=np.bool_)

    def kept(self, rule: KeepRule, threshold: float) -> NDArray[np.bool_]:
        """What service would keep: bool [sentences]; a sentence without tokens is kept."""
        scores = sentence_scores(self.means, self.probabilities, self.token_sentences, threshold)
        return passes(rule, scores, threshold) | ~scores.scored


def sentence_scores(
    means: NDArray[np.float64],
    probabilities: NDArray[np.float32],
    token_sentences: NDArray[np.int64],
    threshold: float,
) -> SentenceScores:
    """What the keep rules look at, from the parts of one or many :class:`ScoredRow`.

    The means are those of service, since not every model's is the mean over all tokens.
    """
    pooled = pool(probabilities, token_sentences, len(means), threshold)
    return replace(pooled, probability=means)


def score_rows(pruner: Pruner, rows: Sequence[LabelledRow]) -> list[ScoredRow]:
    """Score every row on its own sentences; results in the order given.

    Rows of one question share a call. Shows progress on stderr where that is a terminal.
    Raises InvalidRequestError with the row's id for one that the model refuses (sentences that
    do not cover the passage, a text over the limits), SecateurError for one that fails in it,
    UnsupportedByModelError when it cannot prune.
    """
    info = pruner.info
    if not info.can_prune:
        raise UnsupportedByModelError("model", f"{info.id} cannot prune; load another one")
    scored: dict[int, ScoredRow] = {}
    with tqdm(total=len(rows), desc="scoring", unit="row", disable=None) as bar:
        for group in _calls(rows):
            passages = [_passage(rows[index]) for index in group]
            try:
                answer = pruner.rerank_and_prune(rows[group[0]].question, passages, _OPTIONS)
            except InvalidRequestError as error:
                raise refusal(error, [f"row {rows[index].id}" for index in group]) from error
            for index, result in zip(group, answer.results, strict=True):
                scored[index] = _scored(rows[index], result)
            bar.update(len(group))
    return [scored[index] for index in range(len(rows))]


def _calls(rows: Sequence[LabelledRow]) -> Iterator[list[int]]:
    """Indexes of the rows of each call: rows of one question, in order."""
    by_question: dict[str, list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        by_question[row.question].append(index)
    for indexes in by_question.values():
        for group in calls([len(rows[index].passage) for index in indexes]):
            yield [indexes[position] for position in group]


def _passage(row: LabelledRow) -> Passage:
    return Passage(
        text=row.passage,
        title=row.title,
        sentences=tuple(TextSpan(start, end) for start, end in row.sentences),
    )


def _scored(row: LabelledRow, result: PrunedPassage) -> ScoredRow:
    if result.error is not None:
        raise SecateurError(f"row {row.id}: {result.error.message}")
    starts = np.array([start for start, _ in row.sentences], dtype=np.int64)
    tokens = np.array([token.start_offset for token in result.tokens], dtype=np.int64)
    return ScoredRow(
        row=row,
        means=np.array([s.probability for s in result.sentences], dtype=np.float64),
        probabilities=np.array([t.probability for t in result.tokens], dtype=np.float32),
        token_sentences=np.searchsorted(starts, tokens, side="right") - 1,
    )
