"""Tensors of a checkpoint folder by name: safetensors, and pickles only when allowed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from secateur.errors import CheckpointError


@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    """tensors: by name, as stored. files: where they came from, in order."""

    tensors: dict[str, Tensor]
    files: tuple[Path, ...]

    def revision(self) -> str:
        """First 12 hexadecimal digits of the SHA-256 over the files."""
        digest = hashlib.sha256()
        for file in self.files:
            with file.open("rb") as stream:
                while block := stream.read(1 << 20):
                    digest.update(block)
        return digest.hexdigest()[:12]


def read_weights(folder: Path, *, allow_pickle: bool = False) -> Weights:
    """Read ``model.safetensors``, whole or in shards.

    Without it, and with ``allow_pickle``, ``pytorch_model.bin``: torch restores tensors only
    and runs nothing that a file says. Raises CheckpointError.
    """
    files = _files(folder, "model.safetensors")
    if files:
        return Weights(_read(files, load_file), files)
    pickles = _files(folder, "pytorch_model.bin")
    if pickles and allow_pickle:
        return Weights(_read(pickles, _load_pickle), pickles)
    found = (
        f"found {pickles[0].name}, a pickle, which is read only where pickles are allowed "
        "(`secateur convert --allow-pickle` makes a safe copy)"
        if pickles
        else "no such file"
    )
    raise CheckpointError(f"{folder / 'model.safetensors'}: {found}")


def _files(folder: Path, name: str) -> tuple[Path, ...]:
    """The file of that name, or the shards of its index; empty when there is neither."""
    whole, index = folder / name, folder / f"{name}.index.json"
    if whole.is_file():
        return (whole,)
    if not index.is_file():
        return ()
    try:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        return tuple(folder / Path(shard).name for shard in sorted(names))
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise CheckpointError(f"{index}: not an index of weights: {error!r}") from error


def _read(files: tuple[Path, ...], load: Callable[[Path], dict[str, Tensor]]) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for file in files:
        try:
            tensors |= load(file)
        except FileNotFoundError as error:
            raise CheckpointError(f"{file}: no such file, but the index names it") from error
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{file}: not a safetensors file: {error}") from error
    return tensors


def _load_pickle(file: Path) -> dict[str, Tensor]:
    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise
    except Exception as error:  # a broken or refused pickle raises anything
        raise CheckpointError(f"{file}: not a pickle of tensors alone") from error
    state = content.get("state_dict", content) if isinstance(content, dict) else content
    if not isinstance(state, dict) or not all(isinstance(v, Tensor) for v in state.values()):
        raise CheckpointError(f"{file}: expected tensors by name")
    return state
