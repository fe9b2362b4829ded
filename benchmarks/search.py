"""Retrieval through milvus-lite: BM25, dense and hybrid, each with and without reranking.

    python benchmarks/search.py --data FILE [--data FILE] [--candidates N] [--record FILE]

FILE: rows with question, passage, title and relevant (``.jsonl`` or ``.xz``); rows with the same
``qid``, or else the same question, belong together. All passages of all files are one corpus, so
that the others of a question's own file and those of other files are distractors. Each search
takes N candidates; "reranked" orders these by the embedded model's score, so recall@N is the
same for both. Passages are judged at the level of the file's own rows; questions without a
relevant row are left out. Times are wall-clock medians of one query, stages one after another.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import statistics
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from secateur.bench.machine import commit, machine
from secateur.milvus.embedder import BUNDLED, load_embedder
from secateur.milvus.indexing import Indexer
from secateur.milvus.ranker import ThreadRanker
from secateur.milvus.searching import Searcher
from secateur.milvus.store import MilvusStore
from secateur.milvus.types import ChunkOptions, Document, SearchMode, SearchRequest
from secateur.model.pruner import Pruner
from secateur.training.data import read_rows
from secateur.types import PruneOptions, ResultOrder

CUT = 10
"""Of recall and nDCG."""

COLLECTION = "benchmark"


@dataclass
class Corpus:
    """Documents by id, and the ids that answer each question."""

    documents: dict[str, Document] = field(default_factory=dict)
    relevant: dict[str, set[str]] = field(default_factory=dict)


@dataclass
class Outcome:
    """What one way of searching gave, a value a question."""

    recall: list[float] = field(default_factory=list)
    recall_of_all: list[float] = field(default_factory=list)
    ndcg: list[float] = field(default_factory=list)


def read_corpus(files: Iterable[Path], *, queries: int, passages: int) -> Corpus:
    """The corpus of all files.

    queries: the first so many questions of each file; 0 takes all. passages: the first so many
    of each file, and those that the questions need; 0 takes all.
    """
    corpus = Corpus()
    ids: dict[tuple[str, str], str] = {}
    for file in files:
        groups: dict[str, list[dict[str, Any]]] = {}
        for row in read_rows(file):
            groups.setdefault(row.get("qid") or row["question"], []).append(row)
        asked = [g for g in groups.values() if any(row["relevant"] for row in g)]
        asked = asked[: queries or None]
        chosen = [row for group in groups.values() for row in group][: passages or None]
        chosen += [row for group in asked for row in group]
        for row in chosen:
            key = (row["title"], row["passage"])
            id_ = ids.setdefault(key, str(len(ids)))
            corpus.documents[id_] = Document(id_, row["passage"], row["title"])
        for group in asked:
            found = {ids[row["title"], row["passage"]] for row in group if row["relevant"]}
            corpus.relevant.setdefault(group[0]["question"], set()).update(found)
    return corpus


def recall_at(ranked: Sequence[str], relevant: set[str], cut: int) -> float:
    """Share of the relevant that are among the first ``cut``."""
    return len(relevant.intersection(ranked[:cut])) / len(relevant)


def ndcg_at(ranked: Sequence[str], relevant: set[str], cut: int) -> float:
    """nDCG of yes-or-no relevance."""
    gain = sum(1 / math.log2(i + 2) for i, id_ in enumerate(ranked[:cut]) if id_ in relevant)
    return gain / sum(1 / math.log2(i + 2) for i in range(min(cut, len(relevant))))


def documents_of(hits: Iterable[Any]) -> list[str]:
    """Ids of the hits' documents, each once, in order."""
    return list(dict.fromkeys(hit.candidate.fields["document_id"] for hit in hits))


