"""A run learns, resumes exactly, accumulates, distils, plots, and ships."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import pytest
import torch
from families_originals import write
from safetensors.torch import load_file, save_file
from test_training_data import ROW, split
from tiny import tiny_bert, tiny_provence
from typer.testing import CliRunner

from secateur.cli.app import app
from secateur.model.pruner import Pruner
from secateur.training.batches import collate
from secateur.training.config import TrainConfig
from secateur.training.data import Example, example_from_row, read_rows
from secateur.training.export import export
from secateur.training.metrics import truncate_records
from secateur.training.sources import read_source
from secateur.training.teacher import Teacher
from secateur.training.train import train
from secateur.types import KeepRule, Passage, TextSpan

STAGE = {"name": "a", "max_length": 48, "sets": [{"name": "toy", "negatives": 0.4}]}


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a set ``toy`` of 24 rows, and a tiny encoder to start from."""
    tiny_bert(tmp_path / "bert")
    monkeypatch.setattr("secateur.training.train.packaged_minilm", lambda: tmp_path / "bert")
    with lzma.open(tmp_path / "toy.jsonl.xz", "wt") as file:
        for number in range(24):
            pump = number % 2 == 1
            row = {**ROW, "question": f"what opens {number}?"}
            if pump:
                row |= {"passage": f"A pump {number % 10}. It is red.", "answers": None}
                row |= {"sentences": [[0, 9], [10, 20]], "labels": [0, 1]}
            file.write(json.dumps(row) + "\n")
    return tmp_path


def run(config: dict[str, Any], data: Path, out: str) -> Path:
    train(
        TrainConfig.from_dict(config),
        lambda name: read_source(name, data),
        data / out,
        split,
        threads=1,
    )
    return data / out


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "stages: at least one"),
        ({"stages": [STAGE], "batch_token": 1}, "batch_token"),
        ({"stages": [{**STAGE, "max_len": 32}]}, "stages[0]"),
        ({"stages": [{**STAGE, "sets": [{"file": "x"}]}]}, "sets[0]"),
        ({"stages": STAGE}, "stages: must be a list of tables"),
        ({"stages": [{"name": "a", "max_length": 32}]}, "stages[0].sets: at least one"),
        ({"stages": [{**STAGE, "sets": ["toy"]}]}, "stages[0].sets: must be a list of tables"),
        ({"stages": [{"max_length": 32, "sets": [{"name": "x"}]}]}, "stages[0]: name is missing"),
        ({"stages": [{**STAGE, "max_length": 4}]}, "max_length is 4, must be at least 16"),
        ({"stages": [{**STAGE, "sets": [{"name": "x", "joined": 2}]}]}, "must be from 0 to 1"),
        ({"stages": [{**STAGE, "sets": [{"name": "x", "rows": True}]}]}, "a whole number"),
        ({"stages": [STAGE], "batch_tokens": "x"}, "batch_tokens is 'x', must be a whole number"),
        ({"stages": [STAGE], "accumulate": 0}, "accumulate is 0, must be at least 1"),
        ({"stages": [STAGE], "learning_rate": -1}, "learning_rate is -1, must be at least 0"),
        ({"stages": [STAGE], "learning_rate": float("nan")}, "learning_rate is nan"),
        ({"stages": [STAGE], "gradient_clip": 0}, "gradient_clip is 0, must be at least"),
        ({"stages": [STAGE], "bfloat16": 1}, "bfloat16 is 1, must be true or false"),
        ({"stages": [STAGE], "init": 3}, "init is 3, must be text"),
        ({"stages": [STAGE], "loss": 3}, "loss: must be a table"),
        ({"stages": [STAGE], "loss": {"token": -0.5}}, "loss.token is -0.5"),
        ({"stages": [STAGE], "loss": {"teacher_score": 1}}, "loss.teacher_score: needs a teacher"),
        (
            {
                "stages": [STAGE],
                "loss": dict.fromkeys(("token", "sentence", "listwise", "score", "candidates"), 0),
            },
            "loss: all weights are 0",
        ),
    ],
)
def test_a_wrong_setting_is_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=r"\w") as caught:
        TrainConfig.from_dict(values)
    assert message in str(caught.value)


