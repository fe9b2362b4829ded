"""Passages a second: the engine beside sentence-transformers' CrossEncoder, same encoder.

    python benchmarks/speed.py --data FILE [--limit N] [--rounds R] [--record FILE]

FILE: JSON Lines (``.jsonl`` or ``.xz``) of {"query", "passages": [text, …]}. Both sides get
one call a query, in float32 on the CPU; rounds alternate in one process and the medians are
compared, so that only the ratio means something. The CrossEncoder only reranks and cuts a
passage at 512 tokens; the engine also prunes, and reads long passages to their end. It runs with
batches of 32, its default, and of 1, which on a CPU can be much faster: no padding, and
activations that stay in the caches.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from safetensors.torch import load_file, save_file
from workload import commit, machine

from secateur.model.checkpoints.source import resolve
from secateur.model.pruner import Pruner
from secateur.training.data import read_rows

Workload = list[tuple[str, list[str]]]


def load_cross_encoder(checkpoint: Path, folder: Path) -> Any:
    """A CrossEncoder with the same encoder and score head, in float32."""
    from sentence_transformers import CrossEncoder

    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    config["architectures"] = ["DebertaV2ForSequenceClassification"]
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    state = load_file(checkpoint / "model.safetensors")
    state = {k: v.float() for k, v in state.items() if not k.startswith("token_classifier.")}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "tokenizer.json").write_bytes((checkpoint / "tokenizer.json").read_bytes())
    special = {f"{name}_token": f"[{name.upper()}]" for name in ("cls", "sep", "pad", "unk")}
    tokenizer = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 512,
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        **special,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    return CrossEncoder(str(folder), max_length=512, device="cpu")


def measure(
    sides: dict[str, Callable[[str, list[str]], object]], workload: Workload, rounds: int
) -> dict[str, list[float]]:
    """Passages a second of each side, by round; sides alternate within a round."""
    passages = sum(len(texts) for _, texts in workload)
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for call in sides.values():
        call(*workload[0])  # warm up
    for _ in range(rounds):
        for name, call in sides.items():
            began = time.perf_counter()
            for query, texts in workload:
                call(query, texts)
            rates[name].append(passages / (time.perf_counter() - began))
    return rates


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Engine beside CrossEncoder, one run.")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=0, help="first N queries; 0 takes all")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--record", type=Path, help="also write the JSON record to this file")
    parser.add_argument("--json", action="store_true", help="print only JSON")
    options = parser.parse_args(arguments)

    rows = list(read_rows(options.data))[: options.limit or None]
    workload: Workload = [(row["query"], list(row["passages"])) for row in rows]
    pruner = Pruner.load()
    with tempfile.TemporaryDirectory() as folder:
        encoder = load_cross_encoder(resolve().folder, Path(folder))

        def predict(query: str, texts: list[str], size: int) -> object:
            pairs = [(query, text) for text in texts]
            return encoder.predict(pairs, batch_size=size, show_progress_bar=False)

        rates = measure(
            {
                "cross_encoder": lambda query, texts: predict(query, texts, 32),
                "cross_encoder_batch_1": lambda query, texts: predict(query, texts, 1),
                "engine_float32": pruner.rerank_and_prune,
            },
            workload,
            options.rounds,
        )
    medians = {name: statistics.median(values) for name, values in rates.items()}
    record = {
        "machine": {
            **machine(),
            "torch": torch.__version__,
            "torch_threads": torch.get_num_threads(),
        },
        "commit": commit(),
        "model": f"{pruner.info.id}@{pruner.info.revision}",
        "queries": len(workload),
        "passages": sum(len(texts) for _, texts in workload),
        "rounds": options.rounds,
        "passages_per_second": {
            name: {
                "median": round(medians[name], 2),
                "min": round(min(values), 2),
                "max": round(max(values), 2),
            }
            for name, values in rates.items()
        },
        "speedup_vs_crossencoder": round(medians["engine_float32"] / medians["cross_encoder"], 3),
        "speedup_vs_crossencoder_batch_1": round(
            medians["engine_float32"] / medians["cross_encoder_batch_1"], 3
        ),
    }
    text = json.dumps(record, indent=2)
    if options.record:
        options.record.write_text(text + "\n", encoding="utf-8")
    if options.json:
        print(text)
        return
    table = Table(title=f"{record['passages']} passages, {len(workload)} queries, float32")
    for column in ("", "passages/s (median)", "min", "max"):
        table.add_column(column, justify="left" if not column else "right")
    for name, values in rates.items():
        table.add_row(name, f"{medians[name]:.1f}", f"{min(values):.1f}", f"{max(values):.1f}")
    console = Console()
    console.print(table)
    console.print(f"engine ÷ CrossEncoder, batch 32: {record['speedup_vs_crossencoder']}")
    console.print(f"engine ÷ CrossEncoder, batch 1: {record['speedup_vs_crossencoder_batch_1']}")


if __name__ == "__main__":
    main()
