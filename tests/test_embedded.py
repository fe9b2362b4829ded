"""The embedded model in process: what only real weights and the real tokenizer can show."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from secateur.cli.app import app
from secateur.model.pruner import Pruner, load_engine
from secateur.types import Passage, PrunedPassage, PruneOptions

QUERY = "What is the code?"
FILLER = "The hall is quiet today."
ANSWER = "The code is 7781."


@pytest.fixture(scope="module")
def pruner() -> Pruner:
    """The embedded model, loaded once; in float32, which every machine has."""
    return Pruner.load(dtype="float32")


@pytest.fixture(scope="module")
def small_windows(pruner: Pruner) -> Pruner:
    """The same model with windows of 128 tokens: many windows at little cost."""
    engine = load_engine(dtype="float32")
    engine.info = replace(pruner.info, window_tokens=128, max_query_tokens=62)
    return Pruner(engine)


# F9: ids of odd strings, pinned. A library that replaces the file's own normaliser or
# pre-tokeniser changes some of them silently.
@pytest.mark.parametrize(
    ("text", "ids", "offsets"),
    [
        ("Hello, World!", [7592, 1010, 2088, 999], [(0, 5), (5, 6), (7, 12), (12, 13)]),
        (
            "[SEP] [MASK]",
            [1031, 19802, 1033, 1031, 7308, 1033],
            [(0, 1), (1, 4), (4, 5), (6, 7), (7, 11), (11, 12)],
        ),
        ("caf\u00e9 cafe\u0301", [7668, 7668], [(0, 4), (5, 9)]),
        (
            "\u200bzero\u200bwidth",
            [5717, 9148, 11927, 2232],
            [(1, 5), (6, 8), (8, 10), (10, 11)],
        ),
        ("\U0001f44d\U0001f3fd", [100], [(0, 2)]),
        (
            "ポンプは赤い。",
            [1722, 30263, 30246, 30198, 100, 1647, 1636],
            [(i, i + 1) for i in range(7)],
        ),
        (
            "don't stop-now 3.14",
            [2123, 1005, 1056, 2644, 1011, 2085, 1017, 1012, 2403],
            [(0, 3), (3, 4), (4, 5), (6, 10), (10, 11), (11, 14), (15, 16), (16, 17), (17, 19)],
        ),
        ("  \t\n ", [], []),
        ("\x00\ufffd", [], []),
        ("A" * 101, [100], [(0, 101)]),
        ("na\u00efve\u00a0\ufb01", [15743, 1984], [(0, 5), (6, 7)]),
        ("[UNK]", [1031, 4895, 2243, 1033], [(0, 1), (1, 3), (3, 4), (4, 5)]),
    ],
)
def test_tokens_of_odd_strings(
    pruner: Pruner, text: str, ids: list[int], offsets: list[tuple[int, int]]
) -> None:
    """F9: ids and code-point offsets are those of the tokenizer file, and stay so."""
    tokens = pruner.engine.tokenizer.encode(text)
    assert tokens.ids.tolist() == ids
    assert list(zip(tokens.starts.tolist(), tokens.ends.tolist(), strict=True)) == offsets


def test_the_tail_is_read(pruner: Pruner) -> None:
    """F10: models that truncate lose the last sentence of a long passage."""
    (result,) = pruner.rerank_and_prune(QUERY, [f"{FILLER} " * 200 + ANSWER]).results
    assert result.window_count > 1
    assert result.unscored_sentence_count == 0
    assert result.sentences[-1].kept
    assert result.pruned_text.endswith(ANSWER)


@pytest.mark.parametrize("position", [0, 19, 20, 21, 30])
def test_the_answer_is_found_in_every_window(small_windows: Pruner, position: int) -> None:
    """F10: first window, both sides of a seam, and a middle one (20 fillers fill a window)."""
    sentences = [FILLER] * 60
    sentences[position] = ANSWER
    (result,) = small_windows.rerank_and_prune(QUERY, [" ".join(sentences)]).results
    assert result.window_count > 2
    assert result.sentences[position].kept
    assert ANSWER in result.pruned_text


def numbers(result: PrunedPassage) -> np.ndarray:
    return np.array(
        [
            result.relevance_score,
            *(sentence.probability for sentence in result.sentences),
            *(token.probability for token in result.tokens),
        ],
        dtype=np.float64,
    )


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-4), ("bfloat16", 1e-2)])
def test_alone_or_together(dtype: str, tolerance: float) -> None:
    """F12: passages of 3, 40 and 300 tokens, alone, together, beside a stranger."""
    engine = load_engine(dtype=dtype)
    pruner = Pruner(engine)
    passages = [
        Passage("Red valve.", id="3"),
        Passage("The code of the red valve is new. " * 5, id="40"),
        Passage("The hall is quiet today. The code is 7781. " * 25, id="300"),
    ]
    options = PruneOptions(include_tokens=True)

    def by_id(given: Sequence[Passage]) -> dict[str, np.ndarray]:
        return {r.id: numbers(r) for r in pruner.rerank_and_prune(QUERY, given, options).results}

    alone = {passage.id: by_id([passage])[passage.id] for passage in passages}
    stranger = Passage("Lunch was late and cold. " * 12, id="stranger")
    found = by_id([stranger, *passages[::-1]])  # one padded batch
    for key, expected in alone.items():
        np.testing.assert_allclose(found[key], expected, rtol=0, atol=tolerance)


def test_odd_passages(pruner: Pruner) -> None:
    """F13: a blank one has no score; `...` and an emoji have the shape of every other."""
    found = pruner.rerank_and_prune("Which valve is red?", ["", "  \n", "Red valve.", "...", "🙂"])
    by_index = {result.index: result for result in found.results}
    assert [r.index for r in found.results][-2:] == [0, 1]
    assert by_index[0].sentences == by_index[1].sentences == ()
    for index in (2, 3, 4):
        assert by_index[index].relevance_logit is not None
        assert len(by_index[index].sentences) == 1
        assert by_index[index].sentences[0].probability is not None


def test_thresholds_zero_and_one(pruner: Pruner) -> None:
    """F17: with real probabilities too, 0 keeps all and 1 keeps none."""
    text = "The valve is red. Lunch was late. The pump is old."
    (every,) = pruner.rerank_and_prune("red valve", [text], PruneOptions(threshold=0.0)).results
    assert every.pruned_text == text
    (none,) = pruner.rerank_and_prune("red valve", [text], PruneOptions(threshold=1.0)).results
    assert none.all_pruned
    assert none.relevance_logit == pytest.approx(every.relevance_logit, abs=1e-4)


def test_the_relevant_passage_comes_first(pruner: Pruner) -> None:
    """The shortest end-to-end proof that the weights belong to the code."""
    found = pruner.rerank_and_prune(
        "What is the capital of France?",
        ["Bananas are yellow.", "Paris is the capital of France. Cats like fish.", "Rain fell."],
    )
    assert found.results[0].index == 1
    paris, cats = found.results[0].sentences
    assert paris.probability is not None
    assert cats.probability is not None
    assert paris.probability > cats.probability
    assert paris.kept


ROOT = Path(__file__).parent.parent


def test_the_card_and_the_readme_state_the_record(pruner: Pruner) -> None:
    """What they claim is what was measured, of the weights that ship."""
    record = json.loads((ROOT / "benchmarks/records/dev-quality.json").read_text("utf-8"))
    assert record["model"] == f"{pruner.info.id}@{pruner.info.revision}"
    card = (ROOT / "model/checkpoints/secateur-mini-en/README.md").read_text("utf-8")
    readme = " ".join((ROOT / "README.md").read_text("utf-8").split())
    for name, row in record["prune"].items():
        default, trivial = row["default"], row["baselines"]
        assert default["threshold"] == pruner.info.default_threshold
        assert default["keep_rule"] == pruner.info.default_keep_rule
        if name == "clapnq_unanswerable":  # has no F1
            continue
        best, (low, high) = row["best"], row["best"]["interval"]
        cells = [
            *(f"{f1:.3f}" for f1 in (trivial["keep_everything"], trivial["bm25"], default["f1"])),
            f"{default['precision']:.3f} / {default['recall']:.3f}",
            f"{best['f1']:.3f} ({low:.3f}–{high:.3f})",
            f"{best['keep_rule']}, {best['threshold']:g}",
        ]
        assert f"({row['items']:,}) | {' | '.join(cells)} |" in card, name
    first = record["prune"]["wikitext2"]
    assert f"{first['default']['f1']:.3f} at the default, {first['best']['f1']:.3f} at" in readme
    ranked = record["rerank"]["hotpotqa"]["ndcg_at_10"]
    assert f"| {ranked:.3f} (" in card
    assert f"nDCG@10 {ranked:.3f} (" in readme


@pytest.mark.parametrize(
    ("arguments", "keys"),
    [
        (["evaluate", "prune", "--json"], {"f1", "threshold", "baselines"}),
        (["evaluate", "rerank", "--json"], {"ndcg_at_10", "mrr", "baselines"}),
        (["calibrate", "--target", "recall=0.9", "--out", "OUT"], set()),
    ],
)
def test_without_a_model_the_embedded_one_is_measured(
    arguments: list[str], keys: set[str], tmp_path: Path
) -> None:
    rows = [
        {"question": QUERY, "passage": f"{FILLER} {ANSWER}", "relevant": True, "qid": "q"}
        | {"sentences": [[0, 24], [25, 42]], "labels": [0, 1]},
        {"question": QUERY, "passage": FILLER, "relevant": False, "qid": "q"},
    ]
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = str(tmp_path / "calibration.json")
    arguments = [out if argument == "OUT" else argument for argument in arguments]
    done = CliRunner().invoke(app, [*arguments, "--data", str(data)])
    assert done.exit_code == 0, done.output
    written = json.loads(done.stdout if keys else Path(out).read_text("utf-8"))
    assert keys <= set(written)
    assert "secateur-mini-en" in json.dumps(written)
