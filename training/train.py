"""Train the two-head cross-encoder: data, model, optimiser, loop, top to bottom.

A run continues from ``OUT/state.pt`` when that exists. ``OUT/metrics.jsonl`` gets a line
every ten steps and ``OUT/metrics.png`` a plot of it. With every checkpoint the model is saved
to ``OUT/model`` in float32 (``secateur.training.export`` makes the shipped form), so a run that
is stopped early can be measured, too, and be another run's ``init``.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor
from tqdm import tqdm
from transformers.utils.logging import disable_progress_bar

from secateur.errors import CheckpointError
from secateur.model.checkpoints.source import resolve
from secateur.model.deberta import DebertaV2ForRerankAndPrune
from secateur.model.pruner import Pruner
from secateur.training.batches import collate
from secateur.training.config import TrainConfig
from secateur.training.data import Splitter
from secateur.training.losses.candidates import candidates_loss
from secateur.training.losses.listwise import listwise_loss
from secateur.training.losses.score import score_loss
from secateur.training.losses.sentence import sentence_loss
from secateur.training.losses.teacher_margin import teacher_margin_loss
from secateur.training.losses.teacher_score import teacher_score_loss
from secateur.training.losses.token import token_loss
from secateur.training.metrics import append_record, plot_records, truncate_records
from secateur.training.plan import Rows, plan
from secateur.training.teacher import Teacher
from secateur.training.warm_start import packaged_minilm, warm_start

LOG_EVERY = 10
METRICS = "metrics.jsonl"

_TRAINABLE = ("deberta-v2", "Provence")  # model types of one architecture, under two names


def parameter_groups(
    model: DebertaV2ForRerankAndPrune, config: TrainConfig
) -> list[dict[str, Any]]:
    """Encoder, heads and relative embeddings with their own rates; no decay on vectors."""
    groups: dict[tuple[float, float], list[torch.nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        rate = config.learning_rate
        if not name.startswith("deberta."):
            rate = config.head_learning_rate
        elif "rel_embeddings" in name:
            rate = config.relative_learning_rate
        decay = config.weight_decay if parameter.dim() > 1 else 0.0
        groups.setdefault((rate, decay), []).append(parameter)
    return [{"params": p, "lr": rate, "weight_decay": d} for (rate, d), p in groups.items()]


def joint_loss(
    model: DebertaV2ForRerankAndPrune, batch: dict[str, Tensor], config: TrainConfig
) -> dict[str, Tensor]:
    """One forward pass → the weighted sum ``loss`` and its parts (those of weight > 0)."""
    device = next(model.parameters()).device
    batch = {name: value.to(device) for name, value in batch.items()}
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=config.bfloat16):
        score, token = model(batch["input_ids"], batch["attention_mask"], batch["token_type_ids"])
    scored = batch["owner"] >= 0
    owner = batch["owner"][scored]  # [T]
    margins = (token[..., 1] - token[..., 0])[scored]  # [T]
    targets, weight = batch["targets"], config.loss
    relevant, question, teacher = batch["relevant"], batch["question"], batch["teacher"]
    losses: dict[str, Callable[[], Tensor]] = {
        "token": lambda: token_loss(margins, owner, targets),
        "sentence": lambda: sentence_loss(margins, owner, targets, weight.positive_sentence),
        "listwise": lambda: listwise_loss(margins, owner, targets, batch["passage"]),
        "score": lambda: score_loss(score, relevant),
        "candidates": lambda: candidates_loss(score, relevant, question),
        "teacher_score": lambda: teacher_score_loss(score, teacher),
        "teacher_margin": lambda: teacher_margin_loss(score, teacher, question),
    }
    parts = {name: loss() for name, loss in losses.items() if getattr(weight, name)}
    weighted = [getattr(weight, name) * value for name, value in parts.items()]
    return {"loss": torch.stack(weighted).sum(), **parts}


def _start(init: str) -> Path:
    """The folder to start from. Raises ValueError when it holds no checkpoint that can be."""
    if not init:
        return packaged_minilm()
    try:
        folder = resolve(init).folder
        kind = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("model_type")
    except (CheckpointError, ValueError) as error:
        raise ValueError(f"init: {error}") from error
    except OSError as error:
        raise ValueError(f"init: {error.filename}: {error.strerror}") from error
    if kind not in _TRAINABLE:
        raise ValueError(
            f"init: {folder} holds a model of type {kind}, must be a run or checkpoint"
        )
    for name in ("tokenizer.json", "model.safetensors"):
        if not (folder / name).is_file():
            raise ValueError(f"init: {folder} has no {name}")
    return folder


def _teacher(config: TrainConfig) -> Teacher:
    """The config's teacher. Raises ValueError when it cannot be loaded."""
    try:
        return Teacher(Pruner.load(config.teacher), config.teacher_share)
    except CheckpointError as error:
        raise ValueError(f"teacher: {error}") from error


