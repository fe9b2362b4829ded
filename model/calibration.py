"""The calibration file: a threshold and a keep rule that were chosen on a user's own data.

``secateur calibrate`` writes it (JSON), the server and ``Pruner.load`` read it. It belongs to the
weights that it was made with: probabilities of other weights mean something else.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from secateur.types import KeepRule, ModelInfo


class CalibrationError(ValueError):
    """A calibration file that cannot be used; says which file or model, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Defaults for one model, and what they gave on the data that they were chosen on.

    model, revision: of the weights. target: what was asked for, such as ``recall=0.95``.
    precision, recall, f1: strict micro scores over sentences. compression: mean over rows of the
    share of characters dropped. All are fractions in [0, 1]. rows: how many were measured.
    """

    model: str
    revision: str
    threshold: float
    keep_rule: KeepRule
    target: str
    precision: float
    recall: float
    f1: float
    compression: float
    rows: int

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Calibration:
        """Read a file. Raises CalibrationError that names the file and the field."""
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise CalibrationError(f"cannot read {os.fspath(path)}: {error.strerror}") from error
        except ValueError as error:  # bad JSON or bad UTF-8
            raise CalibrationError(f"{os.fspath(path)}: not JSON: {error}") from error
        try:
            return cls(**_checked(content))
        except ValueError as error:
            raise CalibrationError(f"{os.fspath(path)}: {error}") from None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file; the same values give the same bytes. Raises OSError."""
        Path(path).write_text(
            json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
        )

    def apply(self, info: ModelInfo) -> ModelInfo:
        """The model's capabilities with these defaults.

        Raises CalibrationError when this was made for other weights, or for a rule that the
        model does not have.
        """
        if self.revision != info.revision:
            raise CalibrationError(
                f"made for {self.model} revision {self.revision}, but the model is {info.id} "
                f"revision {info.revision}; run `secateur calibrate` with this model"
            )
        if self.keep_rule not in info.keep_rules:
            known = ", ".join(info.keep_rules)
            raise CalibrationError(f"keep_rule is {self.keep_rule}; {info.id} supports {known}")
        return replace(info, default_threshold=self.threshold, default_keep_rule=self.keep_rule)


_FRACTIONS = ("threshold", "precision", "recall", "f1", "compression")


def _checked(content: Any) -> dict[str, Any]:
    """Keyword arguments of a Calibration. Raises ValueError that names the field."""
    if not isinstance(content, dict):
        raise ValueError("expected an object")
    names = {field.name for field in fields(Calibration)}
    for wrong, what in ((names - content.keys(), "missing"), (content.keys() - names, "unknown")):
        if wrong:
            raise ValueError(f"{what}: {', '.join(sorted(wrong))}")
    for name in ("model", "revision", "target"):
        if not isinstance(content[name], str):
            raise ValueError(f"{name} is {content[name]!r}, expected a text")
    for name in _FRACTIONS:
        value = content[name]
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise ValueError(f"{name} is {value!r}, expected a number from 0 to 1")
    if isinstance(content["rows"], bool) or not isinstance(content["rows"], int):
        raise ValueError(f"rows is {content['rows']!r}, expected an integer")
    if content["keep_rule"] not in list(KeepRule):
        known = ", ".join(KeepRule)
        raise ValueError(f"keep_rule is {content['keep_rule']!r}, expected one of {known}")
    return {**content, "keep_rule": KeepRule(content["keep_rule"])}
