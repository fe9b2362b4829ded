"""Generated protobuf and gRPC stubs of Milvus's model services (``milvus.proto.modelservice``). Do not edit."""

from secateur.modelservice.milvus_model_service_pb2 import (
    HighlightRequest,
    HighlightResponse,
    HighlightResult,
    Status,
    TextRerankRequest,
    TextRerankResponse,
)
from secateur.modelservice.milvus_model_service_pb2_grpc import (
    HighlightServiceServicer,
    HighlightServiceStub,
    RerankServiceServicer,
    RerankServiceStub,
    add_HighlightServiceServicer_to_server,
    add_RerankServiceServicer_to_server,
)

__all__ = [
    "HighlightRequest",
    "HighlightResponse",
    "HighlightResult",
    "HighlightServiceServicer",
    "HighlightServiceStub",
    "RerankServiceServicer",
    "RerankServiceStub",
    "Status",
    "TextRerankRequest",
    "TextRerankResponse",
    "add_HighlightServiceServicer_to_server",
    "add_RerankServiceServicer_to_server",
]
