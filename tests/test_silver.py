"""A language model's citations become rows: valid ones only, each once, whatever breaks."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from fake_chat import Reply, chat_endpoint, completion, failure
from fake_service import closed_port

from secateur.cli import main
from secateur.errors import SecateurError
from secateur.training.data import read_rows
from secateur.training.silver import Summary, label
from secateur.training.silver_chat import ATTEMPTS, Endpoint
from secateur.training.silver_prompt import AnswerError, read_labels, read_questions

Messages = list[dict[str, str]]

PASSAGE = "The red valve opens.  It is\nold. Lunch was late."
SPANS = [[0, 20], [22, 32], [33, 48]]
ASKED = {"id": "a", "question": " What opens? ", "passage": PASSAGE}
BARE = {"id": "b", "title": "Valve", "passage": PASSAGE, "lang": "en"}
QUESTIONS: list[dict[str, Any]] = [
    {"kind": "unanswerable", "question": "Who built it?", "support": [], "optional": []},
    {"kind": "fact", "question": "What  opens?", "support": [1], "optional": [2]},
    {"kind": "multi", "question": "Which valve opens?", "support": [2, 1]},
]


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def run(rows: list[dict[str, Any]], out: Path, url: str, **given: Any) -> Summary:
    endpoint = Endpoint(
        base_url=url, model="m", api_key="sk-secret", retries=given.pop("retries", 1)
    )
    return label(rows, out, endpoint, **given)


def rows_of(out: Path) -> list[dict[str, Any]]:
    return list(read_rows(out))


def support(*numbers: int) -> str:
    return json.dumps({"support": numbers, "optional": []})


def asked_question(messages: Messages) -> str:
    """The question in the first prompt."""
    return messages[1]["content"].partition("Question: ")[2].partition("\n")[0]


# --- what comes out ---


def test_a_row_with_a_question(tmp_path: Path) -> None:
    row = {**ASKED, "qid": "q", "kind": "fact", "lang": "en", "title": "Red_valve", "answers": None}
    fenced = 'Sure:\n```json\n{"support": [1], "optional": [2, 1]}\n```\nDone.'
    with chat_endpoint(lambda _: fenced) as chat:
        assert run([row], tmp_path / "o.jsonl", chat.base_url) == Summary(1, 0, 0, 1)
    assert rows_of(tmp_path / "o.jsonl") == [
        {
            "id": "a",
            "qid": "q",
            "kind": "fact",
            "question": "What opens?",
            "lang": "en",
            "title": "Red_valve",
            "passage": PASSAGE,
            "sentences": SPANS,
            "labels": [1, 0, 0],
            "optional": [1],
            "relevant": True,
            "source": "silver:m",
        }
    ]
    [request] = chat.requests
    prompt = request["messages"][1]["content"]
    assert (
        "Passage: Red valve\n[1] The red valve opens.\n[2] It is old.\n[3] Lunch was late."
        in prompt
    )
    assert asked_question(request["messages"]) == "What opens?"
    assert request["model"] == "m"
    assert chat.keys == ["Bearer sk-secret"]


def test_a_question_that_is_not_answered(tmp_path: Path) -> None:
    with chat_endpoint(lambda _: '{"support": [], "optional": [2]}') as chat:
        run([ASKED], tmp_path / "o.jsonl", chat.base_url)
    [row] = rows_of(tmp_path / "o.jsonl")
    assert (row["labels"], row["optional"], row["relevant"]) == ([0, 0, 0], [], False)


def test_a_passage_gets_a_question_of_each_kind(tmp_path: Path) -> None:
    row = {**BARE, "qid": "q", "question": " "}
    with chat_endpoint(lambda _: json.dumps({"questions": QUESTIONS})) as chat:
        assert run([row], tmp_path / "o.jsonl", chat.base_url) == Summary(1, 0, 0, 3)
    assert "Write 3 questions" in chat.requests[0]["messages"][1]["content"]
    rows = rows_of(tmp_path / "o.jsonl")
    assert [(r["id"], r["kind"], r["question"], r["labels"], r["optional"]) for r in rows] == [
        ("b-fact-1", "fact", "What opens?", [1, 0, 0], [1]),
        ("b-multi-1", "multi", "Which valve opens?", [1, 1, 0], []),
        ("b-unanswerable-1", "unanswerable", "Who built it?", [0, 0, 0], []),
    ]
    assert [r["relevant"] for r in rows] == [True, True, False]
    # The three are no candidates of one question.
    assert not any("qid" in r for r in rows)


def test_several_questions_of_each_kind(tmp_path: Path) -> None:
    with chat_endpoint(lambda _: json.dumps({"questions": QUESTIONS * 2})) as chat:
        assert run([BARE], tmp_path / "o.jsonl", chat.base_url, questions=2).written == 6
    kinds = ("fact", "multi", "unanswerable")
    ids = [row["id"] for row in rows_of(tmp_path / "o.jsonl")]
    assert ids == [f"b-{kind}-{number}" for kind in kinds for number in (1, 2)]


def test_own_sentences_are_kept(tmp_path: Path) -> None:
    row = {**ASKED, "sentences": [[0, 32], [33, 48]]}
    with chat_endpoint(lambda _: support(2)) as chat:
        run([row], tmp_path / "o.jsonl", chat.base_url)
    [made] = rows_of(tmp_path / "o.jsonl")
    assert (made["sentences"], made["labels"]) == ([[0, 32], [33, 48]], [0, 1])


def test_a_row_without_id_is_named_by_its_content(tmp_path: Path) -> None:
    row = {"question": "what?", "passage": PASSAGE}
    with chat_endpoint(lambda _: support(1)) as chat:
        run([row], tmp_path / "o.jsonl", chat.base_url)
        assert run([row], tmp_path / "o.jsonl", chat.base_url) == Summary(0, 0, 1, 0)
    assert len(chat.requests) == 1


def test_rows_are_in_work_at_the_same_time(tmp_path: Path) -> None:
    both = threading.Barrier(2, timeout=60)

    def answer(_: Messages) -> str:
        both.wait()
        return support(1)

    rows = [{**ASKED, "id": str(number)} for number in range(6)]
    with chat_endpoint(answer) as chat:
        assert run(rows, tmp_path / "o.jsonl", chat.base_url, concurrency=2).labelled == 6


# --- answers that are wrong ---


def test_the_model_is_told_what_was_wrong(tmp_path: Path) -> None:
    answers = iter(["I think it is 1.", support(4), support(1)])
    with chat_endpoint(lambda _: next(answers)) as chat:
        assert run([ASKED], tmp_path / "o.jsonl", chat.base_url).labelled == 1
    first, second, third = (request["messages"] for request in chat.requests)
    assert second[:2] == third[:2] == first
    assert second[2] == {"role": "assistant", "content": "I think it is 1."}
    assert 'no valid JSON object with "support"' in second[3]["content"]
    assert "support holds 4; the sentences are 1 to 3" in third[5]["content"]


def test_a_row_without_a_valid_answer_is_skipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [{**ASKED, "id": name, "question": name} for name in ("good", "bad", "late")]
    with chat_endpoint(lambda m: support(9 if asked_question(m) == "bad" else 1)) as chat:
        assert run(rows, tmp_path / "o.jsonl", chat.base_url) == Summary(2, 1, 0, 2)
    assert {row["id"] for row in rows_of(tmp_path / "o.jsonl")} == {"good", "late"}
    assert [asked_question(r["messages"]) for r in chat.requests].count("bad") == ATTEMPTS
    assert caplog.messages == [
        "bad: skipped: no valid answer in 3 tries: support holds 9; the sentences are 1 to 3"
    ]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"passage": " \n"}, "the passage has no sentences"),
        ({"passage": "One."}, "1 sentences are too few for a question over several"),
        ({**ASKED, "lang": "xx"}, "unknown language 'xx'"),
        ({**ASKED, "sentences": [[0, 9], [8, 20]]}, "sentences: not ascending inside the passage"),
        ({**ASKED, "sentences": [[0, 99]]}, "sentences: not ascending inside the passage"),
        ({**ASKED, "sentences": [3]}, "sentences: expected [[start, end], ...]"),
    ],
)
def test_rows_that_nothing_can_be_asked_about(
    row: dict[str, Any], reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with chat_endpoint(lambda _: support(1)) as chat:
        assert run([row], tmp_path / "o.jsonl", chat.base_url) == Summary(0, 1, 0, 0)
    assert chat.requests == []
    assert reason in caplog.text


@pytest.mark.parametrize(
    "answer",
    [
        '{"support": [2, 1, 2], "optional": [3, 1]}',
        '```json\n{"support": [1, 2], "optional": [3]}\n```',
        '<think>{a} or {"b": 1}?</think>{"support": [2, 1], "optional": [3]} as asked',
    ],
)
def test_an_answer_that_is_read(answer: str) -> None:
    cited = read_labels(answer, 3)
    assert (cited.support, cited.optional) == ((0, 1), (2,))


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("", 'no valid JSON object with "support"'),
        ('{"support": [1', 'no valid JSON object with "support"'),
        ('[{"x": 1}]', 'no valid JSON object with "support"'),
        ('{"a":' * 100_000, 'no valid JSON object with "support"'),
        ('{"support": "1"}', "support is no list of sentence numbers"),
        ('{"support": [0]}', "support holds 0; the sentences are 1 to 3"),
        ('{"support": [-1]}', "support holds -1; the sentences are 1 to 3"),
        ('{"support": [true]}', "support holds True, which is no sentence number"),
        ('{"support": [1.0]}', "support holds 1.0, which is no sentence number"),
        ('{"support": [1], "optional": [4]}', "optional holds 4; the sentences are 1 to 3"),
        ('{"support": [1], "optional": null}', "optional is no list of sentence numbers"),
    ],
)
def test_an_answer_that_is_refused(answer: str, reason: str) -> None:
    with pytest.raises(AnswerError, match=f"^{reason}$"):
        read_labels(answer, 3)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"kind": "hard"}, "questions[0].kind is 'hard' instead of one of fact, multi"),
        ({"question": " "}, "questions[0].question is no text"),
        ({"question": "\ud800"}, "questions[0].question is no text"),
        ({"support": [4]}, "questions[0].support holds 4; the sentences are 1 to 3"),
        ({"support": []}, "questions[0].support has 0 sentences; kind 'multi' has at least 2"),
        ({"kind": "fact"}, "2 questions of kind 'fact' instead of 1"),
        ({"kind": "unanswerable"}, "has 2 sentences; kind 'unanswerable' has none"),
    ],
)
def test_questions_that_are_refused(change: dict[str, Any], reason: str) -> None:
    unanswerable, fact, multi = QUESTIONS
    answer = json.dumps({"questions": [{**multi, **change}, fact, unanswerable]})
    with pytest.raises(AnswerError) as caught:
        read_questions(answer, 3, 1)
    assert reason in str(caught.value)


# --- the endpoint ---


def test_a_busy_endpoint_is_asked_again(tmp_path: Path) -> None:
    replies: list[Reply] = [
        failure(429, "slow down", retry_after_ms="1"),
        failure(503, "loading", retry_after_ms="1"),
        completion(support(1)),
    ]
    with chat_endpoint(lambda _: replies.pop(0)) as chat:
        assert run([ASKED], tmp_path / "o.jsonl", chat.base_url, retries=2).labelled == 1


def test_a_request_that_is_refused_costs_only_its_row(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [{**ASKED, "id": name, "question": name} for name in ("long", "short")]
    too_long = failure(400, "context length exceeded")
    with chat_endpoint(lambda m: too_long if "long" in asked_question(m) else support(1)) as chat:
        assert run(rows, tmp_path / "o.jsonl", chat.base_url) == Summary(1, 1, 0, 1)
    assert "long: skipped: " in caplog.text
    assert "context length exceeded" in caplog.text


def test_an_unreachable_server_stops_the_run(tmp_path: Path) -> None:
    with closed_port() as address:
        url = f"http://{address}/v1"
        with pytest.raises(SecateurError, match=f"^{url}: cannot be reached: "):
            run([ASKED, BARE], tmp_path / "o.jsonl", url, retries=0)
    assert rows_of(tmp_path / "o.jsonl") == []


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (failure(401, "wrong key sk-secret"), "refuses the request: .*wrong key \\*\\*\\*"),
        (failure(404, "no model m"), "refuses the request: .*no model m"),
        ((200, {"Content-Type": "text/html"}, "<html>"), "no chat completion; base URLs often"),
        ((200, {"Content-Type": "application/json"}, "{"), "gives no chat completion: "),
    ],
)
def test_an_endpoint_that_cannot_be_used_stops_the_run(
    reply: Reply, message: str, tmp_path: Path
) -> None:
    done = {**ASKED, "id": "done"}
    rows = [done, {**ASKED, "question": "next"}]
    with (
        chat_endpoint(lambda m: reply if asked_question(m) == "next" else support(1)) as chat,
        pytest.raises(SecateurError, match=message),
    ):
        run(rows, tmp_path / "o.jsonl", chat.base_url, concurrency=1)
    assert [row["id"] for row in rows_of(tmp_path / "o.jsonl")] == ["done"]


def test_an_empty_answer_is_no_answer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with chat_endpoint(lambda _: completion(None)) as chat:
        assert run([ASKED], tmp_path / "o.jsonl", chat.base_url).skipped == 1
    assert chat.requests[1]["messages"][2]["content"] == "(empty)"


# --- a run that goes on ---


def test_a_run_goes_on_where_it_stopped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A crash while a line was written leaves it torn: its row is asked for again."""
    out = tmp_path / "o.jsonl"
    rows = [{**ASKED, "id": name, "question": name} for name in ("one", "two", "three")]
    with chat_endpoint(lambda _: support(1)) as chat:
        run(rows[:2], out, chat.base_url, concurrency=1)
        whole = out.read_bytes()
        out.write_bytes(whole[:-5])
        assert run(rows, out, chat.base_url, concurrency=1) == Summary(2, 0, 1, 2)
    asked = [asked_question(request["messages"]) for request in chat.requests]
    assert asked == ["one", "two", "two", "three"]
    assert [row["id"] for row in rows_of(out)] == ["one", "two", "three"]
    assert out.read_bytes().startswith(whole)
    assert "the last line was cut short and is taken off" in caplog.text


