"""A host on which a scheduler runs its scripts, with substitutes for its commands that record their calls."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

RECORDER = """\
#!/bin/sh
{ printf '%s\\n' "${0##*/}" "$@"; echo; } >> CALLS
case "${0##*/} $*" in
"scontrol --oneliner show node") # the second count may differ from the first
    cat NODE PARTITION
    [ ! -e PARTITION.then ] || mv PARTITION.then PARTITION
    [ ! -e NODE.then ] || mv NODE.then NODE ;;
"scontrol --oneliner show node"*) cat NODE ;;
esac
"""
LINE = "NodeName={name} Arch=x86_64 CPUAlloc=0 State={state} ThreadsPerCore=1 Partitions={partitions} {reason}\n"
DRAINED = ("IDLE+DRAIN", "gpumon: GPU FAIL: GPU 3")


class CommandResult(NamedTuple):
    code: int
    output: str


class SlurmHost:
    """A host with Slurm's command and the system log, both of which only record their arguments."""

    def __init__(self, folder: Path) -> None:
        self._calls, self._node, self._path = folder / "calls", folder / "node", folder / "bin"
        self._partition, self.mark, self.mapping = folder / "partition", folder / "mark", folder / "mapping"
        self._path.mkdir(parents=True)
        recorder = RECORDER.replace("CALLS", str(self._calls))
        recorder = recorder.replace("NODE", str(self._node)).replace("PARTITION", str(self._partition))
        for name in ("scontrol", "logger"):
            self._command(name, recorder)
        self._command("gpumon", f'#!/bin/sh\nexec {sys.executable} -m gpumon "$@"\n')
        self.node("IDLE")
        self.partition()

    def _command(self, name: str, text: str) -> None:
        path = self._path / name
        path.write_text(text)
        path.chmod(0o755)

    def answering(self, line: str, code: int) -> dict[str, str]:
        """Return the environment with a gpumon command that always prints this line and exits with this code."""
        self._command("answering", f'#!/bin/sh\n[ -z "{line}" ] || echo "{line}"\nexit {code}\n')
        return {"GPUMON": str(self._path / "answering")}

    def node(self, state: str, reason: str = "", *, partitions: str = "gpu", then: bool = False) -> None:
        """Set the state of this node that scontrol prints; with `then` after the first list of all nodes."""
        path = self._node.with_suffix(".then") if then else self._node
        path.write_text(_line("n17", state, reason, partitions))

    def partition(self, *drained: tuple[str, str], size: int = 10, then: bool = False) -> None:
        """Set the other nodes of this node's partition: idle, or with these states and reasons."""
        path = self._partition.with_suffix(".then") if then else self._partition
        others = [*drained, *[("IDLE", "")] * (size - 1 - len(drained))]
        path.write_text("".join(_line(f"n{number}", *each) for number, each in enumerate(others, 20)))

    def run(
        self, script: Path, *arguments: str, store: Path, environment: Mapping[str, str] | None = None
    ) -> CommandResult:
        """Run a script as a daemon does: with the search path above, and without the environment of the test."""
        environ = {
            "PATH": str(self._path),
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "GPUMON": str(self._path / "gpumon"),
            "GPUMON_STORE__PATH": str(store),
            "GPUMON_WEB__TOKEN_FILE": str(store.with_name("token")),
            "GPUMON_SLURM_SETTINGS": str(self._path / "settings"),
            "GPUMON_SLURM_MARK": str(self.mark),
            "GPUMON_SLURM_MAPPING": str(self.mapping),
            "GPUMON_SLURM_DELAY": "0",
            "SLURMD_NODENAME": "n17",
            **(environment or {}),
        }
        ran = subprocess.run(
            [script, *arguments], env=environ, capture_output=True, text=True, timeout=120, check=False
        )
        return CommandResult(ran.returncode, ran.stdout + ran.stderr)

    def calls(self, command: str) -> list[list[str]]:
        """Return the arguments of each call of this command; an empty line ends a call."""
        text = self._calls.read_text() if self._calls.exists() else ""
        calls = [call.split("\n") for call in text.split("\n\n") if call]
        return [arguments for name, *arguments in calls if name == command]

    def forget(self) -> None:
        self._calls.unlink(missing_ok=True)


def _line(name: str, state: str, reason: str, partitions: str = "gpu") -> str:
    text = f"Reason={reason} [root@2026-11-20T17:00:00]" if reason else ""
    return LINE.format(name=name, state=state, partitions=partitions, reason=text)
