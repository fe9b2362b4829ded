"""Where a checkpoint's files lie: inside the package, in a folder, or on the Hugging Face hub."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from secateur.errors import CheckpointError

EMBEDDED = "secateur-mini-en"
"""The checkpoint that ships inside the package."""

OFFLINE_VARIABLES = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
"""While one of them is set, a hub id is looked up in the local cache only."""

_FOLDER = Path(__file__).parent
_HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")
_FILES = (
    "config.json",
    "tokenizer.json",
    "model.safetensors",
    "model-*.safetensors",
    "model.safetensors.index.json",
)
_PICKLES = ("pytorch_model.bin", "pytorch_model-*.bin", "pytorch_model.bin.index.json")


@dataclass(frozen=True, slots=True)
class Source:
    """A folder with the files, and the name that its model goes by unless it has its own."""

    folder: Path
    name: str


def resolve(
    name_or_path: str | os.PathLike[str] | None = None,
    *,
    revision: str | None = None,
    allow_pickle: bool = False,
) -> Source:
    """Find a checkpoint: the embedded one by name or by default, a folder, or a hub id.

    A text ``owner/name`` that is no folder here is a hub id; ``owner/name@revision`` also says
    which branch, tag or commit. Only a hub id asks the network, and only for the files that are
    read. Raises CheckpointError when nothing is there, or it cannot be fetched.
    """
    if name_or_path is None or os.fspath(name_or_path) == EMBEDDED:
        source = Source(_FOLDER / EMBEDDED, EMBEDDED)
    elif Path(name_or_path).is_dir():
        source = Source(Path(name_or_path), Path(name_or_path).resolve().name)
    elif isinstance(name_or_path, str) and (hub := _hub_id(name_or_path)):
        name, stated = hub
        if revision is not None and stated is not None:
            raise CheckpointError(f"{name_or_path!r} and the revision {revision!r}: give one")
        return Source(_from_hub(name, revision or stated, allow_pickle=allow_pickle), name)
    else:
        raise CheckpointError(
            f"no checkpoint folder at {os.fspath(name_or_path)!r}; give the path of a folder with "
            f"config.json, model.safetensors and tokenizer.json, a hub id owner/name, or "
            f"{EMBEDDED!r}"
        )
    if revision is not None:
        raise CheckpointError(f"a revision belongs to a hub id, but {source.name!r} is a folder")
    return source


def _hub_id(text: str) -> tuple[str, str | None] | None:
    name, _, revision = text.partition("@")
    return (name, revision or None) if _HUB_ID.fullmatch(name) else None


def _from_hub(name: str, revision: str | None, *, allow_pickle: bool) -> Path:
    """Folder of the fetched files. Pickles are fetched only where there is nothing better."""
    folder = _snapshot(name, revision, _FILES)
    if allow_pickle and not any(folder.glob("model*.safetensors")):
        folder = _snapshot(name, revision, (*_FILES, *_PICKLES))
    return folder


def _snapshot(name: str, revision: str | None, patterns: tuple[str, ...]) -> Path:
    from huggingface_hub import errors, snapshot_download

    offline = any(_is_set(variable) for variable in OFFLINE_VARIABLES)
    shown = name if revision is None else f"{name}@{revision}"
    try:
        return Path(
            snapshot_download(
                name,
                revision=revision,
                allow_patterns=list(patterns),
                local_files_only=offline,
            )
        )
    except errors.GatedRepoError as error:
        reason = "its owner must grant you access; then log in with `hf auth login`"
        raise CheckpointError(f"cannot fetch {shown} from the hub: {reason}") from error
    except errors.RepositoryNotFoundError as error:
        reason = "there is neither such a folder here nor such a model on the hub"
        raise CheckpointError(f"cannot load {shown}: {reason}") from error
    except errors.RevisionNotFoundError as error:
        raise CheckpointError(f"cannot fetch {shown}: no such revision on the hub") from error
    except errors.LocalEntryNotFoundError as error:
        reason = "there is no such folder here, it is not in the local cache, and the hub " + (
            f"may not be asked ({' or '.join(OFFLINE_VARIABLES)} is set)"
            if offline
            else "cannot be reached"
        )
        raise CheckpointError(f"cannot load {shown}: {reason}") from error
    except (errors.HFValidationError, OSError) as error:
        raise CheckpointError(f"cannot fetch {shown} from the hub: {error}") from error


def _is_set(variable: str) -> bool:
    return os.environ.get(variable, "").upper() in {"1", "ON", "YES", "TRUE"}
