"""The sides of ``secateur bench`` on a tiny checkpoint: they say the same."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from bench_harness import CUT, LONG, SHORT, WORKLOAD
from tiny import tiny_provence
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from secateur import Pruner
from secateur.bench import memory, run
from secateur.bench.agreement import agreement
from secateur.bench.callers import Calls
from secateur.bench.opponents import Reranker
from secateur.bench.ours import (
    OPTIONS,
    load_modes,
    prune_at_once,
    token_counts,
    verdicts,
)
from secateur.bench.process import PlainProcess
from secateur.bench.run import Bench
from secateur.bench.serving import REQUESTS, Served, SmallRequest
from secateur.bench.workload import Query, Workload
from secateur.errors import SecateurError
from secateur.types import PassageError


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random checkpoint of our own family; probabilities lie on both sides of its threshold."""
    folder = tmp_path_factory.mktemp("model")
    tiny_provence(folder)
    path = folder / "config.json"
    own = {"family": "secateur", "default_keep_rule": "mean_probability", "default_threshold": 0.2}
    path.write_text(json.dumps({**json.loads(path.read_text()), "secateur": own}))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    special = [(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=special
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module")
def pruner(model: Path) -> Pruner:
    return Pruner.load(model, dtype="float32")


@pytest.fixture(scope="module")
def plain(model: Path, pruner: Pruner) -> PlainProcess:
    return PlainProcess(model, pruner.engine.splitter, 0.2)


def test_what_only_the_tokenizer_can_refuse_is_named(pruner: Pruner) -> None:
    long_query = Workload("x", (WORKLOAD.queries[0], Query("valve " * 60, SHORT, "x:2")))
    with pytest.raises(ValueError, match=r"^x:2: query: .* tokens"):
        token_counts(pruner, long_query)
    invisible = Workload("x", (Query("what?", ("\u200b",), "x:1"),))
    with pytest.raises(ValueError, match=r"^x:1: passages\[0\]: has no token to score$"):
        token_counts(pruner, invisible)


def test_the_plain_way_says_what_the_engine_says(pruner: Pruner, plain: PlainProcess) -> None:
    """Stock classes with padding and the engine: two ways of computing the same."""
    kept: list[bool] = []
    for query in WORKLOAD.queries:
        answer = pruner.rerank_and_prune(query.text, query.passages, OPTIONS)
        ours = sorted(answer.results, key=lambda result: result.index)
        theirs = plain.process(query.text, query.passages)
        assert [result.window_count for result in ours] == [p.block_count for p in theirs]
        for result, processed, text in zip(ours, theirs, query.passages, strict=True):
            probabilities = [sentence.probability for sentence in result.sentences]
            assert processed.probabilities == pytest.approx(probabilities, abs=1e-4)
            assert processed.reranking_score == pytest.approx(result.relevance_logit, abs=1e-4)
            assert processed.kept == tuple(sentence.kept for sentence in result.sentences)
            assert processed.pruned_context.split() == result.pruned_text.split()
            share = len(processed.pruned_context) / len(text)
            assert processed.compression_rate == pytest.approx(100 * (1 - share))
            kept += processed.kept
        same = agreement(
            {0: verdicts(answer)}, {0: [p.verdict for p in theirs]}, single_windows=True
        )
        assert same.equal_decisions == same.equal_top10 == 1
        assert [p.block_count for p in theirs] == [2 if t == LONG else 1 for t in query.passages]
    assert set(kept) == {True, False}


def test_the_plain_way_alone_and_together(plain: PlainProcess) -> None:
    together = plain.process_all([(query.text, query.passages) for query in WORKLOAD.queries])
    for query, processed in zip(WORKLOAD.queries, together, strict=True):
        for one, other in zip(plain.process(query.text, query.passages), processed, strict=True):
            assert one.kept == other.kept
            assert one.reranking_score == pytest.approx(other.reranking_score, abs=1e-4)


def test_the_plain_way_cuts_a_sentence_longer_than_a_block(plain: PlainProcess) -> None:
    (processed,) = plain.process("what is blue?", [CUT])
    assert processed.block_count == len(processed.kept) == 1
    assert plain.token_count("what is blue?", [CUT]) == 64


def test_all_queries_in_one_call_of_the_engine(pruner: Pruner) -> None:
    for query, results in zip(
        WORKLOAD.queries, prune_at_once(pruner, WORKLOAD.queries), strict=True
    ):
        alone = pruner.rerank_and_prune(query.text, query.passages, OPTIONS)
        for one, other in zip(
            sorted(alone.results, key=lambda result: result.index), results, strict=True
        ):
            assert one.index == other.index
            assert one.kept_spans == other.kept_spans
            assert one.relevance_logit == pytest.approx(other.relevance_logit, abs=1e-4)


def test_a_passage_that_fails_stops_the_run(pruner: Pruner) -> None:
    answer = pruner.rerank_and_prune("what?", SHORT, OPTIONS)
    broken = replace(answer.results[0], error=PassageError("INTERNAL", "not finite"))
    with pytest.raises(SecateurError, match=f"^passage {broken.index} failed: .*not finite"):
        verdicts(replace(answer, results=(*answer.results[1:], broken)))


def test_the_crossencoder_has_the_same_weights(model: Path, pruner: Pruner) -> None:
    query = WORKLOAD.queries[2]
    answer = pruner.rerank_and_prune(query.text, query.passages, OPTIONS)
    expected = {result.index: result.relevance_score for result in answer.results}
    for batch_size in (32, 1):
        scores = Reranker(model).scores([query], batch_size)
        assert scores.tolist() == pytest.approx([expected[0], expected[1]], abs=1e-4)


def test_tokens_in_windows_and_in_cut_pairs(pruner: Pruner, plain: PlainProcess) -> None:
    windowed, cut = token_counts(pruner, WORKLOAD)
    assert windowed == [plain.token_count(q.text, q.passages) for q in WORKLOAD.queries]
    answer = pruner.rerank_and_prune(WORKLOAD.queries[0].text, WORKLOAD.queries[0].passages)
    assert windowed[0] == answer.usage.input_tokens
    assert cut[0] < windowed[0]
    assert cut[2] == windowed[2]  # nothing is longer than a window
    query = Workload("x", (Query("what is blue?", (CUT,), "x:1"),))
    assert token_counts(pruner, query)[1] == [pruner.info.window_tokens]


def test_a_mode_that_does_not_run_here_says_why(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = Pruner.load

    def load_some(name: str, dtype: str = "float32") -> Pruner:
        if dtype == "int3":
            raise ValueError("no units for int3")
        return load(name, dtype=dtype)

    monkeypatch.setattr(Pruner, "load", load_some)
    pruners, unavailable = load_modes(str(model), ("int3", "bfloat16", "float32"))
    assert list(pruners) == ["float32", "bfloat16"]  # the default one is first
    assert unavailable == {"int3": "no units for int3"}


def test_a_whole_run(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything but the processes, on the tiny checkpoint."""

    def serve(bench: Bench) -> tuple[dict[str, list[Served]], SmallRequest]:
        calls = {n: Calls(1.0, (1.0,), 5) for n in REQUESTS}
        return {mode: [Served(5.0, calls)] for mode in bench.pruners}, SmallRequest(1, 1, 1, 1)

    monkeypatch.setattr(Bench, "_serve", serve)
    monkeypatch.setattr(run, "run_module", lambda module, given: 2_048)
    threads = torch.get_num_threads()
    try:
        told: list[str] = []
        record = Bench(WORKLOAD, rounds=2, model=str(model), tell=told.append).run()
    finally:
        torch.set_num_threads(threads)
    json.dumps(record, allow_nan=False)
    assert set(record) == {
        "machine", "commit", "model", "data", "queries", "passages", "rounds", "mode",
        "speedup_vs_crossencoder", "speedup_vs_process", "server_efficiency", "modes",
        "one_call_a_query", "all_queries_in_one_call", "server", "small_request", "notes",
    }  # fmt: skip
    assert set(record["machine"]) == {"cpu", "cores", "python", "torch", "threads"}
    assert record["model"].startswith(f"{model.name}@")
    assert record["mode"] == "float32"  # nothing was measured of this checkpoint's modes
    exact = record["modes"]["float32"]
    assert exact["equal_decisions"] == exact["equal_top10"] == 1
    assert exact["max_logit_difference"] < 1e-4
    assert {"bfloat16", "int8"} <= set(record["modes"])
    assert all(mode["peak_memory_mb"] == 2.0 for mode in record["modes"].values())
    assert any(line.startswith("round 2 of 2: engine_int8 ") for line in told)


def test_memory_is_that_of_the_process(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    threads = torch.get_num_threads()
    queries = [["what?", SHORT]]
    given = {"model": str(model), "mode": "float32", "threads": threads, "queries": queries}
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(given)))
    memory.main()
    assert int(capsys.readouterr().out) > 10_000  # KiB
