"""How the client's calls fail: errors, retries, deadlines, size limits, health."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import islice
from typing import Any

import grpc
import pytest
from fake_service import (
    NOT_SERVING,
    SERVING,
    FakeService,
    answer,
    closed_port,
    error_info,
    fail,
    served,
    status,
)
from google.protobuf import duration_pb2
from google.rpc import error_details_pb2

from secateur import errors, v1
from secateur._channel import pauses
from secateur.client import Client

Code = grpc.StatusCode


_BAD_REQUEST = error_details_pb2.BadRequest(
    field_violations=[
        error_details_pb2.BadRequest.FieldViolation(
            field="options.threshold", description="must lie in [0, 1]", reason="OUT_OF_RANGE"
        ),
        error_details_pb2.BadRequest.FieldViolation(field="query", description="is blank"),
    ]
)
_RETRY = error_details_pb2.RetryInfo(
    retry_delay=duration_pb2.Duration(seconds=1, nanos=500_000_000)
)


@pytest.fixture
def service() -> FakeService:
    return FakeService()


@pytest.fixture
def client(service: FakeService) -> Iterator[Client]:
    with served(service) as target, Client(target) as client:
        yield client


def test_invalid_request_carries_all_violations(service: FakeService, client: Client) -> None:
    service.answers["RerankAndPrune"] = status(
        Code.INVALID_ARGUMENT, "shortened …", error_info("INVALID_REQUEST"), _BAD_REQUEST
    )
    with pytest.raises(errors.InvalidRequestError) as raised:
        client.rerank_and_prune("", [])
    assert raised.value.violations == (
        errors.FieldViolation("options.threshold", "must lie in [0, 1]", "OUT_OF_RANGE"),
        errors.FieldViolation("query", "is blank"),
    )
    assert isinstance(raised.value.__cause__, grpc.RpcError)


@pytest.mark.parametrize(
    "error",
    [
        errors.UnsupportedByModelError("options.keep_rule", "this model has no sentence head"),
        errors.NotImplementedOptionError("options.max_context_tokens"),
        errors.OverloadedError("the queue is full", retry_after_seconds=1.5),
        errors.DeadlineExceededError("the deadline passed in the queue"),
        errors.UnavailableError("the server is draining"),
        errors.UnauthenticatedError("the token is not valid"),
        errors.InvariantError("internal error"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_error_is_the_one_raised_in_process(
    service: FakeService, error: errors.SecateurError
) -> None:
    codes = {
        errors.UnsupportedByModelError: Code.FAILED_PRECONDITION,
        errors.NotImplementedOptionError: Code.UNIMPLEMENTED,
        errors.OverloadedError: Code.RESOURCE_EXHAUSTED,
        errors.DeadlineExceededError: Code.DEADLINE_EXCEEDED,
        errors.UnavailableError: Code.UNAVAILABLE,
        errors.UnauthenticatedError: Code.UNAUTHENTICATED,
        errors.InvariantError: Code.INTERNAL,
    }
    field = {"field": error.field} if hasattr(error, "field") else {}
    details = [error_info(error.reason, **field)]
    service.answers["RerankAndPrune"] = status(codes[type(error)], str(error), *details, _RETRY)
    with (
        served(service) as target,
        Client(target, max_attempts=1) as client,
        pytest.raises(type(error)) as raised,
    ):
        client.rerank_and_prune("q", ["a"])
    assert type(raised.value) is type(error)
    assert str(raised.value) == str(error)
    assert vars(raised.value) == vars(error)


def test_errors_without_details(service: FakeService, client: Client) -> None:
    def bare(code: grpc.StatusCode) -> Any:
        return lambda _, context: context.abort(code, "bare")

    for code, expected in {
        Code.INVALID_ARGUMENT: "request: bare",
        Code.UNIMPLEMENTED: "does not offer this call: bare",
        Code.RESOURCE_EXHAUSTED: "bare",
        Code.PERMISSION_DENIED: "PERMISSION_DENIED: bare",
        Code.INTERNAL: "INTERNAL: bare",
    }.items():
        service.answers["RerankAndPrune"] = bare(code)
        with pytest.raises(errors.SecateurError, match=expected):
            client.rerank_and_prune("q", ["a"])


def test_broken_details_do_not_hide_the_error(service: FakeService, client: Client) -> None:
    def broken(_: Any, context: Any) -> None:
        context.set_trailing_metadata((("grpc-status-details-bin", b"\xff\xff"),))
        context.abort(Code.INVALID_ARGUMENT, "bare")

    service.answers["RerankAndPrune"] = broken
    with pytest.raises(errors.InvalidRequestError, match="request: bare"):
        client.rerank_and_prune("q", ["a"])


def test_unreachable_server() -> None:
    with (
        closed_port() as target,
        Client(target, max_attempts=1) as client,
        pytest.raises(errors.UnavailableError, match=f"cannot reach a server at {target}"),
    ):
        client.model_info()


def _failing_first(times: int, code: grpc.StatusCode) -> Any:
    calls = iter(range(1_000))

    def reply(request: Any, context: Any) -> v1.RerankAndPruneResponse:
        if next(calls) < times:
            fail(context, status(code, "not now", error_info(code.name)))
        return answer(request)

    return reply


def test_unavailable_is_retried(service: FakeService, client: Client) -> None:
    service.answers["RerankAndPrune"] = _failing_first(2, Code.UNAVAILABLE)
    client.rerank_and_prune("q", ["a"])
    assert len(service.requests) == 3


def test_unavailable_is_retried_up_to_max_attempts(service: FakeService) -> None:
    service.answers["RerankAndPrune"] = _failing_first(9, Code.UNAVAILABLE)
    with (
        served(service) as target,
        Client(target, max_attempts=2) as client,
        pytest.raises(errors.UnavailableError),
    ):
        client.rerank_and_prune("q", ["a"])
    assert len(service.requests) == 2


def test_without_a_limit_unavailable_is_retried_until_the_time_is_up(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gRPC's own retries end after 5 tries, sooner than a server has started again."""
    waits: list[float] = []
    monkeypatch.setattr("secateur.client.time.sleep", waits.append)
    service.answers["RerankAndPrune"] = _failing_first(20, Code.UNAVAILABLE)
    with served(service) as target, Client(target, max_attempts=None) as client:
        client.rerank_and_prune("q", ["a"])
        assert len(service.requests) == 21
        assert len(waits) == 20
        service.answers["RerankAndPrune"] = _failing_first(1_000, Code.UNAVAILABLE)
        with pytest.raises(errors.UnavailableError):
            client.rerank_and_prune("q", ["a"], timeout=0.05)  # no pause is so short


