"""Reads what systemd reports about the agent's units, and the environment that the agent has from them."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from gpumon.cli.readiness.bounded_child import run_bounded

UNIT, SOCKET_UNIT = "gpumon.service", "gpumon.socket"
PROPERTIES = (
    "LoadState,ActiveState,User,Group,SupplementaryGroups,LimitMEMLOCK,Delegate,AmbientCapabilities,"
    "MainPID,Environment,EnvironmentFiles,StateDirectory,Listen"
)
COMMAND_SECONDS = 10.0  # for the agent, systemctl and nv-fabricmanager, which do not open the driver


class UnitFacts(NamedTuple):
    """The agent's service and socket unit."""

    properties: Mapping[str, str] = {}  # of the service; empty without systemd or unit
    listeners: Sequence[str] = ()  # addresses on which systemd listens for the agent
    environment: Mapping[str, str] = {}  # of the running agent, if this user may read it, else what the unit sets
    error: str = ""  # why systemd, which runs, does not report the units


def read_units() -> UnitFacts:
    output = run_bounded(["systemctl", "show", f"--property={PROPERTIES}", UNIT, SOCKET_UNIT], COMMAND_SECONDS)
    service, _, listener = output.text.partition("\n\n")
    properties = dict(line.split("=", 1) for line in service.splitlines() if "=" in line)
    if properties.get("LoadState") != "loaded":
        return UnitFacts(error=output.error if Path("/run/systemd/system").exists() else "")
    listeners = re.findall(r"^Listen=(\S+) \(Stream\)", listener, re.MULTILINE)
    files = re.findall(r"^EnvironmentFiles=(\S+) \(", service, re.MULTILINE)
    environment = {"STATE_DIRECTORY": f"/var/lib/{properties.get('StateDirectory') or 'gpumon'}"}
    for assignment in _assignments(properties.pop("Environment", ""), properties.get("MainPID", ""), files):
        name, _, value = assignment.partition("=")
        if re.match(r"GPUMON_|CUDA_VISIBLE_DEVICES$|STATE_DIRECTORY$", name):
            environment[name] = value
    return UnitFacts(properties, listeners if "ActiveState=active" in listener.splitlines() else (), environment)


def _assignments(environment: str, pid: str, files: Sequence[str]) -> Sequence[str]:
    """Return NAME=VALUE of the running agent; of its unit if it is stopped, or if this user may not read them."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_text(errors="surrogateescape").split("\0")
    assignments: list[str] = []
    for file in (None, *map(Path, files)):
        with contextlib.suppress(OSError, ValueError):
            text = environment if file is None else file.read_text(errors="replace")
            assignments += shlex.split(re.sub(r"(?m)^\s*[#;].*", "", text))
    return assignments
