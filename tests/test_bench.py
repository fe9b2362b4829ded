"""What ``secateur bench`` reads, how it counts, what it prints: fake sides, a fake clock."""

from __future__ import annotations

import json
import lzma
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from bench_harness import WORKLOAD, Clock

from secateur.bench import run
from secateur.bench.agreement import Agreement, Verdict, agreement
from secateur.bench.callers import Calls
from secateur.bench.record import CROSSENCODER, CROSSENCODER_1, PROCESS, Measured, engine_name
from secateur.bench.serving import REQUESTS, Served, SmallRequest
from secateur.bench.timing import Pass, Side, Spread, alternate, at_once, percentile, rate, speedup
from secateur.bench.workload import (
    Query,
    Workload,
    builtin_workload,
    passages_of_words,
    read_workload,
)
from secateur.cli import main
from secateur.errors import InvariantError

# --- the workload ---


def write(path: Path, *rows: Any) -> Path:
    text = "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)
    if path.suffix == ".xz":
        path.write_bytes(lzma.compress(text.encode()))
    else:
        path.write_text(text)
    return path


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.xz"])
def test_rows_of_a_file(tmp_path: Path, name: str) -> None:
    rows = [{"query": f"q{n}", "passages": [f"a{n}", "b"]} for n in range(3)]
    path = write(tmp_path / name, *rows)
    workload = read_workload(path)
    assert workload.name == name
    assert workload.queries[1] == Query("q1", ("a1", "b"), f"{path}:2")
    assert workload.passage_count == 6
    assert len(read_workload(path, 2).queries) == 2


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ("{not JSON", "not JSON"),
        ([1], "expected an object, found list"),
        ({"passages": ["a"]}, "query: must be a text that is not blank"),
        ({"query": " ", "passages": ["a"]}, "query: must be a text that is not blank"),
        ({"query": "q"}, "passages: must be a list of 1 to 1,000 texts"),
        ({"query": "q", "passages": []}, "passages: must be a list of 1 to 1,000 texts"),
        ({"query": "q", "passages": "ab"}, "passages: must be a list of 1 to 1,000 texts"),
        ({"query": "q", "passages": ["a"] * 1_001}, "passages: must be a list of 1 to 1,000 texts"),
        ({"query": "q", "passages": ["a", 3]}, "passages[1]: must be a text that is not blank"),
        ({"query": "q", "passages": ["\n"]}, "passages[0]: must be a text that is not blank"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, row: Any, fault: str) -> None:
    path = write(tmp_path / "rows.jsonl", {"query": "q", "passages": ["a"]}, row)
    with pytest.raises(ValueError, match="rows") as raised:
        read_workload(path)
    assert str(raised.value).startswith(f"{path}:2: ")
    assert fault in str(raised.value)
    assert len(read_workload(path, 1).queries) == 1  # the others are not looked at