def test_pauses_grow_and_end() -> None:
    growing = list(pauses(9))
    assert len(growing) == 8
    for pause, longest in zip(growing, (0.1, 0.2, 0.4, 0.8, 1.6, 2, 2, 2), strict=True):
        assert longest / 2 <= pause <= longest
    assert list(pauses(1)) == []
    assert len(list(islice(pauses(None), 100))) == 100


def test_a_token_goes_with_every_call_and_is_never_shown(service: FakeService) -> None:
    with served(service) as target, Client(target, token="swordfish") as client:
        client.rerank_and_prune("q", [])
        assert "swordfish" not in repr(client)
    assert service.metadata[0]["authorization"] == "Bearer swordfish"
    for token in ("", "sword fish", "sword\nfish", "s\u00e4belfisch"):
        with pytest.raises(ValueError, match="visible ASCII") as raised:
            Client("localhost:1", token=token)
        assert not token or token not in str(raised.value)


@pytest.mark.parametrize(
    "code", [Code.RESOURCE_EXHAUSTED, Code.INTERNAL, Code.INVALID_ARGUMENT, Code.ABORTED]
)
def test_nothing_else_is_retried(
    service: FakeService, client: Client, code: grpc.StatusCode
) -> None:
    service.answers["RerankAndPrune"] = _failing_first(1, code)
    with pytest.raises(errors.SecateurError):
        client.rerank_and_prune("q", ["a"])
    assert len(service.requests) == 1


