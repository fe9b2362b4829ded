"""The contract: generated stubs are fresh, and the domain types say the same as the proto."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from enum import StrEnum
from pathlib import Path

import pytest
from google.protobuf.descriptor import Descriptor, EnumDescriptor

from secateur import types
from secateur.v1 import rerank_prune_pb2

ROOT = Path(__file__).resolve().parents[1]
CONTRACT = rerank_prune_pb2.DESCRIPTOR

# Where a domain type has another name than its message or enum.
PROTO_NAMES = {
    "RankedPassages": "RerankAndPruneResponse",
    "HighlightedPassages": "HighlightResponse",
    "ModelInfo": "GetModelInfoResponse",
    "WarningCode": "Warning",
}
# Only on the wire: what a server adds to what a model is.
WIRE_ONLY_FIELDS = {
    "GetModelInfoResponse": {
        "max_request_bytes",
        "max_response_bytes",
        "max_concurrent_calls",
        "max_queue_tokens",
    }
}
WIRE_ONLY_MESSAGES = {
    "RerankAndPruneRequest",
    "RerankAndPruneStreamRequest",
    "RerankAndPruneStreamResponse",
    "StreamStart",
    "PassageBatch",
    "HighlightRequest",
    "GetModelInfoRequest",
}
# In proto this is google.rpc.Status.
DOMAIN_ONLY = {"PassageError"}


def domain_types(base: type | None) -> list[type]:
    """Dataclasses of the types module, or its subclasses of *base*."""
    own = [
        item
        for item in vars(types).values()
        if isinstance(item, type) and item.__module__ == types.__name__
    ]
    if base is None:
        return [
            item
            for item in own
            if dataclasses.is_dataclass(item) and item.__name__ not in DOMAIN_ONLY
        ]
    return [item for item in own if issubclass(item, base)]


def message_of(domain: type) -> Descriptor:
    return CONTRACT.message_types_by_name[PROTO_NAMES.get(domain.__name__, domain.__name__)]


def enum_of(domain: type) -> EnumDescriptor:
    return CONTRACT.enum_types_by_name[PROTO_NAMES.get(domain.__name__, domain.__name__)]


def generated(folder: Path) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes() for path in folder.iterdir() if path.suffix in {".py", ".pyi"}
    }


def test_stubs_are_fresh(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(ROOT / "proto" / "generate.py"), str(tmp_path)], check=True)
    for package in ("v1", "modelservice"):
        fresh = generated(tmp_path / "secateur" / package)
        committed = generated(ROOT / "src" / "secateur" / package)
        assert fresh.keys() == committed.keys()
        stale = [name for name in fresh if fresh[name] != committed[name]]
        assert not stale, f"run `make proto`: {package}: {stale}"


@pytest.mark.parametrize("domain", domain_types(None), ids=lambda item: item.__name__)
def test_fields_equal(domain: type) -> None:
    message = message_of(domain)
    fields = {field.name for field in dataclasses.fields(domain)}
    assert fields == set(message.fields_by_name) - WIRE_ONLY_FIELDS.get(message.name, set())


@pytest.mark.parametrize("domain", domain_types(None), ids=lambda item: item.__name__)
def test_none_means_optional(domain: type) -> None:
    """A domain number that may be ``None`` is ``optional`` in proto, and no other one is."""
    message = message_of(domain)
    for field in dataclasses.fields(domain):
        wire = message.fields_by_name[field.name]
        if wire.message_type is None and wire.enum_type is None:
            assert wire.has_presence == ("None" in str(field.type)), field.name


@pytest.mark.parametrize("domain", domain_types(StrEnum), ids=lambda item: item.__name__)
def test_enum_values_equal(domain: type[StrEnum]) -> None:
    enum = enum_of(domain)
    prefix = (
        "".join(
            f"_{letter}" if letter.isupper() else letter.upper() for letter in enum.name
        ).lstrip("_")
        + "_"
    )
    numbers = {value.number: value.name for value in enum.values}
    assert numbers.pop(0) == f"{prefix}UNSPECIFIED"
    assert sorted(numbers.values()) == sorted(f"{prefix}{value.upper()}" for value in domain)


def test_every_message_and_enum_has_a_domain_type() -> None:
    known = {
        PROTO_NAMES.get(item.__name__, item.__name__)
        for item in (*domain_types(None), *domain_types(StrEnum))
    }
    assert set(CONTRACT.message_types_by_name) - WIRE_ONLY_MESSAGES <= known
    assert set(CONTRACT.enum_types_by_name) == known & set(CONTRACT.enum_types_by_name)


def test_limit_comments_state_the_defaults() -> None:
    """The proto comments name the limits' defaults; they must be those of ``types.Limits``."""
    text = (ROOT / "proto" / "secateur" / "v1" / "rerank_prune.proto").read_text(encoding="utf-8")
    for field in dataclasses.fields(types.Limits):
        line = next(line for line in text.splitlines() if f" {field.name} = " in line)
        comment = text.splitlines()[text.splitlines().index(line) - 1]
        assert f"Default {field.default:,}." in comment, field.name
