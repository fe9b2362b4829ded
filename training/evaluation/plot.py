"""The trade of a threshold as a picture: precision, recall, F1 and compression."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from secateur.training.evaluation.prune import PruneResult
from secateur.training.evaluation.sweep import SweepPoint


def draw(path: Path, points: Sequence[SweepPoint], result: PruneResult, title: str) -> None:
    """Write the curves of the result's keep rule to ``path``, a PNG or SVG by its ending.

    Left: each number over the threshold, with the one that applies as a line. Right: precision
    and recall over compression, with BM25 and keeping everything as points. ``points`` may hold
    other rules too. Raises OSError when the file cannot be written.
    """
    points = [point for point in points if point.keep_rule == result.keep_rule]
    # Where nothing right is kept, precision says nothing: the curve ends there.
    curves = {
        "precision": [point.precision if point.recall else np.nan for point in points],
        "recall": [point.recall for point in points],
        "F1": [point.f1 for point in points],
        "compression": [point.compression for point in points],
    }
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    FigureCanvasAgg(figure)  # draws without any display
    left, right = figure.subplots(1, 2, sharey=True)
    figure.suptitle(title)

    thresholds = [point.threshold for point in points]
    for name, values in curves.items():
        left.plot(thresholds, values, label=name)
    left.axvline(result.threshold, color="grey", linestyle=":")
    left.set(xlabel=f"threshold ({result.keep_rule.value})", xlim=(0, 1), ylim=(0, 1.02))
    left.legend()

    for name, colour in (("precision", "C0"), ("recall", "C1")):
        right.plot(curves["compression"], curves[name], colour, label=name)
        for baseline, marker in (("keep everything", "o"), ("bm25", "s")):
            measured = getattr(result.overall, baseline.replace(" ", "_"))
            right.plot(
                measured.compression,
                getattr(measured.strict, name),
                colour + marker,
                label=f"{name}, {baseline.replace('bm25', 'BM25')}",
            )
    right.set(xlabel="compression (share of characters dropped)", xlim=(-0.02, 1.02))
    right.legend()
    for axes in (left, right):
        axes.grid(alpha=0.3)
    # The same numbers give the same file: no date, no random ids.
    with rc_context({"svg.hashsalt": "secateur"}):
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