def test_every_call_has_a_deadline(service: FakeService) -> None:
    with served(service) as target, Client(target, timeout=20) as client:
        client.rerank_and_prune("q", [])
        client.rerank_and_prune("q", [], timeout=100)
    default, own = service.time_remaining
    assert default is not None
    assert 0 < default <= 21  # gRPC rounds up
    assert own is not None
    assert 90 < own <= 102


def test_deadline_exceeded(service: FakeService, client: Client) -> None:
    gone = threading.Event()

    def hang(_: Any, context: Any) -> v1.RerankAndPruneResponse:
        context.add_callback(gone.set)
        assert gone.wait(30)
        return v1.RerankAndPruneResponse()

    service.answers["RerankAndPrune"] = hang
    with pytest.raises(errors.DeadlineExceededError, match="within the deadline"):
        client.rerank_and_prune("q", ["a"], timeout=0.05)
    assert gone.wait(30)


def test_request_over_the_limit_is_refused_before_it_is_sent(service: FakeService) -> None:
    with (
        served(service) as target,
        Client(target, max_message_bytes=1_000) as client,
        pytest.raises(errors.InvalidRequestError, match="over max_message_bytes = 1,000"),
    ):
        client.rerank_and_prune("q", ["a" * 1_000])
    assert service.requests == []


def test_answer_over_the_limit(service: FakeService) -> None:
    service.answers["RerankAndPrune"] = v1.RerankAndPruneResponse(
        results=[v1.PrunedPassage(pruned_text="a" * 2_000)]
    )
    with (
        served(service) as target,
        Client(target, max_message_bytes=1_000) as client,
        pytest.raises(errors.InvalidRequestError) as raised,
    ):
        client.rerank_and_prune("q", ["a"])
    assert raised.value.violations[0].reason == "MESSAGE_TOO_LARGE"


def test_messages_over_grpcs_own_default_pass_both_ways(service: FakeService) -> None:
    """gRPC refuses more than 4 MiB unless the client says otherwise."""
    text = "a" * (5 << 20)
    options = [("grpc.max_receive_message_length", 8 << 20)]
    with served(service, options=options) as target, Client(target) as client:
        [result] = client.rerank_and_prune("q", [text]).results
    assert result.pruned_text == text


def test_metadata_goes_with_every_call(service: FakeService) -> None:
    with served(service) as target, Client(target, metadata=[("x-key", "secret")]) as client:
        client.rerank_and_prune("q", [])
    assert service.metadata[0]["x-key"] == "secret"


def test_wait_until_ready_returns_once_it_serves(service: FakeService) -> None:
    watched = threading.Event()
    watch = service.health.Watch

    def observed(*arguments: Any) -> Any:
        watched.set()
        return watch(*arguments)

    service.health.Watch = observed  # type: ignore[assignment, method-assign]
    with served(service, health_status=NOT_SERVING) as target, Client(target) as client:
        assert client.health() == "NOT_SERVING"
        waiter = threading.Thread(target=client.wait_until_ready)
        waiter.start()
        assert watched.wait(30)
        assert waiter.is_alive()
        service.health.set("", SERVING)
        waiter.join(30)
        assert not waiter.is_alive()
        assert client.health() == "SERVING"


def test_wait_until_ready_gives_up_at_its_deadline(service: FakeService) -> None:
    with (
        served(service, health_status=NOT_SERVING) as target,
        Client(target) as client,
        pytest.raises(errors.DeadlineExceededError),
    ):
        client.wait_until_ready(0.05)
    with (
        closed_port() as target,
        Client(target) as client,
        pytest.raises(errors.DeadlineExceededError),
    ):
        client.wait_until_ready(0.05)
