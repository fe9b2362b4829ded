"""The server's certificate, and whose client certificates it accepts."""

from __future__ import annotations

import ssl
from pathlib import Path

import grpc


def server_credentials(
    cert: Path, key: Path, client_ca: Path | None = None
) -> grpc.ServerCredentials:
    """TLS credentials from PEM files; with ``client_ca`` callers must show a certificate of it.

    cert: the server's certificate, then any intermediate ones. key: its private key, without a
    passphrase. Raises ValueError that names the file and says what is wrong with it; gRPC itself
    would only fail to listen, without a word.
    """
    chain, private = _read("tls_cert", cert), _read("tls_key", key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(cert, key, password=_no_passphrase)
    except (ssl.SSLError, ValueError) as error:
        raise ValueError(
            f"tls_cert, tls_key: {cert} and {key} are no PEM certificate with its private key: "
            f"{_reason(error)}"
        ) from None
    if client_ca is None:
        return grpc.ssl_server_credentials([(private, chain)])
    trusted = _read("tls_client_ca", client_ca)
    try:
        context.load_verify_locations(client_ca)
    except (ssl.SSLError, ValueError) as error:
        raise ValueError(
            f"tls_client_ca: {client_ca} holds no PEM certificates: {_reason(error)}"
        ) from None
    return grpc.ssl_server_credentials(
        [(private, chain)], root_certificates=trusted, require_client_auth=True
    )


def _read(name: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ValueError(f"{name}: cannot read {path}: {error.strerror}") from None


def _no_passphrase() -> str:
    """In place of the prompt of OpenSSL, which would hang a server without a terminal."""
    raise ValueError("the key has a passphrase")


def _reason(error: Exception) -> str:
    return str(getattr(error, "reason", None) or error)
