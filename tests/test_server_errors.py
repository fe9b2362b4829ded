"""The mapping of errors to statuses, and its table in the documentation."""

from __future__ import annotations

import logging
from pathlib import Path
from urllib.parse import quote

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from secateur import errors
from secateur.errors import FieldViolation, SecateurError
from secateur.server.errors import (
    CODES,
    INTERNAL_MESSAGE,
    MessageTooLargeError,
    passage_error_of,
    status_of,
)

DOCUMENT = Path(__file__).parents[1] / "docs/errors.md"

EXAMPLES: dict[type[SecateurError], SecateurError] = {
    errors.SecateurError: errors.SecateurError("secret"),
    errors.InvalidRequestError: errors.InvalidRequestError([FieldViolation("query", "is blank")]),
    errors.UnsupportedByModelError: errors.UnsupportedByModelError("options.keep_rule", "no"),
    errors.UnsupportedByMilvusError: errors.UnsupportedByMilvusError("mode", "needs Milvus 2.5"),
    errors.CollectionNotFoundError: errors.CollectionNotFoundError("there is no collection c"),
    errors.NotImplementedOptionError: errors.NotImplementedOptionError(
        "options.max_context_tokens"
    ),
    errors.OverloadedError: errors.OverloadedError("full", retry_after_seconds=1.5),
    errors.DeadlineExceededError: errors.DeadlineExceededError("late"),
    errors.UnavailableError: errors.UnavailableError("starting"),
    errors.UnauthenticatedError: errors.UnauthenticatedError("no token"),
    errors.InvariantError: errors.InvariantError("secret"),
    errors.CheckpointError: errors.CheckpointError("secret"),
    errors.MissingExtraError: errors.MissingExtraError("serve", "torch"),
    MessageTooLargeError: MessageTooLargeError("too large", limit=10),
}


def classes() -> list[type[SecateurError]]:
    """Every error class of Secateur that is defined where callers can meet it."""
    found, todo = [], [SecateurError]
    while todo:
        kind = todo.pop()
        found.append(kind)
        todo += [sub for sub in kind.__subclasses__() if sub.__module__.startswith("secateur.")]
    return found


def details(status: status_pb2.Status) -> dict[str, object]:
    """The status's details by type name."""
    found: dict[str, object] = {}
    for detail in status.details:
        name = detail.type_url.rpartition(".")[2]
        message = getattr(error_details_pb2, name)()
        detail.Unpack(message)
        found[name] = message
    return found


@pytest.mark.parametrize("kind", classes())
def test_every_error_class_is_mapped(kind: type[SecateurError]) -> None:
    assert kind in CODES, f"{kind.__name__} has no status code in server/errors.py"
    status = status_of(EXAMPLES[kind])
    assert status.code == CODES[kind].value[0]
    info = details(status)["ErrorInfo"]
    assert isinstance(info, error_details_pb2.ErrorInfo)
    assert info.domain == "secateur"
    internal = CODES[kind] is grpc.StatusCode.INTERNAL
    assert info.reason == ("INTERNAL" if internal else kind.reason)


def test_every_class_of_the_errors_module_is_walked() -> None:
    defined = {
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, SecateurError)
    }
    assert defined <= set(classes())


@pytest.mark.parametrize("kind", classes())
def test_the_document_has_a_row_for_every_error(kind: type[SecateurError]) -> None:
    rows = [line for line in DOCUMENT.read_text(encoding="utf-8").splitlines() if "|" in line]
    reason = "INTERNAL" if CODES[kind] is grpc.StatusCode.INTERNAL else kind.reason
    code = CODES[kind].name
    assert any(f"`{reason}`" in row and f"`{code}`" in row for row in rows), (reason, code)


def test_an_invalid_request_lists_all_violations() -> None:
    violations = [
        FieldViolation("query", "is blank", "BLANK"),
        FieldViolation("passages[3].text", "is too long", "TOO_LONG"),
    ]
    found = details(status_of(errors.InvalidRequestError(violations)))
    bad = found["BadRequest"]
    assert isinstance(bad, error_details_pb2.BadRequest)
    assert [(v.field, v.description, v.reason) for v in bad.field_violations] == [
        (v.field, v.description, v.reason) for v in violations
    ]
    info = found["ErrorInfo"]
    assert isinstance(info, error_details_pb2.ErrorInfo)
    assert dict(info.metadata) == {
        "violation_count": "2",
        "field": "query",
        "violation_reason": "BLANK",
    }


@pytest.mark.parametrize(
    ("count", "text"), [(1_000, "is wrong " * 3), (1_000, "🙂" * 500), (1, "é" * 100_000)]
)
def test_a_status_fits_into_a_peers_metadata_limit(count: int, text: str) -> None:
    """Peers refuse metadata above 8 KiB, and the caller then sees none of the violations."""
    violations = [FieldViolation(f"passages[{i}].title", text) for i in range(count)]
    status = status_of(errors.InvalidRequestError(violations))
    rich = rpc_status.to_status(status)
    size = len(quote(rich.details)) + sum(
        -(-len(value) // 3) * 4 + len(key) + 32 for key, value in rich.trailing_metadata
    )
    assert size < 7_900
    bad = details(status)["BadRequest"]
    assert isinstance(bad, error_details_pb2.BadRequest)
    listed = [v for v in bad.field_violations if v.field]
    assert listed
    if count > len(listed):
        rest = bad.field_violations[-1].description
        assert rest == f"{count - len(listed)} more violations are not listed"


def test_overload_says_when_to_retry() -> None:
    retry = details(status_of(EXAMPLES[errors.OverloadedError]))["RetryInfo"]
    assert isinstance(retry, error_details_pb2.RetryInfo)
    assert retry.retry_delay.ToMilliseconds() == 1_500


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("secret"),
        KeyError("secret"),
        errors.InvariantError("secret"),
        errors.CheckpointError("secret /path"),
    ],
)
def test_internal_errors_keep_their_text_in_the_log(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """F23: raw exception text reaching the client."""
    with caplog.at_level(logging.ERROR):
        status = status_of(error)
    assert status.code == grpc.StatusCode.INTERNAL.value[0]
    assert status.message == INTERNAL_MESSAGE
    assert b"secret" not in status.SerializeToString()
    info = details(status)["ErrorInfo"]
    assert isinstance(info, error_details_pb2.ErrorInfo)
    assert info.metadata["error_id"] in caplog.text
    assert "secret" in caplog.text


def test_a_passage_error_hides_the_inside_too() -> None:
    hidden = passage_error_of(ValueError("secret"))
    assert hidden.code == "INTERNAL"
    assert "secret" not in hidden.message
    shown = passage_error_of(EXAMPLES[errors.InvalidRequestError])
    assert (shown.code, shown.message) == ("INVALID_ARGUMENT", "query: is blank")
