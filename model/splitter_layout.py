"""Layout before language: cuts a text into segments that no sentence may cross.

Blank lines, list items, headings, table rows and fenced code blocks are borders; a newline
inside a wrapped paragraph is not. One pass over the lines, so the time is linear.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple


class Segment(NamedTuple):
    """``text[start:end]`` holds whole sentences; both borders may be white space.

    scan_from: where the search for sentence ends begins (after a list marker).
    atomic: one unit whatever it holds (table row, heading, code block).
    """

    start: int
    end: int
    scan_from: int
    atomic: bool


class _Line(NamedTuple):
    start: int  # first non-white character
    end: int  # after the last non-white character; start == end: blank
    text: str  # text[start:end]
    indent: int
    paragraph_break: bool  # the line's own end is one: form feed, paragraph separator ...


_PARAGRAPH_BREAKS = ("\x0c", "\x1c", "\x1d", "\x1e", "\u2029")
_FENCE = re.compile(r"(`{3,}|~{3,})")
_HEADING = re.compile(r"#{1,6}\s|=+ .*\S =+$|\*\*[^*]+\*\*:?$|__[^_]+__:?$")
_UNDERLINE = re.compile(r"(?:={3,}|-{3,})$")
_BULLET = re.compile(r"[-*+•‣◦▪●■○□➤►⁃–—·]\s+(?=\S)")
_NUMBERED = re.compile(r"\(?(?:\d{1,3}|[A-Za-z]|[ivxlc]{2,5})[.)]\s+(?=\S)|[①-⑳]\s*(?=\S)")
_FIRST_NUMBER = re.compile(r"\(?(?:1|[aAi])[.)]")
_CLOSED_LINE = re.compile(r"[.!?:;…。！？：；।؟۔][\"'”’»)\]」』）*_]*$")
_OPEN_LINE = re.compile(r"[,;\-–—(&/+、，；（「]$")
_LOG_LINE = re.compile(r"[\[(]?(?:\d{4}-\d\d-\d\d[T ,]|\d\d:\d\d:\d\d)|[\w./-]{1,200}:\d{1,6}:")
_COLUMNS = re.compile(r"[^\s.!?:。]\s{3,}\S")
_WORD = re.compile(r"\S+")
_NARROW = 40
_LONGEST_HEADING = 100
_JOINING_WORDS = frozenset(
    "a an and as at by for from in is of on or that the to was with der die das den dem des ein"
    " eine und von im am mit zu de du des la le les et un une el los las y en del o e il lo di da"
    " do os het een van op".split()
)


def segments(text: str) -> Iterator[Segment]:
    """Yield the segments of ``text`` in order; every non-white character is in exactly one."""
    lines = _lines(text)
    count = len(lines)
    paragraph: list[_Line] = []
    marker = 0
    in_list = False
    index = 0
    while index < count:
        line = lines[index]
        if line.start == line.end:
            yield from _paragraph(paragraph, marker)
            paragraph, marker, in_list = [], 0, in_list and not line.paragraph_break
            index += 1
            continue
        width = _marker_width(line, paragraph, in_list)
        fence = _FENCE.match(line.text, width)
        if fence and not (fence.group()[0] == "`" and "`" in line.text[fence.end() :]):
            yield from _paragraph(paragraph, marker)
            paragraph, marker = [], 0
            last = _closing_fence(lines, index, fence.group())
            yield Segment(line.start, lines[last].end, line.start, True)
            index = last + 1
            continue
        if _is_row(lines, index, width) or _HEADING.match(line.text):
            yield from _paragraph(paragraph, marker)
            paragraph, marker, in_list = [], 0, False
            yield Segment(line.start, line.end, line.start, True)
        elif len(paragraph) == 1 and not marker and _UNDERLINE.match(line.text):
            yield Segment(paragraph[0].start, line.end, line.start, True)
            paragraph, in_list = [], False
        elif width:
            yield from _paragraph(paragraph, marker)
            paragraph, marker, in_list = [line], width, True
        else:
            if not paragraph:
                in_list = False
            paragraph.append(line)
        if line.paragraph_break:
            yield from _paragraph(paragraph, marker)
            paragraph, marker, in_list = [], 0, False
        index += 1
    yield from _paragraph(paragraph, marker)


def _lines(text: str) -> list[_Line]:
    lines = []
    position = 0
    for raw in text.splitlines(keepends=True):
        body = raw.lstrip()
        start = position + len(raw) - len(body)
        body = body.rstrip()
        lines.append(
            _Line(start, start + len(body), body, start - position, raw.endswith(_PARAGRAPH_BREAKS))
        )
        position += len(raw)
    return lines


def _closing_fence(lines: list[_Line], opener: int, mark: str) -> int:
    """Index of the line that closes the fence; the last line when none does (as CommonMark)."""
    for index in range(opener + 1, len(lines)):
        body = lines[index].text
        if body.startswith(mark) and not body.strip(mark[0]):
            return index
    return len(lines) - 1


def _marker_width(line: _Line, paragraph: list[_Line], in_list: bool) -> int:
    """Characters of the list marker that opens the line, 0 when none does.

    A number, a letter or a dash may also stand at the start of a wrapped line, so these
    count only where a list can start: at a paragraph's start, after an item, after a
    closed line, or as the first number.
    """
    match = _BULLET.match(line.text)
    if match and line.text[0] not in "–—·":
        return match.end()
    match = match or _NUMBERED.match(line.text)
    if not match:
        return 0
    if not paragraph or in_list or _CLOSED_LINE.search(paragraph[-1].text[-8:]):
        return match.end()
    return match.end() if _FIRST_NUMBER.match(line.text) else 0


def _is_row(lines: list[_Line], index: int, marker: int) -> bool:
    """Is this line a table row: bars, or cells separated by tabs?"""
    body = lines[index].text
    if (body[0] == "|" and body.find("|", 1) > 0) or body.count(" | ") >= 2:
        return True
    tabs = body.count("\t", marker)
    if tabs != 1 or marker:
        return tabs > 1
    neighbours = lines[max(index - 1, 0) : index] + lines[index + 1 : index + 2]
    return any("\t" in other.text for other in neighbours)


def _paragraph(lines: list[_Line], marker: int) -> Iterator[Segment]:
    """Yield the segments of consecutive lines; the first begins with a marker of that width."""
    if not lines:
        return
    ragged = _is_ragged(lines)
    width = max(len(line.text) for line in lines)
    first = lines[0]
    start, scan_from = first.start, first.start + marker
    for line, after in pairwise(lines):
        hanging = marker > 0 and after.indent > first.indent
        if not hanging and _ends_unit(line.text, after.text, width, ragged):
            yield Segment(start, line.end, scan_from, False)
            start = scan_from = after.start
    yield Segment(start, lines[-1].end, scan_from, False)


def _is_ragged(lines: list[_Line]) -> bool:
    """Are these lines plainly not wrapped text: most would have had room for another word?"""
    if len(lines) < 4:
        return False
    room = 0.8 * max(len(line.text) for line in lines)
    short = sum(
        len(line.text) + 1 + len(_first_word(after.text)) <= room for line, after in pairwise(lines)
    )
    return short > 0.6 * (len(lines) - 1)


def _ends_unit(line: str, after: str, width: int, ragged: bool) -> bool:
    """Does the newline between two lines of one paragraph end a unit (a heading, a log line)?"""
    if _LOG_LINE.match(after) or _COLUMNS.search(line) or _COLUMNS.search(after):
        return True
    if ragged:
        return True
    if _OPEN_LINE.search(line) or line.rsplit(None, 1)[-1].lower() in _JOINING_WORDS:
        return False
    if _CLOSED_LINE.search(line[-8:]) and line[-1] not in ":：":
        return False  # The full-stop rules decide.
    initial = after[0] if after[0].isalnum() else next(filter(str.isalnum, after[:8]), "")
    if initial.islower():
        return False
    if initial and not initial.isupper() and not initial.isdigit():
        return len(line) <= 0.6 * width
    if len(line) > _LONGEST_HEADING:
        return False
    fits = len(line) + 1 + len(_first_word(after)) <= width
    return fits or (width < _NARROW and initial.isupper())


def _first_word(text: str) -> str:
    match = _WORD.match(text)
    return match.group() if match else ""
