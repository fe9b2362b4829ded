"""Who may call: TLS, client certificates, bearer tokens; and that no secret is ever shown."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
import trustme
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from server_harness import (
    PATIENCE,
    Serving,
    details_of,
    error_of,
    rerank_request,
    serving,
    settings_for_test,
)

from secateur import Tls, errors
from secateur.cli import main
from secateur.client import Client
from secateur.server.auth import Tokens, load_tokens
from secateur.server.calls import Calls
from secateur.server.metrics import Metrics
from secateur.server.security import credentials, interceptors
from secateur.server.settings import SettingsError, describe, load_settings
from secateur.v1 import rerank_prune_pb2 as pb
from secateur.v1 import rerank_prune_pb2_grpc as pb_grpc

QUERY = "what opens the valve"
RED = "The red handle opens the valve. Lunch is at noon."
TOKEN = "swordfish-0123456789"
OTHER = "marlin-9876543210abc"
CALLS = Calls(Metrics())


class Files:
    """PEM files of an authority, a server and a client."""

    def __init__(self, folder: Path) -> None:
        authority = trustme.CA()
        self.authority = authority.cert_pem.bytes()
        self.ca = folder / "ca.pem"
        authority.cert_pem.write_to_path(str(self.ca))
        for name in ("server", "client"):
            issued = authority.issue_cert("localhost", "127.0.0.1")
            issued.private_key_pem.write_to_path(str(folder / f"{name}.key"))
            issued.cert_chain_pems[0].write_to_path(str(folder / f"{name}.pem"))
        self.cert, self.key = folder / "server.pem", folder / "server.key"
        self.client_cert, self.client_key = folder / "client.pem", folder / "client.key"

    @property
    def served(self) -> dict[str, Any]:
        """The settings of a server with TLS."""
        return {"tls_cert": self.cert, "tls_key": self.key}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def tokens_file(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    path.write_text(f"# of the search page\n{TOKEN}\n\n  {OTHER}  \n")
    return path


def bearer(value: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", value),)


async def info(server: Serving, *metadata: tuple[str, str]) -> Any:
    """One call with some metadata."""
    return await server.stub.GetModelInfo(
        pb.GetModelInfoRequest(), timeout=PATIENCE, metadata=metadata
    )


async def test_tls(files: Files) -> None:
    trusting = grpc.ssl_channel_credentials(files.authority)
    async with serving(**files.served, credentials=trusting) as server:
        assert (await server.rerank(QUERY, [RED])).results
        assert await server.health() == health_pb2.HealthCheckResponse.SERVING
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as plain:
            stub: Any = pb_grpc.RerankPruneServiceStub(plain)
            error = await error_of(stub.GetModelInfo(pb.GetModelInfoRequest()))
            assert error.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_client_that_does_not_trust_the_server_gets_nothing(files: Files) -> None:
    strange = grpc.ssl_channel_credentials(trustme.CA().cert_pem.bytes())
    async with serving(**files.served, credentials=strange) as server:
        error = await error_of(info(server))
        assert error.code() is grpc.StatusCode.UNAVAILABLE


async def test_mutual_tls_asks_for_a_client_certificate(files: Files) -> None:
    shown = grpc.ssl_channel_credentials(
        files.authority, files.client_key.read_bytes(), files.client_cert.read_bytes()
    )
    async with serving(**files.served, tls_client_ca=files.ca, credentials=shown) as server:
        assert (await info(server)).id == "fake"
        nothing = grpc.ssl_channel_credentials(files.authority)
        stranger = trustme.CA().issue_cert("localhost")
        forged = grpc.ssl_channel_credentials(
            files.authority,
            stranger.private_key_pem.bytes(),
            stranger.cert_chain_pems[0].bytes(),
        )
        for wrong in (nothing, forged):
            async with grpc.aio.secure_channel(f"127.0.0.1:{server.port}", wrong) as channel:
                stub: Any = pb_grpc.RerankPruneServiceStub(channel)
                error = await error_of(stub.GetModelInfo(pb.GetModelInfoRequest()))
                assert error.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["tls_cert"], "tls_cert and tls_key are set together"),
        (["tls_key"], "tls_cert and tls_key are set together"),
        (["tls_client_ca"], "tls_client_ca needs tls_cert"),
    ],
)
def test_half_of_tls_is_refused(files: Files, flags: list[str], sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence):
        load_settings(**dict.fromkeys(flags, files.cert))


def test_a_bad_file_is_named(files: Files, tmp_path: Path) -> None:
    """gRPC itself only says that it cannot listen."""
    empty = tmp_path / "empty.pem"
    empty.touch()
    for flags, sentence in (
        ({"tls_cert": tmp_path / "none", "tls_key": files.key}, r"tls_cert: cannot read .*none"),
        ({"tls_cert": empty, "tls_key": files.key}, "tls_cert, tls_key: .* no PEM certificate"),
        ({"tls_cert": files.cert, "tls_key": files.client_key}, "tls_cert, tls_key: .*"),
        ({**files.served, "tls_client_ca": empty}, "tls_client_ca: .* holds no PEM certificates"),
    ):
        with pytest.raises(SettingsError, match=sentence):
            credentials(settings_for_test(**flags))


def test_tokens_are_compared_whole() -> None:
    tokens = Tokens([TOKEN, OTHER])
    assert tokens.allow(TOKEN)
    assert tokens.allow(OTHER)
    for wrong in ("", TOKEN[:-1], TOKEN + "x", TOKEN.upper(), f"{TOKEN} {OTHER}"):
        assert not tokens.allow(wrong)
    assert TOKEN not in repr(vars(tokens))


@pytest.mark.parametrize(
    ("given", "content", "sentence"),
    [
        ("short", None, "auth_tokens: token 1 has fewer than 16 characters"),
        (f"{TOKEN} säbelfisch-0123456789", None, "auth_tokens: token 2 has characters other"),
        (None, "", "auth_tokens_file: .*tokens: holds no token"),
        (None, "# only a comment\n", "holds no token"),
        (TOKEN, "two tokens-of-one-line\n", "auth_tokens_file: .*token 1 has characters other"),
        (None, b"\xff" * 20, "auth_tokens_file: .*is not UTF-8 text"),
        (None, None, None),
    ],
)
def test_bad_tokens_are_named_but_not_shown(
    tmp_path: Path, given: str | None, content: str | bytes | None, sentence: str | None
) -> None:
    file = tmp_path / "tokens" if content is not None else None
    if file is not None and content is not None:
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    if sentence is None:
        assert load_tokens(given, file) is None
        return
    with pytest.raises(ValueError, match=sentence) as caught:
        load_tokens(given, file)
    for shown in (given or "", content if isinstance(content, str) else ""):
        assert not shown.strip() or shown.strip() not in str(caught.value)


def test_a_missing_tokens_file_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"auth_tokens_file: .*cannot be read: No such file"):
        interceptors(settings_for_test(auth_tokens_file=tmp_path / "none"), CALLS)


async def test_without_a_valid_token_every_method_is_refused(tokens_file: Path) -> None:
    async with serving(auth_tokens_file=tokens_file) as server:
        for token in (TOKEN, OTHER):
            assert (await info(server, *bearer(f"Bearer {token}"))).id == "fake"
        assert (await info(server, *bearer(f"bearer  {TOKEN} "))).id == "fake"
        for metadata, sentence in (
            ((), "asks for a token"),
            (bearer("Bearer wrong"), "the token is not valid"),
            (bearer(f"Basic {TOKEN}"), "must be 'Bearer TOKEN'"),
            (bearer(TOKEN), "must be 'Bearer TOKEN'"),
            (bearer(f"Bearer {TOKEN}") * 2, "one authorization header"),
        ):
            error = await error_of(info(server, *metadata))
            assert error.code() is grpc.StatusCode.UNAUTHENTICATED
            assert details_of(error)["ErrorInfo"].reason == "UNAUTHENTICATED"
            assert sentence in str(error.details())
        error = await error_of(server.rerank(QUERY, [RED]))
        assert error.code() is grpc.StatusCode.UNAUTHENTICATED
        call = server.stub.RerankAndPruneStream(timeout=PATIENCE)
        error = await error_of(call.read())
        assert error.code() is grpc.StatusCode.UNAUTHENTICATED
        assert server.scorer.batches == []


async def reflected(server: Serving, *metadata: tuple[str, str]) -> Any:
    stub: Any = reflection_pb2_grpc.ServerReflectionStub(server.channel)
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    call = stub.ServerReflectionInfo(iter([request]), timeout=PATIENCE, metadata=metadata)
    return [response async for response in call]


async def watched(server: Serving, *metadata: tuple[str, str]) -> Any:
    stub: Any = health_pb2_grpc.HealthStub(server.channel)
    request = health_pb2.HealthCheckRequest()
    call = stub.Watch(request, timeout=PATIENCE, metadata=metadata)
    response = await call.read()
    call.cancel()
    return response


async def test_health_is_open_and_reflection_closed_until_settings_say_otherwise(
    tokens_file: Path,
) -> None:
    valid = bearer(f"Bearer {TOKEN}")
    async with serving(auth_tokens_file=tokens_file) as server:
        assert await server.health() == health_pb2.HealthCheckResponse.SERVING
        assert (await watched(server)).status == health_pb2.HealthCheckResponse.SERVING
        error = await error_of(reflected(server))
        assert error.code() is grpc.StatusCode.UNAUTHENTICATED
        assert await reflected(server, *valid)
    closed: dict[str, Any] = {"health_needs_token": True, "reflection_needs_token": False}
    async with serving(auth_tokens_file=tokens_file, **closed) as server:
        for call in (server.health(), watched(server)):
            assert (await error_of(call)).code() is grpc.StatusCode.UNAUTHENTICATED
        assert (await watched(server, *valid)).status == health_pb2.HealthCheckResponse.SERVING
        assert await reflected(server)


async def test_an_unknown_method_is_no_matter_of_tokens(tokens_file: Path) -> None:
    async with serving(auth_tokens_file=tokens_file) as server:
        call: Any = server.channel.unary_unary(
            "/secateur.v1.RerankPruneService/Nothing",
            request_serializer=bytes,
            response_deserializer=bytes,
        )
        assert (await error_of(call(b""))).code() is grpc.StatusCode.UNIMPLEMENTED


def test_tokens_come_from_the_environment_but_not_from_flags(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(SettingsError, match="--auth-tokens: the command line shows") as caught:
        load_settings(auth_tokens=TOKEN)
    assert TOKEN not in str(caught.value)
    monkeypatch.setenv("SECATEUR_AUTH_TOKENS", f"{TOKEN} {OTHER}")
    settings = load_settings()
    assert settings.auth_tokens is not None
    assert TOKEN not in describe(settings) + repr(settings)
    monkeypatch.setenv("SECATEUR_AUTH_TOKENS", " ")
    with pytest.raises(SettingsError, match="SECATEUR_AUTH_TOKENS is set but empty"):
        load_settings()  # an empty secret must not open the server
    monkeypatch.delenv("SECATEUR_AUTH_TOKENS")
    monkeypatch.setenv("secateur_auth_tokens", "")
    with pytest.raises(SettingsError, match="SECATEUR_AUTH_TOKENS is set but empty"):
        load_settings()


@pytest.mark.parametrize("name", ["AUTH_TOKENS_FILE", "TLS_CERT", "TLS_KEY", "TLS_CLIENT_CA"])
def test_the_empty_name_of_a_protecting_file_does_not_open_the_server(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(f"SECATEUR_{name}", "")
    with pytest.raises(SettingsError, match=f"SECATEUR_{name} is set but empty"):
        load_settings()


def test_tokens_in_plain_text_beyond_this_machine_are_warned_of(
    tokens_file: Path, files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    asking = {"auth_tokens_file": tokens_file}
    with caplog.at_level(logging.WARNING):
        for flags in ({"host": "::1"}, {"host": "localhost"}, {"host": "0.0.0.0", **files.served}):
            assert interceptors(settings_for_test(**asking, **flags), CALLS)
        assert not interceptors(settings_for_test(host="0.0.0.0"), CALLS)
        assert not caplog.records
        assert interceptors(settings_for_test(**asking, host="0.0.0.0"), CALLS)
    assert "without TLS" in caplog.text


async def test_texts_and_tokens_are_not_logged(
    tokens_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        async with serving(auth_tokens_file=tokens_file) as server:
            request = rerank_request(QUERY, [RED], protected_patterns=["hand.e"])
            metadata = bearer(f"Bearer {TOKEN}")
            await server.stub.RerankAndPrune(request, timeout=PATIENCE, metadata=metadata)
            request.options.top_k = -1
            await error_of(server.stub.RerankAndPrune(request, timeout=PATIENCE, metadata=metadata))
            await error_of(info(server, *bearer("Bearer wrong-wrong-wrong-wrong")))
    assert "call ended" in caplog.text
    for secret in (TOKEN, OTHER, "wrong-wrong", "valve", "Lunch", "hand.e"):
        assert secret not in caplog.text


@pytest_asyncio.fixture
async def secured(files: Files, tokens_file: Path) -> AsyncIterator[str]:
    """The address of a server with mutual TLS, and tokens for health too.

    Synchronous clients call it from another thread: this one serves.
    """
    async with serving(
        **files.served,
        tls_client_ca=files.ca,
        auth_tokens_file=tokens_file,
        health_needs_token=True,
    ) as server:
        yield f"127.0.0.1:{server.port}"


async def test_the_client_takes_tls_and_a_token(secured: str, files: Files) -> None:
    await asyncio.to_thread(use_client, secured, files)


def use_client(secured: str, files: Files) -> None:
    tls = Tls(ca=files.ca, cert=files.client_cert, key=files.client_key)
    with Client(secured, tls=tls, token=TOKEN) as client:
        client.wait_until_ready()
        assert client.health() == "SERVING"
        assert client.rerank_and_prune(QUERY, [RED]).results[0].pruned_text
        assert len(list(client.rerank_and_prune_stream(QUERY, [RED]))) == 2
    with (
        Client(secured, tls=tls) as client,
        pytest.raises(errors.UnauthenticatedError, match="asks for a token"),
    ):
        client.model_info()
    with (
        Client(secured, tls=Tls(ca=files.ca), token=TOKEN, max_attempts=1) as client,
        pytest.raises(errors.UnavailableError),
    ):
        client.model_info()


def test_what_a_client_cannot_use_is_refused_at_once(files: Files, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="both cert and key"):
        Tls(cert=files.client_cert)
    with pytest.raises(ValueError, match=r"TLS ca: cannot read .*none: No such file"):
        Client("localhost:1", tls=Tls(ca=tmp_path / "none"))
    with pytest.raises(ValueError, match="tls or credentials, not both"):
        Client("localhost:1", tls=Tls(), credentials=grpc.ssl_channel_credentials())


async def test_the_command_line_takes_tls_and_a_token(
    secured: str,
    files: Files,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    await asyncio.to_thread(use_command_line, secured, files, tmp_path, monkeypatch, capsys)


def use_command_line(
    secured: str,
    files: Files,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tls = ["--tls-ca", files.ca, "--tls-cert", files.client_cert, "--tls-key", files.client_key]
    options = ["--target", secured, *map(str, tls)]
    token = tmp_path / "token"
    token.write_text(f"{TOKEN}\n")
    text = tmp_path / "text.txt"
    text.write_text(RED)
    for command in (["health"], ["info"], ["call", "-q", QUERY, str(text)]):
        assert main([*command, *options, "--token-file", str(token)]) == 0
    monkeypatch.setenv("SECATEUR_CLIENT_TOKEN", OTHER)
    assert main(["health", *options]) == 0
    capsys.readouterr()
    monkeypatch.delenv("SECATEUR_CLIENT_TOKEN")
    assert main(["health", *options]) == 1
    assert "asks for a token" in capsys.readouterr().err
    assert main(["health", *options, "--token-file", str(tmp_path / "none")]) == 2
    assert "--token-file: cannot read" in capsys.readouterr().err
    assert main(["info", "--token-file", str(token)]) == 2
    assert "need --target" in capsys.readouterr().err
    assert main(["health", "--target", secured, "--tls-cert", str(files.cert)]) == 2
    assert "both cert and key" in capsys.readouterr().err
    assert main(["health", "--target", secured, "--tls-ca", str(tmp_path / "none")]) == 2


def test_the_servers_settings_leave_the_clients_variables_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both halves may run in one container: its health check asks with a token."""
    monkeypatch.setenv("SECATEUR_CLIENT_TOKEN", TOKEN)
    load_settings()
    monkeypatch.setenv("SECATEUR_TOKEN", TOKEN)  # a slip that must not leave the server open
    with pytest.raises(SettingsError, match="SECATEUR_TOKEN; the nearest is"):
        load_settings()
