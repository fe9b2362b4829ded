"""``secateur evaluate`` end to end on a tiny model: output, comparison, exit codes, messages."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import pytest
from tiny import tiny_bert, tiny_provence

from secateur import Pruner
from secateur.cli import main
from secateur.training.evaluation.compare import Baseline, compare, load_baseline
from secateur.training.evaluation.prune import evaluate_prune
from secateur.training.evaluation.rows import load_rows
from secateur.training.evaluation.scoring import score_rows
from secateur.types import KeepRule

Capture = pytest.CaptureFixture[str]

PASSAGE = "The red valve opens. A pump is quiet today. Code 7 is blue."
SENTENCES = [[0, 20], [21, 43], [44, 59]]


def row(name: str, labels: list[int], **more: Any) -> dict[str, Any]:
    return {
        "id": name,
        "question": f"what opens {name}?",
        "passage": f"{PASSAGE} {name}",
        "sentences": [*SENTENCES, [60, 60 + len(name)]],
        "labels": [*labels, 0],
        "relevant": any(labels),
        **more,
    }


ROWS = [
    row("a", [1, 0, 0], kind="fact", optional=[1], answers=[{"text": "valve", "start": None}]),
    row("b", [0, 1, 1], kind="why"),
    row("c", [0, 0, 0], kind="why"),
    row("d", [0, 1, 0], kind="why"),
    row("x", [1, 1, 1], question=" "),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tiny_provence(folder)
    return folder


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write(tmp_path / "rows.jsonl", ROWS)


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def prune(capsys: Capture, data: Path, model: Path, *more: str, code: int = 0) -> dict[str, Any]:
    command = ["evaluate", "prune", "--data", str(data), "--model", str(model), "--json", *more]
    assert main(command) == code
    captured = capsys.readouterr()
    assert bool(captured.err) == bool(code)
    value: dict[str, Any] = json.loads(captured.out)
    return value


# --- the JSON contract ---


def test_json_of_the_defaults(data: Path, model: Path, capsys: Capture) -> None:
    value = prune(capsys, data, model)
    assert {
        "f1", "precision", "recall", "f2", "threshold", "keep_rule", "compression", "items",
        "interval", "baselines", "skipped", "documents", "lenient", "macro", "macro_lenient",
        "token_compression", "answer_kept", "by_kind", "worst", "per_item", "model", "data",
    } == set(value)  # fmt: skip
    assert (value["items"], value["skipped"], value["documents"]) == (4, 1, 4)
    assert (value["threshold"], value["keep_rule"]) == (0.1, "token_vote")
    assert list(value["per_item"]) == ["a", "b", "c", "d"]
    assert value["baselines"]["keep_everything"]["f1"] == pytest.approx(2 * 4 / (16 + 4))
    assert value["baselines"]["keep_everything"]["answer_kept"] == 1.0
    assert {"f1", "threshold", "lenient"} < set(value["baselines"]["bm25"])
    assert {kind: part["items"] for kind, part in value["by_kind"].items()} == {"fact": 1, "why": 3}
    assert value["by_kind"]["fact"]["baselines"]["keep_everything"]["recall"] == 1.0
    low, high = value["interval"]
    assert low <= value["f1"] <= high
    assert value["model"]["dtype"] == "float32"


def test_the_mode_is_chosen_and_told(data: Path, model: Path, capsys: Capture) -> None:
    assert prune(capsys, data, model, "--dtype", "int8")["model"]["dtype"] == "int8"


def test_threshold_and_rule_apply(data: Path, model: Path, capsys: Capture) -> None:
    value = prune(capsys, data, model, "--threshold", "0", "--keep-rule", "majority")
    assert (value["threshold"], value["keep_rule"]) == (0.0, "majority")
    assert (value["recall"], value["compression"]) == (1.0, 0.0)
    assert value["f1"] == value["baselines"]["keep_everything"]["f1"]


def test_a_sweep_takes_the_best_pair(data: Path, model: Path, capsys: Capture) -> None:
    value = prune(capsys, data, model, "--sweep")
    points = value["by_threshold"]
    assert len(points) == 99 * 3
    assert value["f1"] == max(point["f1"] for point in points)
    first = next(point for point in points if point["f1"] == value["f1"])
    assert {key: value[key] for key in first} == first
    one_rule = prune(capsys, data, model, "--sweep", "--keep-rule", "majority")
    assert {point["keep_rule"] for point in one_rule["by_threshold"]} == {"majority"}


def test_only_relevant(data: Path, model: Path, capsys: Capture) -> None:
    value = prune(capsys, data, model, "--only-relevant")
    assert list(value["per_item"]) == ["a", "b", "d"]


# --- for people ---


def test_tables_and_texts(data: Path, model: Path, tmp_path: Path, capsys: Capture) -> None:
    result = tmp_path / "before.json"
    value = prune(capsys, data, model, "--threshold", "1", "--keep-rule", "mean_probability")
    value["per_item"]["c"] = 1.0
    result.write_text(json.dumps(value), encoding="utf-8")
    command = ["evaluate", "prune", "--data", str(data), "--model", str(model)]
    assert main([*command, "--threshold", "0", "--baseline", str(result)]) == 0
    shown = capsys.readouterr().out
    assert ": 4 rows, 1 left out" in " ".join(shown.split())
    assert "all rows (4)" in shown
    assert "kind why (3)" in shown
    assert "chars cut  tokens cut  answers\n" in shown
    assert "F1 0.000  c  what opens c?\n  wrongly kept: The red valve opens.\n" in shown
    assert "F1 0.000 → 0.400; change by item: min -1.000, max +0.667, mean " in shown
    assert "F1 1.000 → 0.000  c  what opens c?" in shown


# --- against an earlier run ---


@pytest.mark.parametrize(
    ("f1", "allowed", "code"),
    [(0.4, [], 0), (0.41, [], 1), (0.41, ["0.01"], 0), (0.41, ["0.005"], 1), (0.3, [], 0)],
)
def test_exit_code_of_a_drop(
    f1: float,
    allowed: list[str],
    code: int,
    data: Path,
    model: Path,
    tmp_path: Path,
    capsys: Capture,
) -> None:
    """Keeping everything has F1 0.4 here."""
    before = tmp_path / "before.json"
    before.write_text(json.dumps({"f1": f1, "per_item": dict.fromkeys("abcd", 0.5)}))
    options = ["--threshold", "0", "--baseline", str(before)]
    options += ["--max-f1-drop", *allowed] if allowed else []
    value = prune(capsys, data, model, *options, code=code)
    assert value["comparison"]["f1_drop"] == pytest.approx(f1 - 0.4)
    assert value["comparison"]["passed"] == (code == 0)


def test_a_run_equals_its_own_result(
    data: Path, model: Path, tmp_path: Path, capsys: Capture
) -> None:
    value = prune(capsys, data, model, "--sweep")
    before = tmp_path / "before.json"
    before.write_text(json.dumps(value), encoding="utf-8")
    comparison = prune(capsys, data, model, "--sweep", "--baseline", str(before))["comparison"]
    assert comparison["change"] == {"min": 0.0, "max": 0.0, "mean": 0.0}
    assert (comparison["f1_drop"], comparison["worse"]) == (0.0, [])


def test_change_by_item(data: Path, model: Path) -> None:
    rows, _ = load_rows(data)
    pruner = Pruner.load(model)
    # everything kept: F1 of a, b, c, d is 2/5, 4/6, 0, 2/5
    result = evaluate_prune(score_rows(pruner, rows), KeepRule.TOKEN_VOTE, 0.0)
    before = {"a": 0.5, "b": 0.666667, "c": 1.0, "d": 0.1}
    comparison = compare(result, Baseline("before", 0.45, before), 0.05)
    assert (comparison.least, comparison.greatest) == pytest.approx((-1.0, 0.3))
    assert comparison.mean == pytest.approx((-0.1 + 0 - 1 + 0.3) / 4)
    assert [(pair.now.id, pair.before) for pair in comparison.worse] == [("c", 1.0), ("a", 0.5)]
    assert comparison.worse[0].now.wrongly_kept[0] == "The red valve opens."
    assert comparison.f1_drop == pytest.approx(0.05)
    assert comparison.passed


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not JSON"),
        ("[]", "it has no per_item"),
        ('{"ndcg_at_10": 0.9, "mrr": 0.9}', "it has no per_item"),
        ('{"f1": 2, "per_item": {}}', "f1 must be a number from 0 to 1"),
        ('{"f1": 0.5, "per_item": {"a": "x"}}', "a must be a number from 0 to 1"),
        (
            '{"f1": 0.5, "per_item": {"a": 1, "q": 1, "r": 1}}',
            r"a result of other rows: 1 only in the data \(such as b\), 2 only in the baseline",
        ),
    ],
)
def test_a_foreign_baseline(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "before.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=rf"before\.json: .*{message}"):
        load_baseline(path, ["a", "b"])


# --- plots ---


@pytest.mark.parametrize(("ending", "start"), [(".png", b"\x89PNG"), (".svg", b"<?xml")])
def test_plots(
    ending: str, start: bytes, data: Path, model: Path, tmp_path: Path, capsys: Capture
) -> None:
    pictures = [tmp_path / f"{name}{ending}" for name in ("one", "two")]
    for picture in pictures:
        prune(capsys, data, model, "--plot", str(picture))
    first, second = (picture.read_bytes() for picture in pictures)
    assert first.startswith(start)
    assert first == second


# --- rerank ---


def test_rerank(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    tiny_bert(tmp_path / "bert")
    monkeypatch.setattr(
        "secateur.training.evaluation.embedding.packaged_minilm", lambda: tmp_path / "bert"
    )
    rows = [{**row("a", [n == 2, 0, 0]), "qid": "q"} for n in range(3)]
    data = write(tmp_path / "rows.jsonl", [*rows, ROWS[1]])
    command = ["evaluate", "rerank", "--data", str(data), "--model", str(model)]
    assert main([*command, "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert {"ndcg_at_10", "mrr", "queries", "baselines", "recall_at_1", "interval"} < set(value)
    assert (value["queries"], value["passages"], value["skipped"]) == (1, 3, 1)
    assert set(value["baselines"]) == {"input_order", "bm25", "embedding"}
    assert value["baselines"]["input_order"]["mrr"] == pytest.approx(1 / 3)
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert "nDCG@10    MRR  recall@1" in shown
    assert "input order    0.500  0.333" in shown


# --- wrong use ---


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--threshold", "1.5"], "--threshold is 1.5, must be from 0 to 1"),
        (["--threshold", "nan"], "--threshold is nan, must be from 0 to 1"),
        (["--dtype", "float16"], "--dtype: dtype 'float16' is not served"),
        (["--dtype", ""], "--dtype: dtype '' is unknown"),
        (["--threshold", "0.5", "--sweep"], "--sweep finds the threshold; leave --threshold out"),
        (["--max-f1-drop", "0.1"], "--max-f1-drop needs --baseline"),
        (["--plot", "a.pdf"], "--plot a.pdf: must end in .png or .svg"),
        (["--plot", "no/such/a.png"], "--plot no/such/a.png: there is no folder no/such"),
        (["--keep-rule", "sentence_head"], "--keep-rule: "),
        (["--baseline", "no.json"], "cannot read no.json: No such file"),
    ],
)
def test_wrong_options(
    options: list[str], message: str, data: Path, model: Path, capsys: Capture
) -> None:
    command = ["evaluate", "prune", "--data", str(data), "--model", str(model)]
    assert main([*command, *options]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"secateur: {message}")


@pytest.mark.parametrize("task", ["prune", "rerank"])
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("no.jsonl", None, "cannot read {}: No such file or directory"),
        ("a.jsonl", b"{", "{}:1: not JSON"),
        ("a.jsonl", b"\xff", "{}: not valid UTF-8"),
        ("a.jsonl", b"{}\n", "{}, line 1: question must be text"),
        ("a.jsonl", b"", "{}: no "),
        ("a.jsonl.xz", b"plain text", "{}: not a whole xz file"),
        ("a.jsonl.xz", lzma.compress(json.dumps(ROWS).encode())[:60], "{}: not a whole xz file"),
    ],
)
def test_wrong_files(
    task: str, name: str, content: bytes | None, message: str, tmp_path: Path, capsys: Capture
) -> None:
    data = tmp_path / name
    if content is not None:
        data.write_bytes(content)
    assert main(["evaluate", task, "--data", str(data)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"secateur: {message.format(data)}")


def test_a_refused_row_is_wrong_input(model: Path, tmp_path: Path, capsys: Capture) -> None:
    faulty = {**ROWS[0], "sentences": SENTENCES, "labels": [1, 0, 0]}
    data = write(tmp_path / "rows.jsonl", [faulty])
    assert main(["evaluate", "prune", "--data", str(data), "--model", str(model)]) == 2
    assert "line 1: text in [59, 61] belongs to none of sentences" in capsys.readouterr().err
