"""What all services have in common: calls wait for the gate and need the pipeline."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from secateur.errors import UnavailableError
from secateur.server.calls import Calls, Context
from secateur.server.gate import Gate
from secateur.server.pipeline import Pipeline

T = TypeVar("T")


class Gated:
    """Calls answer UNAVAILABLE until ``pipeline`` is set and the gate lets calls in."""

    def __init__(self, gate: Gate, calls: Calls) -> None:
        self.pipeline: Pipeline | None = None
        self._gate = gate
        self._calls = calls

    async def run(
        self, method: str, context: Context, answer: Callable[[Pipeline], Awaitable[T]]
    ) -> T:
        """Run one call inside the gate; its errors become statuses."""

        async def work() -> T:
            with self._gate.enter():
                if self.pipeline is None:
                    raise UnavailableError("the server is starting: no model is loaded yet")
                return await answer(self.pipeline)

        return await self._calls.run(method, context, work)
