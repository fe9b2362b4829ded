"""Bearer tokens: which there are, and an interceptor that asks every call for one."""

from __future__ import annotations

import hashlib
import hmac
import string
from collections.abc import Awaitable, Callable, Collection, Iterable
from pathlib import Path
from typing import Any, Final, TypeAlias

import grpc
from grpc_health.v1 import health
from grpc_reflection.v1alpha import reflection

from secateur.errors import UnauthenticatedError
from secateur.server.calls import Calls

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"

SHORTEST_TOKEN: Final = 16
"""Characters; a shorter token can be guessed."""

_KEY: Final = "authorization"
_SCHEME: Final = "bearer"
_TOKEN_CHARACTERS: Final = frozenset(string.ascii_letters + string.digits + "-._~+/=")


class Tokens:
    """The tokens that open the server. Holds digests only, so that no dump shows a token.

    Raises ValueError, which does not show the token, for one that is too short or that no
    ``Authorization: Bearer`` header can carry.
    """

    def __init__(self, tokens: Iterable[str]) -> None:
        digests = []
        for position, token in enumerate(tokens, 1):
            if len(token) < SHORTEST_TOKEN:
                raise ValueError(f"token {position} has fewer than {SHORTEST_TOKEN} characters")
            if not _TOKEN_CHARACTERS.issuperset(token):
                raise ValueError(f"token {position} has characters other than A-Z a-z 0-9 -._~+/=")
            digests.append(_digest(token))
        self._digests = tuple(digests)

    def __len__(self) -> int:
        return len(self._digests)

    def allow(self, token: str) -> bool:
        """Whether it is one of them; takes the same time whichever it is, or is like."""
        given = _digest(token)
        found = False
        for digest in self._digests:
            found |= hmac.compare_digest(digest, given)
        return found


def load_tokens(given: str | None, file: Path | None) -> Tokens | None:
    """The tokens of the settings; ``None`` when none are asked for.

    given: tokens by white space. file: one token a line; blank lines and lines that begin with
    ``#`` are ignored. Raises ValueError that says which is wrong, without showing a token.
    """
    if given is None and file is None:
        return None
    try:
        found = (given or "").split()
        where = "auth_tokens"
        Tokens(found)
        if file is not None:
            where = f"auth_tokens_file: {file}"
            lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
            in_file = [line for line in lines if line and not line.startswith("#")]
            Tokens(in_file)
            found += in_file
        if not found:
            raise ValueError("holds no token")
    except OSError as error:
        raise ValueError(f"{where}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"{where}: {_text_of(error)}") from None
    return Tokens(found)


class TokenInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Ends every call without a valid token with UNAUTHENTICATED.

    open_services: full names of the services that need none.
    """

    def __init__(self, tokens: Tokens, calls: Calls, open_services: Collection[str]) -> None:
        self._tokens = tokens
        self._calls = calls
        self._open = frozenset(open_services)

    async def intercept_service(  # type: ignore[override]  # None: no such method
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """The method's own handler, or one that refuses."""
        handler = await continuation(handler_call_details)
        _, service, method = handler_call_details.method.split("/", 2)
        if handler is None or service in self._open:  # gRPC says UNIMPLEMENTED itself
            return handler
        sentence = self._refusal(handler_call_details.invocation_metadata or ())
        return handler if sentence is None else _refusing(handler, self._calls, method, sentence)

    def _refusal(self, metadata: Iterable[tuple[str, str | bytes]]) -> str | None:
        headers = [value for key, value in metadata if key == _KEY]
        if not headers:
            return "this server asks for a token: send metadata 'authorization: Bearer TOKEN'"
        if len(headers) > 1 or not isinstance(headers[0], str):
            return "send one authorization header"
        scheme, _, token = headers[0].partition(" ")
        if scheme.lower() != _SCHEME:
            return "the authorization header must be 'Bearer TOKEN'"
        return None if self._tokens.allow(token.strip()) else "the token is not valid"


def service_names(*, health_open: bool, reflection_open: bool) -> tuple[str, ...]:
    """Full names of the helper services that need no token."""
    names = ((health.SERVICE_NAME, health_open), (reflection.SERVICE_NAME, reflection_open))
    return tuple(name for name, is_open in names if is_open)


def _text_of(error: ValueError) -> str:
    return "is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else str(error)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def _refusing(handler: Handler, calls: Calls, method: str, sentence: str) -> Handler:
    """A handler of the same kind that refuses every call."""

    async def refuse(_request: Any, context: Any) -> Any:
        async def answer() -> Any:
            raise UnauthenticatedError(sentence)

        return await calls.run(method, context, answer)

    kinds = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }
    make: Any = kinds[handler.request_streaming, handler.response_streaming]
    refusing: Handler = make(refuse, handler.request_deserializer, handler.response_serializer)
    return refusing
