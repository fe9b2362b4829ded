"""The provider that Milvus asks, with a client as Milvus's own: gzip, metadata, string params."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any, Self

import grpc
import pytest
from grpc import StatusCode
from server_harness import PATIENCE, Serving, details_of, error_of, fields_of, serving

from secateur.modelservice import HighlightServiceStub, RerankServiceStub
from secateur.modelservice import milvus_model_service_pb2 as pb

QUERY = "what opens the valve"
DOCUMENTS = ["Lunch is at noon.", "The red handle opens the valve. Lunch is at noon.", " ", "x"]

# As Milvus's client sets it up.
MEGABYTES_100 = 100 << 20
METADATA = (("instance-id", "i"), ("model-deployment-id", "m"), ("db-name", "default"))
PARAMS = {
    "queries": json.dumps([QUERY]),
    "input_fields": json.dumps(["text"]),
    "max_client_batch_size": "64",
    "threshold": "0.5",
    "highlight_only": "True",
    "pre_tags": json.dumps(["<em>"]),
    "post_tags": json.dumps(["</em>"]),
}


class MilvusClient:
    """One connection of Milvus to its provider."""

    def __init__(self, server: Serving) -> None:
        self._channel = grpc.aio.insecure_channel(
            f"127.0.0.1:{server.port}",
            options=[
                ("grpc.max_send_message_length", MEGABYTES_100),
                ("grpc.max_receive_message_length", MEGABYTES_100),
            ],
            compression=grpc.Compression.Gzip,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close(None)

    async def rerank(self, documents: list[str] | None = None, **fields: Any) -> list[float]:
        """Scores, one per document, or an error."""
        request = pb.TextRerankRequest(**_request(documents, fields))
        stub: Any = RerankServiceStub(self._channel)
        response = await stub.Rerank(request, timeout=PATIENCE, metadata=METADATA)
        assert len(response.scores) == len(request.documents)
        return list(response.scores)

    async def highlight(
        self, documents: list[str] | None = None, **fields: Any
    ) -> list[tuple[list[str], list[float]]]:
        """Sentences and scores, one pair per document, or an error."""
        request = pb.HighlightRequest(**_request(documents, {"params": PARAMS, **fields}))
        stub: Any = HighlightServiceStub(self._channel)
        response = await stub.Highlight(request, timeout=PATIENCE, metadata=METADATA)
        assert len(response.results) == len(request.documents)
        return [(list(r.sentences), list(r.scores)) for r in response.results]


def _request(documents: list[str] | None, fields: dict[str, Any]) -> dict[str, Any]:
    texts = DOCUMENTS if documents is None else documents
    return {"query": QUERY, "documents": texts, **fields}


async def test_rerank_scores_every_document_in_order() -> None:
    async with serving() as server, MilvusClient(server) as milvus:
        scores = await milvus.rerank()
        assert max(scores) == scores[1] > scores[3] >= scores[0] > scores[2] == 0
        assert all(0 <= score <= 1 for score in scores)
        raw = await milvus.rerank(params={"raw_scores": "true"})
        assert raw[1] == pytest.approx(4 if scores[1] > 0.9 else raw[1])
        assert sorted(range(4), key=lambda i: raw[i]) == sorted(range(4), key=lambda i: scores[i])


async def test_highlight_gives_one_result_per_document() -> None:
    async with serving() as server, MilvusClient(server) as milvus:
        nothing: tuple[list[str], list[float]] = ([], [])
        first, second, blank, short = await milvus.highlight()
        assert (first, blank, short) == (nothing, nothing, nothing)
        assert second[0] == ["<em>The red handle opens the valve.</em>"]
        assert second[1][0] > 0.5


async def test_the_whole_document_as_one_piece() -> None:
    params = {**PARAMS, "highlight_only": "False", "pre_tags": "<b>", "post_tags": "</b>"}
    async with serving() as server, MilvusClient(server) as milvus:
        results = await milvus.highlight(params=params)
        assert results[1][0] == ["<b>The red handle opens the valve.</b> Lunch is at noon."]
        assert results[0][0] == []


async def test_text_is_escaped_unless_told_otherwise() -> None:
    text = '<script>valve</script> & "the" valve\'s opens.'
    params = {"threshold": "0"}
    async with serving() as server, MilvusClient(server) as milvus:
        ((shown, _),) = await milvus.highlight([text], params=params)
        assert shown == [
            (
                "<mark>&lt;script&gt;valve&lt;/script&gt; &amp; &quot;the&quot; "
                "valve&#x27;s opens.</mark>"
            )
        ]
        ((raw, _),) = await milvus.highlight([text], params={**params, "escape_html": "false"})
        assert raw == [f"<mark>{text}</mark>"]


async def test_no_params_and_no_documents() -> None:
    async with serving() as server, MilvusClient(server) as milvus:
        assert await milvus.rerank([]) == []
        assert await milvus.highlight([]) == []
        results = await milvus.highlight(params={})
        assert results[1][0] == ["<mark>The red handle opens the valve.</mark>"]


async def test_more_bytes_than_grpc_takes_by_default() -> None:
    """Over 4 MiB in one message and, where the settings allow it, as much as Milvus sends."""
    limits: dict[str, Any] = {
        "max_passage_characters": 5_000_000,
        "max_request_characters": 6_000_000,
        "max_receive_message_bytes": MEGABYTES_100,
    }
    async with serving(**limits) as server, MilvusClient(server) as milvus:
        white = " " * 4_500_000
        scores = await milvus.rerank(["", f"{white}valve", "valve"])
        assert scores[1] == pytest.approx(scores[2])
        assert scores[0] == 0
        error = await error_of(milvus.rerank(["x" * (40 << 20)]))
        assert error.code() is StatusCode.INVALID_ARGUMENT
        assert "documents[0]" in fields_of(error)


@pytest.mark.parametrize(
    ("fields", "paths"),
    [
        ({"query": " "}, ["query"]),
        ({"params": {"threshold": "high"}}, ["params[threshold]"]),
        ({"params": {"threshold": "1.5"}}, ["params[threshold]"]),
        ({"params": {"threshold": "nan"}}, ["params[threshold]"]),
        ({"params": {"highlight_only": "maybe"}}, ["params[highlight_only]"]),
        ({"params": {"pre_tags": '["a", "b"]'}}, ["params[post_tags]"]),
        ({"params": {"pre_tags": "[1]"}}, ["params[pre_tags]"]),
        ({"params": {"pre_tags": "[" * 100_000}}, ["params[pre_tags[0]]"]),
        ({"params": {"pre_tags": "[]"}}, ["params[pre_tags]", "params[post_tags]"]),
    ],
    ids=str,
)
async def test_faults_are_grpc_codes(fields: dict[str, Any], paths: list[str]) -> None:
    async with serving() as server, MilvusClient(server) as milvus:
        error = await error_of(milvus.highlight(**fields))
        assert error.code() is StatusCode.INVALID_ARGUMENT
        assert fields_of(error) == paths


async def test_another_model() -> None:
    async with serving() as server, MilvusClient(server) as milvus:
        assert await milvus.rerank(model="fake")
        error = await error_of(milvus.rerank(model="other"))
        assert error.code() is StatusCode.FAILED_PRECONDITION
        assert details_of(error)["ErrorInfo"].reason == "UNSUPPORTED_BY_MODEL"


async def test_a_model_that_only_reranks() -> None:
    parts = {
        "can_prune": False,
        "keep_rules": (),
        "default_threshold": None,
        "default_keep_rule": None,
    }
    async with serving(engine_parts=parts) as server, MilvusClient(server) as milvus:
        assert await milvus.rerank()
        error = await error_of(milvus.highlight(params={}))
        assert error.code() is StatusCode.FAILED_PRECONDITION


async def test_a_document_that_fails_ends_the_call() -> None:
    """A result for each of the others would look like one for all."""

    def fail(windows: Any) -> None:
        if any(window.token_count > 20 for window in windows):
            raise MemoryError

    async with serving() as server, MilvusClient(server) as milvus:
        server.scorer.fail = fail
        assert await milvus.rerank(["short"])
        error = await error_of(milvus.rerank(["short", "valve " * 25]))
        assert error.code() is StatusCode.RESOURCE_EXHAUSTED
        assert "documents[1]" in (error.details() or "")


async def test_before_the_model_is_warm() -> None:
    async with serving(warm=False) as server, MilvusClient(server) as milvus:
        for call in (milvus.rerank(), milvus.highlight()):
            error = await error_of(call)
            assert error.code() is StatusCode.UNAVAILABLE


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_stubs_live_beside_pymilvus_and_milvus(order: tuple[int, ...]) -> None:
    """No top-level name and no file of the descriptor pool is theirs."""
    imports = [
        "import secateur.modelservice, secateur.v1",
        "import pymilvus, pymilvus.grpc_gen.milvus_pb2",
        "import importlib.util; importlib.util.find_spec('milvus') and __import__('milvus')",
    ]
    code = "; ".join(imports[i] for i in order)
    check = (
        "import sys; assert 'secateur' not in getattr(sys.modules.get('milvus'), '__file__', '')"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; {check}"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_names_on_the_wire_are_those_of_milvus() -> None:
    file = pb.DESCRIPTOR
    assert file.package == "milvus.proto.modelservice"
    assert file.name.startswith("secateur/")
    methods = {
        f"/{service.full_name}/{method.name}"
        for service in file.services_by_name.values()
        for method in service.methods
    }
    assert methods == {
        "/milvus.proto.modelservice.RerankService/Rerank",
        "/milvus.proto.modelservice.HighlightService/Highlight",
    }
    numbers = {
        name: {field.name: field.number for field in message.fields}
        for name, message in file.message_types_by_name.items()
    }
    asked = {"model": 1, "query": 2, "documents": 3, "params": 4}
    assert numbers == {
        "Status": {"code": 1, "msg": 2},
        "TextRerankRequest": asked,
        "TextRerankResponse": {"status": 1, "extra_info": 2, "scores": 3},
        "HighlightRequest": asked,
        "HighlightResult": {"sentences": 1, "scores": 2},
        "HighlightResponse": {"status": 1, "extra_info": 2, "results": 3},
    }
