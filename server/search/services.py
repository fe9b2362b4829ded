"""The search services of one server: registered at once, serving once the model is loaded."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor
from typing import Any, Final

from secateur.errors import MissingExtraError
from secateur.modelservice import (
    add_HighlightServiceServicer_to_server,
    add_RerankServiceServicer_to_server,
    milvus_model_service_pb2,
)
from secateur.server.calls import Calls
from secateur.server.gate import Gate
from secateur.server.pipeline import Pipeline
from secateur.server.search.provider import ModelProvider
from secateur.server.search.service import SearchService
from secateur.server.settings import ServerSettings
from secateur.v1 import search_pb2, search_pb2_grpc

SEARCH_SERVICE: Final = search_pb2.DESCRIPTOR.services_by_name["SearchService"].full_name
NAMES: Final = (
    SEARCH_SERVICE,
    *(
        service.full_name
        for service in milvus_model_service_pb2.DESCRIPTOR.services_by_name.values()
    ),
)
"""Full names of the services, as health checks and reflection know them."""


class SearchServices:
    """SearchService, which needs ``milvus_uri``, and what Milvus asks of a provider of models."""

    def __init__(self, settings: ServerSettings, gate: Gate, calls: Calls) -> None:
        self._settings = settings
        self.service = SearchService(settings, gate, calls)
        self.provider = ModelProvider(settings, gate, calls)

    def add_to(self, server: Any) -> None:
        """Register all services."""
        search_pb2_grpc.add_SearchServiceServicer_to_server(self.service, server)
        add_RerankServiceServicer_to_server(self.provider, server)
        add_HighlightServiceServicer_to_server(self.provider, server)

    async def load(self, pool: Executor) -> None:
        """Load the embedder; Milvus itself is asked when it is needed.

        Raises MissingExtraError, CheckpointError.
        """
        settings = self._settings
        if settings.milvus_uri is None:
            return
        try:
            from secateur.milvus.embedder import load_embedder
            from secateur.milvus.store import MilvusStore
        except ModuleNotFoundError as error:
            if error.name != "pymilvus":
                raise
            raise MissingExtraError("milvus", "pymilvus") from error
        token = settings.milvus_token
        self.service.store = MilvusStore(
            settings.milvus_uri,
            token="" if token is None else token.get_secret_value(),
            database=settings.milvus_database,
            timeout=settings.milvus_timeout_seconds,
        )
        if settings.embedder is not None:
            loop = asyncio.get_running_loop()
            self.service.embedder = await loop.run_in_executor(
                pool, lambda: load_embedder(settings.embedder or "", device=settings.device)
            )

    def serve(self, pipeline: Pipeline) -> None:
        """Answer calls through ``pipeline``."""
        self.service.pipeline = pipeline
        self.provider.pipeline = pipeline

    async def close(self) -> None:
        """Disconnect from Milvus."""
        if self.service.store is not None:
            await self.service.store.close()
