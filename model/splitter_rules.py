"""Where sentences end inside one segment: full-stop rules for all scripts, Punkt for the dots.

The scan finds each run of end marks with the closing quotes and brackets that stay with it,
settles what the characters around it settle, and asks Punkt about the rest. All patterns
are free of nested repetition, every look-around is bounded: the time is linear.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from typing import Protocol

_WIDE = "。！？｡．؟۔।॥։።፧။។៕᙮᠃᠉༎‼⁇⁈⁉‽\u037e܀܁܂𑁇𑁈"
_MARKS = "!?"
_DOTS = ".…‥"
_CLOSERS = "\"'”’»›)\\]}」』）】》〉〕］｝｣＂*_`"
_UNSPACED_CLOSERS = "”’»›)\\]}」』）】》〉〕］｝｣"
_END = re.compile(
    rf"(?P<end>(?:[{_WIDE}{_MARKS}{_DOTS}]+(?:[{_CLOSERS}]|[“«](?=[\s{_CLOSERS},]|$))*)+"
    r"(?P<cited>(?:\[(?:\d{1,3}|[a-z]|citation needed|note \d{1,3})\])*)"
    rf"(?:\s{{1,2}}[{_UNSPACED_CLOSERS}]+(?=\s|$))?)"
    r"|(?P<thai>(?<=[\u0e01-\u0e45\u0e47-\u0e5b\u0e81-\u0eff])\s+(?=[\u0e01-\u0e2e\u0e30-\u0e45"
    r"\u0e81-\u0eff]))"
    r"|(?P<bullet>(?<=\s)(?=[•▪◦‣●■➤]\s))"
    r"|(?P<greek>(?<=[\u0370-\u03ff\u1f00-\u1fff]);(?=\s{1,8}[\u0386-\u03ab\u1f00-\u1fff«\"“]))"
)
_NOT_WHITE = re.compile(r"\S")
_CONTINUES = frozenset(",;:)]}%、，；：）」』】》〉〕］｝·.!?…。！？")
_SKIPPED_BEFORE_WORD = "\"'“‘„«»‹›([{「『（【《〈*_`¿¡-–—•"
_WORD_AFTER = re.compile(r"[^\W_](?:[^\W_]|['’.-](?=[^\W_])){0,63}")
_WORD_BEFORE = re.compile(r"[^\s\"“”‘„«»()\[\]{}<>*_`—–/,;:!?。、「」]*$")
_PARTICLES = frozenset("とっのはがをにもでかやへなよねばまらしぞぜさ")
_SAYS = re.compile(r"[他她它我你您]?们?(?:[说說道问問答喊叫写寫]|表示|认为)")
_BRACKET = re.compile(r"[「」『』（）【】《》“”()]")
_PAIRS = {"」": "「", "』": "『", "）": "（", "】": "【", "》": "《", "”": "“", ")": "("}
_LONGEST_BRACKET = 200
_THAI_MINIMUM = 60
_LOOK_BACK = 80
_LOOK_AHEAD = 200
_QUOTE_LOOK_BACK = 1_000


class FullStopJudge(Protocol):
    """Says whether a single full stop between two words ends a sentence."""

    def __call__(self, before: str, after: str, closed: bool, starts_lower: bool) -> bool:
        """Answer for the stop after ``before``.

        before: the word, bare. after: the next one, bare, except that a single letter keeps
        its full stop; may be empty. closed: closing quotes or brackets follow the stop.
        starts_lower: the sentence began in lower case.
        """


def is_unspaced(character: str) -> bool:
    """Is this a letter of a script that writes no spaces between words (Han, kana)?"""
    point = ord(character)
    return (
        0x3040 <= point < 0x3100
        or 0x3400 <= point < 0xA000
        or (0xF900 <= point < 0xFB00 or 0x20000 <= point < 0x32000 or point in (0x3005, 0x3007))
    )


def sentence_ends(text: str, start: int, end: int, judge: FullStopJudge) -> Iterator[int]:
    """Yield offsets in ``text`` where a sentence of ``text[start:end]`` ends, ascending.

    The closing quotes, brackets and footnote marks after the end mark belong to the
    sentence. ``end`` itself is never yielded. Exceptions of ``judge`` pass through.
    """
    inner = _uncut_brackets(text, start, end)
    begin = start
    for match in _END.finditer(text, start, end):
        position = match.end()
        if (match.lastgroup != "bullet" and position >= end) or position <= begin:
            continue
        index = bisect_left(inner, (position,)) - 1
        if index >= 0 and position < inner[index][1]:
            continue
        if match["end"] is None:
            ends = match["thai"] is None or match.start() - begin >= _THAI_MINIMUM
        else:
            ends = _ends(text, match, begin, end, judge)
            if ends:
                position = _place_quote(text, begin, position, end)
        if ends and position < end:
            yield position
            following = _NOT_WHITE.search(text, position, end)
            begin = following.start() if following else end


def _uncut_brackets(text: str, start: int, end: int) -> list[tuple[int, int]]:
    """Outermost short brackets inside which nothing ends, as (start, end), ascending.

    A quotation in corner brackets is part of the sentence around it; so is a parenthesis
    that opens in mid-sentence, and so are curly quotes in Chinese text.
    """
    open_brackets: list[tuple[str, int]] = []
    found: list[tuple[int, int]] = []
    for match in _BRACKET.finditer(text, start, end):
        mark, position = match.group(), match.start()
        if mark not in _PAIRS:
            open_brackets.append((mark, position))
        elif open_brackets and open_brackets[-1][0] == _PAIRS[mark]:
            opened = open_brackets.pop()[1]
            if position - opened <= _LONGEST_BRACKET and _is_uncut(text, start, opened, mark):
                while found and found[-1][0] > opened:
                    found.pop()
                found.append((opened, position + 1))
    return found


def _is_uncut(text: str, start: int, opened: int, closing: str) -> bool:
    if closing == "”":
        return is_unspaced(text[opened + 1])
    if closing != ")":
        return True
    before = text[max(start, opened - 4) : opened].rstrip()
    return bool(before) and before[-1] not in _WIDE + _MARKS + _DOTS + '"”’»'


def _ends(text: str, match: re.Match[str], begin: int, end: int, judge: FullStopJudge) -> bool:
    """Is this run of end marks the end of the sentence that begins at ``begin``?"""
    position = match.end()
    run = match.group()[: match.start("cited") - match.start()].rstrip()
    closed = run[-1] not in _WIDE + _MARKS + _DOTS
    wide = any(mark in run for mark in _WIDE)
    before = text[match.start() - 1] if match.start() > begin else ""
    if not text[position].isspace():
        return _ends_without_space(text, match, position, before, wide, closed)
    following = _NOT_WHITE.search(text, position, end)
    if following is None:
        return False
    after = text[following.start() : following.start() + _LOOK_AHEAD]
    if after[0] in _CONTINUES:
        return False
    word = _word_after(after)
    lower = word[:1].islower() and not any(map(str.isupper, word[1:3]))
    if wide:
        return not (closed and (after[0] in _PARTICLES or lower))
    starts_lower = text[begin].islower()
    marks = any(mark in run for mark in _MARKS)
    if before in ("(", "[", "（") and closed:
        return False  # "(?)", "[...]"
    if marks:
        return not lower or (starts_lower and not closed)
    if len(run.rstrip(_CLOSERS)) > 1 or "…" in run or "‥" in run:
        return word[:1].isupper() and word not in ("I", "I.") and word[:2] not in ("I'", "I’")
    if not before or before.isspace():
        return not lower  # A full stop that stands free, as in tokenised text.
    if is_unspaced(before):
        return True
    previous = text[max(begin, match.start() - _LOOK_BACK) : match.start()]
    bare = _WORD_BEFORE.search(previous)
    word_before = bare.group().strip(".'’") if bare else ""
    if not word_before or not any(map(str.isalnum, word_before)):
        return not lower
    return judge(word_before, word, closed, starts_lower)


def _ends_without_space(
    text: str, match: re.Match[str], position: int, before: str, wide: bool, closed: bool
) -> bool:
    """As ``_ends`` when the next character follows directly."""
    after = text[position]
    if after in _CONTINUES:
        return False
    if not wide:
        if not before or not is_unspaced(before) or not is_unspaced(after):
            return False
        if text[match.start()] not in _MARKS + ".":
            return False
        return "://" not in text[max(0, position - _LOOK_BACK) : position].rsplit(None, 1)[-1]
    if match.group() == "．" and before.isalnum() and after.isalnum() and not is_unspaced(after):
        return False
    if closed:
        return after not in _PARTICLES and not _SAYS.match(text, position)
    return True


def _place_quote(text: str, begin: int, position: int, end: int) -> int:
    """Move a straight quote at a sentence's end to the side on which its partner is.

    One that touches both sentences or stands free closes when the sentence has opened one.
    """
    if text[position].isspace():
        following = _NOT_WHITE.search(text, position, end)
        quote = following.start() if following else end
        if quote >= end or text[quote] != '"' or not text[quote + 1 : quote + 2].isspace():
            return position
    elif text[position - 1] == '"':
        quote = position - 1
    else:
        return position
    open_quotes = text.count('"', max(begin, quote - _QUOTE_LOOK_BACK), quote) % 2
    return quote + open_quotes if open_quotes or quote < position else position


def _word_after(text: str) -> str:
    """The first word of ``text`` behind opening quotes, brackets and dashes; may be empty.

    A single letter keeps its full stop ("R." in "J. R. Smith").
    """
    offset = 0
    while offset < len(text) and (text[offset] in _SKIPPED_BEFORE_WORD or text[offset].isspace()):
        offset += 1
    match = _WORD_AFTER.match(text, offset)
    if match is None:
        return ""
    initial = match.end() - match.start() == 1 and text.startswith(".", match.end())
    return match.group() + "." if initial else match.group()
