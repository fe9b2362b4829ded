"""Every error that Secateur raises on purpose.

SecateurError
├── InvalidRequestError       the request breaks the contract; all faults at once
├── UnsupportedByModelError   this model cannot do what was asked
├── UnsupportedByMilvusError  this Milvus or collection cannot do what was asked
├── CollectionNotFoundError   Milvus has no such collection
├── NotImplementedOptionError an option whose work has not landed
├── OverloadedError           full; try again later
├── UnauthenticatedError      the call has no valid token
├── DeadlineExceededError     the time for the call ran out before its work was done
├── UnavailableError          not warm yet, draining, or the worker is dead
├── InvariantError            a bug in Secateur
├── CheckpointError           a model folder that cannot be loaded
└── MissingExtraError         an optional dependency is not installed (also ImportError)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class SecateurError(Exception):
    """Base of every deliberate error; ``str(error)`` is fit to show to a caller."""

    reason = "INTERNAL"
    """Stable machine-readable reason, as in google.rpc.ErrorInfo."""

    limit: int | None = None
    """The largest value allowed, of an error that says that something is above one."""


@dataclass(frozen=True, slots=True)
class FieldViolation:
    """One fault of a request: ``field`` is a path such as ``passages[3].text``.

    limit: the largest value allowed, when the fault is to be above one.
    """

    field: str
    description: str
    reason: str = "INVALID_VALUE"
    limit: int | None = None


class InvalidRequestError(SecateurError, ValueError):
    """The request breaks the contract. ``violations`` lists every fault found."""

    reason = "INVALID_REQUEST"

    def __init__(self, violations: Sequence[FieldViolation]) -> None:
        if not violations:
            raise InvariantError("InvalidRequestError without a violation")
        self.violations = tuple(violations)
        self.limit = self.violations[0].limit
        super().__init__("; ".join(f"{v.field}: {v.description}" for v in self.violations))


class UnsupportedByModelError(SecateurError):
    """The loaded model cannot do what ``field`` asks."""

    reason = "UNSUPPORTED_BY_MODEL"

    def __init__(self, field: str, message: str) -> None:
        self.field = field
        super().__init__(f"{field}: {message}")


class UnsupportedByMilvusError(SecateurError):
    """The Milvus of a search, its version or the collection cannot do what ``field`` asks."""

    reason = "UNSUPPORTED_BY_MILVUS"

    def __init__(self, field: str, message: str) -> None:
        self.field = field
        super().__init__(f"{field}: {message}")


class CollectionNotFoundError(SecateurError):
    """Milvus has no collection of this name."""

    reason = "COLLECTION_NOT_FOUND"


class NotImplementedOptionError(SecateurError):
    """``field`` is in the contract, but this version does not implement it."""

    reason = "OPTION_NOT_IMPLEMENTED"

    def __init__(self, field: str) -> None:
        self.field = field
        super().__init__(f"{field} is not implemented in this version; leave it unset")


class OverloadedError(SecateurError):
    """The server is full; try again after ``retry_after_seconds``."""

    reason = "OVERLOADED"

    def __init__(
        self, message: str, *, retry_after_seconds: float, limit: int | None = None
    ) -> None:
        self.retry_after_seconds = retry_after_seconds
        self.limit = limit
        super().__init__(message)


class UnauthenticatedError(SecateurError):
    """The call carries no valid token, and the server asks for one."""

    reason = "UNAUTHENTICATED"


class DeadlineExceededError(SecateurError):
    """The call's deadline passed before its work was done, or surely would have."""

    reason = "DEADLINE_EXCEEDED"


class UnavailableError(SecateurError):
    """The service cannot take calls now: not warm, draining, or its worker died."""

    reason = "UNAVAILABLE"


class InvariantError(SecateurError):
    """A broken invariant. This is a bug in Secateur; details go to the log only."""

    reason = "INTERNAL"


class CheckpointError(SecateurError):
    """A model folder that cannot be loaded; says what was expected and what was found."""

    reason = "CHECKPOINT"


class MissingExtraError(SecateurError, ImportError):
    """An optional dependency is missing; the message is the pip command that adds it."""

    reason = "MISSING_EXTRA"

    def __init__(self, extra: str, package: str) -> None:
        self.extra = extra
        super().__init__(f"{package} is not installed; run: pip install 'secateur[{extra}]'")
