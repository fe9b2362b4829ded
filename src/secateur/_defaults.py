"""Defaults that the client and the command line share. Standard library only."""

from __future__ import annotations

from typing import Final

TARGET: Final = "localhost:50051"
"""Where a client looks for the server."""

TIMEOUT_SECONDS: Final = 30.0
"""Time for one call in all, retries included."""

MAX_ATTEMPTS: Final = 4
"""Tries of a call that ends with UNAVAILABLE."""
