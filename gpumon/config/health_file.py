"""Paths of the health file, in which the agent reports its verdicts to other programs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from gpumon.config import default_paths

NAME = "health.json"
RUNTIME_DIRECTORY = "/run/gpumon"
"""Runtime directory of the systemd unit."""
LOOPBACK = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - not to listen on, but to connect to
"""Address at which a program on this host reaches an agent that listens on all addresses, by listen address."""
VERSION = 1
"""Version of the schema, which docs/check.md documents."""


def beside(store: Path) -> Path:
    """Return the path of the file of an agent that systemd did not start."""
    return store.with_name(f"{store.name}.{NAME}")


def default_path(store: Path, environ: Mapping[str, str]) -> Path:
    """Return the path to which an agent with this store writes unless health.file is set."""
    runtime = default_paths.given_runtime_directory(environ)
    return Path(runtime) / NAME if runtime else beside(store)


def find(file: Path | None, store: Path | None, environ: Mapping[str, str]) -> Path:
    """Return the path to read: the file if given, else the one beside the store if given, else an existing default.

    The file of the systemd unit has precedence over the file of an agent that this user started.
    """
    if file is not None:
        return file
    if store is not None:
        return beside(store)
    unit = Path(default_paths.given_runtime_directory(environ) or RUNTIME_DIRECTORY) / NAME
    own = beside(Path(default_paths.state_directory(environ, root=os.geteuid() == 0)) / default_paths.STORE)
    return own if own.exists() and not unit.exists() else unit
