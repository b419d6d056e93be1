"""Default paths of the store, the token, the unix socket and the health file (the verdicts, for other programs).

Paths are strings here, because `gpumon check` uses this module, and importing pathlib would take a tenth of its time.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

StrPath = str | os.PathLike[str]
STORE, TOKEN, HEALTH_FILE, SOCKET = "gpumon.db", "token", "health.json", "gpumon.sock"
RUNTIME_DIRECTORY = "/run/gpumon"
JOB_MAPPING = "/var/lib/gpumon/job-mapping"
"""Directory of the job mapping files, which `gpumon mapping` writes and the agent reads."""
HEALTH_FILE_VERSION = 1
"""Version of the schema of the health file, which docs/check.md documents."""


def state_directory(environ: Mapping[str, str], *, root: bool) -> str:
    """Return $STATE_DIRECTORY, else /var/lib/gpumon for root, else `gpumon` in $XDG_STATE_HOME or ~/.local/state."""
    given = environ.get("STATE_DIRECTORY", "").partition(":")[0]
    if given:
        return given
    if root:
        return "/var/lib/gpumon"
    state = environ.get("XDG_STATE_HOME") or environ.get("HOME", "/") + "/.local/state"
    return f"{state}/gpumon"


def unit_runtime_directory(environ: Mapping[str, str]) -> str | None:
    """Return $RUNTIME_DIRECTORY, which systemd sets for a unit; None for an agent that systemd did not start."""
    return environ.get("RUNTIME_DIRECTORY", "").partition(":")[0] or None


def health_file_beside(store: StrPath) -> str:
    return f"{os.fspath(store)}.{HEALTH_FILE}"


def default_health_file(store: StrPath, environ: Mapping[str, str]) -> str:
    """Return the default path of the health file of an agent with this store; health.file overrides it."""
    runtime = unit_runtime_directory(environ)
    return f"{runtime}/{HEALTH_FILE}" if runtime else health_file_beside(store)


def default_socket(store: StrPath, environ: Mapping[str, str]) -> str:
    """Return the default path of the unix socket of an agent with this store; web.socket overrides it."""
    runtime = unit_runtime_directory(environ)
    return f"{runtime}/{SOCKET}" if runtime else f"{os.fspath(store)}.sock"


def find_socket(store: StrPath, environ: Mapping[str, str], *, configured: bool) -> str:
    """Return the path of the socket of a running agent: the unit's, or that of the store, first if `configured`."""
    unit = f"{unit_runtime_directory(environ) or RUNTIME_DIRECTORY}/{SOCKET}"
    beside = f"{os.fspath(store)}.sock"
    paths = (beside, unit) if configured else (unit, beside)
    return next(filter(os.path.exists, paths), paths[0])


def find_health_file(file: StrPath | None, store: StrPath | None, environ: Mapping[str, str]) -> str:
    """Return the path of the health file to read: `file` if given, else beside `store` if given, else a default.

    The default is the file of the systemd unit, unless only the file of an agent that this user started exists.
    """
    if file is not None:
        return os.fspath(file)
    if store is not None:
        return health_file_beside(store)
    unit = f"{unit_runtime_directory(environ) or RUNTIME_DIRECTORY}/{HEALTH_FILE}"
    own = health_file_beside(f"{state_directory(environ, root=os.geteuid() == 0)}/{STORE}")
    return own if os.path.exists(own) and not os.path.exists(unit) else unit