async def measure(corpus: Corpus, options: argparse.Namespace) -> dict[str, Any]:
    """Index the corpus in a new milvus-lite file, ask every question in every mode."""
    pruner = Pruner.load(options.model)
    embedder = load_embedder(options.embedder)
    splitter = pruner.engine.splitter
    outcomes: dict[str, Outcome] = {}
    times: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        async with MilvusStore(f"{folder}/benchmark.db", timeout=600) as store:
            indexer = Indexer(
                store,
                COLLECTION,
                split=lambda text, language: splitter.split(text, language).spans,
                embedder=embedder,
                chunking=ChunkOptions(max_characters=16_000),  # a passage stays whole
            )
            began = time.perf_counter()
            await indexer.prepare()
            counts = await indexer.add(list(corpus.documents.values()))
            await indexer.settle()
            indexing = time.perf_counter() - began
            searcher = Searcher(store, ranker=ThreadRanker(pruner), embedder=embedder)
            asked = [(mode, q) for q in corpus.relevant for mode in SearchMode]
            for mode, question in track(asked, "Searching", console=Console(stderr=True)):
                request = SearchRequest(
                    collection=COLLECTION,
                    query=question,
                    mode=mode,
                    candidate_count=options.candidates,
                    output_fields=("document_id",),
                    title_field="title",
                    options=PruneOptions(order=ResultOrder.SCORE, truncate_query=True),
                )
                answer = await searcher.search(request)
                # The candidate's place in Milvus's order is the passage's index.
                found = sorted(answer.hits, key=lambda hit: hit.passage.index if hit.passage else 0)
                for name, hits in ((f"{mode}", found), (f"{mode} reranked", answer.hits)):
                    ids = documents_of(hits)
                    wanted = corpus.relevant[question]
                    outcome = outcomes.setdefault(name, Outcome())
                    outcome.recall.append(recall_at(ids, wanted, CUT))
                    outcome.recall_of_all.append(recall_at(ids, wanted, len(ids)))
                    outcome.ndcg.append(ndcg_at(ids, wanted, CUT))
                spent = times.setdefault(f"{mode}", {"embed": [], "retrieve": [], "rerank": []})
                spent["embed"].append(answer.embed_ms)
                spent["retrieve"].append(answer.retrieve_ms)
                spent["rerank"].append(answer.ranked.timing.total_ms if answer.ranked else 0.0)
    return {
        "machine": machine(),
        "commit": commit(),
        "model": f"{pruner.info.id}@{pruner.info.revision}",
        "embedder": embedder.name,
        "data": [file.name for file in options.data],
        "questions": len(corpus.relevant),
        "documents": len(corpus.documents),
        "passages": counts.passage_count,
        "candidates": options.candidates,
        "indexing_seconds": round(indexing, 1),
        "quality": {
            name: {
                f"recall@{CUT}": round(statistics.fmean(outcome.recall), 4),
                f"recall@{options.candidates}": round(statistics.fmean(outcome.recall_of_all), 4),
                f"ndcg@{CUT}": round(statistics.fmean(outcome.ndcg), 4),
            }
            for name, outcome in outcomes.items()
        },
        "median_ms": {
            mode: {stage: round(statistics.median(values), 2) for stage, values in spent.items()}
            for mode, spent in times.items()
        },
    }


def print_tables(record: dict[str, Any]) -> None:
    """Quality and times for people."""
    console = Console()
    title = f"{record['questions']} questions, {record['documents']} documents"
    quality = Table(title=title)
    names = next(iter(record["quality"].values()))
    for column in ("", *names):
        quality.add_column(column, justify="right" if column else "left")
    for name, values in record["quality"].items():
        quality.add_row(name, *(f"{value:.3f}" for value in values.values()))
    console.print(quality)
    times = Table(title="ms a query, median")
    for column in ("", "embed", "retrieve", "rerank"):
        times.add_column(column, justify="right" if column else "left")
    for mode, spent in record["median_ms"].items():
        times.add_row(mode, *(f"{value:.1f}" for value in spent.values()))
    console.print(times)
    console.print(f"indexing {record['indexing_seconds']} s, {record['passages']} passages")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="BM25, dense, hybrid; with and without rerank.")
    parser.add_argument("--data", type=Path, action="append", required=True)
    parser.add_argument("--candidates", type=int, default=50)
    parser.add_argument("--queries", type=int, default=0, help="first N of each file; 0 takes all")
    parser.add_argument("--passages", type=int, default=0, help="first N of each file; 0: all")
    parser.add_argument("--embedder", default=BUNDLED, help="sentence-transformers folder")
    parser.add_argument("--model", help="checkpoint; the embedded model when not given")
    parser.add_argument("--record", type=Path, help="also write the JSON record to this file")
    parser.add_argument("--json", action="store_true", help="print only JSON")
    options = parser.parse_args(arguments)

    corpus = read_corpus(options.data, queries=options.queries, passages=options.passages)
    record = asyncio.run(measure(corpus, options))
    text = json.dumps(record, indent=2)
    if options.record:
        options.record.write_text(text + "\n", encoding="utf-8")
    if options.json:
        print(text)
    else:
        print_tables(record)


if __name__ == "__main__":
    main()
