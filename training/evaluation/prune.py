"""The whole measurement of pruning, beside keeping everything and BM25."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from secateur.training.evaluation.arrays import SentenceArrays
from secateur.training.evaluation.bootstrap import bootstrap_interval
from secateur.training.evaluation.items import Item, items, worst
from secateur.training.evaluation.lexical import best_cut, question_bm25
from secateur.training.evaluation.metrics import (
    Bools,
    Floats,
    Scores,
    confusion,
    fractions,
    macro_scores,
    micro_scores,
)
from secateur.training.evaluation.rows import LabelledRow
from secateur.training.evaluation.scoring import ScoredRow
from secateur.types import KeepRule


@dataclass(frozen=True, slots=True)
class Measurement:
    """Everything about one way of keeping sentences. All are fractions in [0, 1].

    strict, lenient: micro, over all sentences, and over all but the optional ones. macro,
    macro_lenient: the same as means over rows. compression, token_compression, answer_kept: as
    in :class:`SentenceArrays`.
    """

    strict: Scores
    lenient: Scores
    macro: Scores
    macro_lenient: Scores
    compression: float
    token_compression: float
    answer_kept: float | None


@dataclass(frozen=True, slots=True)
class Breakdown:
    """The model beside the trivial baselines, on the same rows."""

    items: int
    model: Measurement
    keep_everything: Measurement
    bm25: Measurement


@dataclass(frozen=True, slots=True)
class PruneResult:
    """What ``secateur evaluate prune`` found for one keep rule at one threshold.

    documents: rows with different passages. interval: 95 % interval of the strict micro F1.
    bm25_threshold: the score from which BM25 keeps. by_kind: empty when no row has a kind.
    """

    keep_rule: KeepRule
    threshold: float
    overall: Breakdown
    by_kind: dict[str, Breakdown]
    bm25_threshold: float
    documents: int
    interval: tuple[float, float]
    items: tuple[Item, ...]

    @property
    def f1(self) -> float:
        """Strict micro F1."""
        return self.overall.model.strict.f1

    @property
    def worst(self) -> list[Item]:
        """The items that went worst."""
        return worst(self.items)


def evaluate_prune(
    scored: Sequence[ScoredRow], keep_rule: KeepRule, threshold: float
) -> PruneResult:
    """Measure one keep rule at one threshold. Raises ValueError without rows."""
    arrays = SentenceArrays.of(scored)
    rows = [row.row for row in scored]
    bm25 = question_bm25(rows)
    bm25_threshold = best_cut(bm25, arrays.labels)
    decisions = (
        arrays.kept(keep_rule, threshold),
        np.ones(len(arrays.labels), dtype=np.bool_),
        bm25 >= bm25_threshold,
    )
    return PruneResult(
        keep_rule=keep_rule,
        threshold=threshold,
        overall=_breakdown(arrays, decisions),
        by_kind=_by_kind(scored, arrays, decisions),
        bm25_threshold=bm25_threshold,
        documents=len({row.passage for row in rows}),
        interval=f1_interval(rows, arrays, decisions[0]),
        items=tuple(items(rows, arrays, decisions[0])),
    )


def measure(arrays: SentenceArrays, kept: Bools) -> Measurement:
    """All numbers of one decision; kept: bool [sentences]."""
    labels, starts, counted = arrays.labels, arrays.row_starts, ~arrays.optional
    return Measurement(
        strict=micro_scores(kept, labels),
        lenient=micro_scores(kept, labels, counted),
        macro=macro_scores(kept, labels, starts),
        macro_lenient=macro_scores(kept, labels, starts, counted),
        compression=arrays.compression(kept),
        token_compression=arrays.token_compression(kept),
        answer_kept=arrays.answer_kept(kept),
    )


def f1_interval(
    rows: Sequence[LabelledRow], arrays: SentenceArrays, kept: Bools
) -> tuple[float, float]:
    """95 % interval of the strict micro F1; rows that share a passage are drawn together."""
    number: dict[str, int] = {}
    document = [number.setdefault(row.passage, len(number)) for row in rows]
    units = np.zeros((len(number), 3))
    np.add.at(units, document, np.stack(confusion(kept, arrays.labels, arrays.row_starts), axis=1))

    def f1(sums: Floats) -> Floats:
        tp, fp, fn = sums.astype(np.int64).T
        values: Floats = fractions(tp, fp, fn)[2]
        return values

    return bootstrap_interval(units, f1)


def _breakdown(arrays: SentenceArrays, decisions: Iterable[Bools]) -> Breakdown:
    return Breakdown(len(arrays.row_starts), *(measure(arrays, kept) for kept in decisions))


def _by_kind(
    scored: Sequence[ScoredRow], arrays: SentenceArrays, decisions: Sequence[Bools]
) -> dict[str, Breakdown]:
    """A breakdown for each kind, by name; rows without one stand under ""."""
    kinds = sorted({row.row.kind for row in scored})
    if kinds == [""]:
        return {}
    parts = [np.split(kept, arrays.row_starts[1:]) for kept in decisions]
    result = {}
    for kind in kinds:
        chosen = [index for index, row in enumerate(scored) if row.row.kind == kind]
        result[kind] = _breakdown(
            SentenceArrays.of([scored[index] for index in chosen]),
            [np.concatenate([part[index] for index in chosen]) for part in parts],
        )
    return result
