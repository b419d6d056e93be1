"""Reads how much memory is available on the host and in the agent's cgroup, to which the ranks belong too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def available_bytes(root: Path = Path("/")) -> float | None:
    """Return the available bytes of memory: the minimum over the host and the agent's cgroups; None if unknown."""
    return min((*_free_on_host(root), *_free_in_cgroups(root)), default=None)


def _free_on_host(root: Path) -> Iterator[float]:
    for line in _text(root / "proc/meminfo").splitlines():
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            yield float(rest.split()[0]) * 1024


def _free_in_cgroups(root: Path) -> Iterator[float]:
    """Yield the free bytes of each cgroup (v2) with a memory limit: the agent's own cgroup and those above it."""
    folders = root / "sys/fs/cgroup"
    for line in _text(root / "proc/self/cgroup").splitlines():
        if line.startswith("0::"):
            own = folders / line.removeprefix("0::").lstrip("/")
            for folder in (own, *own.parents):
                yield from _free_in_cgroup(folder)
                if folder == folders:
                    return


def _free_in_cgroup(folder: Path) -> Iterator[float]:
    limit, used = _text(folder / "memory.max").strip(), _text(folder / "memory.current").strip()
    if limit.isdigit() and used.isdigit():
        yield max(0.0, float(limit) - max(0.0, float(used) - _reclaimable(folder)))


def _reclaimable(folder: Path) -> float:
    """Return the bytes of inactive file pages. The kernel counts them as used memory but reclaims them first."""
    values = dict(line.split(" ", 1) for line in _text(folder / "memory.stat").splitlines() if " " in line)
    cached = values.get("inactive_file", "").strip()
    return float(cached) if cached.isdigit() else 0.0


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
