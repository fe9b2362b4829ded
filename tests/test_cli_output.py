"""What the command line prints: the ranking for people, and JSON."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from typing import Any

import pytest

from secateur import types
from secateur._json import to_json, write_json
from secateur._render import (
    _Console,
    console_for_output,
    printable,
    render_model_info,
    render_ranked,
)
from secateur.types import KeepReason, KeepRule, Passage, Sentence, TextSpan

PASSAGES = (
    Passage("Red valve.\n\nLunch is late. It rains. The  end.", id="a", title="Valves\nand pumps"),
    Passage(" \n", id="blank"),
    Passage("No one cares."),
    Passage("It failed.", id="f"),
)


def sentence(start: int, end: int, kept: bool) -> Sentence:
    reason = KeepReason.ABOVE_THRESHOLD if kept else KeepReason.BELOW_THRESHOLD
    return Sentence(start, end, float(kept), float(kept), kept, reason)


def result(index: int, **given: Any) -> types.PrunedPassage:
    values: dict[str, Any] = {
        "index": index,
        "id": PASSAGES[index].id,
        "relevance_score": None,
        "relevance_logit": None,
        "pruned_text": "",
        "sentences": (),
        "kept_spans": (),
        "compression_rate": 0.0,
        "all_pruned": False,
    }
    return types.PrunedPassage(**{**values, **given})


ANSWER = types.RankedPassages(
    results=(
        result(
            0,
            relevance_score=0.97314,
            relevance_logit=3.59,
            pruned_text="Red valve.\n\nThe  end.",
            sentences=(
                sentence(0, 10, True),
                sentence(12, 26, False),
                sentence(27, 36, False),
                sentence(37, 46, True),
            ),
            kept_spans=(TextSpan(0, 10), TextSpan(37, 46)),
            # The last token begins at the space before it, as SentencePiece's do.
            tokens=tuple(
                types.TokenScore(start, end, 0.5, True)
                for start, end in ((0, 3), (3, 10), (12, 26), (26, 36), (36, 40), (40, 46))
            ),
        ),
        result(
            2,
            relevance_score=0.25,
            relevance_logit=-1.1,
            all_pruned=True,
            compression_rate=1.0,
            sentences=(sentence(0, 13, False),),
            tokens=(types.TokenScore(0, 13, 0.1, False),),
        ),
        result(1),
        result(3, error=types.PassageError("INTERNAL", "sorry")),
    ),
    applied_threshold=0.1,
    applied_keep_rule=KeepRule.MEAN_PROBABILITY,
    score_source=types.ScoreSource.PASSAGE_HEAD,
    omitted_passage_count=2,
    query_truncated=True,
    warnings=(types.WarningCode.UNSUPPORTED_SCRIPT,),
    model=types.ModelRef("tiny", "r1", "float32"),
    usage=types.Usage(3, 40, 4, 0),
    timing=types.Timing(0.1, 2.0, 30.0, 33.04),
)

PLAIN = """\
Query: red valve?
Dropped sentences are marked [-…-].

 1. 0.9731  a  Valves and pumps  2 of 4 sentences kept
    Red valve.

    [-Lunch is late. It rains.-] The  end.

 2. 0.2500  #2  0 of 1 sentence kept
    [-No one cares.-]

 3.   -     blank
    (blank)

 4.   -     f
    failed: INTERNAL: sorry