def _values(config: TrainConfig) -> dict[str, Any]:
    """As JSON gives it back."""
    values: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(config)))
    return values


def _determines(values: dict[str, Any]) -> dict[str, Any]:
    """What a run may not change when it resumes: a machine may be faster in other arithmetic."""
    return {k: v for k, v in values.items() if k not in ("bfloat16", "checkpoint_every")}


def _save_model(model: DebertaV2ForRerankAndPrune, tokenizer: Tokenizer, folder: Path) -> None:
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))


def train(  # noqa: PLR0915 - one page that reads top to bottom is the point
    config: TrainConfig, rows: Rows, out: Path, split: Splitter, threads: int
) -> None:
    """Run ``config``. ``rows`` opens a set by name; see the module's docstring for ``out``.

    Raises ValueError when ``out`` holds another config's run, a set cannot be used, a stage's
    windows are longer than the model's positions, or there is no checkpoint by the name of
    ``init`` or ``teacher``.
    """
    out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(threads)
    disable_progress_bar()  # of reading and writing the weights
    # By default oneDNN keeps a compiled kernel for each of 1,024 shapes: gigabytes.
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")
    device = "cuda" if torch.cuda.is_available() else "cpu"

    # data
    start_from = _start(config.init)
    tokenizer = Tokenizer.from_file(str(start_from / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    annotate = _teacher(config).annotate if config.teacher else None
    batches = plan(config, rows, tokenizer, split, annotate)
    steps = math.ceil(len(batches) / config.accumulate)

    # model
    dropout = {
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.dropout,
    }
    if config.init:
        model = DebertaV2ForRerankAndPrune.from_pretrained(
            start_from, dtype=torch.float32, **dropout
        )
    else:
        model = warm_start(start_from, seed=config.seed, **dropout)
    longest = max(stage.max_length for stage in config.stages)
    if longest > model.config.max_position_embeddings:
        raise ValueError(
            f"max_length is {longest}, must be at most {model.config.max_position_embeddings}, "
            "the model's positions"
        )
    model.to(device).train()
    if config.freeze_word_embeddings:
        model.deberta.embeddings.word_embeddings.weight.requires_grad_(False)
    pad_id = model.config.pad_token_id

    # optimiser
    optimizer = torch.optim.AdamW(parameter_groups(model, config), betas=(0.9, 0.98))
    warmup = max(1, int(config.warmup_share * steps))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min((step + 1) / warmup, (steps - step) / (steps - warmup + 1)),
    )
    first = 0
    state_file = out / "state.pt"
    if state_file.exists():
        state = torch.load(state_file, map_location=device, weights_only=True)
        if _determines(json.loads(state["config"])) != _determines(_values(config)):
            raise ValueError(f"{state_file} belongs to another config; choose another --out")
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        schedule.load_state_dict(state["schedule"])
        first = state["step"]
        truncate_records(out / METRICS, first)

    # loop
    sums: dict[str, float] = {}
    summed = 0
    began = time.monotonic()
    progress = tqdm(range(first, steps), initial=first, total=steps, mininterval=10)
    for step in progress:
        micro = batches[step * config.accumulate : (step + 1) * config.accumulate]
        optimizer.zero_grad(set_to_none=True)
        torch.manual_seed(config.seed * 1_000_003 + step)  # dropout: the same after a stop
        for units in micro:
            parts = joint_loss(model, collate(units, pad_id), config)
            (parts["loss"] / len(micro)).backward()
            for name, value in parts.items():
                sums[name] = sums.get(name, 0.0) + float(value.detach()) / len(micro)
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.gradient_clip)
        optimizer.step()
        schedule.step()
        done = step + 1
        summed += 1
        if done % LOG_EVERY == 0 or done == steps:
            record = {name: round(value / summed, 4) for name, value in sums.items()}
            record |= {"step": done, "seconds": round(time.monotonic() - began, 1)}
            append_record(out / METRICS, record)
            progress.set_postfix(loss=record["loss"], refresh=False)
            sums, summed = {}, 0
        if done % config.checkpoint_every == 0 or done == steps:
            _save_model(model, tokenizer, out / "model")
            state = {
                "config": json.dumps(dataclasses.asdict(config)),
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "schedule": schedule.state_dict(),
                "step": done,
            }
            torch.save(state, state_file.with_suffix(".tmp"))
            state_file.with_suffix(".tmp").replace(state_file)
            plot_records(out / METRICS, out / "metrics.png")
    if first == steps:  # finished before: write again what may be missing
        _save_model(model, tokenizer, out / "model")
