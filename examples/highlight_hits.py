"""Highlights for the hits of a ``MilvusClient`` of your own.

Run: make demo-search    (once; it makes the milvus-lite file)
     python examples/highlight_hits.py
"""

from __future__ import annotations

from pymilvus import MilvusClient

from secateur import Pruner
from secateur.milvus import highlight_hits

question = "How did the amphibious tank stay afloat?"
client = MilvusClient("build/demo-search.db")
client.load_collection("wikipedia")
results = client.search(
    "wikipedia",
    data=[question],
    anns_field="sparse",
    limit=3,
    output_fields=["text", "document_id"],
    # With a model of Zilliz Cloud, Milvus's own SemanticHighlighter would stand here, with the
    # same question, input fields and threshold.
)
highlight_hits(results, question, pruner=Pruner.load(), input_fields=["text"], threshold=0.4)
for hit in results[0]:
    print(hit["document_id"])
    highlight = hit["highlight"]["text"]
    for fragment, score in zip(highlight["fragments"], highlight["scores"], strict=True):
        print(f"  {score:.3f}  {fragment}")
client.close()
