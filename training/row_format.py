"""Checks of a row's fields, because whoever trains or measures brings data of their own.

docs/training-data.md has the format. Every function raises ValueError that names the place
(``where``, such as ``dev.jsonl, line 3``) and the field.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

Span = tuple[int, int]
"""Half-open range of code points."""


def checked_row(row: object, where: str) -> dict[str, Any]:
    """The row, when question, passage and relevant are there and the texts are texts."""
    if not isinstance(row, dict):
        raise ValueError(f"{where}: must be an object, not {type(row).__name__}")
    for name, kind in (("question", str), ("passage", str), ("relevant", bool)):
        if not isinstance(row.get(name), kind):
            expected = {str: "text", bool: "true or false"}[kind]
            raise ValueError(f"{where}: {name} must be {expected}")
    for name in ("title", "lang", "kind", "qid"):
        if not isinstance(row.get(name, ""), str | None):
            raise ValueError(f"{where}: {name} must be text")
    return row


def checked_fields(row: dict[str, Any], where: str) -> dict[str, Any]:
    """A :func:`checked_row` whose sentences, labels and answers are right as well.

    Its ``sentences`` are a list of pairs or None, without white space at their ends, as the
    service asks for; its ``answers`` are a list of {text, start}.
    """
    sentences = _sentences(row, where)
    _check_labels(row, where, sentences)
    if sentences is not None:
        _check_cover(row["passage"], sentences, where)
        sentences = [_trimmed(row["passage"], span) for span in sentences]
    return {**row, "sentences": sentences, "answers": _answers(row, where)}


def _sentences(row: dict[str, Any], where: str) -> list[Span] | None:
    """The row's own sentences, or None without; their place in the passage is not looked at."""
    given = row.get("sentences")
    if given is None:
        return None
    if not isinstance(given, list) or not given:
        raise ValueError(f"{where}: sentences must be a list of [start, end] pairs or null")
    for index, pair in enumerate(given):
        if not isinstance(pair, list) or len(pair) != 2 or not all(map(is_count, pair)):
            raise ValueError(f"{where}: sentences[{index}] must be [start, end], offsets >= 0")
    return [(start, end) for start, end in given]


def _check_cover(passage: str, sentences: Sequence[Span], where: str) -> None:
    """Sentences must ascend within the passage, with only white space outside of them."""
    for index, (start, end) in enumerate(sentences):
        if not start < end <= len(passage):
            raise ValueError(
                f"{where}: sentences[{index}] is [{start}, {end}], must end after it starts and "
                f"within the {len(passage)} characters of the passage"
            )
        if not passage[start:end].strip():
            raise ValueError(f"{where}: sentences[{index}] holds nothing but white space")
    borders = [(0, 0), *sentences, (len(passage), len(passage))]
    for index, ((_, before), (start, _)) in enumerate(pairwise(borders)):
        if start < before:
            raise ValueError(f"{where}: sentences[{index}] starts before an earlier one ends")
        if passage[before:start].strip():
            raise ValueError(f"{where}: text in [{before}, {start}] belongs to none of sentences")


def _trimmed(passage: str, span: Span) -> Span:
    start, end = span
    text = passage[start:end]
    return start + len(text) - len(text.lstrip()), end - len(text) + len(text.rstrip())


def _check_labels(row: dict[str, Any], where: str, sentences: Sequence[Span] | None) -> None:
    """Labels, where there are any, must be 0 or 1, one for each of the row's own sentences."""
    labels = row.get("labels")
    if labels is None:
        return
    if sentences is None:
        raise ValueError(f"{where}: labels need the sentences that they belong to")
    if not isinstance(labels, list) or any(not is_count(label) or label > 1 for label in labels):
        raise ValueError(f"{where}: labels must be a list of 0 and 1")
    if len(labels) != len(sentences):
        raise ValueError(f"{where}: {len(labels)} labels for {len(sentences)} sentences")


def _answers(row: dict[str, Any], where: str) -> list[dict[str, Any]]:
    """The row's answers as {text, start}; a ``start`` that is left out is None."""
    answers = row.get("answers") or []
    if not isinstance(answers, list):
        raise ValueError(f"{where}: answers must be a list or null")
    for index, answer in enumerate(answers):
        text, start = (
            (answer.get("text"), answer.get("start")) if isinstance(answer, dict) else (None, None)
        )
        if not isinstance(text, str) or not (start is None or is_count(start)):
            raise ValueError(
                f"{where}: answers[{index}] must have text, and start as an offset >= 0 or null"
            )
    return [{"text": answer["text"], "start": answer.get("start")} for answer in answers]


def is_count(value: object) -> bool:
    """Whether a value is a whole number >= 0; true and false are none."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
