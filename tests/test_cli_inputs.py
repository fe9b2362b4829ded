"""What the command line reads: formats, merging of options, and messages for bad input."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from secateur.cli.exits import BadInputError
from secateur.cli.inputs import Request, read_request, text_passages
from secateur.cli.options import InputFormat, RequestArguments
from secateur.types import KeepRule, OffsetUnit, Passage, PruneOptions, ResultOrder, TextSpan

Write = Callable[[str, str | bytes], str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_file(name: str, content: str | bytes) -> str:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return str(path)

    return write_file


def read(file: str, **given: Any) -> Request:
    return read_request(RequestArguments(**{"file": file, "query": "q", **given}))


def test_every_option_of_the_contract_is_an_option_of_the_command() -> None:
    ours = {field.name for field in fields(RequestArguments)}
    assert {field.name for field in fields(PruneOptions)} <= ours


# --- text ---


def test_text_is_one_passage_a_block_exactly_as_it_stands() -> None:
    content = "\n\n  One.\r\nStill one.\r\n \t\r\n\r\nTwo.  \n\n\n\u3000\n\nThree."
    assert [passage.text for passage in text_passages(content)] == [
        "  One.\r\nStill one.",
        "Two.  ",
        "Three.",
    ]


@pytest.mark.parametrize("content", ["", "\n", " \n \n"])
def test_blank_text_has_no_passages(content: str) -> None:
    assert text_passages(content) == ()


def test_hostile_blank_lines_take_linear_time() -> None:
    assert text_passages("a" + "\n \r" * 200_000 + "b")[0].text.startswith("a")


# --- JSON ---


def test_jsonl_passages(write: Write) -> None:
    lines = (
        '\ufeff{"text": "A.", "id": "1", "title": "T",'
        ' "sentences": [{"endOffset": 2}]}\n'
        '\n"B.\\u2028still B"\r\n{"text": "C", "id": null}'
    )
    assert read(write("p.jsonl", lines)).passages == (
        Passage("A.", "1", "T", (TextSpan(0, 2),)),
        Passage("B.\u2028still B"),
        Passage("C"),
    )


def test_json_array(write: Write) -> None:
    assert read(write("p.json", '["A", {"text": "B"}]')).passages == (Passage("A"), Passage("B"))


def test_json_request_with_the_command_lines_options_over_it(write: Write) -> None:
    content = {
        "query": "from the file",
        "passages": [],
        "options": {
            "threshold": 1,
            "topK": 3,
            "keepRule": "KEEP_RULE_TOKEN_VOTE",
            "order": "INPUT",
            "offsetUnit": "OFFSET_UNIT_UNSPECIFIED",
            "protected_patterns": ["x"],
            "truncate_query": True,
            "language": None,
        },
    }
    file = write("r.json", json.dumps(content))
    request = read(file, query=None, top_k=5, min_sentences=1)
    assert request.query == "from the file"
    assert request.options == PruneOptions(
        threshold=1.0,
        keep_rule=KeepRule.TOKEN_VOTE,
        top_k=5,
        order=ResultOrder.INPUT,
        min_sentences=1,
        protected_patterns=("x",),
        truncate_query=True,
    )
    given = read(file, query="mine", protected_patterns=["y", "z"])
    assert given.query == "mine"
    assert given.options.protected_patterns == ("y", "z")


@pytest.mark.parametrize(
    ("name", "content", "count"),
    [
        ("p.txt", '{"text": "a"}\n\n{"text": "b"}', 2),
        ("p.TXT", "a\n\nb", 2),
        ("p.md", "a\n\nb", 2),
        ("p.ndjson", '"a"\n"b"', 2),
        ("p", "a\n\nb", 2),
        ("p", '{"text": "a"}\n{"text": "b"}', 2),
        ("p", '\n {"text": "a"}', 1),
        ("p", '{"passages": ["a", "b", "c"]}', 3),
        ("p", '{\n"passages": ["a", "b", "c"]}', 3),
        ("p", '["a", "b", "c"]', 3),
        ("p", '[\n"a",\n"b",\n"c"]', 3),
        ("p", "", 0),
    ],
)
def test_format_by_ending_then_by_first_character(
    write: Write, name: str, content: str, count: int
) -> None:
    assert len(read(write(name, content)).passages) == count


def test_format_that_is_given_wins(write: Write) -> None:
    file = write("p.json", '"a"\n"b"')
    assert len(read(file, format=InputFormat.JSONL).passages) == 2
    assert len(read(file, format=InputFormat.TEXT).passages) == 1


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("Ä.\n\nB.".encode())))
    assert [passage.text for passage in read("-").passages] == ["Ä.", "B."]


# --- faults ---


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("p.jsonl", '"a"\n{"text": \n', "p.jsonl, line 2, column 10: not valid JSON"),
        ("p.jsonl", '"a"\n7', "p.jsonl, line 2: expected a string or an object, found a number"),
        ("p.jsonl", '{"txt": "a"}', "line 1: unknown name 'txt'; known: text, id, title, sent"),
        ("p.jsonl", '{"id": "a"}', "line 1: 'text' is missing"),
        ("p.jsonl", '{"text": null}', "line 1: 'text' is missing"),
        ("p.jsonl", '{"text": "a", "id": 7}', "line 1: id: expected a string, found a number"),
        ("p.jsonl", '{"text": "\\ud800"}', "line 1: text: holds a lone surrogate"),
        ("p.jsonl", '{"text": "a", "sentences": {}}', "sentences: expected an array, found an obj"),
        ("p.jsonl", '{"text": "a", "sentences": [[0, 1]]}', r"sentences\[0\]: expected an object"),
        (
            "p.jsonl",
            '{"text": "a", "sentences": [{"end_offset": true}]}',
            r"sentences\[0\].end_offset: expected an integer, found true or false",
        ),
        ("p.json", '{\n"passages": [\n}', "p.json, line 3, column 1: not valid JSON"),
        ("p.json", "{}", "p.json: expected an array of passages, or an object with 'passages'"),
        ("p.json", "7", "p.json: expected an array of passages"),
        ("p.json", '{"passages": {}}', "p.json: passages: expected an array, found an object"),
        ("p.json", '["a", 7]', r"p.json: passages\[1\]: expected a string or an object"),
        ("p.json", '{"passages": [], "q": 1}', "unknown name 'q'; known: query, passages, options"),
        ("p.json", "[" * 100_000, "line 1"),
        ("p.json", "[" + "1" * 5_000 + "]", "line 1"),
        ("p.txt", b"a\n\xff", "p.txt, line 2: not valid UTF-8"),
    ],
)
def test_fault_is_located(write: Write, name: str, content: str | bytes, message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        read(write(name, content))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "options: expected an object, found an array"),
        ({"treshold": 0.1}, "unknown name 'treshold'; known: threshold, "),
        ({"threshold": "high"}, r"options.threshold: expected a number, found a string"),
        ({"threshold": True}, r"options.threshold: expected a number, found true or false"),
        ({"top_k": 1.5}, r"options.top_k: expected an integer, found a number"),
        ({"truncate_query": 1}, r"options.truncate_query: expected true or false, found a num"),
        ({"keep_rule": "vote"}, "'vote' is none of mean_probability, token_vote, majority, sent"),
        ({"protected_patterns": "a"}, "options.protected_patterns: expected an array"),
        ({"protected_patterns": [1]}, r"options.protected_patterns\[0\]: expected a string"),
    ],
)
def test_fault_in_options_is_located(write: Write, options: Any, message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        read(write("r.json", json.dumps({"passages": [], "options": options})))


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"cannot read .*gone: No such file"):
        read(str(tmp_path / "gone"))
    with pytest.raises(BadInputError, match="Is a directory"):
        read(str(tmp_path))


def test_query_is_needed_from_somewhere(write: Write) -> None:
    with pytest.raises(BadInputError, match="no query: give --query"):
        read(write("p.json", "[]"), query=None)


@pytest.mark.parametrize(
    "given",
    [
        {"offset_unit": OffsetUnit.UTF8_BYTE},
        {"include_tokens": True},
        {"include_sentence_text": True},
    ],
)
def test_what_only_json_shows_is_refused_without_it(write: Write, given: dict[str, Any]) -> None:
    file = write("p.json", "[]")
    with pytest.raises(BadInputError, match=f"{next(iter(given))} .* needs --json"):
        read(file, **given)
    assert read(file, json_output=True, **given).passages == ()
