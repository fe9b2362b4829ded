"""Train the two-head cross-encoder.

    python -m secateur.training.train --config FILE --data DIR --out DIR

Reads top to bottom: data, model, optimiser, loop. The run continues from ``OUT/state.pt``
when that exists. ``OUT/metrics.jsonl`` gets a line every ten steps; the finished model is
saved to ``OUT/model`` in float32 (``secateur.training.export`` makes the shipped form).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor
from tqdm import tqdm

from secateur.model.deberta import DebertaV2ForRerankAndPrune
from secateur.training import losses
from secateur.training.config import Stage, TrainConfig
from secateur.training.data import (
    Splitter,
    Window,
    WindowEncoder,
    add_negatives,
    length_bucketed_batches,
    load_examples,
)
from secateur.training.warm_start import packaged_minilm, warm_start


def collate(windows: Sequence[Window], pad_id: int) -> dict[str, Tensor]:
    """Pad windows to a batch and flatten their sentences (see ``losses``)."""
    length = max(len(window) for window in windows)
    ids = np.full((len(windows), length), pad_id, dtype=np.int64)
    types = np.zeros_like(ids)
    mask = np.zeros_like(ids)
    owner = np.full_like(ids, -1)
    labels, passage, offset = [], [], 0
    for row, window in enumerate(windows):
        size = len(window)
        ids[row, :size] = window.input_ids
        types[row, :size] = window.token_type_ids
        mask[row, :size] = 1
        owner[row, :size] = np.where(window.sentence >= 0, window.sentence + offset, -1)
        labels.append(window.labels)
        passage.append(np.full(len(window.labels), row))
        offset += len(window.labels)
    arrays = {
        "input_ids": ids,
        "token_type_ids": types,
        "attention_mask": mask,
        "owner": owner,
        "labels": np.concatenate(labels),
        "passage": np.concatenate(passage),
        "relevant": np.array([float(w.relevant) for w in windows], dtype=np.float32),
    }
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def stage_windows(
    stage: Stage, data: Path, tokenizer: Tokenizer, split: Splitter, rng: random.Random
) -> list[Window]:
    """Encode a stage's examples; of a document that needs several windows, one is drawn.

    Of a relevant document, a window with a kept sentence is drawn three times of four.
    """
    encoder = WindowEncoder(tokenizer, stage.max_length)
    windows = []
    for item in stage.sets:
        examples = load_examples(data / f"{item.name}.jsonl.xz", split)
        rng.shuffle(examples)
        examples = examples[item.skip : item.skip + item.rows if item.rows else None]
        examples += add_negatives(examples, item.negatives, rng)
        for example in examples:
            made = encoder.windows(example, with_title=rng.random() < stage.title_share)
            positive = [window for window in made if window.relevant]
            pool = positive if positive and rng.random() < 0.75 else made
            if pool:
                windows.append(rng.choice(pool))
    return windows


def plan(
    config: TrainConfig, data: Path, tokenizer: Tokenizer, split: Splitter
) -> list[list[Window]]:
    """All batches of the run, in order; the same for the same config and data."""
    rng = random.Random(config.seed)
    batches = []
    for stage in config.stages:
        windows = stage_windows(stage, data, tokenizer, split, rng)
        lengths = [len(window) for window in windows]
        groups = length_bucketed_batches(lengths, config.batch_tokens, rng)
        batches += [[windows[index] for index in group] for group in groups]
        print(f"stage {stage.name}: {len(windows)} windows, {len(groups)} batches", flush=True)
    return batches


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
    """One forward pass → the weighted sum ``loss`` and its parts."""
    device = next(model.parameters()).device
    batch = {name: value.to(device) for name, value in batch.items()}
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=config.bfloat16):
        score, token = model(batch["input_ids"], batch["attention_mask"], batch["token_type_ids"])
    scored = batch["owner"] >= 0
    owner = batch["owner"][scored]  # [T]
    margins = (token[..., 1] - token[..., 0])[scored]  # [T]
    labels, weight = batch["labels"], config.loss
    parts = {
        "token": losses.token_loss(margins, owner, labels),
        "sentence": losses.sentence_loss(margins, owner, labels, weight.positive_sentence),
        "listwise": losses.listwise_loss(margins, owner, labels, batch["passage"]),
        "score": losses.score_loss(score, batch["relevant"]),
    }
    weighted = [getattr(weight, name) * value for name, value in parts.items()]
    return {"loss": torch.stack(weighted).sum(), **parts}


def train(  # noqa: PLR0915 - one page that reads top to bottom is the point
    config: TrainConfig, data: Path, out: Path, split: Splitter, threads: int
) -> None:
    """Run ``config`` on the sets of the folder ``data``; see the module's docstring."""
    out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(threads)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    # data
    start_from = Path(config.init) if config.init else packaged_minilm()
    tokenizer = Tokenizer.from_file(str(start_from / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    batches = plan(config, data, tokenizer, split)

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
    model.to(device).train()
    if config.freeze_word_embeddings:
        model.deberta.embeddings.word_embeddings.weight.requires_grad_(False)
    pad_id = model.config.pad_token_id

    # optimiser
    optimizer = torch.optim.AdamW(parameter_groups(model, config), betas=(0.9, 0.98))
    warmup = max(1, int(config.warmup_share * len(batches)))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min((step + 1) / warmup, (len(batches) - step) / (len(batches) - warmup + 1)),
    )
    first = 0
    state_file = out / "state.pt"
    if state_file.exists():
        state = torch.load(state_file, map_location=device, weights_only=True)
        if state["config"] != json.dumps(dataclasses.asdict(config)):
            raise ValueError(f"{state_file} belongs to another config; choose another --out")
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        schedule.load_state_dict(state["schedule"])
        first = state["step"]

    # loop
    sums: dict[str, float] = {}
    began = time.monotonic()
    progress = tqdm(range(first, len(batches)), initial=first, total=len(batches), mininterval=10)
    for step in progress:
        parts = joint_loss(model, collate(batches[step], pad_id), config)
        optimizer.zero_grad(set_to_none=True)
        parts["loss"].backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.gradient_clip)
        optimizer.step()
        schedule.step()
        for name, value in parts.items():
            sums[name] = sums.get(name, 0.0) + float(value.detach())
        done = step + 1
        if done % 10 == 0:
            record = {name: round(value / 10, 4) for name, value in sums.items()}
            record |= {"step": done, "seconds": round(time.monotonic() - began, 1)}
            with (out / "metrics.jsonl").open("a", encoding="utf-8") as metrics:
                metrics.write(json.dumps(record) + "\n")
            progress.set_postfix(loss=record["loss"], refresh=False)
            sums = {}
        if done % config.checkpoint_every == 0 or done == len(batches):
            state = {
                "config": json.dumps(dataclasses.asdict(config)),
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "schedule": schedule.state_dict(),
                "step": done,
            }
            torch.save(state, state_file.with_suffix(".tmp"))
            state_file.with_suffix(".tmp").replace(state_file)
    model.save_pretrained(out / "model")
    tokenizer.save(str(out / "model" / "tokenizer.json"))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Train the two-head cross-encoder.")
    parser.add_argument("--config", type=Path, required=True, help="TOML file, see configs/")
    parser.add_argument("--data", type=Path, required=True, help="folder of .jsonl.xz sets")
    parser.add_argument("--out", type=Path, required=True, help="checkpoints and metrics")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args(arguments)

    from secateur.model.splitter import SentenceSplitter

    splitter = SentenceSplitter()
    train(
        TrainConfig.load(options.config),
        options.data,
        options.out,
        lambda text, language: splitter.split(text, language).spans,
        options.threads,
    )


if __name__ == "__main__":
    main()
