"""Our highlights in what MilvusClient gave: its own stay, in either of their shapes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fakes import make_engine
from milvus_harness import fill, opened

from secateur.errors import InvalidRequestError
from secateur.milvus import highlight_hits, highlight_hits_async
from secateur.milvus.fragments import spans_of
from secateur.model.pruner import Pruner
from secateur.types import KeepReason, Sentence

QUERY = "what opens the valve"
TEXT = "The red handle opens the valve. Lunch is at noon. What opens doors opens the valve."


@pytest.fixture(scope="module")
def pruner() -> Pruner:
    return Pruner(make_engine(window_tokens=200))


def hit(text: str | None = TEXT, **more: Any) -> dict[str, Any]:
    return {"id": "1", "distance": 0.5, "entity": {"text": text}, **more}


def test_the_shape_is_pymilvus_own(pruner: Pruner) -> None:
    results = [[hit()]]
    assert highlight_hits(results, QUERY, pruner=pruner) is results
    shown = results[0][0]["highlight"]["text"]
    assert shown["fragments"] == [
        "<mark>The red handle opens the valve.</mark>",
        "<mark>What opens doors opens the valve.</mark>",
    ]
    assert len(shown["scores"]) == 2
    assert all(0.5 < score < 1 for score in shown["scores"])


def test_tags_take_turns_and_the_whole_text_may_be_one_fragment(pruner: Pruner) -> None:
    hits = [hit()]
    highlight_hits(
        hits,
        QUERY,
        pruner=pruner,
        pre_tags=["{", "("],
        post_tags=["}", ")"],
        highlight_only=False,
    )
    assert hits[0]["highlight"]["text"]["fragments"] == [
        "{The red handle opens the valve.} Lunch is at noon. (What opens doors opens the valve.)"
    ]
    assert len(hits[0]["highlight"]["text"]["scores"]) == 1


@pytest.mark.parametrize(
    "own", [{"fragments": ["theirs"], "scores": [0.9]}, ["theirs"]], ids=["newer", "older"]
)
def test_what_milvus_highlighted_stays(pruner: Pruner, own: Any) -> None:
    hits = [hit(highlight={"text": own, "other": own}), hit(highlight=None), hit()]
    hits[2]["highlight"] = {"other": own}
    highlight_hits(hits, QUERY, pruner=pruner)
    assert hits[0]["highlight"] == {"text": own, "other": own}
    assert hits[1]["highlight"]["text"]["fragments"]
    assert hits[2]["highlight"]["other"] == own
    assert hits[2]["highlight"]["text"]["scores"]


def test_the_text_cannot_become_markup(pruner: Pruner) -> None:
    text = 'Use <script>alert(1)</script> & <mark>valve</mark>. The valve\'s "on" opens.'
    hits, raw = [hit(text)], [hit(text)]
    highlight_hits(hits, QUERY, pruner=pruner, threshold=0, highlight_only=False)
    (shown,) = hits[0]["highlight"]["text"]["fragments"]
    assert shown.startswith("<mark>Use &lt;script&gt;alert(1)")
    assert shown.count("<") == 2
    assert "&amp;" in shown
    assert "&quot;on&quot;" in shown
    assert "&#x27;s" in shown
    highlight_hits(raw, QUERY, pruner=pruner, threshold=0, escape_html=False)
    assert raw[0]["highlight"]["text"]["fragments"] == [f"<mark>{text}</mark>"]


@pytest.mark.parametrize("text", ["", "  \n", None, "Nothing of that."])
def test_nothing_to_highlight_gives_empty_lists(pruner: Pruner, text: str | None) -> None:
    hits = [hit(text)]
    highlight_hits(hits, QUERY, pruner=pruner)
    assert hits[0]["highlight"]["text"] == {"fragments": [], "scores": []}


def test_empty_results(pruner: Pruner) -> None:
    assert highlight_hits([], QUERY, pruner=pruner) == []
    assert highlight_hits([[]], QUERY, pruner=pruner) == [[]]


def test_a_query_for_each_list(pruner: Pruner) -> None:
    results = [[hit("The valve opens.")], [hit("The valve opens. Soup on Monday.")]]
    highlight_hits(results, [QUERY, "soup monday"], pruner=pruner)
    assert results[1][0]["highlight"]["text"]["fragments"] == ["<mark>Soup on Monday.</mark>"]
    with pytest.raises(InvalidRequestError, match="1 texts for 2 lists"):
        highlight_hits(results, [QUERY], pruner=pruner)


def test_more_hits_than_a_request_takes(pruner: Pruner) -> None:
    hits = [hit(f"Door {i} is shut. The valve opens.") for i in range(150)]
    highlight_hits(hits, QUERY, pruner=pruner)
    assert all(
        h["highlight"]["text"]["fragments"] == ["<mark>The valve opens.</mark>"] for h in hits
    )


@pytest.mark.parametrize(
    ("results", "options", "fault"),
    [
        ([[{"id": 1, "entity": {"title": "x"}}]], {}, r"results\[0\]\[0\].*output_fields"),
        ([[{"id": 1, "entity": {"text": 3}}]], {}, "is int, not text"),
        ([[hit()]], {"pre_tags": []}, "pre_tags"),
        ([[hit()]], {"post_tags": ["a", "b"]}, "as many as"),
        ([[hit()]], {"threshold": 2.0}, "^threshold"),
        ([[hit()]], {"pre_tags": "<b>", "post_tags": "<i>"}, "pre_tags: must be a list.*post_tags"),
        ([[hit()]], {"input_fields": "text"}, "input_fields: must be a list"),
        ([[hit()] * 70 + [hit("\ud800")]], {}, r"^results\[0\]\[70\]\['text'\]: has a lone"),
    ],
)
def test_faults(pruner: Pruner, results: Any, options: dict[str, Any], fault: str) -> None:
    with pytest.raises(InvalidRequestError, match=fault):
        highlight_hits(results, QUERY, pruner=pruner, **options)


async def test_on_what_milvus_lite_gives(pruner: Pruner, tmp_path: Path) -> None:
    """With pymilvus's own result types, which are no plain lists, and its hits."""
    async with opened(tmp_path / "m.db") as store:
        await fill(store, "c")
        await store.describe("c")
        client = store._client
        assert client is not None
        results = await client.search(
            "c", ["valve opens"], anns_field="sparse", limit=2, output_fields=["text"]
        )
        assert await highlight_hits_async(results, QUERY, pruner=pruner) is results
        best = results[0][0]
        assert best.highlight["text"]["fragments"] == [
            "<mark>The red handle opens the valve.</mark>"
        ]


def test_spans_at_a_threshold_of_their_own() -> None:
    def sentence(start: int, probability: float | None, kept: bool) -> Sentence:
        return Sentence(start, start + 1, probability, None, kept, KeepReason.ABOVE_THRESHOLD)

    row = [sentence(0, 0.9, True), sentence(2, 0.4, True), sentence(4, None, True)]
    row.append(sentence(6, 0.8, False))

    def spans(threshold: float | None) -> list[tuple[int, int]]:
        return [(s.start_offset, s.end_offset) for s in spans_of(row, threshold)]

    assert spans(None) == [(0, 5)]
    assert spans(0.5) == [(0, 1), (6, 7)]
    assert spans(0) == [(0, 3), (6, 7)]
    assert spans(1) == []


def test_highlighting_hits_needs_the_base_install_only() -> None:
    code = "import sys, secateur.milvus; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"pymilvus", "torch", "transformers", "numpy"} & set(done.stdout.split())
