"""How a command reaches a server: TLS files and a token, as options or from the environment."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from secateur import _defaults
from secateur.cli.exits import BadInputError

if TYPE_CHECKING:
    from secateur.client import Client

TOKEN_VARIABLE = "SECATEUR_CLIENT_TOKEN"  # noqa: S105 - the variable's name
"""Holds the token where no file is named. The command line would show it to every user."""

_PANEL = "Security"


@dataclass(frozen=True, kw_only=True)
class ChannelArguments:
    """TLS and token of the connection to a server."""

    tls: Annotated[
        bool,
        typer.Option(
            "--tls", rich_help_panel=_PANEL, help="Use TLS, trusting the usual authorities."
        ),
    ] = False
    tls_ca: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            rich_help_panel=_PANEL,
            help="Use TLS, trusting the authorities of this PEM file.",
        ),
    ] = None
    tls_cert: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", rich_help_panel=_PANEL, help="Use TLS and show this certificate (PEM)."
        ),
    ] = None
    tls_key: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", rich_help_panel=_PANEL, help="Private key of --tls-cert (PEM)."
        ),
    ] = None
    token_file: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            rich_help_panel=_PANEL,
            help=f"File with the token to send. Default: {TOKEN_VARIABLE}, or none.",
        ),
    ] = None

    @property
    def given(self) -> bool:
        """Whether any of them is on the command line."""
        return self != ChannelArguments()


def open_client(
    target: str,
    channel: ChannelArguments,
    *,
    timeout: float = _defaults.TIMEOUT_SECONDS,
    max_attempts: int = _defaults.MAX_ATTEMPTS,
) -> Client:
    """A client of the server at ``target``. Raises BadInputError for files that do not serve."""
    from secateur._tls import Tls
    from secateur.client import Client

    files = {"ca": channel.tls_ca, "cert": channel.tls_cert, "key": channel.tls_key}
    wanted = channel.tls or any(files.values())
    try:
        return Client(
            target,
            timeout=timeout,
            max_attempts=max_attempts,
            tls=Tls(**files) if wanted else None,
            token=_token(channel.token_file),
        )
    except ValueError as error:
        raise BadInputError(str(error)) from None


def _token(file: str | None) -> str | None:
    if file is None:
        return os.environ.get(TOKEN_VARIABLE, "").strip() or None
    try:
        return Path(file).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ValueError(f"--token-file: cannot read {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"--token-file: {file} is not UTF-8 text") from None
