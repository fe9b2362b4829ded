"""The curriculum: a config's stages → every batch of the run, in order."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tokenizers import Tokenizer

from secateur.training.batches import Unit, bucketed_batches, padded_tokens
from secateur.training.config import DataSet, Stage, TrainConfig
from secateur.training.data import Example, Splitter, load_examples, soften
from secateur.training.encoding import Window, WindowEncoder
from secateur.training.negatives import NegativeSource, join

Rows = Callable[[str], Iterable[dict[str, Any]]]
"""Name of a set → its rows."""

Annotate = Callable[[Sequence[Example]], list[Example]]
"""Adds a teacher's opinion to examples."""


def by_question(examples: Sequence[Example]) -> list[list[Example]]:
    """Group the candidates of each question; an example without a key stands alone."""
    groups: dict[object, list[Example]] = {}
    for index, example in enumerate(examples):
        groups.setdefault(example.question or index, []).append(example)
    return list(groups.values())


def choose(
    groups: Sequence[list[Example]], skip: int, rows: int, rng: random.Random
) -> list[list[Example]]:
    """Shuffle questions, pass over ``skip`` rows and take ``rows`` (0: the rest), whole."""
    order = list(groups)
    rng.shuffle(order)
    chosen, passed, taken = [], 0, 0
    for group in order:
        if passed < skip:
            passed += len(group)
        elif not rows or taken < rows:
            chosen.append(group)
            taken += len(group)
    return chosen


def set_examples(
    item: DataSet, rows: Iterable[dict[str, Any]], split: Splitter, rng: random.Random, seed: int
) -> list[list[Example]]:
    """One set's questions with their candidates: chosen, softened, joined, with negatives.

    The order in which questions are chosen depends on seed and set alone, so that a later stage
    with ``skip`` goes on where an earlier one stopped.
    """
    examples = load_examples(rows, split, f"set {item.name}")
    if not examples:
        raise ValueError(f"set {item.name}: no usable row")
    source = NegativeSource(examples, rng)
    groups = []
    order = random.Random(f"{seed} {item.name}")
    for group in choose(by_question(examples), item.skip, item.rows, order):
        first = next((example for example in group if example.relevant), group[0])
        whole, chance = divmod(item.negatives, 1)
        count = int(whole) + (rng.random() < chance)
        negatives = source.draw(first, count, item.hard_negatives) if count else []
        softened = [soften(one, item.unlabelled, item.first_sentence) for one in group]
        if item.joined:
            softened = [_joined(one, source, item, rng) for one in softened]
        groups.append([*softened, *negatives])
    if not groups:
        raise ValueError(
            f"set {item.name}: skip = {item.skip} passes over all {len(examples)} rows"
        )
    return groups


def _joined(example: Example, source: NegativeSource, item: DataSet, rng: random.Random) -> Example:
    """With probability ``item.joined``, the example between one or two other passages."""
    if rng.random() >= item.joined:
        return example
    parts = source.draw(example, rng.choice((1, 2)), item.hard_negatives)
    parts.insert(position := rng.randint(0, len(parts)), example)
    return join(parts, position)


def draw_window(windows: Sequence[Window], rng: random.Random) -> Window:
    """One window of a document: one with a kept sentence three times of four, if any."""
    positive = [window for window in windows if window.relevant]
    return rng.choice(positive if positive and rng.random() < 0.75 else windows)


def stage_units(
    stage: Stage,
    rows: Rows,
    tokenizer: Tokenizer,
    split: Splitter,
    annotate: Annotate | None,
    rng: random.Random,
    seed: int,
) -> list[Unit]:
    """Encode a stage: a unit of windows for every question."""
    encoder = WindowEncoder(tokenizer, stage.max_length)
    units: list[Unit] = []
    for item in stage.sets:
        for group in set_examples(item, rows(item.name), split, rng, seed):
            annotated = annotate(group) if annotate else group
            titled = rng.random() < stage.title_share
            made = [encoder.windows(example, with_title=titled) for example in annotated]
            unit = [draw_window(windows, rng) for windows in made if windows]
            if unit:
                units.append(unit)
    return units


def plan(
    config: TrainConfig,
    rows: Rows,
    tokenizer: Tokenizer,
    split: Splitter,
    annotate: Annotate | None = None,
) -> list[list[Unit]]:
    """All batches of the run, in order; the same for the same config and data.

    Raises ValueError that names a set without a usable row.
    """
    rng = random.Random(config.seed)
    batches: list[list[Unit]] = []
    for stage in config.stages:
        units = stage_units(stage, rows, tokenizer, split, annotate, rng, config.seed)
        made = bucketed_batches(units, config.batch_tokens, rng)
        windows = sum(map(len, units))
        tokens = sum(map(padded_tokens, made))
        print(
            f"stage {stage.name}: {len(units):,} questions, {windows:,} windows, "
            f"{tokens:,} padded tokens, {len(made):,} batches",
            flush=True,
        )
        batches += made
    return batches
