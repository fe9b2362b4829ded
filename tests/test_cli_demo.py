"""``secateur demo``: a real server with the embedded model, as a process of its own."""

from __future__ import annotations

import os

import pytest

from secateur import errors
from secateur.cli import main
from secateur.cli.demo import demo_request, running_server


def test_demo_prunes_real_passages_and_stops_its_server(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECATEUR_PORT", "not a port")  # the demo runs on the defaults
    assert main(["demo"]) == 0
    out = capsys.readouterr().out
    query, passages = demo_request()
    assert f"Query: {query}\n" in out
    for passage in passages:
        assert f"  {passage.id}  {passage.title}  " in out
    for promised in ("Serving on 127.0.0.1:", "[-", "tokens ", "% saved", "\nTime ", "\nModel "):
        assert promised in out
    assert out.endswith("\nThe server has stopped.\n")


def test_a_server_that_does_not_start_says_why() -> None:
    with pytest.raises(errors.UnavailableError) as raised, running_server("/no/such/model"):
        pass
    assert "/no/such/model" in str(raised.value)


def test_the_demos_passages_ship_with_the_package() -> None:
    query, passages = demo_request()
    assert query
    assert len(passages) == 6
    assert all(passage.id and passage.title for passage in passages)
    assert os.linesep not in "".join(passage.text for passage in passages)
