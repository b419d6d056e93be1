"""Where files are unless configured. Imports nothing of the configuration: `gpumon check` has no time for it."""

from __future__ import annotations

from collections.abc import Mapping

STORE, TOKEN = "gpumon.db", "token"


def state_directory(environ: Mapping[str, str], *, root: bool) -> str:
    """Where state lives unless configured: systemd's STATE_DIRECTORY, /var/lib/gpumon for root, else the user's."""
    given = environ.get("STATE_DIRECTORY", "").partition(":")[0]
    if given:
        return given
    if root:
        return "/var/lib/gpumon"
    state = environ.get("XDG_STATE_HOME") or environ.get("HOME", "/") + "/.local/state"
    return f"{state}/gpumon"


def given_runtime_directory(environ: Mapping[str, str]) -> str | None:
    """What systemd gives the agent of its unit; None for an agent that was started by hand."""
    given = environ.get("RUNTIME_DIRECTORY", "").partition(":")[0]
    return given or None
