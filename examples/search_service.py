"""Search, rerank, prune and highlight in one call of ``SearchService``.

Run: make demo-search    (once; it makes the milvus-lite file)
     secateur serve --set milvus_uri=build/demo-search.db    (in another terminal)
     python examples/search_service.py [HOST:PORT]
"""

from __future__ import annotations

import sys

import grpc

from secateur import v1

request = v1.SearchRequest(
    collection="wikipedia",
    query="Which ships did the French build first?",
    candidate_count=20,
    filter="document_id like {articles}",
    output_fields=["document_id", "start_offset"],
    title_field="title",
    options=v1.PruneOptions(top_k=3),
    highlight=v1.HighlightOptions(pre_tags=["<em>"], post_tags=["</em>"]),
)
request.filter_params["articles"] = "ironclad-warship/%"

with grpc.insecure_channel(sys.argv[1] if len(sys.argv) > 1 else "localhost:50051") as channel:
    answer = v1.SearchServiceStub(channel).Search(request, timeout=60)
    for hit in answer.hits:
        print(f"{hit.passage.relevance_score:.4f}  {hit.fields['document_id']}")
        for fragment in hit.highlight["text"].fragments:
            print(f"    {fragment}")
    print(f"{answer.candidate_count} candidates in {answer.timing.total_ms:.0f} ms")
