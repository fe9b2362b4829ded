"""A real server as a process of its own, seen from outside: its memory, threads, files, metrics."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Self

from prometheus_client.parser import text_string_to_metric_families

from secateur.bench.machine import status_of
from secateur.client import Client
from secateur.errors import SecateurError

START_SECONDS = 300.0
STOP_SECONDS = 60.0


class ServerProcess:
    """``secateur serve`` with the embedded model, on defaults apart from ``settings``.

    port: 0 takes a free one. The log goes to ``log``. A context manager: leaving it kills what
    still runs.
    """

    def __init__(self, log: Path, *, port: int = 0, **settings: object) -> None:
        self._log = log
        self._port = port
        self._settings = settings
        self._process: subprocess.Popen[str] | None = None
        self.target = ""
        self.metrics_url = ""

    def start(self) -> None:
        """Start it; return once it listens. SecateurError when it ends instead."""
        command = [sys.executable, "-m", "secateur", "serve", "--port", str(self._port)]
        for name, value in {"metrics_port": 0, **self._settings}.items():
            command += ["--set", f"{name}={value}"]
        with self._log.open("a", encoding="utf-8") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment()
            )
        for line in self._process.stdout or ():
            if match := re.match(r"listening on (\S+)", line):
                self.target = match[1]
                self._port = int(self.target.rpartition(":")[2])
            if match := re.match(r"metrics on (\S+)", line):
                self.metrics_url = f"http://{match[1]}/metrics"
                return
        self._process.communicate()  # it has ended, or will soon: its output is closed
        log_lines = self._log.read_text(encoding="utf-8").splitlines()
        raise SecateurError("\n  ".join(["the server did not start", *log_lines[-20:]]))

    def wait_until_ready(self) -> None:
        """Return once it serves."""
        with Client(self.target) as client:
            client.wait_until_ready(START_SECONDS)

    def kill(self) -> None:
        """End it as a crash does, without a word (SIGKILL)."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def stop(self) -> int:
        """End it with SIGTERM and return its exit code."""
        process = self._running()
        process.terminate()
        process.communicate(timeout=STOP_SECONDS)
        return process.returncode

    def metrics(self) -> dict[str, float]:
        """Samples without labels, by name."""
        with urllib.request.urlopen(self.metrics_url, timeout=30) as response:  # noqa: S310 - ours
            page = response.read().decode()
        return {
            sample.name: sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
            if not sample.labels
        }

    def resident_bytes(self) -> int:
        """Memory that it holds now (VmRSS)."""
        return status_of(self._running().pid, "VmRSS") * 1_024

    def threads(self) -> int:
        """Threads that it has now."""
        return status_of(self._running().pid, "Threads")

    def open_files(self) -> int:
        """Descriptors that it holds now, sockets included."""
        return len(list(Path(f"/proc/{self._running().pid}/fd").iterdir()))

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            raise RuntimeError("the server was not started")
        return self._process

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()


def environment() -> dict[str, str]:
    """This process's environment without SECATEUR_* variables: children run on the defaults."""
    return {name: value for name, value in os.environ.items() if not name.startswith("SECATEUR_")}


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])
