"""Rows of question/passage sets → training examples. docs/training-data.md has the format.

One JSON object a line (``.jsonl`` or ``.jsonl.xz``): ``question``, ``title`` (or null),
``passage``, ``relevant``, and either ``sentences`` ([[start, end], …] half-open code points)
with ``labels`` (0 or 1 each), or ``answers`` ([{"text", "start"}]), from which labels are
made: a sentence is 1 when it overlaps an answer.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from secateur.training.row_format import checked_fields, checked_row

Splitter = Callable[[str, str], Sequence[tuple[int, int]]]
"""(text, language) → sentence spans."""


@dataclass(frozen=True, slots=True)
class Example:
    """One (query, passage) pair.

    targets[i]: probability in [0, 1] that ``sentences[i]`` is to be kept; 0 or 1 where the
    label is certain. answers: texts that must not stand in a negative passage. question:
    key that candidates of one question share. teacher_score: a teacher's passage logit.
    """

    query: str
    title: str
    passage: str
    sentences: tuple[tuple[int, int], ...]
    targets: tuple[float, ...]
    relevant: bool
    answers: tuple[str, ...] = ()
    question: str | None = None
    teacher_score: float | None = None


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a JSON Lines file, xz-compressed when its name ends in ``.xz``.

    Raises ValueError that names the file when it is damaged, not UTF-8 or not JSON.
    """
    opener = lzma.open if path.suffix == ".xz" else open
    try:
        with opener(path, "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    yield json.loads(line)
                except json.JSONDecodeError as error:
                    raise ValueError(f"{path}:{number}: not JSON: {error}") from error
    except UnicodeDecodeError:
        raise ValueError(f"{path}: not valid UTF-8") from None
    except (EOFError, lzma.LZMAError) as error:
        raise ValueError(f"{path}: not a whole xz file: {error}") from None


def example_from_row(row: dict[str, Any], split: Splitter) -> Example | None:
    """Turn a row into an example; None for a row that cannot be used.

    Unusable: a blank question, or a relevant row that has no positive label or, without
    labels, an answer that is not in the passage. Underscores of a title become spaces.
    """
    question, passage = row["question"].strip(), row["passage"]
    if not question or not passage.strip():
        return None
    answers = row.get("answers") or ()
    if row.get("labels") is not None and row.get("sentences") is not None:
        sentences = tuple((int(start), int(end)) for start, end in row["sentences"])
        labels = tuple(float(label) for label in row["labels"])
    else:
        sentences = tuple(split(passage, row.get("lang", "")))
        spans = []
        for answer in answers:
            start = answer["start"] if answer["start"] is not None else passage.find(answer["text"])
            if start < 0 and row["relevant"]:
                return None
            spans.append((start, start + len(answer["text"])))
        labels = tuple(
            float(any(start < b and a < end for a, b in spans)) for start, end in sentences
        )
    if not row["relevant"]:
        labels = (0.0,) * len(labels)
    elif not any(labels):
        return None
    return Example(
        query=question,
        title=(row.get("title") or "").replace("_", " ").strip(),
        passage=passage,
        sentences=sentences,
        targets=labels,
        relevant=bool(row["relevant"]),
        answers=tuple(answer["text"].lower() for answer in answers if answer["text"].strip()),
        question=row.get("qid"),
    )


def load_examples(rows: Iterable[dict[str, Any]], split: Splitter, source: str) -> list[Example]:
    """All usable examples, in order.

    Raises ValueError with ``source``, row and field for a row of the wrong shape.
    """
    made = (
        example_from_row(checked_fields(checked_row(row, where), where), split)
        for where, row in ((f"{source}, row {number}", row) for number, row in enumerate(rows, 1))
    )
    return [example for example in made if example is not None]


def soften(example: Example, unlabelled: float, first_sentence: float) -> Example:
    """Raise the targets of a relevant example whose labels are known to be incomplete.

    A set that marks only the short answer's sentence says nothing about the sentences around
    it. ``unlabelled`` is the target of those, ``first_sentence`` that of the first one, which
    usually introduces the subject that the answer's pronoun means.
    """
    if not example.relevant:
        return example
    floor = (first_sentence, *(unlabelled,) * (len(example.targets) - 1))
    targets = tuple(max(pair) for pair in zip(example.targets, floor, strict=True))
    return replace(example, targets=targets)
