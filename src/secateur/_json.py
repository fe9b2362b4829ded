"""Results as JSON: the proto's field names in snake_case, enums in their short form.

As in proto JSON, what is unset is left out and NaN and infinities are strings; fields without
presence are always written, zero or not.
"""

from __future__ import annotations

import json
import math
from dataclasses import fields, is_dataclass
from enum import StrEnum
from typing import Any, TextIO

from secateur.types import PassageError


def write_json(value: Any, out: TextIO) -> None:
    """Write a result of ``secateur.types`` as indented JSON, with a line break at its end.

    Characters beyond ASCII are escaped unless ``out`` writes UTF-8.
    """
    utf8 = (out.encoding or "").lower().replace("-", "") == "utf8"
    out.write(json.dumps(to_json(value), ensure_ascii=not utf8, indent=2, allow_nan=False) + "\n")


def to_json(value: Any) -> Any:
    """A result, or any part of one, as dictionaries, lists, strings and numbers."""
    if isinstance(value, PassageError):  # a google.rpc.Status, whose code is a number
        from google.rpc import code_pb2

        return {"code": code_pb2.Code.Value(value.code), "message": value.message}
    if is_dataclass(value):
        items = ((item.name, getattr(value, item.name)) for item in fields(value))
        return {name: to_json(item) for name, item in items if item is not None}
    if isinstance(value, tuple | list):
        return [to_json(item) for item in value]
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value