def test_questions_of_a_torn_passage_are_completed(tmp_path: Path) -> None:
    out = tmp_path / "o.jsonl"
    with chat_endpoint(lambda _: json.dumps({"questions": QUESTIONS})) as chat:
        run([BARE], out, chat.base_url)
        first, second, _ = out.read_bytes().splitlines(keepends=True)
        out.write_bytes(first + second)
        assert run([BARE], out, chat.base_url) == Summary(1, 0, 0, 1)
    assert [row["kind"] for row in rows_of(out)] == ["fact", "multi", "unanswerable"]


def test_a_line_that_lacks_only_its_end_is_kept(tmp_path: Path) -> None:
    out = tmp_path / "o.jsonl"
    out.write_text('{"id": "a"}', encoding="utf-8")
    with chat_endpoint(lambda _: support(1)) as chat:
        assert run([ASKED, {**ASKED, "id": "c"}], out, chat.base_url) == Summary(1, 0, 1, 1)
    assert [row["id"] for row in rows_of(out)] == ["a", "c"]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([ASKED, {"text": "x"}], "row 2: expected an object with a text 'passage'"),
        (["x"], "row 1: expected an object with a text 'passage'"),
        ([{**ASKED, "question": 3}], "row 1: question is 3, expected a text"),
        ([{**ASKED, "passage": "\ud800"}], "row 1: passage holds a lone surrogate"),
        ([ASKED, ASKED], r"row 2: the id 'a' \(or, without one, the row\) repeats"),
    ],
)
def test_wrong_rows_are_refused_before_anything_is_asked(
    rows: list[Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        run(rows, tmp_path / "o.jsonl", "http://localhost/v1")
    assert not (tmp_path / "o.jsonl").exists()


@pytest.mark.parametrize("url", ["localhost:8000/v1", "http://", "ftp://localhost/v1", ""])
def test_a_url_that_is_none(url: str) -> None:
    with pytest.raises(ValueError, match="expected a URL such as http"):
        Endpoint(base_url=url, model="m")


# --- the command ---


def test_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-environment")
    (tmp_path / "in.jsonl").write_text(json.dumps(ASKED) + "\n", encoding="utf-8")
    out = tmp_path / "o.jsonl"
    command = ["label", "--data", str(tmp_path / "in"), "--out", str(out), "--model", "m"]
    with chat_endpoint(lambda _: support(1)) as chat:
        command += ["--base-url", chat.base_url]
        assert main(command) == 0
        assert main(command) == 0
    assert chat.keys == ["Bearer sk-environment"]
    assert capsys.readouterr().out == (
        f"1 rows labelled as 1 rows of {out}, 0 skipped, 0 done before\n"
        f"0 rows labelled as 0 rows of {out}, 0 skipped, 1 done before\n"
    )


@pytest.mark.parametrize(
    ("name", "answer", "code", "message"),
    [
        ("o.jsonl", failure(403, "no entry for sk-environment"), 1, "refuses the request"),
        ("o.jsonl", completion("no"), 1, "a: skipped: no valid answer in 3 tries"),
        ("o.json", completion(support(1)), 2, "the name must end in .jsonl"),
        ("no/o.jsonl", completion(support(1)), 2, "there is no folder"),
    ],
)
def test_the_command_fails_with_a_code_and_without_the_key(
    name: str,
    answer: Reply,
    code: int,
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-environment")
    (tmp_path / "in.jsonl").write_text(json.dumps(ASKED) + "\n", encoding="utf-8")
    command = ["label", "--data", str(tmp_path / "in"), "--out", str(tmp_path / name)]
    with chat_endpoint(lambda _: answer) as chat:
        assert main([*command, "--model", "m", "--base-url", chat.base_url]) == code
    shown = capsys.readouterr().err + caplog.text
    assert message in shown
    assert "sk-environment" not in shown


def test_a_data_file_that_cannot_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in.jsonl").write_bytes(b"\xff")
    command = ["label", "--data", str(tmp_path / "in.jsonl"), "--out", str(tmp_path / "o.jsonl")]
    assert main([*command, "--model", "m", "--base-url", "http://localhost/v1"]) == 2
    assert capsys.readouterr().err == f"secateur: {tmp_path / 'in.jsonl'}: not valid UTF-8\n"
    assert not (tmp_path / "o.jsonl").exists()
