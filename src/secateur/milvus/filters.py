"""Values in Milvus filter expressions, escaped so that no value can become part of one.

Milvus 2.5 has templates of its own; older ones and milvus-lite do not, so values are put into
the expression here, in a form that all of them read alike.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Mapping
from typing import Any, Final

from secateur.errors import FieldViolation, InvalidRequestError

_ESCAPES: Final = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_INT64: Final = 2**63
# A quoted text is one token, whatever it holds, so that no placeholder is seen inside.
_TOKEN: Final = re.compile(
    r"""(?P<quoted>"(?:[^"\\]|\\.)*"?|'(?:[^'\\]|\\.)*'?)|\{(?P<name>[A-Za-z_]\w*)\}""", re.DOTALL
)


def filter_literal(value: object) -> str:
    """A value as it stands in a Milvus filter expression.

    value: a string, integer of 64 bits, finite float, bool, or a list or tuple of these of one
    kind. Strings are quoted and escaped. Raises ValueError for anything else, and for a string
    with a character that not every Milvus reads: a control character other than tab, line feed
    and carriage return, or a lone surrogate.
    """
    if isinstance(value, list | tuple):
        kinds = {_kind(item) for item in value}
        if len(kinds) > 1:
            raise ValueError("the items of a list must be of one kind")
        return f"[{', '.join(_scalar(item) for item in value)}]"
    return _scalar(value)


def render_filter(expression: str, params: Mapping[str, Any]) -> str:
    """``expression`` with each ``{name}`` outside of quotes replaced by its value's literal.

    Raises InvalidRequestError, with every fault, for a value that cannot be written, a
    placeholder without a value, and a value that no placeholder uses.
    """
    faults: list[FieldViolation] = []
    literals: dict[str, str] = {}
    for name, value in params.items():
        try:
            literals[name] = filter_literal(value)
        except ValueError as error:
            faults.append(FieldViolation(f"filter_params[{name}]", str(error)))
    used = set()

    def fill(match: re.Match[str]) -> str:
        name = match["name"]
        if name is None:
            return match[0]
        used.add(name)
        if name not in params:
            faults.append(FieldViolation("filter", f"{{{name}}} has no value in filter_params"))
        return literals.get(name, "")

    rendered = _TOKEN.sub(fill, expression)
    faults += [
        FieldViolation(
            f"filter_params[{name}]",
            f"filter has no {{{name}}} outside of quotes",
        )
        for name in params
        if name not in used
    ]
    if faults:
        raise InvalidRequestError(faults)
    return rendered


def _kind(value: object) -> type:
    if isinstance(value, bool):
        return bool
    return float if isinstance(value, int | float) else type(value)


def _scalar(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        if not -_INT64 <= value < _INT64:
            raise ValueError("the integer does not fit into 64 bits")
        return str(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError("the number must be finite")
        return repr(value)
    if isinstance(value, str):
        return f'"{"".join(_character(character) for character in value)}"'
    raise ValueError(f"must be text, a number, a bool or a list of these, not {_name(value)}")


def _character(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    if unicodedata.category(character) in {"Cc", "Cs"}:
        raise ValueError(f"holds U+{ord(character):04X}, which Milvus filters cannot hold")
    return character


def _name(value: object) -> str:
    return "null" if value is None else type(value).__name__
