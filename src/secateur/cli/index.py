"""``secateur index``: store documents for ``secateur search``."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from secateur.cli.exits import BadInputError, extra_needed
from secateur.cli.milvus import MilvusArguments, load_embedder, open_store
from secateur.cli.options import command
from secateur.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from secateur.cli.documents import Source
    from secateur.milvus.indexing import Indexer
    from secateur.milvus.types import IndexCounts

_BATCH_DOCUMENTS: Final = 256
_BATCH_BYTES: Final = 1 << 20


@command
def index(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILES…", help="Documents: .txt, .md or .jsonl."),
    ],
    store: MilvusArguments,
    max_characters: Annotated[
        int,
        typer.Option(
            metavar="N", help="The longest passage, 50 to 16000 characters, in whole sentences."
        ),
    ] = 1_000,
    language: Annotated[
        str, typer.Option(help="ISO 639-1 code that chooses the sentence splitter.")
    ] = "",
) -> None:
    """Cut documents into passages and store them in Milvus.

    What is stored already is left alone, so a run that was stopped goes on when it is started
    again; a document that changed replaces its earlier passages.
    """
    from secateur.cli.documents import check_files

    check_files(files)
    opened = open_store(store)
    with extra_needed("serve"):
        from secateur.model.splitter import SentenceSplitter
    from secateur.milvus.chunks import faults_of
    from secateur.milvus.indexing import Indexer
    from secateur.milvus.types import ChunkOptions

    splitter = SentenceSplitter()
    chunking = ChunkOptions(max_characters, language)
    if faults := faults_of(chunking, splitter.languages, ""):
        raise BadInputError("; ".join(f"{fault.field}: {fault.description}" for fault in faults))
    embedder = load_embedder(store)

    async def run() -> IndexCounts:
        async with opened:
            indexer = Indexer(
                opened,
                store.collection,
                split=lambda text, code: splitter.split(text, code).spans,
                embedder=embedder,
                chunking=chunking,
            )
            await indexer.prepare()
            with _progress(files) as advance:
                counts = await _add_all(files, indexer, advance)
                await indexer.settle()
                return counts

    counts = asyncio.run(run())
    typer.echo(
        f"{store.collection}: {counts.document_count:,} documents in "
        f"{counts.passage_count:,} passages; {counts.added_passage_count:,} added, "
        f"{counts.passage_count - counts.added_passage_count:,} there already, "
        f"{counts.removed_passage_count:,} removed"
    )


async def _add_all(
    files: Sequence[Path], indexer: Indexer, advance: Callable[[int], None]
) -> IndexCounts:
    from secateur.cli.documents import read_documents
    from secateur.milvus.types import IndexCounts

    counts = IndexCounts()
    batch: list[Source] = []
    size = 0
    seen: dict[str, str] = {}
    for file in files:
        for source in read_documents(file):
            id_ = source.document.id
            if id_ in seen:
                raise BadInputError(
                    f"{source.place}: the id {id_[:100]!r} is in {seen[id_]} already"
                )
            seen[id_] = source.place
            batch.append(source)
            size += source.size
            if len(batch) >= _BATCH_DOCUMENTS or size >= _BATCH_BYTES:
                counts += await _add(batch, indexer)
                advance(size)
                batch, size = [], 0
    if batch:
        counts += await _add(batch, indexer)
        advance(size)
    return counts


async def _add(batch: Sequence[Source], indexer: Indexer) -> IndexCounts:
    """Store documents. Raises BadInputError with the place of each that is refused."""
    try:
        return await indexer.add([source.document for source in batch])
    except InvalidRequestError as error:
        faults = []
        for violation in error.violations:
            number, _, name = violation.field.removeprefix("documents[").partition("].")
            if not number.isdigit():
                raise  # it is Milvus that refuses
            faults.append(f"{batch[int(number)].place}: {name} {violation.description}")
        raise BadInputError("\n  ".join(faults)) from None


class _progress:  # noqa: N801 - a context manager
    """A bar of bytes on standard error, where that is a terminal."""

    def __init__(self, files: Sequence[Path]) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        console = Console(stderr=True)
        self._bar = Progress(
            TextColumn("Indexing"),
            BarColumn(),
            DownloadColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("", total=sum(file.stat().st_size for file in files))

    def __enter__(self) -> Callable[[int], None]:
        self._bar.start()
        return lambda size: self._bar.advance(self._task, size)

    def __exit__(self, *_: object) -> None:
        self._bar.stop()
