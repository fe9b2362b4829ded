"""``secateur bench``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from secateur.cli.exits import extra_needed
from secateur.cli.labelled import check_output, faults_of
from secateur.cli.options import Json, command


@command
def bench(
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help='Rows of {"query", "passages": [text, …]}, .jsonl or .jsonl.xz. '
            "Default: a small workload that ships with the package.",
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="The first N queries. Default: all.")
    ] = None,
    rounds: Annotated[int, typer.Option(metavar="N", min=1, help="Rounds of timing.")] = 5,
    json_output: Json = False,
    record: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the JSON to this file.")
    ] = None,
) -> None:
    """Measure speed: engine and server beside a CrossEncoder and the plain way to prune."""
    with extra_needed("bench"):
        from secateur.bench.run import Bench
    from secateur.bench.report import render
    from secateur.bench.workload import builtin_workload, read_workload
    from secateur.cli.demo import sigterm_unwinds

    if record is not None:
        check_output("--record", record)
    if data is None:
        workload = builtin_workload(limit)
    else:
        with faults_of(data):
            workload = read_workload(data, limit)
    with faults_of(data or Path(workload.name)):
        run = Bench(workload, rounds=rounds, tell=lambda line: typer.echo(line, err=True))
    with sigterm_unwinds():
        measured = run.run()
    text = json.dumps(measured, indent=2, allow_nan=False)
    if json_output:
        typer.echo(text)
    else:
        from secateur._render import console_for_output

        render(console_for_output(), measured)
    if record is not None:  # at last: what was measured for minutes must not be lost to a full disk
        record.write_text(text + "\n", encoding="utf-8")
