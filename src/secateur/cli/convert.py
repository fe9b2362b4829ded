"""``secateur convert``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from secateur.cli.exits import BadInputError, extra_needed
from secateur.cli.options import Model, command


@command
def convert(
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="A new folder to write.")],
    model: Model = None,
    dtype: Annotated[
        str, typer.Option(metavar="DTYPE", help="Of the written weights: float32 or float16.")
    ] = "float32",
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of a hub id.")] = None,
    *,
    allow_pickle: Annotated[
        bool, typer.Option("--allow-pickle", help="Also read weights in pickles, tensors only.")
    ] = False,
) -> None:
    """Write a checkpoint of any family as a folder of ours, and check that its logits stay."""
    with extra_needed("serve"):
        from secateur.model.checkpoints.convert import convert as write
    try:
        done = write(model, out, dtype=dtype, revision=revision, allow_pickle=allow_pickle)
    except ValueError as error:  # an unknown dtype
        raise BadInputError(str(error)) from None
    typer.echo(
        f"{out}: {done.id}, {done.family}, {done.parameters:,} parameters in {done.dtype}\n"
        f"largest difference of a logit over {done.probes} inputs: "
        f"score {_shown(done.score_difference)}, token {_shown(done.token_difference)} "
        f"(bound {done.bound:g})"
    )


def _shown(difference: float | None) -> str:
    return "-" if difference is None else f"{difference:.2g}"
