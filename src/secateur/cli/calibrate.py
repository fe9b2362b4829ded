"""``secateur calibrate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from secateur.cli.exits import BadInputError, extra_needed
from secateur.cli.labelled import Data, check_output, faults_of, load_pruner
from secateur.cli.options import Model, command


@command
def calibrate(
    data: Data,
    target: Annotated[
        str,
        typer.Option(
            metavar="MEASURE=X",
            help="precision=X: highest recall; recall=X: highest compression; compression=X: "
            "highest F1; X above 0, at most 1.",
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where the calibration is written.")],
    model: Model = None,
) -> None:
    """Choose threshold and keep rule on your own labelled rows, for `serve --calibration`."""
    with extra_needed("train"):
        from secateur.training.calibrate import Target, calibration_of, choose
        from secateur.training.evaluation.rows import load_rows
        from secateur.training.evaluation.scoring import score_rows
        from secateur.training.evaluation.sweep import sweep
    try:
        wanted = Target.parse(target)
    except ValueError as error:
        raise BadInputError(f"--target {error}") from None
    check_output("--out", out)
    with faults_of(data):
        rows, skipped = load_rows(data)
    if not rows:
        raise BadInputError(f"{data}: no row to measure; {skipped} cannot be used")
    pruner = load_pruner(model)
    with faults_of(data):
        scored = score_rows(pruner, rows)
    point = choose(sweep(scored, pruner.info.keep_rules), wanted)
    made = calibration_of(pruner.info, wanted, point, len(rows))
    made.save(out)
    typer.echo(
        f"{out}: threshold {made.threshold:g}, rule {made.keep_rule}\n"
        f"{wanted} on {made.rows} rows ({skipped} left out): precision {made.precision:.4f}, "
        f"recall {made.recall:.4f}, F1 {made.f1:.4f}, compression {made.compression:.4f}"
    )
