"""The memory that one mode needs, in a process of its own: ``python -m secateur.bench.memory``.

Reads a JSON object from standard input: ``model``, ``mode``, ``threads`` and ``queries``, each
[query, passages]. Loads the model, answers the queries and writes the largest memory that the
process ever held, in KiB (VmHWM: unlike ru_maxrss it does not begin with the parent's).
"""

from __future__ import annotations

import json
import sys

from secateur.bench.machine import status_of
from secateur.bench.ours import OPTIONS
from secateur.model.pruner import Pruner


def main() -> None:
    given = json.load(sys.stdin)
    pruner = Pruner.load(given["model"], dtype=given["mode"], num_threads=given["threads"])
    for query, passages in given["queries"]:
        pruner.rerank_and_prune(query, passages, OPTIONS)
    print(status_of("self", "VmHWM"))


if __name__ == "__main__":
    main()
