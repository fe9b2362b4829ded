"""Memory that passes use again and again."""

from __future__ import annotations

from math import prod
from threading import local
from typing import Protocol

import torch
from torch import Tensor


class Room(Protocol):
    """Gives a tensor to be filled in, under the name of its use."""

    def __call__(self, name: str, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor: ...


class Scratch(local):
    """Room that is kept, each thread's apart; each use has the size of the largest so far.

    Memory that goes back to the system comes again page by page, zeroed: in a pass of a small
    model that is as dear as an operation.
    """

    def __init__(self) -> None:  # in each thread
        self._kept: dict[tuple[str, torch.dtype], Tensor] = {}

    def __call__(self, name: str, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Contiguous, holding anything; overwritten after the next call of this name and dtype."""
        size, key = prod(shape), (name, dtype)
        kept = self._kept.get(key)
        if kept is None or kept.numel() < size:
            del kept
            self._kept.pop(key, None)  # before the larger one is taken
            kept = self._kept[key] = torch.empty(size, dtype=dtype)
        return kept[:size].view(shape)


def fresh(name: str, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:  # noqa: ARG001
    """Room of its own for every call."""
    return torch.empty(shape, dtype=dtype)
