"""Training settings: a TOML file → frozen dataclasses, every key checked."""

from __future__ import annotations

import dataclasses
import math
import tomllib
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Bounds:
    """Closed range of a number; its text ends "must be …"."""

    low: float
    high: float = math.inf

    def __str__(self) -> str:
        return (
            f"at least {self.low}" if self.high == math.inf else f"from {self.low} to {self.high}"
        )


Share = Annotated[float, Bounds(0, 1)]
NotNegative = Annotated[float, Bounds(0)]
Count = Annotated[int, Bounds(0)]
Positive = Annotated[int, Bounds(1)]
ClipNorm = Annotated[float, Bounds(1e-6)]


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """One set of a stage.

    name: a source, see ``sources``. rows: draw at most about this many (candidates of a
    question stay together); 0 takes all. skip: rows to pass over first, in the order that
    seed and name give.
    negatives: non-answering passages added to a question, on average; they compete with its
    own in the listwise loss. hard_negatives: share of them from the same article or BM25.
    joined: share of examples that become one document with one or two other passages.
    unlabelled, first_sentence: targets of sentences that an incomplete labelling leaves out.
    """

    name: str
    rows: Count = 0
    skip: Count = 0
    negatives: NotNegative = 0.0
    hard_negatives: Share = 0.5
    joined: Share = 0.0
    unlabelled: Share = 0.0
    first_sentence: Share = 0.0


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A part of the curriculum: its sets are mixed, stages follow each other.

    max_length: tokens of a window. title_share: share of questions that show titles.
    """

    name: str
    max_length: Annotated[int, Bounds(16)]
    sets: tuple[DataSet, ...]
    title_share: Share = 0.7


@dataclass(frozen=True, kw_only=True)
class LossWeights:
    """Weight of each loss (0 switches it off); ``positive_sentence`` balances ``sentence``."""

    token: NotNegative = 0.5
    sentence: NotNegative = 1.0
    listwise: NotNegative = 0.5
    score: NotNegative = 0.5
    candidates: NotNegative = 0.5
    teacher_score: NotNegative = 0.0
    teacher_margin: NotNegative = 0.0
    positive_sentence: NotNegative = 2.0


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
    batch_tokens: Positive = 4096
    accumulate: Positive = 1
    learning_rate: NotNegative = 1e-4
    head_learning_rate: NotNegative = 5e-4
    relative_learning_rate: NotNegative = 5e-4
    weight_decay: NotNegative = 0.01
    warmup_share: Share = 0.06
    dropout: Share = 0.0
    gradient_clip: ClipNorm = 1.0
    freeze_word_embeddings: bool = True
    bfloat16: bool = True
    checkpoint_every: Positive = 100
    teacher: str = ""
    teacher_share: Share = 0.5
    loss: LossWeights = field(default_factory=LossWeights)

    @classmethod
    def load(cls, path: Path) -> TrainConfig:
        """Read a TOML file. Raises ValueError that names the key that is wrong."""
        with path.open("rb") as file:
            return cls.from_dict(tomllib.load(file))

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> TrainConfig:
        """As :meth:`load`, from what the file holds."""
        stages = []
        for index, raw in enumerate(_tables(values.get("stages", []), "stages")):
            where = f"stages[{index}]"
            sets = tuple(
                _build(DataSet, item, f"{where}.sets[{i}]")
                for i, item in enumerate(_tables(raw.get("sets", []), f"{where}.sets"))
            )
            stages.append(_build(Stage, {**raw, "sets": sets}, where))
        loss = _build(LossWeights, values.get("loss", {}), "loss")
        config = _build(cls, {**values, "stages": tuple(stages), "loss": loss}, "")
        weights = dataclasses.asdict(loss)
        del weights["positive_sentence"]
        if not any(weights.values()):
            raise ValueError("loss: all weights are 0, so there is nothing to learn")
        for name in ("teacher_score", "teacher_margin"):
            if weights[name] and not config.teacher:
                raise ValueError(f"loss.{name}: needs a teacher")
        return config


def _tables(value: object, where: str) -> list[dict[str, Any]]:
    """The value, when it is a list of one table or more."""
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise ValueError(f"{where}: must be a list of tables")
    if not value:
        raise ValueError(f"{where}: at least one is needed")
    return value


def _build(kind: type[T], values: object, where: str) -> T:
    """An instance of a dataclass, from a table whose keys, types and ranges are checked."""
    if not isinstance(values, dict):
        raise ValueError(f"{where}: must be a table")
    known = {f.name for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    unknown = sorted(set(values) - known)
    if unknown:
        raise ValueError(f"{where or 'config'}: unknown keys {unknown}; known: {sorted(known)}")
    hints = typing.get_type_hints(kind, include_extras=True)
    for name, value in values.items():
        _check(value, hints[name], f"{where}.{name}" if where else name)
    for f in dataclasses.fields(kind):  # type: ignore[arg-type]
        needed = f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        if needed and f.name not in values:
            raise ValueError(f"{where or 'config'}: {f.name} is missing")
    return kind(**values)


def _check(value: object, hint: Any, where: str) -> None:
    """Raises ValueError unless a text, truth value or number is what the annotation says."""
    bounds: Bounds | None = None
    if typing.get_origin(hint) is Annotated:
        hint, bounds = typing.get_args(hint)
    if hint not in _EXPECTED:  # tables, which have been built
        return
    allowed = (int, float) if hint is float else hint
    if not isinstance(value, allowed) or (isinstance(value, bool) and hint is not bool):
        raise ValueError(f"{where} is {value!r}, must be {_EXPECTED[hint]}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{where} is {value}, must be finite")
    if bounds is not None and not bounds.low <= typing.cast("float", value) <= bounds.high:
        raise ValueError(f"{where} is {value}, must be {bounds}")


_EXPECTED: dict[Any, str] = {
    str: "text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
}
