"""The enums of ``secateur.types`` and the enum numbers of ``secateur.v1``, both ways.

A member's proto name is the enum's own name in capitals and the member's, as in
``KEEP_RULE_MEAN_PROBABILITY``. The tables are built from that rule when this module loads, so
a member that one side lacks fails at once, not in a request.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum
from types import MappingProxyType
from typing import Protocol, TypeVar

from secateur import types, v1
from secateur.milvus.types import SearchMode

_Enum = TypeVar("_Enum", bound=StrEnum)


class _ProtoEnum(Protocol):
    def items(self) -> Iterable[tuple[str, int]]: ...


PROTO_ENUMS: MappingProxyType[type[StrEnum], _ProtoEnum] = MappingProxyType(
    {
        types.KeepRule: v1.KeepRule,
        types.ResultOrder: v1.ResultOrder,
        types.OffsetUnit: v1.OffsetUnit,
        types.KeepReason: v1.KeepReason,
        types.ScoreSource: v1.ScoreSource,
        types.WarningCode: v1.Warning,
        types.FragmentFormat: v1.FragmentFormat,
        SearchMode: v1.SearchMode,
    }
)
"""Each domain enum with its proto enum."""


def proto_prefix(enum: type[StrEnum]) -> str:
    """The prefix of the proto names of ``enum``, such as ``KEEP_RULE_``."""
    name = enum.__name__.removesuffix("Code")
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).upper() + "_"


# Keyed by type too: members of two StrEnums with one value are equal and hash alike.
_NUMBERS: dict[tuple[type[StrEnum], str], int] = {
    (enum, member.name): dict(proto.items())[proto_prefix(enum) + member.name]
    for enum, proto in PROTO_ENUMS.items()
    for member in enum
}
_MEMBERS: dict[tuple[type[StrEnum], int], StrEnum] = {
    (enum, number): enum[name] for (enum, name), number in _NUMBERS.items()
}


def to_number(member: StrEnum) -> int:
    """The proto number of a domain enum member."""
    return _NUMBERS[type(member), member.name]


def from_number(enum: type[_Enum], number: int) -> _Enum | None:
    """The member of ``enum`` with a proto number.

    ``None`` for 0 (unspecified) and for a number that this version does not know.
    """
    member = _MEMBERS.get((enum, number))
    return member if isinstance(member, enum) else None
