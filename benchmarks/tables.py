"""Puts the records' numbers into docs/performance.md, so that it has none that was not measured.

    python benchmarks/tables.py [--check]

Fills what stands between ``<!-- NAME -->`` and ``<!-- end -->`` from the files in ``records/``;
where a record is missing, "TO BE MEASURED". With ``--check`` it writes nothing and fails when the
document differs.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from secateur.bench.report import MODE_ROWS

ROOT = Path(__file__).resolve().parents[1]
RECORDS = ROOT / "benchmarks" / "records"
DOCUMENT = ROOT / "docs" / "performance.md"

MISSING = "TO BE MEASURED"
BUSY = 0.7
"""Share of a server's throughput that is planned with: above it, waiting grows fast."""

Record = Mapping[str, Any]

_BLOCK = re.compile(r"(<!-- (?!end )(\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table; all columns but the first are right-aligned."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(map(number, line))} |" for line in lines)


def number(value: object) -> str:
    """Three significant digits at least, thousands with commas."""
    if value is None:
        return "–"
    if not isinstance(value, float | int):
        return str(value)
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def place(bench: Record) -> str:
    """Where the numbers come from."""
    machine = bench["machine"]
    return (
        f"{machine['cpu']}, {machine['cores']} cores, torch {machine['torch']}, "
        f"{machine['threads']} threads; commit {bench['commit']}, model `{bench['model']}`; "
        f"{bench['queries']} queries, {bench['passages']} passages, {bench['rounds']} rounds; "
        f"default mode {bench['mode']}."
    )


def speed(bench: Record) -> str:
    """One call a query."""
    return _rates(bench["one_call_a_query"])


def together(bench: Record) -> str:
    """Many queries in one call."""
    sides = dict(bench["all_queries_in_one_call"])
    queries = sides.pop("queries")
    return f"{queries} queries in one call:\n\n{_rates(sides)}"


def modes(bench: Record) -> str:
    """Every mode beside its opponents and its reference."""
    names = list(bench["modes"])
    rows = [
        [title, *(bench["modes"][mode].get(key, "does not run here") for mode in names)]
        for key, title in MODE_ROWS.items()
    ]
    return table(["", *names], rows)


def server(bench: Record) -> str:
    """The server under callers."""
    rows: list[list[object]] = []
    for mode, figures in bench["server"].items():
        if mode == "request_passages":
            continue
        loop = figures["in_process_loop"]
        rows.append([f"{mode}, loop in process", *_spread(loop), None, None])
        for count, calls in figures["callers"].items():
            rate = _spread(calls["passages_per_second"])
            rows.append([f"{mode}, callers: {count}", *rate, calls["p50_ms"], calls["p95_ms"]])
    return table(["", "passages/s", "min", "max", "p50 ms", "p95 ms"], rows)


def small(bench: Record) -> str:
    """A small request through the server."""
    call = bench["small_request"]
    return (
        f"{call['passages']} passages of {call['words']} words, {call['repeats']} times in turns "
        f"({call['mode']}): engine {number(call['engine_ms'])} ms, server "
        f"{number(call['server_ms'])} ms; the server adds {number(call['added_ms'])} ms."
    )


def growth(record: Record) -> str:
    """Calls by size."""
    rows: list[list[object]] = []
    for name, unit in (("passages", "passages of 100 words"), ("words", "words of one passage")):
        for point in record[name]:
            milliseconds = point["ms"]
            per_token = 1_000 * milliseconds["median"] / point["tokens"]
            rows.append([f"{unit}: {point['size']:,}", *_spread(milliseconds), per_token])
    return table([f"{record['mode']}", "ms a call", "min", "max", "µs a token"], rows)


def sizing(record: Record) -> str:
    """What one server of this machine answers."""
    full = record["callers"][-1]["passages_per_second"]["median"]
    rows = [
        [point["size"], point["ms"]["median"], BUSY * full / point["size"]]
        for point in record["passages"]
    ]
    head = ["passages of 100 words a call", "ms alone", f"calls/s at {BUSY:.0%} load"]
    return table(head, rows)


def profile(records: Sequence[Record]) -> str:
    """Groups of operations, a column a mode."""
    groups = list(dict.fromkeys(g for r in records for g in r["percent_of_a_profiled_call"]))
    rows: list[list[object]] = [
        [group, *(r["percent_of_a_profiled_call"].get(group, 0) for r in records)]
        for group in groups
    ]
    linear = [r["linear_layers"] for r in records]
    rows += [
        ["linear layers, GFLOP/s", *(line["gflop_per_second"] for line in linear)],
        [
            "plain float32 `torch.mm` of the same shapes, GFLOP/s",
            *(line["plain_float32_mm_gflop_per_second"] for line in linear),
        ],
    ]
    return table(["% of a call on one thread", *(r["mode"] for r in records)], rows)


def memory(record: Record) -> str:
    """A server under many mixed requests."""
    sizes = record["memory_mib"]
    calls = sum(sum(ends.values()) for ends in record["calls"].values())
    return (
        f"{calls:,} mixed requests by {record['callers']} callers: "
        f"{number(sizes['after_warm_up'])} MiB after the warm-up, "
        f"{number(sizes['at_the_end'])} MiB at the end ({sizes['growth']:+.1%}). "
        f"Problems found: {len(record['problems'])}."
    )


def _rates(sides: Mapping[str, Any]) -> str:
    rows = [
        [name, *_spread(rates["passages_per_second"]), rates["tokens_per_second"]["median"]]
        for name, rates in sides.items()
    ]
    return table(["", "passages/s", "min", "max", "tokens/s"], rows)


def _spread(spread: Mapping[str, float]) -> tuple[float, float, float]:
    return spread["median"], spread["min"], spread["max"]


BLOCKS: Mapping[str, tuple[str, Callable[[Any], str]]] = {
    "machine": ("bench.json", place),
    "speed": ("bench.json", speed),
    "together": ("bench.json", together),
    "modes": ("bench.json", modes),
    "server": ("bench.json", server),
    "small": ("bench.json", small),
    "growth": ("growth.json", growth),
    "sizing": ("growth.json", sizing),
    "profile": ("roofline-*.json", profile),
    "memory": ("soak.json", memory),
}
"""By name in the document: the record (a pattern gives all that fit), and what makes the text."""


def filled(document: str) -> str:
    """The document with every block made anew. Raises KeyError for an unknown one."""

    def fill(match: re.Match[str]) -> str:
        pattern, make = BLOCKS[match[2]]
        records = [
            json.loads(path.read_text(encoding="utf-8")) for path in sorted(RECORDS.glob(pattern))
        ]
        text = MISSING
        if records:
            text = make(records if "*" in pattern else records[0])
        return f"{match[1]}\n{text}\n\n{match[3]}"

    return _BLOCK.sub(fill, document)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Numbers of the records into the document.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if it differs")
    options = parser.parse_args(arguments)
    before = DOCUMENT.read_text(encoding="utf-8")
    after = filled(before)
    if options.check:
        return int(before != after)
    DOCUMENT.write_text(after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
