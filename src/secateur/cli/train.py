"""``secateur train``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from secateur.cli.exits import BadInputError, extra_needed
from secateur.cli.options import command


@command
def train(
    config: Annotated[
        Path, typer.Option(metavar="FILE", help="TOML file: stages, sets, losses, rates.")
    ],
    data: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder that the config's sets are looked up in.")
    ] = Path(),
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Checkpoints, metrics, model. Default: runs/CONFIG."),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="CPU threads. Default: all that the cgroup grants.")
    ] = None,
) -> None:
    """Train a model on your own data; run it again to resume a stopped run."""
    with extra_needed("train"):
        from secateur.server.cpus import available_cpus
        from secateur.training.config import TrainConfig
        from secateur.training.evaluation.rows import split_passage
        from secateur.training.sources import read_source
        from secateur.training.train import train as run
    try:
        settings = TrainConfig.load(config)
    except OSError as error:
        raise BadInputError(f"cannot read {config}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise BadInputError(f"{config}: not valid UTF-8") from None
    except ValueError as error:
        raise BadInputError(f"{config}: {error}") from None
    target = out or Path("runs") / config.stem
    if target.exists() and not target.is_dir():
        raise BadInputError(f"--out {target}: is a file, must be a folder")
    try:
        run(
            settings,
            lambda name: read_source(name, data),
            target,
            split_passage,
            threads or available_cpus(),
        )
    except ValueError as error:
        raise BadInputError(str(error)) from None
    typer.echo(f"model: {target / 'model'}")
