"""The record as tables for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

_NOT_RATES = ("queries",)

MODE_ROWS: Final = {
    "speedup_vs_crossencoder": "× CrossEncoder, batches of 32",
    "speedup_vs_crossencoder_batch_1": "× CrossEncoder, batches of 1",
    "speedup_vs_process": "× process()",
    "server_efficiency": "server ÷ loop in process",
    "reference": "compared with",
    "equal_decisions": "equal decisions",
    "equal_top10": "equal top 10",
    "max_logit_difference": "largest logit difference",
    "p50_ms": "p50 of a query, ms",
    "p95_ms": "p95 of a query, ms",
    "peak_memory_mb": "peak memory, MiB",
}
"""What is shown of each mode: keys of the record's ``modes``, and their titles."""


def render(console: Console, record: Mapping[str, Any]) -> None:
    """Print what ``secateur bench`` recorded."""
    machine = record["machine"]
    console.print(
        Text(
            f"{record['model']} at {record['commit']}, {machine['cpu']}, {machine['cores']} cores, "
            f"{machine['threads']} threads, torch {machine['torch']}\n"
            f"{record['data']}: {record['queries']} queries, {record['passages']:,} passages, "
            f"{record['rounds']} rounds",
            style="dim",
        )
    )
    _rates(console, "One call a query", record["one_call_a_query"])
    together = record["all_queries_in_one_call"]
    _rates(console, f"{together['queries']} queries in one call", together)
    _modes(console, record["modes"])
    _server(console, record["server"])
    small = record["small_request"]
    console.print(
        f"Small request ({small['mode']}, {small['repeats']} times): engine "
        f"{small['engine_ms']:g} ms, server {small['server_ms']:g} ms, added "
        f"{small['added_ms']:g} ms"
    )
    for name, note in record["notes"].items():
        console.print(Text(f"{name}: {note}", style="dim"))


def _rates(console: Console, title: str, sides: Mapping[str, Any]) -> None:
    table = _table(title, "", "passages/s", "min", "max", "tokens/s")
    for name, rates in sides.items():
        if name not in _NOT_RATES:
            passages, tokens = rates["passages_per_second"], rates["tokens_per_second"]
            table.add_row(name, *_spread(passages), f"{tokens['median']:,.0f}")
    console.print(table)


def _modes(console: Console, modes: Mapping[str, Mapping[str, Any]]) -> None:
    runs = {mode: figures for mode, figures in modes.items() if "unavailable" not in figures}
    table = _table("Modes", "", *runs)
    for key, title in MODE_ROWS.items():
        table.add_row(title, *(_value(figures[key]) for figures in runs.values()))
    console.print(table)
    for mode, figures in modes.items():
        if "unavailable" in figures:
            console.print(Text(f"{mode} does not run here: {figures['unavailable']}"))


def _server(console: Console, server: Mapping[str, Any]) -> None:
    title = f"Server, requests of {server['request_passages']} passages"
    table = _table(title, "", "passages/s", "min", "max", "p50 ms", "p95 ms")
    for mode, figures in server.items():
        if mode == "request_passages":
            continue
        table.add_row(f"{mode}, loop in process", *_spread(figures["in_process_loop"]), "", "")
        for count, calls in figures["callers"].items():
            times = (_value(calls["p50_ms"]), _value(calls["p95_ms"]))
            table.add_row(
                f"{mode}, callers: {count}", *_spread(calls["passages_per_second"]), *times
            )
    console.print(table)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, justify="left" if not column else "right")
    return table


def _spread(spread: Mapping[str, float]) -> tuple[str, str, str]:
    return _value(spread["median"]), _value(spread["min"]), _value(spread["max"])


def _value(value: float | str | None) -> str:
    if value is None:
        return "–"
    return value if isinstance(value, str) else f"{value:.4g}"
