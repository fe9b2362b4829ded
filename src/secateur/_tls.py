"""How a client trusts a server, and shows itself to it. Standard library only."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """TLS of a client's connection; without arguments it trusts the usual authorities.

    ca: PEM file of the authorities to trust instead, such as a company's own.
    cert, key: PEM files of the client's certificate chain and private key, for a server that
        asks for them (mutual TLS); both or none.

    Raises ValueError for one of ``cert`` and ``key`` without the other.
    """

    ca: str | os.PathLike[str] | None = None
    cert: str | os.PathLike[str] | None = None
    key: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise ValueError("a client certificate needs both cert and key")

    def read(self) -> tuple[bytes | None, bytes | None, bytes | None]:
        """The contents of ca, key and cert, in gRPC's order; ``None`` for one not given.

        Raises ValueError for a file that cannot be read.
        """
        return _read("ca", self.ca), _read("key", self.key), _read("cert", self.cert)


def _read(name: str, path: str | os.PathLike[str] | None) -> bytes | None:
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ValueError(f"TLS {name}: cannot read {path}: {error.strerror}") from None