def test_a_file_without_rows(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no row to measure"):
        read_workload(write(tmp_path / "rows.jsonl"))


def test_the_built_in_workload_is_mixed_and_always_the_same() -> None:
    workload = builtin_workload()
    assert workload == builtin_workload()
    lengths = [len(passage.split()) for query in workload.queries for passage in query.passages]
    assert len(workload.queries) == 4
    assert min(lengths) < 50
    assert max(lengths) > 350
    assert len(builtin_workload(1).queries) == 1


def test_passages_of_an_exact_length() -> None:
    passages = passages_of_words(5, 100)
    assert [len(passage.split()) for passage in passages] == [100] * 5
    assert len(set(passages)) == 5
    assert len(passages_of_words(1, 6_000)[0].split()) == 6_000


def test_a_round_takes_every_second_query() -> None:
    assert [WORKLOAD.of_round(number) for number in range(3)] == [(0, 2), (1,), (0, 2)]
    single = Workload("x", WORKLOAD.queries[:1])
    assert [single.of_round(number) for number in range(2)] == [(0,), (0,)]


# --- times ---


def fake_side(name: str, clock: Clock, seconds: Sequence[float], order: list[str]) -> Side:
    """Takes so many seconds a passage, another number each time it is called."""
    waiting = iter(seconds)

    def one(query: Query) -> str:
        order.append(name)
        clock.now += next(waiting) * len(query.passages)
        return f"{name} {query.where}"

    def all_(queries: Sequence[Query]) -> None:
        clock.now += next(waiting) * sum(len(query.passages) for query in queries)

    return Side(name, one, all_, tokens=[30, 30, 20])


def test_sides_take_turns_within_a_round() -> None:
    clock, order = Clock(), list[str]()
    sides = [
        fake_side("slow", clock, [1.0, 1.0, 2.0], order),
        fake_side("fast", clock, [0.5, 0.5, 0.25], order),
    ]
    told: list[str] = []
    passes = alternate(sides, WORKLOAD, 2, clock, told.append)
    assert order == ["slow", "slow", "fast", "fast", "slow", "fast"]
    assert passes["slow"] == [
        Pass((0, 2), (3.0, 2.0), ("slow tiny:1", "slow tiny:3")),
        Pass((1,), (6.0,), ("slow tiny:2",)),
    ]
    assert [one.total for one in passes["fast"]] == [2.5, 0.75]
    assert told[0] == "round 1 of 2: slow 5.0 s"
    # Ratios of 2 and 8 within the rounds; 5 passages in 5 s and 3 in 6 s.
    assert speedup(passes["slow"], passes["fast"]) == 5.0
    assert rate(passes["slow"], [3, 3, 2]) == Spread(0.75, 0.5, 1.0)
    assert rate(passes["slow"], sides[0].tokens) == Spread(7.5, 5.0, 10.0)


def test_all_queries_in_one_call() -> None:
    clock = Clock()
    passes = at_once([fake_side("one", clock, [2.0], [])], WORKLOAD, clock, lambda line: None)
    assert passes == {"one": [Pass((0, 2), (10.0,))]}


def test_percentiles_are_measured_values() -> None:
    values = [5.0, 1.0, 2.0, 4.0, 3.0]
    assert [percentile(values, share) for share in (0, 50, 95, 100)] == [1.0, 3.0, 5.0, 5.0]


def test_a_spread_claims_four_digits() -> None:
    spread = Spread.of([1.23456, 20_000.4, 3.0])
    assert spread.to_json() == {"median": 3.0, "min": 1.235, "max": 20_000.0}


# --- agreement ---


def verdict(logit: float, kept: Sequence[bool] = (True,), windows: int = 1) -> Verdict:
    return Verdict(logit, tuple(kept), windows)


def test_decisions_rankings_and_logits_are_compared() -> None:
    reference = {0: [verdict(3.0, (True, False)), verdict(1.0)], 1: [verdict(0.0), verdict(5.0)]}
    ours = {0: [verdict(2.5, (True, True)), verdict(1.0)], 1: [verdict(6.0), verdict(5.25)]}
    found = agreement(ours, reference, single_windows=False)
    assert found == Agreement(equal_decisions=4 / 5, equal_top10=1 / 2, max_logit_difference=6.0)


def test_passages_of_several_windows_can_be_left_out() -> None:
    reference = {0: [verdict(3.0), verdict(1.0, windows=2)]}
    ours = {0: [verdict(3.5), verdict(2.0, (False,))], 7: [verdict(0.0)]}
    found = agreement(ours, reference, single_windows=True)
    assert found == Agreement(equal_decisions=1.0, equal_top10=1.0, max_logit_difference=0.5)
    nothing = agreement({0: ours[0][1:]}, {0: reference[0][1:]}, single_windows=True)
    assert nothing == Agreement(None, 1.0, None)


def test_only_the_first_ten_of_a_ranking_count() -> None:
    logits = [float(-index) for index in range(12)]
    reference = {0: [verdict(logit) for logit in logits]}
    logits[10], logits[11] = logits[11], logits[10]
    tail = {0: [verdict(logit) for logit in logits]}
    logits[0], logits[1] = logits[1], logits[0]
    head = {0: [verdict(logit) for logit in logits]}
    assert agreement(tail, reference, single_windows=False).equal_top10 == 1
    assert agreement(head, reference, single_windows=False).equal_top10 == 0


def test_what_cannot_be_compared_is_a_bug() -> None:
    with pytest.raises(InvariantError, match="split"):
        agreement({0: [verdict(1.0)]}, {0: [verdict(1.0, (True, False))]}, single_windows=False)
    with pytest.raises(InvariantError, match="no query"):
        agreement({0: [verdict(1.0)]}, {1: [verdict(1.0)]}, single_windows=False)


# --- the record ---


def one_side(name: str, answers: bool) -> Side:
    return Side(name, lambda query: [], lambda queries: [], [100, 50], list if answers else None)


def passes_of(first: float, second: float, verdicts: Sequence[Verdict] = ()) -> list[Pass]:
    """Two rounds of one query each, which take so many seconds."""
    return [Pass((0,), (first,), (verdicts,)), Pass((1,), (second,), (verdicts,))]


@pytest.fixture
def measured() -> Measured:
    """float32 is 4 and 8 times as fast as the CrossEncoder, int8 twice as fast as float32."""
    exact = [verdict(2.0, (True, False)), verdict(1.0)]
    rounded = [verdict(2.5, (True, True)), verdict(1.0)]
    sides = {
        CROSSENCODER: passes_of(8.0, 16.0),
        CROSSENCODER_1: passes_of(4.0, 4.0),
        PROCESS: passes_of(10.0, 10.0, exact),
        engine_name("float32"): passes_of(2.0, 2.0, exact),
        engine_name("int8"): passes_of(1.0, 1.0, rounded),
    }
    calls = {n: Calls(2.0, (0.5, 1.5), 10) for n in REQUESTS}
    most = max(REQUESTS)
    return Measured(
        workload=Workload("w", (Query("a", ("x",) * 4, "w:1"), Query("b", ("y",) * 2, "w:2"))),
        mode="int8",
        sides=[one_side(name, bool(one[0].answers[0])) for name, one in sides.items()],
        by_query=sides,
        together={name: [Pass((0,), (one[0].total,))] for name, one in sides.items()},
        served={
            "int8": [Served(10.0, calls), Served(4.0, calls), Served(5.0, calls)],
            "float32": [Served(20.0, {most: Calls(1.0, (1.0,), 15)})],
        },
        small=SmallRequest(repeats=200, engine_ms=40.0, server_ms=43.5, added_ms=3.21987),
        memory_mb={"int8": 300.04, "float32": 400.0},
        unavailable={"bfloat16": "no units"},
    )


def test_ratios_of_the_record(measured: Measured) -> None:
    record = measured.record()
    assert record["mode"] == "int8"
    assert record["speedup_vs_crossencoder"] == 12.0  # 8 and 16
    assert record["speedup_vs_process"] == 10.0
    assert record["server_efficiency"] == 1.0  # 5 passages/s over 10, 4 and 5
    assert record["modes"]["float32"] == {
        "mode": "float32",
        "speedup_vs_crossencoder": 6.0,
        "speedup_vs_crossencoder_batch_1": 2.0,
        "speedup_vs_process": 5.0,
        "server_efficiency": 0.75,
        "reference": "process",
        "equal_decisions": 1.0,
        "equal_top10": 1.0,
        "max_logit_difference": 0.0,
        "p50_ms": 2_000.0,
        "p95_ms": 2_000.0,
        "peak_memory_mb": 400.0,
    }
    rounded = record["modes"]["int8"]
    assert rounded["reference"] == "float32"
    assert rounded["equal_decisions"] == 0.6667
    assert rounded["max_logit_difference"] == 0.5
    assert rounded["peak_memory_mb"] == 300.0
    assert record["modes"]["bfloat16"] == {"mode": "bfloat16", "unavailable": "no units"}


def test_rates_of_the_record(measured: Measured) -> None:
    record = measured.record()
    assert (record["queries"], record["passages"], record["rounds"]) == (2, 6, 2)
    exact = record["one_call_a_query"]["engine_float32"]
    assert exact["passages_per_second"] == {"median": 1.5, "min": 1.0, "max": 2.0}
    assert exact["tokens_per_second"] == {"median": 37.5, "min": 25.0, "max": 50.0}
    together = record["all_queries_in_one_call"]
    assert together["queries"] == 1
    assert together["crossencoder"]["passages_per_second"]["median"] == 0.5
    server = record["server"]["int8"]
    assert server["in_process_loop"] == {"median": 5.0, "min": 4.0, "max": 10.0}
    assert server["efficiency"] == {"median": 1.0, "min": 0.5, "max": 1.25}
    assert server["callers"]["8"] == {
        "requests": 32,
        "passages_per_second": {"median": 5.0, "min": 5.0, "max": 5.0},
        "p50_ms": 500.0,
        "p95_ms": 1_500.0,
    }
    assert record["small_request"] == {
        "mode": "int8",
        "passages": 5,
        "words": 100,
        "repeats": 200,
        "engine_ms": 40.0,
        "server_ms": 43.5,
        "added_ms": 3.22,
    }


# --- the command line ---


@pytest.fixture
def fake_bench(monkeypatch: pytest.MonkeyPatch, measured: Measured) -> list[Any]:
    """The command line without a model; gets what the run was given."""
    seen: list[Any] = []

    class Fake:
        def __init__(self, workload: Workload, *, rounds: int, tell: Any) -> None:
            seen.append((workload, rounds))
            tell("a line of progress")

        def run(self) -> dict[str, Any]:
            machine = {"cpu": "x", "cores": 2, "threads": 2, "torch": "2", "python": "3"}
            return {"machine": machine, "commit": "c", "model": "m@r", **measured.record()}

    monkeypatch.setattr(run, "Bench", Fake)
    return seen


def test_json_alone_on_stdout(
    fake_bench: list[Any], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    data = write(tmp_path / "rows.jsonl", *[{"query": "q", "passages": ["a"]}] * 3)
    record = tmp_path / "record.json"
    arguments = ["--data", str(data), "--limit", "2", "--rounds", "4", "--record", str(record)]
    assert main(["bench", "--json", *arguments]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["speedup_vs_crossencoder"] == 12
    assert json.loads(record.read_text()) == json.loads(captured.out)
    assert captured.err == "a line of progress\n"
    ((workload, rounds),) = fake_bench
    assert (len(workload.queries), rounds) == (2, 4)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")
def test_a_record_that_cannot_be_written_is_still_shown(
    fake_bench: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "--json", "--record", "/dev/full"]) == 1
    captured = capsys.readouterr()
    assert json.loads(captured.out)["mode"] == "int8"
    assert "No space left on device" in captured.err


def test_tables_for_people(fake_bench: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench"]) == 0
    out = capsys.readouterr().out
    for part in ("m@r at c", "engine_int8", "crossencoder_batch_1", "bfloat16 does not run here",
                 "callers: 32", "server ÷ loop in process", "added 3.22 ms"):  # fmt: skip
        assert part in out
    ((workload, rounds),) = fake_bench
    assert workload.name == "built in"
    assert rounds == 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "ROWS"], "ROWS:1: query: must be a text that is not blank"),
        (["--data", "no/such/file"], "cannot read no/such/file: No such file or directory"),
        (["--record", "no/such/folder/x.json"], "there is no folder no/such/folder"),
        (["--rounds", "0"], "--rounds"),
        (["--limit", "0"], "--limit"),
    ],
)
def test_bad_input(
    fake_bench: list[Any],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    arguments: list[str],
    message: str,
) -> None:
    rows = str(write(tmp_path / "rows.jsonl", {"query": "", "passages": ["a"]}))
    assert main(["bench", *(word.replace("ROWS", rows) for word in arguments)]) == 2
    captured = capsys.readouterr()
    assert message.replace("ROWS", rows) in captured.err
    assert not captured.out
    assert not fake_bench


def test_without_the_extra(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("secateur.bench")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    assert main(["bench"]) == 1
    assert (
        capsys.readouterr().err
        == "secateur: sentence_transformers is not installed; run: pip install 'secateur[bench]'\n"
    )
