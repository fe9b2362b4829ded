"""What a language model is asked for silver labels, and how its answers are read.

The sentences of a passage are numbered from 1, as they are cut for the model. An answer is one
JSON object; around it anything may stand (code fences, a chain of thought), inside it nothing
is forgiven: a number that is no sentence would be a wrong label.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Message = dict[str, str]
"""``role`` and ``content`` of a chat message."""

KINDS = {"fact": 1, "multi": 2, "unanswerable": 0}
"""Kinds of written questions, and how many sentences must support one at least."""

_SYSTEM = (
    "You label training data for a program that keeps the sentences of a passage that are needed "
    "to answer a question, and drops the others. The sentences of the passage are numbered. "
    "Answer with one JSON object and nothing else."
)
_CITE = """\
- "support": the numbers of all sentences that state the answer or a part of it. A sentence that
  is merely about the topic does not count.
- "optional": the numbers of sentences that are not needed, but make a supporting sentence easier
  to understand, such as one that says who "he" is. Often there is none."""


class AnswerError(ValueError):
    """An answer that cannot be used; ``str(error)`` is fit to tell the model what is wrong."""


@dataclass(frozen=True, slots=True)
class Cited:
    """Indices of sentences, counted from 0, ascending and disjoint.

    Nothing is optional where nothing supports.
    """

    support: tuple[int, ...]
    optional: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Written:
    """A question that the model wrote for a passage. kind: one of ``KINDS``."""

    kind: str
    question: str
    cited: Cited


def messages_for_labels(question: str, title: str, sentences: Sequence[str]) -> list[Message]:
    """Ask which sentences support the answer to a question; for :func:`read_labels`."""
    task = f"""\
{_numbered(title, sentences)}

Question: {question}

Which sentences answer the question?
{_CITE}
- Where the passage does not answer the question, both lists are empty.

Answer in this form: {{"support": [2, 5], "optional": [4]}}"""
    return [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": task}]


def messages_for_questions(title: str, sentences: Sequence[str], each: int) -> list[Message]:
    """Ask for ``each`` questions of every kind; for :func:`read_questions`."""
    task = f"""\
{_numbered(title, sentences)}

Write {each * len(KINDS)} questions that somebody who does not know this passage might ask, \
{each} of each kind:
- "fact": one sentence of the passage answers it.
- "multi": it takes several sentences of the passage to answer it in full.
- "unanswerable": it is on the topic of the passage, so that one might expect the answer there, \
but no sentence answers it.
A question stands alone: it names what it is about and does not mention the passage. Prefer \
your own words to those of the passage.

For each question cite the sentences that answer it:
{_CITE}
- Both lists are empty for an unanswerable question.

Answer in this form: {{"questions": [{{"kind": "fact", "question": "...", "support": [2], \
"optional": []}}, ...]}}"""
    return [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": task}]


def read_labels(answer: str, sentence_count: int) -> Cited:
    """The cited sentences. Raises AnswerError."""
    return _cited(_json_object(answer, "support"), sentence_count, "")


def read_questions(answer: str, sentence_count: int, each: int) -> list[Written]:
    """The questions, ``each`` of every kind, in the order of ``KINDS``. Raises AnswerError."""
    items = _json_object(answer, "questions")["questions"]
    if not isinstance(items, list):
        raise AnswerError('"questions" is no list')
    written = [_written(item, sentence_count, f"questions[{i}].") for i, item in enumerate(items)]
    for kind in KINDS:
        found = sum(one.kind == kind for one in written)
        if found != each:
            raise AnswerError(f"{found} questions of kind {kind!r} instead of {each}")
    return sorted(written, key=lambda one: list(KINDS).index(one.kind))


def is_valid_text(text: str) -> bool:
    """False for a text with a lone surrogate, which JSON can spell but UTF-8 cannot."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _numbered(title: str, sentences: Sequence[str]) -> str:
    lines = [f"[{number}] {' '.join(text.split())}" for number, text in enumerate(sentences, 1)]
    return "\n".join([f"Passage: {title}" if title else "Passage:", *lines])


def _json_object(answer: str, key: str) -> dict[str, Any]:
    """The first JSON object in the answer that has the key, whatever stands around it."""
    decoder = json.JSONDecoder()
    for brace in re.finditer(r"\{", answer):
        try:
            value, _ = decoder.raw_decode(answer, brace.start())
        except ValueError:
            continue
        except RecursionError:
            break
        if key in value:
            return dict(value)
    raise AnswerError(f'no valid JSON object with "{key}"')


def _written(item: Any, sentence_count: int, where: str) -> Written:
    if not isinstance(item, dict):
        raise AnswerError(f"{where[:-1]} is no object")
    kind, question = item.get("kind"), item.get("question")
    if kind not in KINDS:
        raise AnswerError(f"{where}kind is {kind!r} instead of one of {', '.join(KINDS)}")
    if not isinstance(question, str) or not question.strip() or not is_valid_text(question):
        raise AnswerError(f"{where}question is no text")
    cited = _cited(item, sentence_count, where)
    least = KINDS[kind]
    if len(cited.support) < least or (not least and cited.support):
        wanted = f"at least {least}" if least else "none"
        raise AnswerError(
            f"{where}support has {len(cited.support)} sentences; kind {kind!r} has {wanted}"
        )
    return Written(kind, " ".join(question.split()), cited)


def _cited(value: dict[str, Any], sentence_count: int, where: str) -> Cited:
    support = _indices(value.get("support"), sentence_count, f"{where}support")
    optional = _indices(value.get("optional", []), sentence_count, f"{where}optional")
    if not support:
        optional = set()
    return Cited(tuple(sorted(support)), tuple(sorted(optional - support)))


def _indices(value: Any, sentence_count: int, where: str) -> set[int]:
    """Sentence numbers from 1 as indices from 0."""
    if not isinstance(value, list):
        raise AnswerError(f"{where} is no list of sentence numbers")
    for number in value:
        if not isinstance(number, int) or isinstance(number, bool):
            raise AnswerError(f"{where} holds {number!r}, which is no sentence number")
        if not 1 <= number <= sentence_count:
            raise AnswerError(f"{where} holds {number}; the sentences are 1 to {sentence_count}")
    return {number - 1 for number in value}
