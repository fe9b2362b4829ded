"""Windows → padded batches. A unit is the windows of one question, which stay together."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from secateur.training.encoding import Window

Unit = Sequence[Window]


def bucketed_batches(
    units: Sequence[Unit], max_tokens: int, rng: random.Random, pool: int = 1024
) -> list[list[Unit]]:
    """Shuffle, sort by length within pools, and cut into batches of <= max_tokens padded.

    A unit above the budget becomes a batch of its own.
    """
    order = list(range(len(units)))
    rng.shuffle(order)
    longest = [max(len(window) for window in unit) for unit in units]
    batches: list[list[Unit]] = []
    for first in range(0, len(order), pool):
        batch: list[Unit] = []
        rows = 0
        for index in sorted(order[first : first + pool], key=lambda i: longest[i]):
            if batch and longest[index] * (rows + len(units[index])) > max_tokens:
                batches.append(batch)
                batch, rows = [], 0
            batch.append(units[index])
            rows += len(units[index])
        if batch:
            batches.append(batch)
    rng.shuffle(batches)
    return batches


def padded_tokens(batch: Sequence[Unit]) -> int:
    """Rows times the longest row."""
    lengths = [len(window) for unit in batch for window in unit]
    return len(lengths) * max(lengths)


def collate(units: Sequence[Unit], pad_id: int) -> dict[str, Tensor]:
    """Pad the windows of a batch [B, L] and flatten their sentences [S] (see ``losses``).

    Keys: input_ids, token_type_ids, attention_mask, owner (batch-wide sentence index of each
    token, -1 outside) [B, L]; targets, passage [S]; relevant, teacher, question [B].
    """
    windows = [window for unit in units for window in unit]
    question = [index for index, unit in enumerate(units) for _ in unit]
    length = max(len(window) for window in windows)
    ids = np.full((len(windows), length), pad_id, dtype=np.int64)
    types = np.zeros_like(ids)
    mask = np.zeros_like(ids)
    owner = np.full_like(ids, -1)
    targets, passage, offset = [], [], 0
    for row, window in enumerate(windows):
        size = len(window)
        ids[row, :size] = window.input_ids
        types[row, :size] = window.token_type_ids
        mask[row, :size] = 1
        owner[row, :size] = np.where(window.sentence >= 0, window.sentence + offset, -1)
        targets.append(window.targets)
        passage.append(np.full(len(window.targets), row))
        offset += len(window.targets)
    arrays = {
        "input_ids": ids,
        "token_type_ids": types,
        "attention_mask": mask,
        "owner": owner,
        "targets": np.concatenate(targets),
        "passage": np.concatenate(passage),
        "relevant": np.array([float(w.relevant) for w in windows], dtype=np.float32),
        "teacher": np.array([w.teacher_score for w in windows], dtype=np.float32),
        "question": np.array(question, dtype=np.int64),
    }
    return {name: torch.from_numpy(array) for name, array in arrays.items()}
