"""The client's gRPC channel: size limits, credentials, tokens, and when to try again."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any, Final

import grpc

from secateur import v1
from secateur._tls import Tls

SERVICE: Final = v1.rerank_prune_pb2.DESCRIPTOR.services_by_name["RerankPruneService"].full_name
"""Full name of the gRPC service."""

_STREAM: Final = {"service": SERVICE, "method": "RerankAndPruneStream"}
_MOST_GRPC_ATTEMPTS: Final = 5  # more of them gRPC takes for 5

_FIRST_PAUSE_SECONDS: Final = 0.1
_LONGEST_PAUSE_SECONDS: Final = 2.0


def open_channel(
    target: str,
    options: list[tuple[str, Any]],
    *,
    tls: Tls | None,
    credentials: grpc.ChannelCredentials | None,
) -> grpc.Channel:
    """A channel with TLS, with credentials, or in plain text.

    Raises ValueError for TLS files that cannot be read, and when both are given.
    """
    if tls is not None and credentials is not None:
        raise ValueError("give tls or credentials, not both")
    if tls is not None:
        credentials = grpc.ssl_channel_credentials(*tls.read())
    if credentials is None:
        return grpc.insecure_channel(target, options)
    return grpc.secure_channel(target, credentials, options)


def bearer(token: str) -> tuple[str, str]:
    """The metadata that carries a token. Raises ValueError, without it, for one that cannot be."""
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise ValueError("a token must be visible ASCII characters without spaces")
    return ("authorization", f"Bearer {token}")


def channel_options(max_message_bytes: int, max_attempts: int | None) -> list[tuple[str, Any]]:
    """gRPC channel arguments: size limits both ways, quick reconnect, retries of streams.

    Unary calls are tried again by the client itself (see ``pauses``): gRPC gives up after 5
    tries, sooner than a server has started. A stream that has had no answer yet is left to gRPC.
    """
    attempts = min(max_attempts or _MOST_GRPC_ATTEMPTS, _MOST_GRPC_ATTEMPTS)
    method: dict[str, Any] = {"name": [_STREAM]}
    if attempts > 1:
        method["retryPolicy"] = {
            "maxAttempts": attempts,
            "initialBackoff": f"{_FIRST_PAUSE_SECONDS}s",
            "maxBackoff": f"{_LONGEST_PAUSE_SECONDS}s",
            "backoffMultiplier": 2,
            "retryableStatusCodes": ["UNAVAILABLE"],
        }
    return [
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.enable_retries", int(attempts > 1)),
        ("grpc.service_config", json.dumps({"methodConfig": [method]})),
        # A server that is just starting is found soon, not after gRPC's first whole second.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 2_000),
    ]


def pauses(max_attempts: int | None) -> Iterator[float]:
    """Seconds to wait before the second try, the third, and so on; endless without a limit.

    They double up to 2 s; each is cut at random by up to half, so that many clients of a server
    that comes back do not all come at once.
    """
    pause = _FIRST_PAUSE_SECONDS
    attempt = 1
    while max_attempts is None or attempt < max_attempts:
        yield pause * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        attempt += 1
