"""How many CPUs this process may use: affinity and container limits, not the host's count."""

from __future__ import annotations

import math
import os
from pathlib import Path

_CGROUP_ROOT = Path("/sys/fs/cgroup")
_PROC_CGROUP = Path("/proc/self/cgroup")


def available_cpus(root: Path = _CGROUP_ROOT, membership: Path = _PROC_CGROUP) -> int:
    """Return the usable CPU count, >= 1.

    The smallest of: the scheduler affinity, and the CPU quota of this process's control
    group or any of its ancestors (versions 1 and 2), a part of a CPU rounded up. A thread
    count above the quota makes the kernel pause all threads at once, over and over.
    """
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    else:
        count = os.cpu_count() or 1
    for quota in _quotas(root, membership):
        count = min(count, math.ceil(quota))
    return max(1, count)


def _quotas(root: Path, membership: Path) -> list[float]:
    """Every CPU quota, in CPUs, that applies to this process."""
    quotas: list[float | None] = []
    for line in _read(membership).splitlines() or ["0::/"]:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        names = controllers.split(",")
        if controllers == "":  # version 2
            quotas += [_quota_v2(folder) for folder in _with_ancestors(root, path)]
        elif "cpu" in names:  # version 1
            for base in (root / "cpu", root / controllers):
                quotas += [_quota_v1(folder) for folder in _with_ancestors(base, path)]
    return [quota for quota in quotas if quota is not None]


def _with_ancestors(root: Path, path: str) -> list[Path]:
    """``root/path`` and its parents down to ``root``; inside a container only root exists."""
    folder = root / path.strip("/")
    return [folder, *(parent for parent in folder.parents if parent.is_relative_to(root))]


def _quota_v2(folder: Path) -> float | None:
    """``cpu.max`` holds ``max 100000`` or ``150000 100000``."""
    fields = _read(folder / "cpu.max").split()
    if len(fields) != 2 or fields[0] == "max":
        return None
    return _ratio(fields[0], fields[1])


def _quota_v1(folder: Path) -> float | None:
    """``cpu.cfs_quota_us`` is -1 when there is no limit."""
    return _ratio(_read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us"))


def _ratio(quota: str, period: str) -> float | None:
    try:
        numerator, denominator = int(quota), int(period)
    except ValueError:
        return None
    return numerator / denominator if numerator > 0 and denominator > 0 else None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
