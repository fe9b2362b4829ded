"""Where a record was made: machine, commit, memory."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[3]


def machine() -> dict[str, str | int]:
    """The CPU, how many cores this process may use, and the Python version."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": names[0] if names else platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
    }


def commit() -> str:
    """The commit of the checkout that runs, ``-dirty`` where it was changed; else "unknown"."""
    if not (_ROOT / ".git").exists():  # installed: some other repository may lie around it
        return "unknown"
    found = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--exclude", "*"],  # noqa: S607
        cwd=_ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return found.stdout.strip() or "unknown"


def status_of(process: int | str, name: str) -> int:
    """A number of ``/proc/PROCESS/status``, such as VmRSS (KiB) or Threads. Linux only.

    process: an id, or "self".
    """
    text = Path(f"/proc/{process}/status").read_text(encoding="ascii")
    return int(next(line.split()[1] for line in text.splitlines() if line.startswith(f"{name}:")))
