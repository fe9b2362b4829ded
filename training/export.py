"""Turn a finished run, or the mean of several, into a checkpoint folder that ships.

    python -m secateur.training.export --run OUT/model [--run OUT2/model …] --to FOLDER \\
        --id NAME --threshold T --keep-rule RULE

Averaged runs should share a start and differ in seed, data order or data ("model soup",
arXiv 2203.05482); measure the mean before it replaces anything. Weights are rounded to
float16, which is what is then measured.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor

from secateur.types import KeepRule

_RUN_ONLY = ("_name_or_path", "dtype", "transformers_version", "architectures", "id2label")


def export(
    runs: Sequence[Path],
    to: Path,
    *,
    model_id: str,
    threshold: float,
    keep_rule: KeepRule,
    languages: Sequence[str] = ("en",),
    window_tokens: int = 512,
) -> None:
    """Write config.json, model.safetensors (float16) and tokenizer.json to ``to``.

    runs: folders that :func:`train` wrote, of the same shapes; their weights are averaged.
    Raises ValueError when keys or shapes differ.
    """
    to.mkdir(parents=True, exist_ok=True)
    run = runs[0]
    config = json.loads((run / "config.json").read_text(encoding="utf-8"))
    config = {key: value for key, value in config.items() if key not in _RUN_ONLY}
    config |= {
        "architectures": ["Provence"],
        "model_type": "deberta-v2",
        "num_labels": 1,
        "secateur": {
            "id": model_id,
            "family": "secateur",
            "languages": list(languages),
            "window_tokens": window_tokens,
            "default_threshold": threshold,
            "default_keep_rule": keep_rule.value,
        },
    }
    text = json.dumps(config, indent=2, sort_keys=True) + "\n"
    (to / "config.json").write_text(text, encoding="utf-8")
    state = {key: value.to(torch.float16).contiguous() for key, value in mean_state(runs).items()}
    save_file(state, to / "model.safetensors", metadata={"format": "pt"})
    tokenizer = Tokenizer.from_file(str(run / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.save(str(to / "tokenizer.json"), pretty=False)


def mean_state(runs: Sequence[Path]) -> dict[str, Tensor]:
    """Float32 mean of the weights of several runs. Raises ValueError when they differ in shape."""
    mean = {k: v.float() for k, v in load_file(runs[0] / "model.safetensors").items()}
    shapes = {key: value.shape for key, value in mean.items()}
    for count, run in enumerate(runs[1:], 2):
        state = load_file(run / "model.safetensors")
        if {key: value.shape for key, value in state.items()} != shapes:
            raise ValueError(f"{run}: other keys or shapes than {runs[0]}")
        for key, value in state.items():
            mean[key] += (value.float() - mean[key]) / count
    return mean


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Turn a finished run into a checkpoint folder.")
    parser.add_argument("--run", type=Path, action="append", required=True)
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--id", required=True)
    parser.add_argument("--threshold", type=float, required=True)
    parser.add_argument("--keep-rule", type=KeepRule, default=KeepRule.MEAN_PROBABILITY)
    options = parser.parse_args(arguments)
    export(
        options.run,
        options.to,
        model_id=options.id,
        threshold=options.threshold,
        keep_rule=options.keep_rule,
    )


if __name__ == "__main__":
    main()
