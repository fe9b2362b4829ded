"""A run's record: metrics.jsonl, one line every few steps, and its plot."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from secateur.training.data import read_rows


def append_record(path: Path, record: dict[str, Any]) -> None:
    """Add one line. Keys: ``step``, ``seconds``, ``loss`` and its unweighted parts."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


def truncate_records(path: Path, step: int) -> None:
    """Drop the lines after ``step``: a resumed run repeats them."""
    if path.exists():
        kept = [record for record in read_rows(path) if record["step"] <= step]
        path.write_text("".join(json.dumps(record) + "\n" for record in kept), encoding="utf-8")


def plot_records(path: Path, image: Path) -> None:
    """Draw every loss of metrics.jsonl over the steps; does nothing before the first line."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    records = list(read_rows(path)) if path.exists() else []
    if not records:
        return
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    steps = [record["step"] for record in records]
    names = sorted({key for record in records for key in record} - {"step", "seconds"})
    for name in names:
        width = 2.0 if name == "loss" else 1.0
        values = [record.get(name, math.nan) for record in records]
        axes.plot(steps, values, label=name, linewidth=width)
    axes.set_xlabel("step")
    axes.set_ylabel("loss")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(image, dpi=120)
