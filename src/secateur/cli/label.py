"""``secateur label``."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Annotated

import typer

from secateur.cli.exits import FAILED, BadInputError, extra_needed
from secateur.cli.labelled import check_output, faults_of
from secateur.cli.options import command

_KEY = "OPENAI_API_KEY"


@command
def label(
    data: Annotated[
        str,
        typer.Option(
            metavar="SOURCE",
            help="Rows with a passage and, if wanted, a question: FILE or hf:NAME.",
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Labelled rows are appended here.")],
    base_url: Annotated[
        str,
        typer.Option(
            metavar="URL", help=f"OpenAI-compatible endpoint; its key is taken from {_KEY}."
        ),
    ],
    model: Annotated[str, typer.Option(metavar="NAME", help="The language model to ask.")],
    questions: Annotated[
        int, typer.Option(min=1, max=10, help="Questions of each kind for a row without one.")
    ] = 1,
    concurrency: Annotated[
        int, typer.Option(min=1, max=256, help="Rows that are in work at the same time.")
    ] = 8,
) -> None:
    """Let a language model label training data; run it again to go on where it stopped."""
    with extra_needed("train"):
        from tqdm.contrib.logging import logging_redirect_tqdm

        from secateur.training.silver import label as run
        from secateur.training.silver_chat import Endpoint
        from secateur.training.sources import read_source
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    check_output("--out", out)
    with faults_of(Path(data)):
        rows = list(read_source(data, Path()))
    if not rows:
        raise BadInputError(f"{data}: no row to label")
    try:
        endpoint = Endpoint(base_url=base_url, model=model, api_key=os.environ.get(_KEY))
        with logging_redirect_tqdm():
            done = run(rows, out, endpoint, questions=questions, concurrency=concurrency)
    except ValueError as error:
        raise BadInputError(str(error)) from None
    typer.echo(
        f"{done.labelled} rows labelled as {done.written} rows of {out}, {done.skipped} skipped, "
        f"{done.done_before} done before"
    )
    if done.skipped and not done.labelled:
        raise typer.Exit(FAILED)
