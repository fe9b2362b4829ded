"""Who may enter: the server's state, and how many calls are inside."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Final

from secateur.errors import OverloadedError, UnavailableError


class State(Enum):
    """What a server does, in the order of its life. Only SERVING lets calls in."""

    STARTING = "the server is starting: the model is not warm yet; try again soon"
    SERVING = "the server is serving"
    DRAINING = "the server is shutting down; try another one"
    DEAD = "the model's worker died; the server must restart"


_RETRY_SECONDS: Final = 1.0
_ORDER: Final = list(State)


class Gate:
    """Counts calls and turns them away when the state or ``max_calls`` says so.

    on_change: called with each new state.
    """

    def __init__(self, *, max_calls: int, on_change: Callable[[State], None]) -> None:
        self._state = State.STARTING
        self._max_calls = max_calls
        self._on_change = on_change
        self._inside = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def state(self) -> State:
        """The current state."""
        return self._state

    @property
    def inside(self) -> int:
        """Calls let in and not yet done."""
        return self._inside

    def advance(self, state: State) -> bool:
        """Move on to a later state and return True; a server never goes back to an earlier one."""
        if _ORDER.index(state) <= _ORDER.index(self._state):
            return False
        self._state = state
        self._on_change(state)
        return True

    @contextmanager
    def enter(self) -> Iterator[None]:
        """Let one call in for the length of the block.

        Raises UnavailableError unless SERVING, OverloadedError at ``max_calls``.
        """
        if self._state is not State.SERVING:
            raise UnavailableError(self._state.value)
        if self._inside >= self._max_calls:
            raise OverloadedError(
                f"{self._inside} calls are in work, which is the limit",
                retry_after_seconds=_RETRY_SECONDS,
                limit=self._max_calls,
            )
        self._inside += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._inside -= 1
            if not self._inside:
                self._idle.set()

    async def wait_idle(self) -> None:
        """Return once no call is inside."""
        await self._idle.wait()
