"""A source name → rows: a file of our row format, or a data set of Hugging Face ``datasets``.

``squad_v1``                        DATA/squad_v1, DATA/squad_v1.jsonl.xz or DATA/squad_v1.jsonl
``hf:owner/name``                   a data set of the hub, split ``train``
``hf:owner/name:config@rev#split``  each part may be left out; ``split`` may be ``train[:1000]``
``hf:folder``                       a folder below DATA: ``save_to_disk``'s, or one of data files

docs/training-data.md has the row format and the columns that are understood.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from secateur.errors import MissingExtraError
from secateur.training.data import read_rows

_SUFFIXES = (".jsonl.xz", ".jsonl")
_HUB = "hf:"
_SPEC = re.compile(
    r"hf:(?P<name>[^:@#]+)(:(?P<config>[^@#]+))?(@(?P<revision>[^#]+))?(#(?P<split>.+))?"
)


def read_source(source: str, data: Path, *, streaming: bool = False) -> Iterator[dict[str, Any]]:
    """Yield the rows of a source; ``data`` is the folder that relative paths start from.

    streaming: read a data set of the hub over the network as it is used, instead of storing it
    first. ``HF_HUB_OFFLINE``, ``HF_DATASETS_OFFLINE`` and ``HF_HOME`` are obeyed.
    Raises ValueError at once when the source is unknown or out of reach, and on the way for a
    row that is not understood; MissingExtraError without ``datasets``.
    """
    if not source.startswith(_HUB):
        return read_rows(_find_file(source, data))
    match = _SPEC.fullmatch(source)
    if match is None:
        raise ValueError(f"{source}: expected hf:NAME, hf:NAME:CONFIG, …@REVISION, …#SPLIT")
    spec = _Spec(**match.groupdict())
    return _rows(source, _load(source, spec, data, streaming=streaming))


@dataclass(frozen=True, slots=True)
class _Spec:
    """The parts of an ``hf:`` source. split: None is ``train``."""

    name: str
    config: str | None
    revision: str | None
    split: str | None


def _find_file(source: str, data: Path) -> Path:
    path = data / source
    candidates = [path, *(path.with_name(path.name + suffix) for suffix in _SUFFIXES)]
    for candidate in candidates:
        if candidate.is_file() and candidate.name.endswith(_SUFFIXES):
            return candidate
    looked = candidates[:1] if path.name.endswith(_SUFFIXES) else candidates[1:]
    raise ValueError(f"{source}: no such file: {' or '.join(map(str, looked))}")


def _load(source: str, spec: _Spec, data: Path, *, streaming: bool) -> Iterable[Any]:
    try:
        import datasets
    except ModuleNotFoundError as error:
        raise MissingExtraError("train", error.name or "datasets") from error
    folder = data / spec.name
    local = folder.is_dir()
    loaded: Iterable[Any]
    try:
        if local and spec.revision is not None:
            raise ValueError("a folder has no revisions; leave out @")
        if (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file():
            return _saved(datasets.load_from_disk(folder), spec)
        loaded = datasets.load_dataset(
            str(folder) if local else spec.name,
            spec.config,
            revision=spec.revision,
            split=spec.split or "train",
            streaming=streaming,
        )
    except ConnectionError as error:  # also what the offline variables lead to
        raise ValueError(
            f"{source}: the Hugging Face hub cannot be reached and the data set is not in the "
            f"local cache ({error})"
        ) from error
    except FileNotFoundError as error:
        what = (
            f"no data files in {folder}"
            if local
            else f"no folder {folder}, and no data set of this name and revision on the Hugging "
            "Face hub that may be read"
        )
        raise ValueError(f"{source}: {what}") from error
    except datasets.exceptions.DatasetsError as error:  # its cause says what is wrong
        raise ValueError(f"{source}: {_first_line(error.__cause__ or error)}") from error
    except (OSError, ValueError) as error:
        raise ValueError(f"{source}: {_first_line(error)}") from error
    return loaded


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]


def _saved(loaded: Any, spec: _Spec) -> Iterable[Any]:
    """What ``save_to_disk`` wrote: one data set, or a mapping of splits."""
    if spec.config is not None:
        raise ValueError("a saved data set has no configurations; leave out :")
    if not isinstance(loaded, Mapping):
        if spec.split is not None:
            raise ValueError("this saved data set has no splits; leave out #")
        return cast("Iterable[Any]", loaded)
    split = spec.split or "train"
    if split not in loaded:
        raise ValueError(f"no split {split!r}; there are {', '.join(loaded)}")
    return cast("Iterable[Any]", loaded[split])


def _rows(source: str, records: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for number, record in enumerate(records, 1):
        try:
            yield row_from_record(record)
        except ValueError as error:
            raise ValueError(f"{source}: row {number}: {error}") from None


def row_from_record(record: Mapping[str, Any]) -> dict[str, Any]:
    """A row of our format out of a data set's record.

    Known shapes: ours (``passage`` is there), and SQuAD's: ``question``, ``context`` and
    ``answers`` of parallel lists ``text`` and ``answer_start`` (empty lists: not answered).
    Raises ValueError that names the columns found.
    """
    row = dict(record)
    if "passage" not in row:
        if not {"question", "context", "answers"} <= row.keys():
            raise ValueError(
                f"columns {', '.join(row)} are not understood; expected question, passage and "
                "relevant (our format) or question, context and answers (SQuAD's)"
            )
        row["passage"] = row.pop("context")
    if row.get("answers") is not None:
        row["answers"] = _answers(row["answers"])
    labelled = row.get("labels"), row.get("answers")
    if row.get("relevant") is None and labelled != (None, None):
        row["relevant"] = any(labelled[0] if labelled[0] is not None else labelled[1] or ())
    return row


def _answers(value: Any) -> list[dict[str, Any]]:
    """Answers as a list of {text, start}, from that or from SQuAD's parallel lists."""
    try:
        if isinstance(value, Mapping):
            starts = value["answer_start"] if "answer_start" in value else value["start"]
            pairs = list(zip(value["text"], starts, strict=True))
        else:
            pairs = [(answer["text"], answer["start"]) for answer in value]
    except (KeyError, TypeError, ValueError):
        raise ValueError(
            "answers: expected a list of {text, start}, or equally long lists text and answer_start"
        ) from None
    return [{"text": text, "start": start} for text, start in pairs]
