"""The whole measurement of reranking, beside input order, BM25 and embedding cosine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from secateur.errors import InvalidRequestError, SecateurError
from secateur.model.pruner import Pruner
from secateur.training.bm25 import Bm25
from secateur.training.evaluation.bootstrap import bootstrap_interval
from secateur.training.evaluation.calls import calls, refusal
from secateur.training.evaluation.metrics import Floats
from secateur.training.evaluation.ranking import RankingScores, mean_scores, ranking_values
from secateur.training.evaluation.result import rounded
from secateur.training.evaluation.rows import checked_rows
from secateur.types import Passage, PruneOptions, ResultOrder

BASELINES = ("input_order", "bm25", "embedding")

# Threshold 0 prunes nothing, which models that only rank insist on.
_OPTIONS = PruneOptions(threshold=0.0, truncate_query=True, order=ResultOrder.INPUT)

Similarity = Callable[[str, Sequence[str]], Floats]
"""(question, texts) → a score for each text, higher is better."""


@dataclass(frozen=True, slots=True)
class Query:
    """One question with its candidates; relevant[i] says whether ``passages[i]`` answers it."""

    qid: str
    question: str
    passages: tuple[Passage, ...]
    relevant: tuple[bool, ...]

    @property
    def texts(self) -> list[str]:
        """Titles and texts, as the baselines read them."""
        return [f"{passage.title} {passage.text}".strip() for passage in self.passages]


@dataclass(frozen=True, slots=True)
class RerankResult:
    """What ``secateur evaluate rerank`` found. interval: 95 % interval of the model's nDCG@10."""

    queries: int
    passages: int
    model: RankingScores
    baselines: dict[str, RankingScores]
    interval: tuple[float, float]

    def to_json(self, about: dict[str, Any]) -> dict[str, Any]:
        """As dictionaries, lists and numbers; about: further keys, such as model and data."""
        value: dict[str, Any] = rounded(
            {
                **_scores(self.model),
                "queries": self.queries,
                "passages": self.passages,
                "interval": self.interval,
                "baselines": {name: _scores(part) for name, part in self.baselines.items()},
                **about,
            }
        )
        return value


def load_queries(path: Path) -> tuple[list[Query], int]:
    """Rows of a file grouped by ``qid``, in order, and the number of rows left out.

    Left out: rows without ``qid`` or with a blank question, and all rows of a question without
    a relevant one. Raises ValueError that names the file, the line and the field.
    """
    groups: dict[str, list[dict[str, Any]]] = {}
    rows = 0
    for where, row in checked_rows(path):
        rows += 1
        if not row.get("qid") or not row["question"].strip():
            continue
        group = groups.setdefault(row["qid"], [])
        if group and group[0]["question"] != row["question"]:
            raise ValueError(f"{where}: another question than an earlier row of qid {row['qid']}")
        group.append(row)
    queries = [
        Query(
            qid=qid,
            question=group[0]["question"].strip(),
            passages=tuple(_passage(row) for row in group),
            relevant=tuple(row["relevant"] for row in group),
        )
        for qid, group in groups.items()
        if any(row["relevant"] for row in group)
    ]
    return queries, rows - sum(len(query.passages) for query in queries)


def evaluate_rerank(
    pruner: Pruner, queries: Sequence[Query], embedding: Similarity
) -> RerankResult:
    """Rank every question's passages in all ways. Shows progress on stderr if a terminal.

    Ties keep the order of the file. Raises ValueError without queries, InvalidRequestError with
    the qid of one that the model refuses, SecateurError for a passage that fails in it.
    """
    if not queries:
        raise ValueError("no question with a relevant passage to measure")
    values: dict[str, list[Floats]] = {name: [] for name in ("model", *BASELINES)}
    for query in tqdm(queries, desc="ranking", unit="query", disable=None):
        orders = {
            "model": _model_order(pruner, query),
            "input_order": range(len(query.passages)),
            "bm25": _by_score(Bm25(query.texts).scores(query.question)),
            "embedding": _by_score(embedding(query.question, query.texts)),
        }
        for name, order in orders.items():
            values[name].append(ranking_values([query.relevant[index] for index in order]))
    tables = {name: np.stack(part) for name, part in values.items()}  # [queries, values]
    return RerankResult(
        queries=len(queries),
        passages=sum(len(query.passages) for query in queries),
        model=mean_scores(tables["model"]),
        baselines={name: mean_scores(tables[name]) for name in BASELINES},
        interval=bootstrap_interval(tables["model"][:, :1], lambda sums: sums[:, 0] / len(queries)),
    )


def _model_order(pruner: Pruner, query: Query) -> list[int]:
    """As in service: by logit (or score, for a model without), ties in order, blank ones last."""
    keys: list[tuple[bool, float, int]] = []
    for group in calls([len(passage.text) for passage in query.passages]):
        passages = [query.passages[index] for index in group]
        try:
            results = pruner.rerank_and_prune(query.question, passages, _OPTIONS).results
        except InvalidRequestError as error:
            names = [f"qid {query.qid}, passage {index}" for index in group]
            raise refusal(error, names) from error
        for index, result in zip(group, results, strict=True):
            if result.error is not None:
                raise SecateurError(f"qid {query.qid}, passage {index}: {result.error.message}")
            value = result.relevance_logit
            value = result.relevance_score if value is None else value
            keys.append((value is None, -(value or 0.0), index))
    return [index for _, _, index in sorted(keys)]


def _by_score(scores: Floats) -> list[int]:
    order: list[int] = np.argsort(-scores, kind="stable").tolist()
    return order


def _passage(row: dict[str, Any]) -> Passage:
    return Passage(text=row["passage"], title=(row.get("title") or "").replace("_", " ").strip())


def _scores(scores: RankingScores) -> dict[str, float]:
    values = asdict(scores)
    recall = values.pop("recall")
    return {**values, **{f"recall_at_{depth}": value for depth, value in recall.items()}}
