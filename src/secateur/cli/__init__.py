"""The command line. ``main`` is its entry point; the modules load on first use."""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``secateur`` with the arguments (the process's own when ``None``).

    Returns the exit code, see ``secateur.cli.exits``.
    """
    from secateur.cli.app import app
    from secateur.cli.exits import exit_code_of

    return exit_code_of(lambda: app(args=arguments, prog_name="secateur"))
