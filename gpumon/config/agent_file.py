"""Where an agent is to be found: a small file that it leaves for `gpumon check`, which has no time for configuration.

It stands beside the store, and in systemd's runtime directory, where every user may read it. It stays when the agent
ends: who finds nobody at its address looks into its store.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import NamedTuple

NAME = "agent.json"
"""In the runtime directory."""
MODE = 0o644
ANYWHERE = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - a listen address, to be asked locally


class Beacon(NamedTuple):
    """An agent, running or not."""

    host: str
    """To be asked at: never an address that stands for all."""
    port: int
    store: str
    pid: int
    version: str


def beside(store: str) -> str:
    """Its file beside its store: several agents have several stores."""
    return f"{store}.{NAME}"


def write(beacon: Beacon, path: str) -> None:
    """Whole or not at all. Raises OSError."""
    folder, name = os.path.split(path)
    new = os.path.join(folder, f".{name}.{os.getpid()}")
    try:
        with open(new, "w", encoding="utf-8") as file:
            file.write(json.dumps(beacon._asdict()) + "\n")
        os.chmod(new, MODE)  # whatever the umask
        os.replace(new, path)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(new)


def read(path: str) -> Beacon | None:
    """None where there is none, or none that this user may read, or nothing of ours."""
    try:
        with open(path, encoding="utf-8") as file:
            values = json.load(file)
        known = {name: kind(values[name]) for name, kind in _KINDS.items()}
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return Beacon(**known)


_KINDS = {"host": str, "port": int, "store": str, "pid": int, "version": str}
