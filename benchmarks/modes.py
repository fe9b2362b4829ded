"""Write a checkpoint's ``modes.json``, which ``--dtype auto`` reads, from what was measured.

    secateur bench --data FILE --record BENCH
    secateur evaluate prune --dtype float32 --data SET --json > FLOAT32
    secateur evaluate prune --dtype int8 --data SET --json > INT8
    python benchmarks/modes.py --bench BENCH --float32 FLOAT32 --mode int8=INT8 --to FOLDER

Both results must be of the same weights, set, threshold and keep rule.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from secateur.model.modes import RECORD


def modes_record(
    bench: Mapping[str, Any], exact: Mapping[str, Any], others: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """What ``secateur.model.modes.read_record`` reads.

    bench: a record of ``secateur bench``. exact, others: results of ``evaluate prune``, of
    float32 and by mode. Raises ValueError for results that cannot be compared.
    """
    modes = {}
    for mode, result in others.items():
        same = ("data", "threshold", "keep_rule", "items")
        differ = [key for key in same if result[key] != exact[key]]
        if differ or result["model"]["revision"] != exact["model"]["revision"]:
            raise ValueError(f"{mode}: not what float32 was measured on: {', '.join(differ)}")
        if result["model"]["dtype"] != mode:
            raise ValueError(f"{mode}: the result is of {result['model']['dtype']}")
        rates = bench["one_call_a_query"]
        speeds = [rates[f"engine_{m}"]["passages_per_second"]["median"] for m in (mode, "float32")]
        modes[mode] = {
            "speedup": round(speeds[0] / speeds[1], 2),
            "equal_decisions": bench["modes"][mode]["equal_decisions"],
            "f1_lost": round(exact["f1"] - result["f1"], 4),
        }
    return {
        "revision": exact["model"]["revision"],
        "data": Path(exact["data"]).name,
        "cpu": bench["machine"]["cpu"],
        "modes": modes,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Write modes.json of a checkpoint folder.")
    parser.add_argument("--bench", type=Path, required=True)
    parser.add_argument("--float32", type=Path, required=True)
    parser.add_argument("--mode", action="append", required=True, metavar="MODE=FILE")
    parser.add_argument("--to", type=Path, required=True, metavar="FOLDER")
    options = parser.parse_args(arguments)

    def read(path: Path) -> dict[str, Any]:
        values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return values

    others = {mode: read(Path(file)) for mode, _, file in (m.partition("=") for m in options.mode)}
    record = modes_record(read(options.bench), read(options.float32), others)
    (options.to / RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
