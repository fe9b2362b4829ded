"""Modes: in which arithmetic a model runs, and which one ``auto`` takes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from torch import Tensor, nn

from secateur.errors import CheckpointError
from secateur.model.linear import Bfloat16Linear, Float32Linear, Int8Linear

AUTO: Final = "auto"

LINEAR: Mapping[str, Callable[[nn.Linear], Callable[..., Tensor]]] = MappingProxyType(
    {"float32": Float32Linear, "bfloat16": Bfloat16Linear, "int8": Int8Linear}
)
"""What takes the place of an encoder's linear layers in each mode, by its public name."""

RECORD: Final = "modes.json"
"""File of a checkpoint folder with what was measured of its fast modes."""

_NO_RECORD: Final = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    OverflowError,  # an integer that no float holds
    RecursionError,  # brackets without end
)

_LEAST_EQUAL_DECISIONS: Final = 0.99
_LARGEST_F1_LOSS: Final = 0.005

_CPUINFO: Final = Path("/proc/cpuinfo")
_NEEDS: Final = {"int8": "vnni", "bfloat16": "bf16"}  # parts of a CPU flag's name


@dataclass(frozen=True, slots=True)
class Measured:
    """One mode of one checkpoint beside float32.

    speedup: over float32, on the machine of the record. equal_decisions: share of sentences
    that float32 keeps or drops too. f1_lost: of the pruning F1 at the default setting.
    """

    speedup: float
    equal_decisions: float
    f1_lost: float

    @property
    def passed(self) -> bool:
        """Whether it is faster, and answers the same but for rounding."""
        return (
            self.speedup > 1
            and self.equal_decisions >= _LEAST_EQUAL_DECISIONS
            and self.f1_lost <= _LARGEST_F1_LOSS
        )


def read_record(folder: Path, revision: str) -> dict[str, Measured]:
    """What was measured of a checkpoint's modes; nothing, where that was with other weights.

    Raises CheckpointError for a file that is not such a record.
    """
    path = folder / RECORD
    if not path.is_file():
        return {}
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        measured = {
            str(mode): Measured(
                float(values["speedup"]),
                float(values["equal_decisions"]),
                float(values["f1_lost"]),
            )
            for mode, values in record["modes"].items()
        }
        same = record["revision"] == revision
    except _NO_RECORD as error:
        raise CheckpointError(f"{path}: not a record of modes: {error!r}") from error
    unknown = sorted(set(measured) - set(LINEAR))
    if unknown:
        raise CheckpointError(f"{path}: unknown mode {unknown[0]!r}; known: {', '.join(LINEAR)}")
    return measured if same else {}


def fastest(measured: Mapping[str, Measured], device: str, cpuinfo: Path = _CPUINFO) -> str:
    """What ``auto`` stands for: the fastest mode that passed and that this CPU has units for.

    Else float32; bfloat16 on a GPU.
    """
    if device != "cpu":
        return "bfloat16" if device.startswith("cuda") else "float32"
    able = [
        mode
        for mode, values in measured.items()
        if values.passed and (mode not in _NEEDS or _has(_NEEDS[mode], cpuinfo))
    ]
    return max(able, key=lambda mode: measured[mode].speedup, default="float32")


def check_mode(mode: str, device: str = "cpu") -> None:
    """Raise ValueError for a mode that is not served (there)."""
    if mode == "float16":
        raise ValueError(
            "dtype 'float16' is not served: its largest number, 65,504, is less than what "
            f"DeBERTa's attention can add up to; use one of {', '.join((AUTO, *LINEAR))}"
        )
    if mode not in (AUTO, *LINEAR):
        raise ValueError(f"dtype {mode!r} is unknown; use one of {', '.join((AUTO, *LINEAR))}")
    if mode == "int8" and device != "cpu":
        raise ValueError(f"dtype 'int8' runs on the CPU only, not on {device!r}; use bfloat16")


def _has(unit: str, cpuinfo: Path) -> bool:
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    return any(unit in line for line in lines if line.startswith("flags"))
