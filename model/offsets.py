"""Turns offsets of one text between code points and the unit that a caller asked for."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from secateur.types import OffsetUnit


class OffsetMap:
    """Offsets of one text in code points and in ``unit``.

    Built in O(n); free for code points, and for UTF-8 when the text is ASCII. A lone
    surrogate, which no well-formed text holds, counts as three UTF-8 bytes and one UTF-16
    unit: what it takes when encoded with Python's "surrogatepass".
    """

    length: int
    """Length of the whole text in ``unit``."""

    def __init__(self, text: str, unit: OffsetUnit) -> None:
        self._borders = _borders(text, unit)
        self.length = len(text) if self._borders is None else int(self._borders[-1])

    def from_code_point(self, offset: int) -> int:
        """Offset in ``unit`` of the code-point offset ``offset``. O(1).

        Raises IndexError outside of 0..len(text).
        """
        borders = self._borders
        last = self.length if borders is None else len(borders) - 1
        if not 0 <= offset <= last:
            raise IndexError(f"offset {offset} is not within 0..{last}")
        return offset if borders is None else int(borders[offset])

    def to_code_point(self, offset: int) -> int | None:
        """Code-point offset of ``offset``, which counts ``unit``. O(log n).

        None when it lies outside of 0..length or inside a character.
        """
        if not 0 <= offset <= self.length:
            return None
        borders = self._borders
        if borders is None:
            return offset
        index = int(np.searchsorted(borders, offset))
        return index if borders[index] == offset else None


def _borders(text: str, unit: OffsetUnit) -> npt.NDArray[np.int64] | None:
    """Offset in ``unit`` of every code-point border [len(text) + 1]; None: the same numbers."""
    if unit is OffsetUnit.CODE_POINT or text.isascii():
        return None
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
    widths = (points > 0xFFFF).astype(np.int64) + 1
    if unit is OffsetUnit.UTF8_BYTE:
        widths += (points > 0x7F).astype(np.int64) + (points > 0x7FF)
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(widths)))
