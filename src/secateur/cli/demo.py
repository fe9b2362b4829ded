"""The demo: a real server as a process of its own, one real call through gRPC, a clean stop."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.resources import files
from time import perf_counter

from rich.text import Text

from secateur._render import console_for_output, render_ranked
from secateur.cli.json_request import request_from_json
from secateur.client import Client
from secateur.errors import SecateurError, UnavailableError
from secateur.types import Passage, PruneOptions

START_SECONDS = 180.0
"""Time to load the model and warm it up; generous, for slow disks."""

STOP_SECONDS = 60.0
LAST_WORDS_SECONDS = 10.0

_LISTENING = re.compile(r"listening on (\S+:\d+)")


def run_demo(model: str | None = None) -> None:
    """Start a server with ``model``, prune the demo's passages through it, and print them.

    Raises SecateurError when the server does not start, answer or stop as it should.
    """
    query, passages = demo_request()
    console = console_for_output()
    console.print(Text("Starting a server …", style="dim"))
    started = perf_counter()
    with sigterm_unwinds(), running_server(model) as target, Client(target) as client:
        seconds = perf_counter() - started
        console.print(Text(f"Serving on {target} after {seconds:.1f} s.\n", style="dim"))
        # Tokens are asked for so that the savings can be counted.
        answer = client.rerank_and_prune(query, passages, PruneOptions(include_tokens=True))
        render_ranked(console, query, passages, answer)
    console.print(Text("\nThe server has stopped.", style="dim"))


def demo_request() -> tuple[str, tuple[Passage, ...]]:
    """The query and the passages that ship with the package."""
    content = files("secateur").joinpath("demo.json").read_text(encoding="utf-8")
    query, passages, _ = request_from_json(json.loads(content), "demo.json")
    return query or "", passages


@contextmanager
def running_server(model: str | None = None) -> Iterator[str]:
    """A server on a free port of this machine; yields ``host:port`` once it serves.

    On leaving, the server gets SIGTERM. Raises UnavailableError when it does not come up, and
    SecateurError when it does not stop with exit code 0; both with its last log lines.
    """
    command = [sys.executable, "-m", "secateur", "serve", "--host", "127.0.0.1", "--port", "0"]
    command += ["--model", model] if model is not None else []
    with subprocess.Popen(  # noqa: S603 - our own command
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=_environment(),
        encoding="utf-8",
        errors="replace",
        start_new_session=True,  # Ctrl-C reaches us alone; we stop the server
    ) as process:
        log = _Log()
        reader = threading.Thread(target=log.follow, args=(process,), daemon=True)
        reader.start()
        try:
            if not _comes_up(log):
                with suppress(subprocess.TimeoutExpired):  # let it say why, if it is ending
                    process.wait(LAST_WORDS_SECONDS)
                process.kill()
                reader.join()
                raise UnavailableError(f"the server did not start\n{log.tail()}")
            yield log.address or ""
        except BaseException:
            process.kill()
            raise
        process.terminate()
        try:
            code = process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            raise SecateurError(f"the server did not stop\n{log.tail()}") from None
        reader.join()
        if code != 0:
            raise SecateurError(f"the server stopped with exit code {code}\n{log.tail()}")


@contextmanager
def sigterm_unwinds() -> Iterator[None]:
    """Let SIGTERM end this process by an exception, so that no server is left behind."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _comes_up(log: _Log) -> bool:
    """Wait until the server of this log serves; False when it does not."""
    log.settled.wait(START_SECONDS)
    if log.address is None:
        return False
    try:
        with Client(log.address) as client:
            client.wait_until_ready(START_SECONDS)
    except SecateurError:
        return False
    return True


@dataclass
class _Log:
    """Follows a server's output: its address, and the last lines for error messages."""

    address: str | None = None
    settled: threading.Event = field(default_factory=threading.Event)
    _lines: deque[str] = field(default_factory=lambda: deque(maxlen=20))

    def follow(self, process: subprocess.Popen[str]) -> None:
        for line in process.stdout or ():
            self._lines.append(line.rstrip("\n"))
            if self.address is None and (match := _LISTENING.search(line)):
                self.address = match[1]
                self.settled.set()
        self.settled.set()

    def tail(self) -> str:
        return "\n".join(f"  {line}" for line in self._lines)


def _environment() -> dict[str, str]:
    """The environment without SECATEUR_* variables: the demo runs on the defaults."""
    return {name: value for name, value in os.environ.items() if not name.startswith("SECATEUR_")}
