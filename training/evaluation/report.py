"""Results for people, as tables. Text of the data never reaches the terminal raw."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from secateur._render import printable
from secateur.training.evaluation.compare import Comparison
from secateur.training.evaluation.items import Item
from secateur.training.evaluation.prune import Breakdown, Measurement, PruneResult
from secateur.training.evaluation.ranking import RECALL_DEPTHS
from secateur.training.evaluation.rerank import RerankResult

_PRUNE_COLUMNS = ("F1", "P", "R", "F2", "lenient F1", "macro F1")
_SAVED_COLUMNS = ("chars cut", "tokens cut")


def print_prune(console: Console, result: PruneResult, heading: str) -> None:
    """The numbers beside the baselines, over all rows and by kind."""
    console.print(Text(printable(heading), style="bold"))
    low, high = result.interval
    console.print(
        f"rule {result.keep_rule.value}, threshold {result.threshold:g}; F1 {result.f1:.3f}, "
        f"95 % interval {low:.3f} to {high:.3f} over {result.documents:,} documents"
    )
    has_answers = result.overall.model.answer_kept is not None
    columns = (*_PRUNE_COLUMNS, *_SAVED_COLUMNS, *(("answers",) if has_answers else ()))
    table = _table(("", *columns))
    _add(table, "all rows", result.overall)
    for kind, part in result.by_kind.items():
        table.add_section()
        _add(table, f"kind {kind}" if kind else "no kind", part)
    console.print(table)


def print_worst(console: Console, items: Sequence[Item]) -> None:
    """The worst items with the texts of their mistakes."""
    if items:
        console.print(Text(f"\nThe {len(items)} worst items", style="bold"))
    for item in items:
        _print_item(console, item, f"F1 {item.f1:.3f}")


def print_comparison(console: Console, comparison: Comparison) -> None:
    """The change since the baseline, and every item that got worse."""
    console.print(Text(f"\nAgainst {printable(comparison.baseline)}", style="bold"))
    console.print(
        f"F1 {comparison.baseline_f1:.3f} → {comparison.baseline_f1 - comparison.f1_drop:.3f}; "
        f"change by item: min {comparison.least:+.3f}, max {comparison.greatest:+.3f}, "
        f"mean {comparison.mean:+.3f}; {len(comparison.worse)} got worse"
    )
    for pair in comparison.worse:
        _print_item(console, pair.now, f"F1 {pair.before:.3f} → {pair.now.f1:.3f}")


def print_rerank(console: Console, result: RerankResult, heading: str) -> None:
    """The rankings side by side."""
    console.print(Text(printable(heading), style="bold"))
    low, high = result.interval
    console.print(
        f"nDCG@10 {result.model.ndcg_at_10:.3f}, 95 % interval {low:.3f} to {high:.3f} over "
        f"{result.queries:,} queries"
    )
    table = _table(("", "nDCG@10", "MRR", *(f"recall@{depth}" for depth in RECALL_DEPTHS)))
    for name, scores in (("model", result.model), *result.baselines.items()):
        numbers = (scores.ndcg_at_10, scores.mrr, *scores.recall.values())
        table.add_row(name.replace("_", " "), *(f"{number:.3f}" for number in numbers))
    console.print(table)


def _table(columns: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left", no_wrap=not index)
    return table


def _add(table: Table, name: str, part: Breakdown) -> None:
    table.add_row(Text(printable(f"{name} ({part.items:,})"), style="bold"))
    for label, measured in (
        ("model", part.model),
        ("BM25, best", part.bm25),
        ("keep everything", part.keep_everything),
    ):
        table.add_row(f"  {label}", *list(_cells(measured))[: len(table.columns) - 1])


def _cells(measured: Measurement) -> Iterator[str]:
    strict = measured.strict
    for number in (strict.f1, strict.precision, strict.recall, strict.f2):
        yield f"{number:.3f}"
    yield f"{measured.lenient.f1:.3f}"
    yield f"{measured.macro.f1:.3f}"
    yield f"{measured.compression:.1%}"
    yield f"{measured.token_compression:.1%}"
    yield "-" if measured.answer_kept is None else f"{measured.answer_kept:.1%}"


def _print_item(console: Console, item: Item, score: str) -> None:
    console.print()
    console.print(Text(f"{score}  {_line(item.id)}  {_line(item.question)}"))
    for label, texts in (("dropped", item.dropped), ("kept", item.wrongly_kept)):
        for text in texts:
            console.print(Text(f"  wrongly {label}: {_line(text)}", style="dim"))


def _line(text: str) -> str:
    return printable(" ".join(text.split()))