2 passages left out by top_k or score
Kept 2 of 5 sentences · tokens 7 → 4 (43% saved) · characters 71 → 21 (70% saved)
Time 33.0 ms · queue 0.1 · tokenise 2.0 · inference 30.0
Model tiny r1 float32 · threshold 0.1 · rule mean_probability
The query was cut to the model's limit.
Warning: unsupported_script
"""


def rendered(**console: Any) -> str:
    out = io.StringIO()
    render_ranked(
        _Console(file=out, width=100, highlight=False, **console), "red valve?", PASSAGES, ANSWER
    )
    return out.getvalue()


def test_plain_output_marks_what_was_dropped() -> None:
    assert rendered() == PLAIN


def test_terminal_output_dims_what_was_dropped() -> None:
    text = rendered(force_terminal=True, color_system="standard", no_color=False)
    assert "\x1b[2mLunch is late. It rains.\x1b[0m The  end." in text
    assert "Dropped sentences are grey." in text
    assert "[-" not in text


def test_no_color_marks_and_has_no_colour() -> None:
    text = rendered(force_terminal=True, color_system="standard", no_color=True)
    assert "[-Lunch is late. It rains.-]" in text
    assert "\x1b[3" not in text


def test_output_that_is_no_terminal_is_plain(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    render_ranked(console_for_output(), "red valve?", PASSAGES, ANSWER)
    text = capsys.readouterr().out
    assert "\x1b" not in text
    assert "[-No one cares.-]" in text


def test_control_characters_of_a_passage_do_not_reach_the_terminal() -> None:
    assert printable("a\x1b]0;title\x07b\tc\nd\r\ne\rf\x9bg") == (
        "a\ufffd]0;title\ufffdb\tc\nd\ne\ufffdf\ufffdg"
    )


def test_markup_of_a_passage_is_text() -> None:
    out = io.StringIO()
    passage = Passage("[bold red]x[/] :smile:")
    answer = types.RankedPassages(
        **{
            **{name: getattr(ANSWER, name) for name in ANSWER.__slots__},
            "results": (result(0, sentences=(sentence(0, 22, True),)),),
        }
    )
    render_ranked(_Console(file=out, width=100, highlight=False), "[b]q[/b]", [passage], answer)
    assert "[bold red]x[/] :smile:" in out.getvalue()
    assert "Query: [b]q[/b]" in out.getvalue()


def test_no_passages() -> None:
    out = io.StringIO()
    answer = types.RankedPassages(
        **{**{name: getattr(ANSWER, name) for name in ANSWER.__slots__}, "results": ()}
    )
    render_ranked(_Console(file=out, width=100), "q", [], answer)
    assert "Kept 0 of 0 sentences · characters 0 → 0 (0% saved)" in out.getvalue()


def test_what_came_from_the_cache_is_told() -> None:
    out = io.StringIO()
    answer = replace(ANSWER, usage=types.Usage(cached_passage_count=2))
    render_ranked(_Console(file=out, width=100), "q", PASSAGES, answer)
    (line,) = (line for line in out.getvalue().splitlines() if line.startswith("Time "))
    assert line.endswith(" · 2 passages from the cache")


INFO = types.ModelInfo(
    id="tiny",
    revision="",
    family="provence",
    dtype="float32",
    device="cpu",
    can_rerank=True,
    can_prune=True,
    score_source=types.ScoreSource.PASSAGE_HEAD,
    languages=("en", "de"),
    window_tokens=512,
    max_query_tokens=254,
    default_threshold=0.1,
    default_keep_rule=KeepRule.MEAN_PROBABILITY,
    keep_rules=(KeepRule.MEAN_PROBABILITY, KeepRule.MAJORITY),
)


def test_model_info_for_people() -> None:
    out = io.StringIO()
    render_model_info(_Console(file=out, width=100), INFO)
    rows = [line.split(maxsplit=1) for line in out.getvalue().splitlines()]
    assert ["family", "provence"] in rows
    assert ["revision", "-"] in rows
    assert ["can_prune", "yes"] in rows
    assert ["languages", "en, de"] in rows
    assert ["keep_rules", "mean_probability, majority"] in rows
    assert ["max_passage_characters", "500,000"] in rows


# --- JSON ---


def test_json_has_the_protos_names_short_enums_and_no_unset_fields() -> None:
    value = to_json(ANSWER)
    first, second, blank, failed = value["results"]
    assert first["sentences"][1] == {
        "start_offset": 12,
        "end_offset": 26,
        "probability": 0.0,
        "vote_share": 0.0,
        "kept": False,
        "reason": "below_threshold",
        "text": "",
    }
    assert first["kept_spans"][0] == {"start_offset": 0, "end_offset": 10}
    assert second["all_pruned"] is True
    assert "relevance_score" not in blank
    assert "error" not in blank
    assert failed["error"] == {"code": 13, "message": "sorry"}
    assert value["applied_keep_rule"] == "mean_probability"
    assert value["warnings"] == ["unsupported_script"]


def test_json_of_numbers_that_json_lacks() -> None:
    assert to_json((float("nan"), float("inf"), -float("inf"))) == ["NaN", "Infinity", "-Infinity"]


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_json_fits_the_encoding_of_the_stream(encoding: str) -> None:
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding=encoding, newline="\n")
    write_json(TextSpan(0, 1), out)
    write_json(types.PassageError("INTERNAL", "é終👍"), out)
    out.flush()
    text = raw.getvalue().decode(encoding)
    first, _, second = text.partition("}\n")
    assert json.loads(first + "}") == {"start_offset": 0, "end_offset": 1}
    assert json.loads(second)["message"] == "é終👍"
    assert ("é" in text) == (encoding == "utf-8")
