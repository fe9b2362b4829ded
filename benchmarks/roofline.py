"""Where the time of one engine call goes, and how fast its linear layers are.

    python benchmarks/roofline.py [--dtype MODE] [--record FILE]

Profiles one call with 20 passages of mixed length on one thread, so that the time of an operation
is that of a core. Groups operations by what they are for, in percent of the call. Linear layers:
their products' arithmetic over the time of these operations (in int8 with the rounding), beside
plain float32 ``torch.mm`` of the same shapes. Profiling itself takes time, so ``call_ms`` is of the
same call without it.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from secateur.bench.machine import commit, machine
from secateur.bench.ours import OPTIONS
from secateur.bench.timing import digits
from secateur.bench.workload import builtin_workload
from secateur.model import kernels
from secateur.model.pruner import Pruner

PRODUCTS = ("aten::addmm", "aten::mm", "aten::_int_mm")
"""Operations with two matrices [rows, inputs] and [inputs, outputs] among their inputs."""

KERNEL = "kernel "
"""What the names of our own compiled loops begin with in a profile."""

GROUPS: Mapping[str, tuple[str, ...]] = {
    "linear layers": (*PRODUCTS, "aten::linear", "kernel quantize", "kernel dequantize"),
    "attention: products": ("aten::bmm", "aten::baddbmm"),
    "attention: position terms and softmax": (
        "kernel biased_softmax",
        "aten::gather",
        "aten::softmax",
        "aten::_softmax",
        "aten::masked_fill",
        "aten::masked_fill_",
    ),
    "layer norms": ("aten::layer_norm", "aten::native_layer_norm"),
    "activation": ("aten::gelu", "aten::gelu_"),
    "embeddings": ("aten::embedding", "aten::index_select"),
    "copies and casts": (
        "aten::copy_",
        "aten::_to_copy",
        "aten::to",
        "aten::cat",
        "aten::stack",
        "aten::clone",
        "aten::contiguous",
        "aten::add",
        "aten::add_",
    ),
}
OTHER, OUTSIDE = "other operations", "outside of operations: splitting, tokenising, assembling"

CALLS = 5


@contextmanager
def annotated_kernels() -> Iterator[None]:
    """Let the profiler see our own compiled loops."""
    originals = {name: item for name, item in vars(kernels).items() if hasattr(item, "py_func")}

    def annotated(name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            with record_function(KERNEL + name):
                return kernel(*arguments)

        return run

    try:
        for name, kernel in originals.items():
            setattr(kernels, name, annotated(name, kernel))
        yield
    finally:
        for name, kernel in originals.items():
            setattr(kernels, name, kernel)


def shares(microseconds: Mapping[str, float], wall: float) -> dict[str, float]:
    """Percent of ``wall`` by group, largest first; the rest of it is outside of operations.

    A loop of ours that stands in no group is a group of its own.
    """
    group_of = {name: group for group, names in GROUPS.items() for name in names}
    sums = Counter[str]()
    for name, time_ in microseconds.items():
        other = name if name.startswith(KERNEL) else OTHER
        sums[group_of.get(name, other)] += time_  # type: ignore[assignment]
    sums[OUTSIDE] = wall - sum(microseconds.values())  # type: ignore[assignment]
    return {group: round(100 * part / wall, 1) for group, part in sums.most_common()}


def plain_seconds(shape: tuple[int, int, int]) -> float:
    """The median time of a float32 ``torch.mm`` of [rows, inputs] and [inputs, outputs]."""
    rows, inputs, outputs = shape
    left, right = torch.randn(rows, inputs), torch.randn(inputs, outputs)
    times = []
    for _ in range(CALLS):
        began = time.perf_counter()
        torch.mm(left, right)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def measure(dtype: str) -> dict[str, Any]:
    """Load the model on one thread, time a call, profile it."""
    pruner = Pruner.load(dtype=dtype, num_threads=1)
    first, second = builtin_workload(2).queries
    passages = (*first.passages, *second.passages)
    times = []
    for _ in range(CALLS):
        began = time.perf_counter()
        answer = pruner.rerank_and_prune(first.text, passages, OPTIONS)
        times.append(time.perf_counter() - began)
    cpu = [ProfilerActivity.CPU]
    with annotated_kernels(), profile(activities=cpu, record_shapes=True) as profiled:
        began = time.perf_counter()
        pruner.rerank_and_prune(first.text, passages, OPTIONS)
        wall = 1e6 * (time.perf_counter() - began)
    by_name = {event.key: event.self_cpu_time_total for event in profiled.key_averages()}
    shapes = Counter[tuple[int, int, int]]()
    for event in profiled.key_averages(group_by_input_shape=True):
        if event.key in PRODUCTS:
            matrices = [shape for shape in event.input_shapes if len(shape) == 2]
            left, right = next(pair for pair in pairwise(matrices) if pair[0][1] == pair[1][0])
            shapes[left[0], left[1], right[1]] += event.count
    work = sum(2 * math.prod(shape) * count for shape, count in shapes.items())
    ours = sum(by_name.get(name, 0.0) for name in GROUPS["linear layers"]) / 1e6
    plain = sum(plain_seconds(shape) * count for shape, count in shapes.items())
    return {
        "machine": {**machine(), "torch": torch.__version__, "threads": 1},
        "commit": commit(),
        "model": f"{pruner.info.id}@{pruner.info.revision}",
        "mode": pruner.info.dtype,
        "passages": len(passages),
        "tokens": answer.usage.input_tokens,
        "call_ms": digits(1_000 * statistics.median(times)),
        "percent_of_a_profiled_call": shares(by_name, wall),
        "linear_layers": {
            "gflop": digits(work / 1e9),
            "gflop_per_second": digits(work / ours / 1e9),
            "plain_float32_mm_gflop_per_second": digits(work / plain / 1e9),
            "share_of_plain": digits(plain / ours),
        },
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Where the time of a call goes.")
    parser.add_argument("--dtype", default="auto", help="the mode")
    parser.add_argument("--record", type=Path, help="also write the JSON record to this file")
    options = parser.parse_args(arguments)
    text = json.dumps(measure(options.dtype), indent=2)
    print(text)
    if options.record is not None:
        options.record.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
