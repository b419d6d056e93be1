"""Reads what systemd reports about the agent's units, and the environment that the agent has from them."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from typing_extensions import Self

from gpumon.cli.readiness.bounded_child import run_bounded

UNIT, SOCKET_UNIT = "gpumon.service", "gpumon.socket"
PROPERTIES = (
    "LoadState,ActiveState,User,Group,SupplementaryGroups,LimitMEMLOCK,Delegate,AmbientCapabilities,"
    "MainPID,Environment,EnvironmentFiles,StateDirectory,Listen"
)
COMMAND_SECONDS = 10.0
"""Maximum seconds for the agent, systemctl and nv-fabricmanager, which do not open the driver."""


@dataclass(frozen=True, slots=True)
class UnitFacts:
    """The agent's service and socket unit."""

    properties: Mapping[str, str] = field(default_factory=dict)
    """Properties of the service; empty without systemd or unit."""
    listeners: tuple[str, ...] = ()
    """Addresses on which systemd listens for the agent."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment of the running agent, as far as this user may read it, else that which the unit sets."""
    error: str = ""
    """Why systemd, which runs, does not report the units."""

    @classmethod
    def read(cls, deadline: float) -> Self:
        """Return what systemctl reports within `deadline` seconds."""
        command = ["systemctl", "show", f"--property={PROPERTIES}", UNIT, SOCKET_UNIT]
        output = run_bounded(command, min(COMMAND_SECONDS, deadline))
        service, _, listener = output.text.partition("\n\n")
        properties = dict(line.split("=", 1) for line in service.splitlines() if "=" in line)
        active = "ActiveState=active" in listener.splitlines()
        listeners = re.findall(r"^Listen=(\S+) \(Stream\)", listener, re.MULTILINE) if active else ()
        if properties.get("LoadState") != "loaded":
            return cls(error=output.error if Path("/run/systemd/system").exists() else "")
        files = re.findall(r"^EnvironmentFiles=(\S+) \(", service, re.MULTILINE)
        return cls(properties, tuple(listeners), _environment(properties, files))


def _environment(properties: Mapping[str, str], files: list[str]) -> Mapping[str, str]:
    try:
        running = Path(f"/proc/{properties['MainPID']}/environ").read_bytes()
        return dict(_assignments(os.fsdecode(running).split("\0")))
    except (OSError, KeyError):  # the agent is stopped (MainPID=0), or has another user
        state = properties.get("StateDirectory", "")
        given = {"STATE_DIRECTORY": f"/var/lib/{state}"} if state else {}
        given |= _assignments(shlex.split(properties.get("Environment", "")))
        for file in files:
            given |= _assignments(_words(Path(file)))
        return given


def _words(file: Path) -> Iterator[str]:
    """Yield the assignments of an EnvironmentFile, without quotes. Lines that systemd would not accept are left out."""
    try:
        for line in file.read_text(errors="replace").splitlines():
            yield from shlex.split("" if line.startswith(("#", ";")) else line)
    except (OSError, ValueError):
        return


def _assignments(words: Iterator[str] | list[str]) -> Iterator[tuple[str, str]]:
    """Yield the variables that the agent and its probes read."""
    for word in words:
        name, equal, value = word.partition("=")
        if equal and re.match(r"GPUMON_|CUDA_VISIBLE_DEVICES$|STATE_DIRECTORY$", name):
            yield name, value
