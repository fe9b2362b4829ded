"""Measure a model on labelled sets, beside trivial baselines on the same rows.

    python -m secateur.training.evaluate prune --data FILE [--model M] [--sweep]
    python -m secateur.training.evaluate rerank --data FILE [--model M]

Pruning: micro precision, recall and F1 over sentences, exactly those of the row; rows that
are not relevant count as all-zero labels. Reranking: nDCG@10 and MRR over rows that share
``qid``. Baselines: keeping everything and BM25 (pruning), input order and BM25 (reranking).
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rank_bm25 import BM25Okapi
from tqdm import tqdm

from secateur.model.keep_rules import passes, pool
from secateur.model.pruner import Pruner
from secateur.training.data import read_rows
from secateur.types import KeepRule, Passage, PruneOptions, TextSpan

THRESHOLDS = tuple(round(0.01 * step, 2) for step in range(1, 100))
RULES = (KeepRule.MEAN_PROBABILITY, KeepRule.TOKEN_VOTE, KeepRule.MAJORITY)


@dataclass(frozen=True, slots=True)
class Counts:
    """Confusion counts over sentences, and code points before and after pruning."""

    true_positive: int
    false_positive: int
    false_negative: int

    @property
    def precision(self) -> float:
        kept = self.true_positive + self.false_positive
        return self.true_positive / kept if kept else 0.0

    @property
    def recall(self) -> float:
        positive = self.true_positive + self.false_negative
        return self.true_positive / positive if positive else 0.0

    @property
    def f1(self) -> float:
        total = 2 * self.true_positive + self.false_positive + self.false_negative
        return 2 * self.true_positive / total if total else 0.0


def count(kept: NDArray[np.bool_], labels: NDArray[np.bool_]) -> Counts:
    """Compare decisions with labels, both bool [sentences]."""
    return Counts(
        int(np.sum(kept & labels)), int(np.sum(kept & ~labels)), int(np.sum(~kept & labels))
    )


@dataclass(frozen=True, slots=True, eq=False)
class ScoredRow:
    """A row after the model. probabilities, owner: [tokens]; labels, lengths: [sentences]."""

    probabilities: NDArray[np.float32]
    owner: NDArray[np.int64]
    labels: NDArray[np.bool_]
    lengths: NDArray[np.int64]
    bm25: NDArray[np.float64]

    def kept(self, rule: KeepRule, threshold: float) -> NDArray[np.bool_]:
        """Decisions of a keep rule; a sentence without tokens is kept, as in service."""
        scores = pool(self.probabilities, self.owner, len(self.labels), threshold)
        return passes(rule, scores, threshold) | ~scores.scored


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def bm25_scores(query: str, texts: Sequence[str]) -> NDArray[np.float64]:
    """BM25 of each text for the query, the texts being the collection: [texts]."""
    tokens = [words(text) for text in texts]
    if not any(tokens):
        return np.zeros(len(texts))
    return np.asarray(BM25Okapi(tokens).get_scores(words(query)), dtype=np.float64)


def score_rows(pruner: Pruner, rows: Sequence[dict[str, Any]]) -> list[ScoredRow]:
    """Run the model over rows that have ``sentences`` and ``labels``."""
    scored = []
    options = PruneOptions(include_tokens=True, truncate_query=True)
    for row in tqdm(rows, desc="prune", mininterval=5):
        spans = [(int(start), int(end)) for start, end in row["sentences"]]
        passage = Passage(
            text=row["passage"],
            title=(row.get("title") or "").replace("_", " "),
            sentences=tuple(TextSpan(start, end) for start, end in spans),
        )
        result = pruner.rerank_and_prune(row["question"], [passage], options).results[0]
        starts = np.array([start for start, _ in spans], dtype=np.int64)
        tokens = np.array([token.start_offset for token in result.tokens], dtype=np.int64)
        labels = np.array(row["labels"], dtype=np.bool_)
        scored.append(
            ScoredRow(
                probabilities=np.array([t.probability for t in result.tokens], dtype=np.float32),
                owner=np.searchsorted(starts, tokens, side="right") - 1,
                labels=labels if row["relevant"] else np.zeros_like(labels),
                lengths=np.array([end - start for start, end in spans], dtype=np.int64),
                bm25=bm25_scores(row["question"], [row["passage"][a:b] for a, b in spans]),
            )
        )
    return scored


def compression(rows: Sequence[ScoredRow], kept: Sequence[NDArray[np.bool_]]) -> float:
    """Mean over rows of the share of sentence characters that were dropped."""
    shares = [
        1 - row.lengths[k].sum() / row.lengths.sum() for row, k in zip(rows, kept, strict=True)
    ]
    return float(np.mean(shares)) if shares else 0.0


def measure(rows: Sequence[ScoredRow], rule: KeepRule, threshold: float) -> dict[str, Any]:
    """Micro scores of one rule and threshold over all rows."""
    kept = [row.kept(rule, threshold) for row in rows]
    counts = count(np.concatenate(kept), np.concatenate([row.labels for row in rows]))
    return {
        "f1": round(counts.f1, 4),
        "precision": round(counts.precision, 4),
        "recall": round(counts.recall, 4),
        "threshold": threshold,
        "keep_rule": rule.value,
        "compression": round(compression(rows, kept), 4),
    }


def baselines(rows: Sequence[ScoredRow]) -> dict[str, float]:
    """F1 of keeping everything, and of BM25 per sentence at its best threshold."""
    labels = np.concatenate([row.labels for row in rows])
    scores = np.concatenate([row.bm25 for row in rows])
    order = np.argsort(-scores, kind="stable")
    hits = np.cumsum(labels[order])
    f1 = 2 * hits / (np.arange(1, len(labels) + 1) + max(1, int(labels.sum())))
    everything = count(np.ones_like(labels), labels)
    return {"keep_everything": round(everything.f1, 4), "bm25": round(float(f1.max()), 4)}


def evaluate_prune(
    pruner: Pruner,
    rows: Sequence[dict[str, Any]],
    *,
    threshold: float | None = None,
    rule: KeepRule | None = None,
    sweep: bool = False,
) -> dict[str, Any]:
    """Scores at the model's default (or the given) rule and threshold, or at the best pair.

    With ``sweep``, every threshold 0.01…0.99 with every rule; ties go to the lower threshold.
    """
    rows = [row for row in rows if row.get("labels") is not None and row["question"].strip()]
    scored = score_rows(pruner, rows)
    info = pruner.info
    result = measure(
        scored,
        rule or info.default_keep_rule,
        info.default_threshold if threshold is None else threshold,
    )
    if sweep:
        rules = (rule,) if rule else RULES
        table = [measure(scored, one, t) for t in THRESHOLDS for one in rules]
        result = {**max(table, key=lambda entry: entry["f1"]), "by_threshold": table}
    return {**result, "items": len(scored), "baselines": baselines(scored)}


def ndcg(relevance: Sequence[bool], depth: int = 10) -> float:
    """nDCG of a ranking of binary relevance, cut at ``depth``; 0 without a relevant item."""
    gain = sum(1 / math.log2(rank + 2) for rank, hit in enumerate(relevance[:depth]) if hit)
    ideal = sum(1 / math.log2(rank + 2) for rank in range(min(depth, sum(relevance))))
    return gain / ideal if ideal else 0.0


def evaluate_rerank(pruner: Pruner, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """nDCG@10 and MRR over the groups of rows that share ``qid`` and have a relevant one."""
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        if row.get("qid") and row["question"].strip():
            groups[row["qid"]].append(row)
    totals: dict[str, list[float]] = defaultdict(list)
    for group in tqdm(groups.values(), desc="rerank", mininterval=5):
        relevant = [bool(row["relevant"]) for row in group]
        if not any(relevant):
            continue
        passages = [
            Passage(text=row["passage"], title=(row.get("title") or "").replace("_", " "))
            for row in group
        ]
        question = group[0]["question"]
        ranked = pruner.rerank_and_prune(question, passages, PruneOptions(truncate_query=True))
        texts = [f"{passage.title} {passage.text}" for passage in passages]
        orders = {
            "model": [result.index for result in ranked.results],
            "input_order": list(range(len(group))),
            "bm25": np.argsort(-bm25_scores(question, texts), kind="stable").tolist(),
        }
        for name, order in orders.items():
            hits = [relevant[index] for index in order]
            totals[name].append(ndcg(hits))
            if name == "model":
                totals["mrr"].append(1 / (hits.index(True) + 1))
    mean = {name: round(float(np.mean(values)), 4) for name, values in totals.items()}
    return {
        "ndcg_at_10": mean.get("model", 0.0),
        "mrr": mean.get("mrr", 0.0),
        "queries": len(totals["model"]),
        "baselines": {name: mean.get(name, 0.0) for name in ("input_order", "bm25")},
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Measure pruning or reranking on a labelled set.")
    parser.add_argument("task", choices=["prune", "rerank"])
    parser.add_argument("--data", type=Path, required=True, help="a .jsonl or .jsonl.xz file")
    parser.add_argument("--model", type=Path, help="checkpoint folder; default: the embedded one")
    parser.add_argument("--threshold", type=float)
    parser.add_argument("--keep-rule", type=KeepRule)
    parser.add_argument("--sweep", action="store_true", help="find the best threshold and rule")
    options = parser.parse_args(arguments)
    pruner = Pruner.load(options.model)
    rows = list(read_rows(options.data))
    if options.task == "rerank":
        result = evaluate_rerank(pruner, rows)
    else:
        result = evaluate_prune(
            pruner,
            rows,
            threshold=options.threshold,
            rule=options.keep_rule,
            sweep=options.sweep,
        )
    print(json.dumps(result))


if __name__ == "__main__":
    main()
