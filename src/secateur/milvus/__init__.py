"""Searching in Milvus with Secateur (extra ``milvus``).

``highlight_hits`` adds highlights to what ``MilvusClient.search`` gave; ``filter_literal`` and
``render_filter`` put values into filter expressions safely. These three need the base install
only.
"""

from __future__ import annotations

from secateur.milvus.filters import filter_literal, render_filter
from secateur.milvus.hits import highlight_hits, highlight_hits_async

__all__ = ["filter_literal", "highlight_hits", "highlight_hits_async", "render_filter"]