def test_every_config_that_ships_can_be_read() -> None:
    folder = Path(__file__).parent.parent / "training" / "configs"
    configs = sorted(folder.glob("*.toml"))
    assert configs
    for config in configs:
        TrainConfig.load(config)
        opening = config.read_text(encoding="utf-8")[:600]
        assert "# Expected:" in opening
        assert "Cost:" in opening


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_a_stopped_run_resumes_to_the_same_weights(
    dropout: float, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped after a checkpoint and started again, a run ends as if it had never stopped."""
    config = {"stages": [STAGE], "batch_tokens": 48, "accumulate": 2, "checkpoint_every": 3}
    config["dropout"] = dropout
    whole = run(config, data, "whole")
    calls = 0

    def stop_in_step_four(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 8:
            raise KeyboardInterrupt
        return collate(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr("secateur.training.train.collate", stop_in_step_four)
        with pytest.raises(KeyboardInterrupt):
            run(config, data, "parts")
    stopped = load_file(data / "parts" / "model" / "model.safetensors")
    still: dict[str, Any] = {"stages": [STAGE], "init": str(data / "parts" / "model")}
    still |= dict.fromkeys(("learning_rate", "head_learning_rate", "relative_learning_rate"), 0)
    again = load_file(run(still, data, "again") / "model" / "model.safetensors")
    assert all(torch.equal(stopped[key], again[key]) for key in stopped)
    parts = run(config, data, "parts")
    expected = load_file(whole / "model" / "model.safetensors")
    resumed = load_file(parts / "model" / "model.safetensors")
    assert all(torch.equal(expected[key], resumed[key]) for key in expected)
    assert not all(torch.equal(expected[key], stopped[key]) for key in expected)
    with pytest.raises(ValueError, match="another config"):
        run({**config, "seed": 5}, data, "whole")
    (whole / "model" / "model.safetensors").unlink()
    run({**config, "bfloat16": False, "checkpoint_every": 9}, data, "whole")  # says nothing new
    again = load_file(whole / "model" / "model.safetensors")
    assert all(torch.equal(expected[key], again[key]) for key in expected)


def test_the_rate_warms_up_and_decays(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rates = []
    step = torch.optim.AdamW.step

    def record(self: torch.optim.AdamW, *arguments: Any) -> Any:
        rates.append({group["lr"] for group in self.param_groups})
        return step(self, *arguments)

    monkeypatch.setattr(torch.optim.AdamW, "step", record)
    config = {"stages": [STAGE], "batch_tokens": 48, "warmup_share": 0.25}
    config |= {"learning_rate": 0.1, "head_learning_rate": 0.2, "relative_learning_rate": 0.4}
    run(config, data, "out")
    warmup = len(rates) // 4
    share = [min(one) / 0.1 for one in rates]
    assert share[:warmup] == pytest.approx([(i + 1) / warmup for i in range(warmup)])
    left = len(rates) - warmup
    assert share[warmup:] == pytest.approx([(left - i) / (left + 1) for i in range(left)])
    assert sorted(rates[3]) == pytest.approx([share[3] * 0.1, share[3] * 0.2, share[3] * 0.4])


def test_windows_longer_than_the_models_positions_are_refused(data: Path) -> None:
    with pytest.raises(ValueError, match="max_length is 4096, must be at most 64, the model's"):
        run({"stages": [{**STAGE, "max_length": 4096}]}, data, "out")


def test_a_resumed_run_does_not_repeat_its_metrics(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 10}\n{"step": 20}\n{"step": 30}\n')
    truncate_records(file, 20)
    assert file.read_text() == '{"step": 10}\n{"step": 20}\n'


def test_a_run_learns_and_plots(data: Path) -> None:
    config = {
        "stages": [{**STAGE, "sets": [{"name": "toy"} for _ in range(24)]}],
        "batch_tokens": 128,
        "learning_rate": 3e-3,
        "bfloat16": False,
    }
    out = run(config, data, "out")
    records = list(read_rows(out / "metrics.jsonl"))
    assert records[-1]["loss"] < 0.5 * records[0]["loss"]
    assert set(records[0]) == {
        "loss", "token", "sentence", "listwise", "score", "candidates", "step", "seconds",
    }  # fmt: skip
    assert (out / "metrics.png").read_bytes().startswith(b"\x89PNG")


def test_a_set_that_is_not_there_is_named(data: Path) -> None:
    stage = {**STAGE, "sets": [{"name": "nothing"}]}
    with pytest.raises(ValueError, match="nothing: no such file"):
        run({"stages": [stage]}, data, "out")


@pytest.mark.parametrize("key", ["init", "teacher"])
def test_a_checkpoint_that_is_not_there_is_named(key: str, data: Path) -> None:
    with pytest.raises(ValueError, match=f"{key}: no checkpoint folder at '/no/such'"):
        run({"stages": [STAGE], key: "/no/such"}, data, "out")
    with pytest.raises(ValueError, match=f"{key}: .*config.json: No such file"):
        run({"stages": [STAGE], key: str(data)}, data, "out")


def test_a_model_of_another_kind_is_no_start(data: Path) -> None:
    with pytest.raises(ValueError, match=r"init: .* holds a model of type bert"):
        run({"stages": [STAGE], "init": str(data / "bert")}, data, "out")
    tiny_provence(data / "part")
    (data / "part" / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match=r"init: .* has no tokenizer.json"):
        run({"stages": [STAGE], "init": str(data / "part")}, data, "out")


def test_a_teacher_reads_sentences_with_white_space_at_their_ends(data: Path) -> None:
    """The row format allows it, the service does not: the rows are trimmed."""
    tiny_provence(data / "teacher")
    row = {**ROW, "answers": None, "labels": [0, 1, 0], "sentences": [[0, 19], [19, 42], [42, 49]]}
    (data / "loose.jsonl").write_text(json.dumps(row) + "\n")
    stage = {**STAGE, "sets": [{"name": "loose"}]}
    out = run({"stages": [stage], "teacher": str(data / "teacher")}, data, "out")
    assert (out / "model" / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (None, "cannot read"),
        (b"seed = = 1", "my.toml: Invalid value"),
        (b"# \xe9", "my.toml: not valid UTF-8"),
        (b"batch_tokens = 0", "my.toml: stages: at least one"),
    ],
)
def test_a_config_that_cannot_be_read_exits_with_2(
    config: bytes | None, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "my.toml"
    if config is not None:
        file.write_bytes(config)
    done = CliRunner().invoke(app, ["train", "--config", str(file), "--out", str(tmp_path / "o")])
    assert done.exit_code == 2
    assert message in done.stderr


def test_a_file_cannot_be_the_folder_of_a_run(tmp_path: Path) -> None:
    file = tmp_path / "my.toml"
    file.write_text('[[stages]]\nname = "a"\nmax_length = 48\nsets = [{ name = "toy" }]\n')
    done = CliRunner().invoke(app, ["train", "--config", str(file), "--out", str(file)])
    assert done.exit_code == 2
    assert "is a file, must be a folder" in done.stderr


def test_a_teacher_adds_its_probabilities_and_its_score(tmp_path: Path) -> None:
    tiny_provence(tmp_path / "teacher")
    pruner = Pruner.load(tmp_path / "teacher")
    example = example_from_row(ROW, split)
    assert example is not None
    (taught,) = Teacher(pruner, 0.25).annotate([example])
    result = pruner.rerank_and_prune(example.query, [as_passage(example)]).results[0]
    assert taught.teacher_score == result.relevance_logit
    expected = [
        0.75 * target + 0.25 * float(sentence.probability or 0)
        for target, sentence in zip(example.targets, result.sentences, strict=True)
    ]
    assert list(taught.targets) == pytest.approx(expected)
    with pytest.raises(ValueError, match=r"teacher_share is 1\.5"):
        Teacher(pruner, 1.5)


def as_passage(example: Example) -> Passage:
    spans = tuple(TextSpan(start, end) for start, end in example.sentences)
    return Passage(text=example.passage, title=example.title, sentences=spans)


def test_a_plain_reranker_teaches_the_score_only(tmp_path: Path) -> None:
    """It refused: without a threshold of 0 a model that only ranks is asked to prune."""
    write("plain-bert", tmp_path / "teacher")
    example = example_from_row(ROW, split)
    assert example is not None
    (taught,) = Teacher(Pruner.load(tmp_path / "teacher"), 0.5).annotate([example])
    assert taught.targets == example.targets
    assert taught.teacher_score is not None


def test_a_run_distils_from_a_teacher(data: Path) -> None:
    tiny_provence(data / "teacher")
    config = {
        "stages": [STAGE],
        "batch_tokens": 128,
        "teacher": str(data / "teacher"),
        "loss": {"teacher_score": 0.1, "teacher_margin": 0.1, "candidates": 0.0},
    }
    out = run(config, data, "out")
    record = next(read_rows(out / "metrics.jsonl"))
    assert record["teacher_score"] > 0
    assert record["teacher_margin"] > 0
    assert "candidates" not in record


def test_the_mean_of_runs_ships_as_a_checkpoint(data: Path) -> None:
    run({"stages": [STAGE], "batch_tokens": 256}, data, "one")
    run({"stages": [STAGE], "batch_tokens": 256, "seed": 1}, data, "two")
    runs = [data / "one" / "model", data / "two" / "model"]
    export(
        runs,
        data / "shipped",
        model_id="toy",
        threshold=0.3,
        keep_rule=KeepRule.MEAN_PROBABILITY,
        window_tokens=48,
    )
    info = Pruner.load(data / "shipped").info
    assert (info.id, info.window_tokens, info.default_threshold) == ("toy", 48, 0.3)
    states = [load_file(folder / "model.safetensors") for folder in runs]
    key = "classifier.weight"
    shipped = load_file(data / "shipped" / "model.safetensors")[key]
    assert torch.equal(shipped, ((states[0][key] + states[1][key]) / 2).half())

    save_file({"other": torch.zeros(1)}, runs[1] / "model.safetensors")
    with pytest.raises(ValueError, match="other keys or shapes"):
        export(
            runs,
            data / "shipped",
            model_id="toy",
            threshold=0.3,
            keep_rule=KeepRule.MEAN_PROBABILITY,
        )


def test_the_command_trains_and_names_what_is_wrong(data: Path) -> None:
    config = data / "toy.toml"
    config.write_text(
        'batch_tokens = 256\n[[stages]]\nname = "a"\nmax_length = 48\nsets = [{ name = "toy" }]\n'
    )
    arguments = ["train", "--config", str(config), "--data", str(data), "--threads", "1"]
    result = CliRunner().invoke(app, [*arguments, "--out", str(data / "out")])
    assert result.exit_code == 0, result.output
    assert (data / "out" / "model" / "model.safetensors").is_file()

    config.write_text("batch_token = 1\n")
    result = CliRunner().invoke(app, [*arguments, "--out", str(data / "out")])
    assert result.exit_code == 2
    assert "stages" in result.output
