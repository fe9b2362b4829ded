"""``secateur evaluate``: measure a model on a labelled set."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from secateur.cli.exits import BadInputError, extra_needed
from secateur.cli.labelled import Data, check_output, faults_of, load_pruner
from secateur.cli.options import Dtype, Json, Model, command
from secateur.errors import SecateurError, UnsupportedByModelError
from secateur.types import KeepRule, ModelInfo

if TYPE_CHECKING:
    from rich.console import Console

    from secateur.training.evaluation.sweep import SweepPoint

evaluate = typer.Typer(
    help="Measure pruning or reranking on a labelled set, beside trivial baselines.",
    no_args_is_help=True,
)

_PLOTS = (".png", ".svg")
_AGAINST = "Against an earlier run"


@dataclass(frozen=True, kw_only=True)
class PruneArguments:
    """What ``evaluate prune`` is given."""

    data: Data
    model: Model = None
    dtype: Dtype = None
    threshold: Annotated[float | None, typer.Option(help="From 0 to 1. Default: the model's.")] = (
        None
    )
    keep_rule: Annotated[
        KeepRule | None,
        typer.Option(case_sensitive=False, metavar="RULE", help="Default: the model's."),
    ] = None
    sweep: Annotated[
        bool,
        typer.Option("--sweep", help="Try thresholds 0.01 to 0.99 with every rule; use the best."),
    ] = False
    only_relevant: Annotated[
        bool, typer.Option("--only-relevant", help="Leave out rows that are not relevant.")
    ] = False
    baseline: Annotated[
        Path | None,
        typer.Option(
            metavar="RESULT", rich_help_panel=_AGAINST, help="JSON of an earlier run to compare."
        ),
    ] = None
    max_f1_drop: Annotated[
        float | None,
        typer.Option(
            rich_help_panel=_AGAINST,
            help="Exit with 1 when the F1 falls by more, from 0 to 1. Default: 0.",
        ),
    ] = None
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw precision, recall, compression as .png or .svg."),
    ] = None
    json_output: Json = False

    def check(self) -> None:
        """Raises BadInputError for options that are out of range or do not go together."""
        if self.sweep and self.threshold is not None:
            raise BadInputError("--sweep finds the threshold; leave --threshold out")
        if self.max_f1_drop is not None and self.baseline is None:
            raise BadInputError("--max-f1-drop needs --baseline")
        for name in ("threshold", "max_f1_drop"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:  # also refuses NaN
                option = name.replace("_", "-")
                raise BadInputError(f"--{option} is {value}, must be from 0 to 1")
        if self.plot is not None and self.plot.suffix not in _PLOTS:
            raise BadInputError(f"--plot {self.plot}: must end in {' or '.join(_PLOTS)}")
        if self.plot is not None:
            check_output("--plot", self.plot)


@evaluate.command()
@command
def prune(arguments: PruneArguments) -> None:
    """Measure which sentences are kept: precision, recall, F1, compression."""
    arguments.check()
    with extra_needed("train"):
        from secateur.training.evaluation.compare import compare, load_baseline
        from secateur.training.evaluation.prune import evaluate_prune
        from secateur.training.evaluation.rows import load_rows
        from secateur.training.evaluation.scoring import score_rows
        from secateur.training.evaluation.sweep import best, sweep
    data, baseline = arguments.data, None
    with faults_of(data):
        rows, skipped = load_rows(data, only_relevant=arguments.only_relevant)
    if not rows:
        raise BadInputError(f"{data}: no row to measure; {skipped} cannot be used")
    if arguments.baseline is not None:
        with faults_of(arguments.baseline):
            baseline = load_baseline(arguments.baseline, [row.id for row in rows])

    pruner = load_pruner(arguments.model, arguments.dtype)
    info = pruner.info
    rule, threshold = _defaults(arguments, info)
    scored = score_rows(pruner, rows)
    points: list[SweepPoint] = []
    if arguments.sweep:
        points = sweep(scored, (rule,) if arguments.keep_rule else info.keep_rules)
        rule, threshold = best(points).keep_rule, best(points).threshold
    result = evaluate_prune(scored, rule, threshold)
    comparison = compare(result, baseline, arguments.max_f1_drop or 0.0) if baseline else None
    if arguments.plot is not None:
        with extra_needed("train"):
            from secateur.training.evaluation.plot import draw
        draw(arguments.plot, sweep(scored, (rule,)), result, f"{info.id} on {data.name}")

    if arguments.json_output:
        from secateur.training.evaluation.result import prune_json

        _write(prune_json(result, _about(info, data, skipped), points, comparison))
    else:
        from secateur.training.evaluation import report

        console = _console()
        report.print_prune(console, result, _heading(info, data, len(rows), skipped))
        report.print_worst(console, result.worst)
        if comparison is not None:
            report.print_comparison(console, comparison)
    if comparison is not None and not comparison.passed:
        raise SecateurError(
            f"the F1 fell by {comparison.f1_drop:g} against {comparison.baseline}, more than "
            f"{comparison.max_f1_drop:g}"
        )


@evaluate.command()
@command
def rerank(
    *, data: Data, model: Model = None, dtype: Dtype = None, json_output: Json = False
) -> None:
    """Measure the order of passages that share a qid: nDCG@10, MRR, recall@k."""
    with extra_needed("train"):
        from secateur.training.evaluation.embedding import Embedder
        from secateur.training.evaluation.rerank import evaluate_rerank, load_queries
    with faults_of(data):
        queries, skipped = load_queries(data)
    if not queries:
        raise BadInputError(f"{data}: no question with a relevant passage; see qid in the docs")
    pruner = load_pruner(model, dtype)
    info = pruner.info
    result = evaluate_rerank(pruner, queries, Embedder().similarities)
    if json_output:
        _write(result.to_json(_about(info, data, skipped)))
    else:
        from secateur.training.evaluation import report

        heading = _heading(info, data, result.passages, skipped)
        report.print_rerank(_console(), result, heading)


def _defaults(arguments: PruneArguments, info: ModelInfo) -> tuple[KeepRule, float]:
    """The keep rule and threshold to measure where there is no sweep."""
    rule, threshold = info.default_keep_rule, info.default_threshold
    if rule is None or threshold is None:
        raise UnsupportedByModelError("--model", f"{info.id} cannot prune")
    if arguments.keep_rule is not None and arguments.keep_rule not in info.keep_rules:
        known = ", ".join(known.value for known in info.keep_rules)
        raise UnsupportedByModelError("--keep-rule", f"{info.id} supports {known}")
    return (
        arguments.keep_rule or rule,
        threshold if arguments.threshold is None else arguments.threshold,
    )


def _about(info: ModelInfo, data: Path, skipped: int) -> dict[str, Any]:
    """The keys of a result that say what was measured."""
    model = {"id": info.id, "revision": info.revision, "dtype": info.dtype}
    return {"skipped": skipped, "model": model, "data": str(data)}


def _heading(info: ModelInfo, data: Path, rows: int, skipped: int) -> str:
    return f"{info.id} on {data}: {rows:,} rows, {skipped:,} left out"


def _console() -> Console:
    from secateur._render import console_for_output

    return console_for_output()


def _write(result: dict[str, Any]) -> None:
    from secateur._json import write_json

    write_json(result, sys.stdout)
