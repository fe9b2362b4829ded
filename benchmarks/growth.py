"""How cost grows: with passages a call, words a passage, and callers of a server.

    python benchmarks/growth.py [--dtype MODE] [--rounds 3] [--record FILE] [--plots FOLDER]
    python benchmarks/growth.py --from RECORD --plots FOLDER

Passages and words: one call of the engine in this process, the points in turns, medians of the
rounds. Callers: closed-loop, in a process of their own that shares the cores with the server; each
call has five passages of 100 words, and the server's result cache is off. ``--plots`` writes
``growth-*.svg``; with ``--from`` it draws an earlier record and measures nothing.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from secateur.bench.machine import commit, machine
from secateur.bench.ours import OPTIONS
from secateur.bench.serverprocess import ServerProcess
from secateur.bench.serving import SMALL_PASSAGES, SMALL_WORDS, call_in_process, message_of
from secateur.bench.timing import Spread, digits, percentile
from secateur.bench.workload import QUERIES, Query, passages_of_words
from secateur.model.pruner import Pruner
from secateur.server.cpus import available_cpus

PASSAGES = (1, 2, 5, 10, 20, 50, 100)
WORDS = (50, 100, 200, 500, 1_000, 2_000, 6_000)
CALLERS = (1, 2, 4, 8, 16, 32)
CALLS_A_CALLER, FEWEST_CALLS = 2, 16


def measure_calls(
    pruner: Pruner, points: Mapping[int, Sequence[str]], rounds: int
) -> list[dict[str, Any]]:
    """One call with each point's passages, in turns: its milliseconds and tokens."""
    times: dict[int, list[float]] = {size: [] for size in points}
    tokens: dict[int, int] = {}
    for passages in points.values():
        pruner.rerank_and_prune(QUERIES[0], passages[:5], OPTIONS)  # warm up
    for _ in range(rounds):
        for size, passages in points.items():
            began = time.perf_counter()
            answer = pruner.rerank_and_prune(QUERIES[0], passages, OPTIONS)
            times[size].append(1_000 * (time.perf_counter() - began))
            tokens[size] = answer.usage.input_tokens
    return [
        {"size": size, "tokens": tokens[size], "ms": Spread.of(times[size]).to_json()}
        for size in points
    ]


def measure_callers(server: ServerProcess, rounds: int) -> list[dict[str, Any]]:
    """So many callers at a time: passages a second, and the time of a call."""
    passages = tuple(passages_of_words(SMALL_PASSAGES, SMALL_WORDS))
    message = message_of(Query(QUERIES[0], passages, "growth"))
    rates: dict[int, list[float]] = {callers: [] for callers in CALLERS}
    times: dict[int, list[float]] = {callers: [] for callers in CALLERS}
    for _ in range(rounds):
        for callers in CALLERS:
            count = max(FEWEST_CALLS, CALLS_A_CALLER * callers)
            calls = call_in_process(server.target, [message] * count, callers)
            rates[callers].append(calls.passages / calls.seconds)
            times[callers] += [1_000 * seconds for seconds in calls.call_seconds]
    return [
        {
            "size": callers,
            "passages_per_second": Spread.of(rates[callers]).to_json(),
            "p50_ms": digits(percentile(times[callers], 50)),
            "p95_ms": digits(percentile(times[callers], 95)),
        }
        for callers in CALLERS
    ]


def measure(dtype: str, rounds: int) -> dict[str, Any]:
    """Load the model, start a server, and measure all three."""
    threads = available_cpus()
    pruner = Pruner.load(dtype=dtype, num_threads=threads)
    mode = pruner.info.dtype
    hundred = passages_of_words(max(PASSAGES), SMALL_WORDS)
    by_passages = measure_calls(pruner, {n: hundred[:n] for n in PASSAGES}, rounds)
    by_words = measure_calls(pruner, {n: passages_of_words(1, n) for n in WORDS}, rounds)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "server.log")
        with ServerProcess(log, dtype=mode, threads=threads, cache_bytes=0) as server:
            server.start()
            server.wait_until_ready()
            by_callers = measure_callers(server, rounds)
            server.stop()
    return {
        "machine": {**machine(), "torch": torch.__version__, "threads": threads},
        "commit": commit(),
        "model": f"{pruner.info.id}@{pruner.info.revision}",
        "mode": mode,
        "rounds": rounds,
        "passages": by_passages,
        "words": by_words,
        "callers": by_callers,
    }


def draw(record: Mapping[str, Any], folder: Path) -> None:
    """Write the three plots into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    where = f"{record['mode']}, {record['machine']['cores']} cores"

    def time_of_a_call(axes: Axes, points: Sequence[Mapping[str, Any]]) -> None:
        middle = [point["ms"]["median"] for point in points]
        below = [m - point["ms"]["min"] for m, point in zip(middle, points, strict=True)]
        above = [point["ms"]["max"] - m for m, point in zip(middle, points, strict=True)]
        axes.errorbar([p["size"] for p in points], middle, [below, above], marker="o", capsize=3)
        axes.set(ylabel="milliseconds a call", yscale="log")

    def callers(axes: Axes, points: Sequence[Mapping[str, Any]]) -> None:
        sizes = [point["size"] for point in points]
        rates = [point["passages_per_second"]["median"] for point in points]
        (line,) = axes.plot(sizes, rates, "o-", label="passages a second")
        axes.set(ylabel="passages a second", ylim=(0, None))
        right = axes.twinx()
        for name, colour in (("p50_ms", "C1"), ("p95_ms", "C2")):
            right.plot(sizes, [p[name] for p in points], "s--", color=colour, label=name[:3])
        right.set(ylabel="milliseconds a call", yscale="log")
        axes.legend(handles=[line, *right.get_lines()], loc="lower right")

    plots: dict[str, tuple[str, Callable[[Axes, Sequence[Mapping[str, Any]]], None]]] = {
        "passages": (f"passages of {SMALL_WORDS} words in one call", time_of_a_call),
        "words": ("words of one passage", time_of_a_call),
        "callers": (
            f"callers at a time, {SMALL_PASSAGES} passages of {SMALL_WORDS} words a call",
            callers,
        ),
    }
    for name, (label, plot) in plots.items():
        figure = Figure(figsize=(6.5, 4), layout="constrained")
        FigureCanvasAgg(figure)  # draws without any display
        axes = figure.subplots()
        plot(axes, record[name])
        axes.set(xlabel=label, title=where, xscale="log")
        sizes = [point["size"] for point in record[name]]
        axes.set_xticks(sizes, [f"{size:,}" for size in sizes], minor=False)
        axes.set_xticks([], minor=True)
        axes.grid(alpha=0.3)
        # The same numbers give the same file: no date, no random ids. Text stays text: small files.
        with rc_context({"svg.hashsalt": "secateur", "svg.fonttype": "none"}):
            figure.savefig(folder / f"growth-{name}.svg", metadata={"Date": None})


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Cost over passages, words and callers.")
    parser.add_argument("--dtype", default="auto", help="the mode")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--record", type=Path, help="also write the JSON record to this file")
    parser.add_argument("--plots", type=Path, help="folder for the plots")
    parser.add_argument("--from", dest="earlier", type=Path, help="a record to draw")
    options = parser.parse_args(arguments)
    if options.earlier is not None:
        record = json.loads(options.earlier.read_text(encoding="utf-8"))
    else:
        record = measure(options.dtype, options.rounds)
        text = json.dumps(record, indent=2)
        print(text)
        if options.record is not None:
            options.record.write_text(text + "\n", encoding="utf-8")
    if options.plots is not None:
        draw(record, options.plots)


if __name__ == "__main__":
    main()
