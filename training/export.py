"""Turn a finished run into a checkpoint folder that ships.

    python -m secateur.training.export --run OUT/model --to FOLDER --id NAME \\
        --threshold T --keep-rule RULE

Weights are rounded to float16, which is what is then measured.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from secateur.types import KeepRule

_RUN_ONLY = ("_name_or_path", "dtype", "transformers_version", "architectures", "id2label")


def export(
    run: Path,
    to: Path,
    *,
    model_id: str,
    threshold: float,
    keep_rule: KeepRule,
    languages: Sequence[str] = ("en",),
    window_tokens: int = 512,
) -> None:
    """Write config.json, model.safetensors (float16) and tokenizer.json to ``to``."""
    to.mkdir(parents=True, exist_ok=True)
    config = json.loads((run / "config.json").read_text(encoding="utf-8"))
    config = {key: value for key, value in config.items() if key not in _RUN_ONLY}
    config |= {
        "architectures": ["Provence"],
        "model_type": "deberta-v2",
        "num_labels": 1,
        "secateur": {
            "id": model_id,
            "family": "provence",
            "languages": list(languages),
            "window_tokens": window_tokens,
            "default_threshold": threshold,
            "default_keep_rule": keep_rule.value,
        },
    }
    text = json.dumps(config, indent=2, sort_keys=True) + "\n"
    (to / "config.json").write_text(text, encoding="utf-8")
    state = {
        key: value.to(torch.float16).contiguous()
        for key, value in load_file(run / "model.safetensors").items()
    }
    save_file(state, to / "model.safetensors", metadata={"format": "pt"})
    tokenizer = Tokenizer.from_file(str(run / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.save(str(to / "tokenizer.json"), pretty=False)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Turn a finished run into a checkpoint folder.")
    parser.add_argument("--run", type=Path, required=True)
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
