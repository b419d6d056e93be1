"""Default directories. This module imports nothing, so that `gpumon check` starts quickly."""

from __future__ import annotations

from collections.abc import Mapping

STORE, TOKEN = "gpumon.db", "token"


def state_directory(environ: Mapping[str, str], *, root: bool) -> str:
    """Return the state directory: $STATE_DIRECTORY, else /var/lib/gpumon for root, else a directory of the user."""
    given = environ.get("STATE_DIRECTORY", "").partition(":")[0]
    if given:
        return given
    if root:
        return "/var/lib/gpumon"
    state = environ.get("XDG_STATE_HOME") or environ.get("HOME", "/") + "/.local/state"
    return f"{state}/gpumon"


def given_runtime_directory(environ: Mapping[str, str]) -> str | None:
    """Return the runtime directory of the systemd unit; None for an agent that systemd did not start."""
    given = environ.get("RUNTIME_DIRECTORY", "").partition(":")[0]
    return given or None
