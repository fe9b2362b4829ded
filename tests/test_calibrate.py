"""A target becomes a threshold and a keep rule, a file, and the defaults of a server."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes import make_info
from server_harness import PATIENCE, serving
from tiny import tiny_provence

from secateur import Pruner
from secateur.cli import main
from secateur.errors import SecateurError
from secateur.model.calibration import Calibration, CalibrationError
from secateur.server.app import load_engine
from secateur.server.settings import ServerSettings, SettingsError
from secateur.training.calibrate import Target, choose
from secateur.training.evaluation.sweep import SweepPoint
from secateur.types import KeepRule
from secateur.v1 import rerank_prune_pb2 as pb

CALIBRATION = Calibration(
    model="fake",
    revision="1",
    threshold=0.25,
    keep_rule=KeepRule.TOKEN_VOTE,
    target="recall=0.9",
    precision=0.5,
    recall=0.9,
    f1=0.642857,
    compression=0.75,
    rows=40,
)

# Two passages whose labels contradict each other: whatever is kept, half of it is wrong.
ROWS = [
    {
        "question": "what opens?",
        "passage": "The red valve opens. Lunch was quiet.",
        "sentences": [[0, 20], [21, 37]],
        "labels": labels,
        "relevant": True,
    }
    for labels in ([1, 0], [0, 1])
]


def point(
    threshold: float,
    precision: float,
    recall: float,
    f1: float,
    compression: float,
    rule: KeepRule = KeepRule.MAJORITY,
) -> SweepPoint:
    return SweepPoint(threshold, rule, precision, recall, f1, 0.0, compression, 0.0)


# --- choosing ---

POINTS = [
    point(0.1, precision=0.2, recall=0.95, f1=0.33, compression=0.2),
    point(0.2, precision=0.4, recall=0.80, f1=0.53, compression=0.5),
    point(0.2, precision=0.3, recall=0.85, f1=0.53, compression=0.6, rule=KeepRule.TOKEN_VOTE),
    point(0.3, precision=0.7, recall=0.60, f1=0.65, compression=0.7),
    point(0.4, precision=0.9, recall=0.60, f1=0.72, compression=0.8),
    point(0.5, precision=0.8, recall=0.30, f1=0.44, compression=0.9),
]


@pytest.mark.parametrize(
    ("target", "index"),
    [
        ("recall=0.8", 2),  # the highest compression of those with enough recall
        ("recall=0.95", 0),
        ("precision=0.35", 1),  # the highest recall
        ("precision=0.5", 3),  # equal recall: the lower threshold
        ("compression=0.55", 4),  # the highest F1
        ("compression=0.9", 5),
    ],
)
def test_the_best_point_that_meets_the_target(target: str, index: int) -> None:
    assert choose(POINTS, Target.parse(target)) is POINTS[index]


def test_a_target_out_of_reach_names_the_nearest() -> None:
    message = (
        r"^precision=0\.95 cannot be met on these rows: the highest precision is 0\.9000, "
        r"at threshold 0\.4 with majority$"
    )
    with pytest.raises(SecateurError, match=message):
        choose(POINTS, Target.parse("precision=0.95"))


@pytest.mark.parametrize("text", ["", "recall", "f1=0.5", "recall=x", "recall=0", "recall=1.01"])
def test_a_target_that_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="is none of precision=X, recall=X, compression=X"):
        Target.parse(text)


# --- the file ---


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        CALIBRATION.save(tmp_path / name)
    assert Calibration.load(tmp_path / "a.json") == CALIBRATION
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"threshold": 1.5}, "threshold is 1.5, expected a number from 0 to 1"),
        ({"threshold": float("nan")}, "threshold is nan, expected a number from 0 to 1"),
        ({"recall": True}, "recall is True, expected a number from 0 to 1"),
        ({"keep_rule": "loud"}, "keep_rule is 'loud', expected one of mean_probability, "),
        ({"keep_rule": []}, "keep_rule is [], expected one of mean_probability, "),
        ({"rows": "40"}, "rows is '40', expected an integer"),
        ({"revision": 1}, "revision is 1, expected a text"),
        ({"treshold": 0.5}, "unknown: treshold"),
    ],
)
def test_a_wrong_field_is_named(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    CALIBRATION.save(path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}), encoding="utf-8")
    with pytest.raises(CalibrationError) as caught:
        Calibration.load(path)
    assert str(caught.value).startswith(f"{path}: {message}")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not JSON"),
        ("[]", "expected an object"),
        ("{}", "missing: compression, f1, keep_rule"),
        (None, "cannot read"),
    ],
)
def test_a_file_that_is_no_calibration(content: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    with pytest.raises(CalibrationError, match=message):
        Calibration.load(path)


def test_it_replaces_the_defaults_of_its_own_model_only() -> None:
    info = make_info()
    changed = CALIBRATION.apply(info)
    assert changed == replace(info, default_threshold=0.25, default_keep_rule=KeepRule.TOKEN_VOTE)
    with pytest.raises(CalibrationError, match="made for fake revision 1, but the model is fake r"):
        CALIBRATION.apply(make_info(revision="2"))
    head = replace(CALIBRATION, keep_rule=KeepRule.SENTENCE_HEAD)
    with pytest.raises(CalibrationError, match="sentence_head; fake supports mean_probability, "):
        head.apply(info)


# --- from labelled rows to a server ---


@pytest.fixture
def model(tmp_path: Path) -> Path:
    tiny_provence(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    return path


def calibrate(data: Path, model: Path, out: Path, target: str) -> int:
    command = ["calibrate", "--data", str(data), "--model", str(model), "--out", str(out)]
    return main([*command, "--target", target])


def test_the_command_writes_the_same_file_each_time(
    data: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, again = tmp_path / "c.json", tmp_path / "again.json"
    assert calibrate(data, model, out, "compression=0.4") == 0
    assert calibrate(data, model, again, "compression=0.4") == 0
    assert out.read_bytes() == again.read_bytes()
    made = Calibration.load(out)
    info = Pruner.load(model).info
    assert (made.model, made.revision, made.rows) == (info.id, info.revision, 2)
    assert made.target == "compression=0.4"
    assert made.compression >= 0.4
    assert made.precision in {0.0, 0.5}
    assert capsys.readouterr().out.startswith(
        f"{out}: threshold {made.threshold:g}, rule {made.keep_rule}\n"
        "compression=0.4 on 2 rows (0 left out): precision "
    )


def test_the_command_says_when_the_target_cannot_be_met(
    data: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert calibrate(data, model, tmp_path / "c.json", "precision=0.9") == 1
    assert "precision=0.9 cannot be met on these rows: the highest precision is 0.5000, at" in (
        capsys.readouterr().err
    )
    assert not (tmp_path / "c.json").exists()


@pytest.mark.parametrize(
    ("target", "out", "message"),
    [
        ("f1=0.9", "c.json", "--target 'f1=0.9' is none of precision=X, recall=X, compression=X"),
        ("recall=0.9", "no/c.json", "there is no folder "),
        ("recall=0.9", ".", "is a folder, must be a file"),
    ],
)
def test_wrong_usage_is_told_before_any_work(
    target: str,
    out: str,
    message: str,
    data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert calibrate(data, tmp_path / "no model", tmp_path / out, target) == 2
    assert message in capsys.readouterr().err


async def test_a_server_takes_it_as_its_defaults(
    data: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert calibrate(data, model, tmp_path / "c.json", "recall=0.5") == 0
    made = replace(Calibration.load(tmp_path / "c.json"), threshold=0.37)
    made = replace(made, keep_rule=KeepRule.MAJORITY)  # the tiny model's own is token_vote
    made.save(tmp_path / "c.json")
    monkeypatch.setenv("SECATEUR_CALIBRATION", str(tmp_path / "c.json"))
    async with serving(load=load_engine, model=str(model)) as server:
        info = await server.stub.GetModelInfo(pb.GetModelInfoRequest(), timeout=PATIENCE)
        assert info.default_threshold == 0.37
        assert info.default_keep_rule == pb.KEEP_RULE_MAJORITY
        answer = await server.rerank("what opens?", ["The red valve opens."])
        assert answer.applied_threshold == 0.37
        assert answer.applied_keep_rule == pb.KEEP_RULE_MAJORITY
        asked = await server.rerank("what opens?", ["The red valve opens."], threshold=0.9)
        assert asked.applied_threshold == 0.9
        assert asked.applied_keep_rule == pb.KEEP_RULE_MAJORITY


async def test_a_server_refuses_one_of_other_weights(model: Path, tmp_path: Path) -> None:
    CALIBRATION.save(tmp_path / "c.json")
    path = tmp_path / "c.json"
    refused = pytest.raises(SettingsError, match=r"^calibration: made for fake revision 1, but the")
    async with serving(load=load_engine, warm=False, model=str(model), calibration=path) as server:
        with refused:
            await server.app.warm_up()


def test_the_flag_of_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[ServerSettings] = []

    def run(settings: ServerSettings) -> int:
        seen.append(settings)
        return 0

    monkeypatch.setattr("secateur.server.app.run", run)
    assert main(["serve", "--calibration", "c.json"]) == 0
    assert seen[0].calibration == Path("c.json")
