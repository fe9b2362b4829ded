"""The settings' TLS files and tokens as what gRPC takes."""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Sequence

import grpc

from secateur.server.auth import TokenInterceptor, load_tokens, service_names
from secateur.server.calls import Calls
from secateur.server.settings import ServerSettings, SettingsError
from secateur.server.tls import server_credentials

logger = logging.getLogger(__name__)


def credentials(settings: ServerSettings) -> grpc.ServerCredentials | None:
    """TLS credentials; ``None`` for plain text. Raises SettingsError."""
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    try:
        return server_credentials(settings.tls_cert, settings.tls_key, settings.tls_client_ca)
    except ValueError as error:
        raise SettingsError(str(error)) from None


def interceptors(settings: ServerSettings, calls: Calls) -> Sequence[TokenInterceptor]:
    """One that asks for tokens, when there are any. Raises SettingsError."""
    secret = settings.auth_tokens
    try:
        tokens = load_tokens(
            None if secret is None else secret.get_secret_value(), settings.auth_tokens_file
        )
    except ValueError as error:
        raise SettingsError(str(error)) from None
    if tokens is None:
        return ()
    if settings.tls_cert is None and not _is_this_machine(settings.host):
        logger.warning(
            "tokens are asked for on %s without TLS: whoever can listen there can read them",
            settings.host,
        )
    open_services = service_names(
        health_open=not settings.health_needs_token,
        reflection_open=not settings.reflection_needs_token,
    )
    return (TokenInterceptor(tokens, calls, open_services),)


def _is_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
