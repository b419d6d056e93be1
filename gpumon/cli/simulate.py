"""`gpumon simulate PROFILE -- PROGRAM`: somebody else's Python program, unmodified, on a simulated node."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

import yaml

import gpumon
from gpumon.cli.config_arguments import wrong_with_simulation
from gpumon.cli.errors import UserError
from gpumon.clock import boot_clock
from gpumon.config.component_settings import TRACE
from gpumon.config.given import did_you_mean
from gpumon.model import durations
from gpumon.model.orders import is_recording
from gpumon.sim import guest
from gpumon.sim.guest.sitecustomize import OLDEST, SIMULATION
from gpumon.sim.profiles import PROFILES

LOOK_SECONDS = 30.0
QUESTION = "import importlib.util, sys; print(*sys.version_info[:2], importlib.util.find_spec('pynvml') is not None)"
PYTHON = re.compile(r"python[\d.]*t?")
SHELLS = frozenset({"sh", "bash", "dash"})
LONG_PATH = re.compile(rb"^'''exec' [\"']?(?P<python>/[^\"']+?)[\"']? \"\$0\" \"\$@\"")
"""Second line of a script whose interpreter has too long a path for the first."""
ISOLATING = re.compile(r"-[a-zA-Z]*[EI]")
"""Options of Python that have it ignore PYTHONPATH."""


class Program(NamedTuple):
    """A Python program: its interpreter, and what to run."""

    python: str
    arguments: Sequence[str]


def add(parser: argparse.ArgumentParser) -> None:
    parser.usage = "gpumon simulate [-h] [--scenario FILE] [--at DURATION] PROFILE -- PROGRAM [ARGUMENT ...]"
    parser.add_argument("profile", metavar="PROFILE", help="name of a profile, or path of a recording")
    parser.add_argument("--scenario", type=Path, metavar="FILE", help="what happens on the node")
    parser.add_argument("--at", metavar="DURATION", help="how long the node has been running, such as 5m")


def run(chosen: argparse.Namespace) -> NoReturn:
    """Becomes the program: its exit code, and the signals it gets, are its own."""
    if not chosen.program:
        raise UserError(f"name a program behind --, as in: gpumon simulate {chosen.profile} -- nvitop -1")
    program = found(chosen.program[0], chosen.program[1:])
    _check_interpreter(program.python, chosen.program[0])
    _check_simulation(chosen.profile, chosen.scenario)
    environment = dict(os.environ)
    folders = [str(Path(guest.__file__).parent), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, folders))
    environment[SIMULATION] = json.dumps(_simulation(chosen.profile, chosen.scenario, _age(chosen.at)))
    os.execve(program.python, [program.python, *program.arguments], environment)  # noqa: S606 - no shell is wanted


def _age(at: str | None) -> float:
    seconds = 0.0 if at is None else durations.seconds(at)
    if seconds is None:
        raise UserError(f"--at {at} is no duration: write 90s, 5m or 1h")
    return seconds


def _simulation(profile: str, scenario: Path | None, age: float) -> dict[str, str]:
    named = {
        "profile": str(Path(profile).absolute()) if is_recording(profile) else profile,
        "scenario": str(scenario.absolute()) if scenario else "",
        "epoch": str(boot_clock() - age),
        "trace": os.environ.get(TRACE, ""),
    }
    return named | {
        name: str(Path(module.__file__ or "").parent) for name, module in (("gpumon", gpumon), ("yaml", yaml))
    }


def _check_simulation(profile: str, scenario: Path | None) -> None:
    if profile not in PROFILES and not is_recording(profile):
        raise UserError(f"{profile!r} is not known; {did_you_mean(profile, PROFILES)}")
    wrong = wrong_with_simulation(profile, scenario)
    if wrong:
        raise UserError(wrong)


def _check_interpreter(python: str, name: str) -> None:
    """Ask it: the simulated node is there for newer ones only, and for programs that use pynvml."""
    try:
        asked = subprocess.run(
            [python, "-c", QUESTION], check=True, capture_output=True, text=True, timeout=LOOK_SECONDS
        )
        *version, has_bindings = asked.stdout.splitlines()[-1].split()
    except (OSError, subprocess.SubprocessError, IndexError) as error:
        raise UserError(f"{name} cannot be simulated: its interpreter {python} does not run ({error})") from error
    if tuple(map(int, version)) < OLDEST:
        told = f"{python} is Python {'.'.join(version)}, and the simulated node needs 3.11 or later"
        raise UserError(f"{name} cannot be simulated: {told}: install {name} for a later Python")
    if has_bindings != "True":
        raise UserError(f"{name} cannot be simulated: {python} has no pynvml (nvidia-ml-py), so it reads no GPUs by it")


def found(name: str, arguments: Sequence[str]) -> Program:
    """The program, wherever it is installed. Raises UserError for one that is not, or is not in Python."""
    path = shutil.which(name)
    if path is None:
        raise UserError(f"{name}: no such program: install it, or name its path")
    if PYTHON.fullmatch(Path(path).name):
        return Program(path, arguments)
    with Path(path).open("rb") as file:
        first, second = file.readline(4096), file.readline(4096)
    interpreter, *options = _interpreter(first, second) or [""]
    if not PYTHON.fullmatch(Path(interpreter).name):
        raise UserError(
            f"{name} cannot be simulated: {path} is no Python program, and only Python programs read GPUs where "
            f"gpumon can stand in between (nvitop, gpustat, nvitop-exporter)"
        )
    python = shutil.which(interpreter)
    if python is None:
        raise UserError(f"{name} cannot be simulated: its interpreter {interpreter} does not exist: install it again")
    return Program(python, [*(one for one in options if not ISOLATING.fullmatch(one)), path, *arguments])


def _interpreter(first: bytes, second: bytes) -> list[str] | None:
    """As the kernel would start it, or env, or the shell of a script whose interpreter has a long path."""
    if not first.startswith(b"#!"):
        return None
    words = shlex.split(first[2:].decode(errors="replace"))
    name = Path(words[0]).name if words else ""
    if name == "env":
        return [word for word in words[1:] if word != "-S"]
    if name in SHELLS and (long := LONG_PATH.match(second)):
        return [long["python"].decode(errors="replace")]
    return words
