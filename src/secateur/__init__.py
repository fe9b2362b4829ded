"""Rerank and prune retrieved passages between vector search and an LLM.

``Pruner`` runs a model in this process (extra ``serve``); ``Client`` calls a running server.
Both load on first use: ``import secateur`` itself loads the standard library only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from secateur._tls import Tls
from secateur.errors import (
    CheckpointError,
    CollectionNotFoundError,
    DeadlineExceededError,
    FieldViolation,
    InvalidRequestError,
    InvariantError,
    MissingExtraError,
    NotImplementedOptionError,
    OverloadedError,
    SecateurError,
    UnauthenticatedError,
    UnavailableError,
    UnsupportedByMilvusError,
    UnsupportedByModelError,
)
from secateur.types import (
    FragmentFormat,
    HighlightedPassage,
    HighlightedPassages,
    HighlightSpan,
    KeepReason,
    KeepRule,
    Limits,
    ModelInfo,
    ModelRef,
    OffsetUnit,
    Passage,
    PassageError,
    PrunedPassage,
    PruneOptions,
    RankedPassage,
    RankedPassages,
    ResultOrder,
    ScoreSource,
    Sentence,
    StreamSummary,
    TextSpan,
    Timing,
    TokenScore,
    Usage,
    WarningCode,
)

if TYPE_CHECKING:
    from secateur.client import Client
    from secateur.model.pruner import Pruner

    __version__: str

__all__ = [
    "CheckpointError",
    "Client",
    "CollectionNotFoundError",
    "DeadlineExceededError",
    "FieldViolation",
    "FragmentFormat",
    "HighlightSpan",
    "HighlightedPassage",
    "HighlightedPassages",
    "InvalidRequestError",
    "InvariantError",
    "KeepReason",
    "KeepRule",
    "Limits",
    "MissingExtraError",
    "ModelInfo",
    "ModelRef",
    "NotImplementedOptionError",
    "OffsetUnit",
    "OverloadedError",
    "Passage",
    "PassageError",
    "PruneOptions",
    "PrunedPassage",
    "Pruner",
    "RankedPassage",
    "RankedPassages",
    "ResultOrder",
    "ScoreSource",
    "SecateurError",
    "Sentence",
    "StreamSummary",
    "TextSpan",
    "Timing",
    "Tls",
    "TokenScore",
    "UnauthenticatedError",
    "UnavailableError",
    "UnsupportedByMilvusError",
    "UnsupportedByModelError",
    "Usage",
    "WarningCode",
    "__version__",
]


if not TYPE_CHECKING:  # type checkers read the names above, and find typos

    def __getattr__(name: str) -> Any:
        if name == "__version__":
            from importlib.metadata import version

            return version("secateur")
        if name == "Client":
            from secateur.client import Client

            return Client
        if name == "Pruner":
            from importlib.util import find_spec

            for package in ("torch", "transformers"):  # only Pruner.load imports these
                if find_spec(package) is None:
                    raise MissingExtraError("serve", package)
            try:
                from secateur.model.pruner import Pruner
            except ModuleNotFoundError as error:
                missing = (error.name or "").partition(".")[0]
                if missing in {"", "secateur"}:
                    raise
                raise MissingExtraError("serve", missing) from error
            return Pruner
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
