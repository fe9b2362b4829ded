"""Training settings: a TOML file → frozen dataclasses. Unknown keys are errors."""

from __future__ import annotations

import dataclasses
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """One set of a stage.

    name: a source, see ``sources``. rows: draw at most about this many (candidates of a
    question stay together); 0 takes all. skip: rows to pass over first, in the seeded order.
    negatives: non-answering passages added to a question, on average; they compete with its
    own in the listwise loss. hard_negatives: share of them from the same article or BM25.
    joined: share of examples that become one document with one or two other passages.
    unlabelled, first_sentence: targets of sentences that an incomplete labelling leaves out.
    """

    name: str
    rows: int = 0
    skip: int = 0
    negatives: float = 0.0
    hard_negatives: float = 0.5
    joined: float = 0.0
    unlabelled: float = 0.0
    first_sentence: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A part of the curriculum: its sets are mixed, stages follow each other.

    max_length: tokens of a window. title_share: share of questions that show titles.
    """

    name: str
    max_length: int
    sets: tuple[DataSet, ...]
    title_share: float = 0.7


@dataclass(frozen=True, kw_only=True)
class LossWeights:
    """Weight of each loss (0 switches it off); ``positive_sentence`` balances ``sentence``."""

    token: float = 0.5
    sentence: float = 1.0
    listwise: float = 0.5
    score: float = 0.5
    candidates: float = 0.5
    teacher_score: float = 0.0
    teacher_margin: float = 0.0
    positive_sentence: float = 2.0


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Everything that determines a run.

    init: checkpoint folder of ours (or the embedded model's name) to start from; empty: the
    packaged MiniLM. batch_tokens: padded
    tokens of a forward pass; accumulate: passes of an optimiser step. Learning rates are
    peaks; warm-up and linear decay span all stages. teacher: checkpoint whose sentence
    probabilities replace the share ``teacher_share`` of every target.
    """

    stages: tuple[Stage, ...]
    init: str = ""
    seed: int = 0
    batch_tokens: int = 4096
    accumulate: int = 1
    learning_rate: float = 1e-4
    head_learning_rate: float = 5e-4
    relative_learning_rate: float = 5e-4
    weight_decay: float = 0.01
    warmup_share: float = 0.06
    dropout: float = 0.0
    gradient_clip: float = 1.0
    freeze_word_embeddings: bool = True
    bfloat16: bool = True
    checkpoint_every: int = 100
    teacher: str = ""
    teacher_share: float = 0.5
    loss: LossWeights = field(default_factory=LossWeights)

    @classmethod
    def load(cls, path: Path) -> TrainConfig:
        """Read a TOML file. Raises ValueError that names an unknown or missing key."""
        with path.open("rb") as file:
            return cls.from_dict(tomllib.load(file))

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> TrainConfig:
        values = dict(values)
        stages = []
        for index, raw in enumerate(values.pop("stages", ())):
            where = f"stages[{index}]"
            sets = tuple(
                _build(DataSet, item, f"{where}.sets[{i}]")
                for i, item in enumerate(raw.get("sets", ()))
            )
            stages.append(_build(Stage, {**raw, "sets": sets}, where))
        if not stages:
            raise ValueError("stages: at least one is needed")
        loss = _build(LossWeights, values.pop("loss", {}), "loss")
        return _build(cls, {**values, "stages": tuple(stages), "loss": loss}, "")


def _build(kind: type[T], values: dict[str, Any], where: str) -> T:
    known = {f.name for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    unknown = sorted(set(values) - known)
    if unknown:
        raise ValueError(f"{where or 'config'}: unknown keys {unknown}; known: {sorted(known)}")
    try:
        return kind(**values)
    except TypeError as error:
        raise ValueError(f"{where or 'config'}: {error}") from error
