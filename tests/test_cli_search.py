"""``secateur index`` and ``secateur search`` on a milvus-lite file, with a fake model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fakes import make_engine
from milvus_harness import WordEmbedder

from secateur.cli import main
from secateur.cli.documents import Source, read_documents
from secateur.cli.exits import BadInputError
from secateur.milvus.types import Document
from secateur.model.pruner import Pruner

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with three documents, and the fake model."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Pruner, "load", lambda _model=None: Pruner(make_engine(window_tokens=200)))
    Path("valve.txt").write_text("The red handle opens the valve. Soup is hot.", encoding="utf-8")
    Path("pump.md").write_text("# The pump\n\nThe pump fills the tank.\n", encoding="utf-8")
    Path("more.jsonl").write_text(
        '{"id": "lunch", "text": "Lunch is at noon.", "title": "Canteen"}\n'
        '\n"The lamp is green."\n',
        encoding="utf-8",
    )
    return tmp_path


INDEX = ["index", "-c", "c", "valve.txt", "pump.md", "more.jsonl"]


def test_index_search_and_index_again(capsys: Capture, caplog: pytest.LogCaptureFixture) -> None:
    assert main(INDEX) == 0
    assert not caplog.records
    output = capsys.readouterr()
    assert output.out == ("c: 4 documents in 4 passages; 4 added, 0 there already, 0 removed\n")
    assert output.err == ""
    assert main(["search", "-c", "c", "what opens the valve", "--top-k", "1"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("Query: what opens the valve\nWhat matters is marked [+…+].\n\n 1. 0.")
    assert "  valve.txt  1 of 2 sentences\n" in shown
    assert "    [+The red handle opens the valve.+] Soup is hot.\n" in shown
    assert "bm25 search · 3 candidates · retrieval " in shown

    Path("valve.txt").write_text("The blue handle opens the valve.", encoding="utf-8")
    assert main(INDEX) == 0
    assert "4 passages; 1 added, 3 there already, 1 removed" in capsys.readouterr().out


def test_titles_are_shown_to_the_model(capsys: Capture) -> None:
    assert main(INDEX) == 0
    assert main(["search", "-c", "c", "tank", "--json"]) == 0
    capsys.readouterr()
    assert main(["search", "-c", "c", "tank", "--title-field", "", "--json"]) == 0


def test_json(capsys: Capture) -> None:
    assert main(INDEX) == 0
    capsys.readouterr()
    query = "the pump fills the tank"
    assert main(["search", "-c", "c", query, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    best = answer["hits"][0]
    assert best["fields"]["document_id"] == "pump.md"
    assert best["highlight"]["text"]["fragments"] == [
        "<mark># The pump\n\nThe pump fills the tank.</mark>"
    ]
    assert best["passage"]["relevance_logit"] > 0
    assert answer["applied_mode"] == "bm25"
    assert answer["omitted_hit_count"] == answer["candidate_count"] - len(answer["hits"])


def test_dense_search_with_an_embedder(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr("secateur.milvus.embedder.load_embedder", lambda _name, **_: WordEmbedder())
    assert main([*INDEX, "--embedder", "folder"]) == 0
    search = ["search", "-c", "c", "the red handle opens the valve"]
    assert main([*search, "--embedder", "folder"]) == 0
    shown = capsys.readouterr().out
    assert "hybrid search" in shown
    assert " 1. " in shown.partition("valve.txt")[0]
    assert main([*search, "--mode", "dense"]) == 2
    assert "embedder" in capsys.readouterr().err


def test_filters(capsys: Capture) -> None:
    assert main(INDEX) == 0
    capsys.readouterr()
    query = ["search", "-c", "c", "the valve pump lunch lamp", "--json"]
    condition = ["--filter", "document_id in {ids}", "--filter-param", 'ids=["lunch", "pump.md"]']
    assert main([*query, *condition]) == 0
    hits = json.loads(capsys.readouterr().out)["hits"]
    assert {hit["fields"]["document_id"] for hit in hits} == {"lunch", "pump.md"}
    condition = ["--filter", "document_id == {id}", "--filter-param", "id=lunch"]
    assert main([*query, *condition]) == 0
    assert len(json.loads(capsys.readouterr().out)["hits"]) == 1


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["index", "-c", "c", "none.txt"], 2, "none.txt: there is no such file"),
        (["index", "-c", "c", "a.pdf"], 2, "must end in .txt, .md, .jsonl"),
        (["index", "-c", "c", "pump.md", "pump.md"], 2, "pump.md is given twice"),
        (["index", "-c", "no-name", "pump.md"], 2, "letters, digits"),
        (["index", "-c", "c", "pump.md", "--max-characters", "10"], 2, "max_characters"),
        (["index", "-c", "c", "pump.md", "--language", "xx"], 2, "language"),
        (["index", "-c", "c", "pump.md", "--milvus", "somewhere"], 2, "ends in .db"),
        (["index", "-c", "c", "pump.md", "--milvus", "http://127.0.0.1:9"], 1, "cannot be reached"),
        (["index", "-c", "c", "pump.md", "--embedder", "here"], 1, "embedder here"),
        (["search", "-c", "none", "x"], 2, "there is no collection 'none'"),
        (["search", "-c", "c", ""], 2, "QUERY is empty"),
        (["search", "-c", "c-c", "x"], 2, "letters, digits"),
        (["search", "-c", "c", "x", "--candidates", "0"], 2, "candidate_count"),
        (["search", "-c", "c", "x", "--filter-param", "y"], 2, "NAME=VALUE"),
        (["search", "-c", "c", "x", "--mode", "fuzzy"], 2, "fuzzy"),
    ],
    ids=str,
)
def test_errors_are_one_message(
    arguments: list[str], code: int, message: str, capsys: Capture
) -> None:
    if arguments[0] == "search":
        main(INDEX)
    assert main(arguments) == code
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_a_repeated_id_is_refused(capsys: Capture) -> None:
    Path("twice.jsonl").write_text('{"id": "pump.md", "text": "x"}\n', encoding="utf-8")
    assert main(["index", "-c", "c", "pump.md", "twice.jsonl"]) == 2
    assert "twice.jsonl, line 1: the id 'pump.md' is in pump.md already" in capsys.readouterr().err


def test_refused_documents_are_named_by_file_and_line(capsys: Capture) -> None:
    lines = [{"text": "fine"}, {"text": "x", "id": "a\0b"}, {"text": "y", "title": "t" * 2_001}]
    content = "\n".join(json.dumps(line) for line in lines)
    Path("odd.jsonl").write_text(content, encoding="utf-8")
    assert main(["index", "-c", "c", "pump.md", "odd.jsonl"]) == 2
    error = capsys.readouterr().err
    assert "odd.jsonl, line 2: id holds U+0000" in error
    assert "odd.jsonl, line 3: title has 2,001 characters, the limit is 2,000" in error


def test_searching_a_missing_file_does_not_make_it(capsys: Capture) -> None:
    assert main(["search", "-c", "c", "--milvus", "typo.db", "Which pump?"]) == 2
    assert "typo.db: there is no such file" in capsys.readouterr().err
    assert not Path("typo.db").exists()


def test_a_filter_value_that_nests_too_deep_is_text(capsys: Capture) -> None:
    main(INDEX)
    value = "x=" + "[" * 100_000
    search = ["search", "-c", "c", "the pump"]
    assert main([*search, "--filter", "document_id == {x}", "--filter-param", value]) == 0
    assert "Traceback" not in capsys.readouterr().err


def test_documents_of_files() -> None:
    assert [source.document for source in read_documents(Path("more.jsonl"))] == [
        Document("lunch", "Lunch is at noon.", "Canteen"),
        Document("more.jsonl#3", "The lamp is green."),
    ]
    (source,) = read_documents(Path("pump.md"))
    text = "# The pump\n\nThe pump fills the tank.\n"
    assert source == Source(Document("pump.md", text, "The pump"), "pump.md", len(text))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'"a"\n{"text": 3}\n', "bad.jsonl, line 2: text: expected a string"),
        (b'"a"\n{"body": "x"}\n', "bad.jsonl, line 2: unknown name 'body'"),
        (b'"a"\n\n{]\n', "bad.jsonl, line 3: not valid JSON"),
        (b'"a"\n"\xff"\n', "bad.jsonl, line 2: not valid UTF-8"),
        (b'{"text": "a", "sentences": [{"end_offset": 1}]}', "line 1: sentences"),
    ],
)
def test_bad_lines(content: bytes, message: str) -> None:
    Path("bad.jsonl").write_bytes(content)
    with pytest.raises(BadInputError) as caught:
        list(read_documents(Path("bad.jsonl")))
    assert message in str(caught.value)
