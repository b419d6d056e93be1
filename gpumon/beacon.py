"""Where an agent is to be found: a small file that it leaves for `gpumon check`, which has no time for configuration.

It stands beside the store, and in systemd's runtime directory, where every user may read it. It stays when the agent
ends: who finds nobody at its address looks into its store.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

NAME = "agent.json"
"""In the runtime directory."""
MODE = 0o644
ANYWHERE = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - a listen address, to be asked locally


@dataclass(frozen=True, slots=True, kw_only=True)
class Beacon:
    """An agent, running or not."""

    host: str
    """To be asked at: never an address that stands for all."""
    port: int
    store: str
    pid: int
    version: str


def beside(store: Path) -> Path:
    """Its file beside its store: several agents have several stores."""
    return store.with_name(f"{store.name}.{NAME}")


def write(beacon: Beacon, path: Path) -> None:
    """Whole or not at all. Raises OSError."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        new.write_text(json.dumps(asdict(beacon)) + "\n", encoding="utf-8")
        new.chmod(MODE)  # whatever the umask
        new.replace(path)
    finally:
        with contextlib.suppress(OSError):
            new.unlink()


def read(path: Path) -> Beacon | None:
    """None where there is none, or none that this user may read, or nothing of ours."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        known = {name: kind(values[name]) for name, kind in _KINDS.items()}
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return Beacon(**known)


_KINDS = {"host": str, "port": int, "store": str, "pid": int, "version": str}
