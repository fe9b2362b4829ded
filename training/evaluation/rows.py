"""Labelled rows: which sentences of a passage answer a question. docs/evaluation.md has the format.

The rows are those of :mod:`secateur.training.data`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from secateur.model.splitter import SentenceSplitter
from secateur.training.data import example_from_row, read_rows
from secateur.training.row_format import Span, checked_fields, checked_row, is_count


@dataclass(frozen=True, slots=True)
class LabelledRow:
    """One question with one passage, and what should be kept of it.

    id: the row's own, or ``line N``; unique in a file: a repeated one gets ``#2``, ``#3``, …
    labels[i]: whether ``sentences[i]`` should be kept; all false in a row that is not relevant.
    optional: sentences that lenient scoring leaves out. answers: where the answers of a
    relevant row stand, those that were found. kind: the row's own class, "" without one.
    """

    id: str
    question: str
    title: str
    passage: str
    sentences: tuple[Span, ...]
    labels: tuple[bool, ...]
    relevant: bool
    optional: tuple[int, ...] = ()
    answers: tuple[Span, ...] = ()
    kind: str = ""

    def text(self, sentence: int) -> str:
        """The source of one sentence."""
        start, end = self.sentences[sentence]
        return self.passage[start:end]


def load_rows(path: Path, *, only_relevant: bool = False) -> tuple[list[LabelledRow], int]:
    """The usable rows of a ``.jsonl`` or ``.jsonl.xz`` file, and the number of unusable ones.

    A row's own ``sentences`` stand; without them the passage is split as in service. Its own
    ``labels`` stand; without them a sentence is to be kept when it overlaps an answer. Not
    usable: a blank question or passage, a relevant row whose labels are all 0, or one without
    labels and an answer that is not in the passage. Rows that ``only_relevant`` leaves out are
    not counted.
    Raises ValueError that names file, line and field.
    """
    rows: list[LabelledRow] = []
    seen: Counter[str] = Counter()
    skipped = 0
    for where, row in checked_rows(path):
        if only_relevant and not row["relevant"]:
            continue
        name = str(row.get("id") or where.rpartition(", ")[2])
        seen[name] += 1
        labelled = _labelled(row, where, name if seen[name] == 1 else f"{name}#{seen[name]}")
        if labelled is None:
            skipped += 1
        else:
            rows.append(labelled)
    return rows, skipped


def checked_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each row of a file with its place, such as ``dev.jsonl, line 3``.

    Raises ValueError for a row without question, passage or relevant of the right type.
    """
    for number, row in enumerate(read_rows(path), 1):
        where = f"{path}, line {number}"
        yield where, checked_row(row, where)


def _labelled(row: dict[str, Any], where: str, name: str) -> LabelledRow | None:
    passage = row["passage"]
    row = checked_fields(row, where)
    own, answers = row["sentences"], row["answers"]
    example = example_from_row(
        row, lambda text, lang: split_passage(text, lang) if own is None else own
    )
    if example is None:
        return None
    optional = _indexes(row.get("optional"), f"{where}: optional", len(example.sentences))
    return LabelledRow(
        id=name,
        question=example.query,
        title=example.title,
        passage=passage,
        sentences=example.sentences,
        labels=tuple(target > 0 for target in example.targets),
        relevant=row["relevant"],
        optional=optional,
        answers=tuple(_located(answers, passage)) if row["relevant"] else (),
        kind=row.get("kind") or "",
    )


def split_passage(text: str, language: str) -> tuple[Span, ...]:
    """Split as in service; a language that the splitter does not know is guessed by script."""
    known = language if language in SentenceSplitter.languages else ""
    return SentenceSplitter().split(text, known).spans


def _located(answers: list[dict[str, Any]], passage: str) -> Iterator[Span]:
    for answer in answers:
        text, start = answer["text"], answer["start"]
        start = passage.find(text) if start is None else start
        if text.strip() and start >= 0:
            yield start, start + len(text)


def _indexes(given: object, where: str, count: int) -> tuple[int, ...]:
    if given is None:
        return ()
    if not isinstance(given, list) or not all(is_count(i) and i < count for i in given):
        raise ValueError(f"{where} must be a list of sentence indexes below {count}")
    return tuple(given)
