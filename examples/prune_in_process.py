"""Rerank and prune in this process: no server. Needs the extra ``serve``.

Run: python examples/prune_in_process.py
"""

from __future__ import annotations

import json
from pathlib import Path

from secateur import Passage, PruneOptions, Pruner

lines = (Path(__file__).parent / "passages.jsonl").read_text(encoding="utf-8").splitlines()
passages = [Passage(**json.loads(line)) for line in lines]

pruner = Pruner.load()  # the embedded model; load once, use from any thread
answer = pruner.rerank_and_prune(
    "Which pump feeds the boiler?", passages, PruneOptions(top_k=2, neighbor_sentences=0)
)

prompt = "\n\n".join(result.pruned_text for result in answer.results if result.pruned_text)
print(prompt)
for result in answer.results:
    print(f"{result.id}: score {result.relevance_score}, {result.compression_rate:.0%} shorter")
