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
    """One file of a stage, named without ``.jsonl.xz``.

    rows: draw at most this many of the file's rows, without replacement; 0 takes all.
    skip: rows to pass over first, in the seeded order (so that a stage can take the rest).
    negatives: questions also paired with a passage that does not answer, as a share of rows.
    """

    name: str
    rows: int = 0
    skip: int = 0
    negatives: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A part of the curriculum: its sets are mixed, stages follow each other.

    max_length: tokens of a window. title_share: share of examples that show their title.
    """

    name: str
    max_length: int
    sets: tuple[DataSet, ...]
    title_share: float = 0.7


@dataclass(frozen=True, kw_only=True)
class LossWeights:
    token: float = 1.0
    sentence: float = 1.0
    listwise: float = 0.5
    score: float = 0.5
    positive_sentence: float = 2.0


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Everything that determines a run.

    batch_tokens: padded tokens a step. learning rates are peaks; warm-up and linear decay
    span all stages. init: checkpoint folder to start from; empty: the packaged MiniLM.
    """

    stages: tuple[Stage, ...]
    init: str = ""
    seed: int = 0
    batch_tokens: int = 4096
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
