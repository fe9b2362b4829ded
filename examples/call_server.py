"""Rerank, stream and highlight through a running server. Needs the base install only.

Run: secateur serve    (in another terminal)
     python examples/call_server.py [HOST:PORT]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from secateur import Client, FragmentFormat, InvalidRequestError, Passage, PrunedPassage

lines = (Path(__file__).parent / "passages.jsonl").read_text(encoding="utf-8").splitlines()
passages = [Passage(**json.loads(line)) for line in lines]
query = "Which pump feeds the boiler?"

with Client(sys.argv[1] if len(sys.argv) > 1 else "localhost:50051") as client:
    client.wait_until_ready()

    print("one call:")
    for result in client.rerank_and_prune(query, passages).results:
        print(f"  {result.id}: {result.pruned_text!r}")

    print("a stream, each passage as soon as it is known:")
    for item in client.rerank_and_prune_stream(query, iter(passages)):
        if isinstance(item, PrunedPassage):
            print(f"  {item.index}: {item.id}")
        else:
            print(f"  ranking: {[line.id for line in item.ranking]}")

    print("fragments for a search page:")
    highlighted = client.highlight(query, passages, fragment_format=FragmentFormat.HTML_ESCAPED)
    for page in highlighted.results:
        for fragment in page.fragments:
            print(f"  {fragment}")

    print("a request that is refused, with every fault:")
    try:
        client.rerank_and_prune("", [Passage("text", id="x" * 2_000)])
    except InvalidRequestError as error:
        for violation in error.violations:
            print(f"  {violation.field}: {violation.description}")
