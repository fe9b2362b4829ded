"""How well a ranking of one question's passages puts the relevant ones first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from secateur.training.evaluation.metrics import Floats

NDCG_DEPTH = 10
RECALL_DEPTHS = (1, 2, 5, 10)


@dataclass(frozen=True, slots=True)
class RankingScores:
    """Means over questions, in [0, 1]. recall: by depth, see ``RECALL_DEPTHS``."""

    ndcg_at_10: float
    mrr: float
    recall: dict[int, float]


def ranking_values(hits: Sequence[bool]) -> Floats:
    """The values of one ranking: float64 [2 + depths], nDCG@10, 1 / rank of the first hit,
    and recall at each of ``RECALL_DEPTHS``.

    hits: whether each passage is relevant, best passage first; at least one is. nDCG has binary
    gains and the discount 1 / log2(rank + 1) from rank 1 (Järvelin & Kekäläinen 2002, in the
    form of trec_eval).
    """
    relevant = np.array(hits, dtype=np.bool_)
    total = int(relevant.sum())
    discount = 1 / np.log2(np.arange(2, NDCG_DEPTH + 2))
    gain = discount[: len(relevant)][relevant[:NDCG_DEPTH]].sum()
    first = int(np.argmax(relevant)) + 1
    recall = [relevant[:depth].sum() / total for depth in RECALL_DEPTHS]
    return np.array([gain / discount[:total].sum(), 1 / first, *recall])


def mean_scores(values: Floats) -> RankingScores:
    """Average :func:`ranking_values` of all questions: [questions, 2 + depths]."""
    ndcg, mrr, *recall = values.mean(axis=0).tolist()
    return RankingScores(ndcg, mrr, dict(zip(RECALL_DEPTHS, recall, strict=True)))
