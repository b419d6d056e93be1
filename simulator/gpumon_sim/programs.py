"""`gpumon-sim PROFILE -- PROGRAM`: run another Python program, unmodified, on a simulated node."""

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
import gpumon_sim
from gpumon.cli.command_parser import CommandParser, UserError
from gpumon.clock import boot_clock
from gpumon.config.component_settings import TRACE
from gpumon.config.configuration_error import did_you_mean
from gpumon.model import durations
from gpumon.model.orders import is_recording
from gpumon_sim import guest
from gpumon_sim.guest.sitecustomize import OLDEST, SIMULATION
from gpumon_sim.profiles import PROFILES
from gpumon_sim.source import problem

DESCRIPTION = (
    "Run a Python program that uses pynvml, such as nvitop, unmodified on a simulated node: NVML answers as in a "
    "profile with a scenario of faults, or as in a recording."
)
INTERPRETER_SECONDS = 30.0
QUESTION = "import importlib.util, sys; print(*sys.version_info[:2], importlib.util.find_spec('pynvml') is not None)"
PYTHON = re.compile(r"python[\d.]*t?")
SHELLS = frozenset({"sh", "bash", "dash"})
LONG_PATH = re.compile(rb"^'''exec' [\"']?(?P<python>/[^\"']+?)[\"']? \"\$0\" \"\$@\"")
"""Matches the second line of a script, as pip writes it if the path of the interpreter is too long for the first line.
"""
ISOLATING = re.compile(r"-[a-zA-Z]*[EI]")
"""Matches options that make Python ignore PYTHONPATH."""


class Program(NamedTuple):
    """A Python program to run: the path of its interpreter, and the interpreter's arguments."""

    python: str
    arguments: Sequence[str]


def add(parser: CommandParser) -> None:
    parser.set_examples(
        "gpumon-sim h100x8 -- nvitop -1",
        "gpumon-sim h100x8 --scenario faults.yml --at 5m -- nvitop",
        "gpumon-sim ./node.capture -- gpustat",
        "gpumon-sim fleet --nodes 100 --broken 3 --targets targets/fleet.json",
        "gpumon-sim record node.capture --for 60s",
    )
    parser.usage = (
        "gpumon-sim [-h] [--scenario FILE] [--at DURATION] PROFILE -- PROGRAM [ARGUMENT ...]\n"
        "       gpumon-sim fleet --nodes N ...\n"
        "       gpumon-sim record FILE ..."
    )
    names = ", ".join(PROFILES)
    parser.add_argument("profile", metavar="PROFILE", help=f"path of a recording, or one of: {names}")
    parser.add_argument("--scenario", type=Path, metavar="FILE", help="file with the events of the simulated node")
    parser.add_argument("--at", metavar="DURATION", help="start at this time of the scenario, such as 5m")


def run(args: argparse.Namespace) -> NoReturn:
    """Replace this process by the program (exec), which thus receives all signals and sets the exit code."""
    if not args.program:
        raise UserError(f"name a program behind --, as in: gpumon-sim {args.profile} -- nvitop -1")
    program = find_program(args.program[0], args.program[1:])
    _check_interpreter(program.python, args.program[0])
    _check_simulation(args.profile, args.scenario)
    environment = dict(os.environ)
    folders = [str(Path(guest.__file__).parent), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, folders))
    environment[SIMULATION] = json.dumps(_simulation(args.profile, args.scenario, _age(args.at)))
    os.execve(program.python, [program.python, *program.arguments], environment)  # noqa: S606 - no shell is wanted


def _age(at: str | None) -> float:
    seconds = 0.0 if at is None else durations.seconds(at)
    if seconds is None:
        raise UserError(f"--at {at!r} is not a duration: write 90s, 5m or 1h30m")
    return seconds


def _simulation(profile: str, scenario: Path | None, age: float) -> dict[str, str]:
    named = {
        "profile": str(Path(profile).absolute()) if is_recording(profile) else profile,
        "scenario": str(scenario.absolute()) if scenario else "",
        "epoch": str(boot_clock() - age),
        "trace": os.environ.get(TRACE, ""),
    }
    return named | {module.__name__: str(Path(module.__file__ or "").parent) for module in (gpumon, gpumon_sim, yaml)}


def _check_simulation(profile: str, scenario: Path | None) -> None:
    if profile not in PROFILES and not is_recording(profile):
        raise UserError(f"{profile!r} is no profile; {did_you_mean(profile, PROFILES)}")
    wrong = problem(profile, scenario)
    if wrong:
        raise UserError(wrong)


def _check_interpreter(python: str, name: str) -> None:
    """Raise UserError unless the interpreter runs, is new enough, and has pynvml."""
    try:
        checked = subprocess.run(
            [python, "-I", "-c", QUESTION], check=True, capture_output=True, text=True, timeout=INTERPRETER_SECONDS
        )
        *version, has_bindings = checked.stdout.splitlines()[-1].split()
    except (OSError, subprocess.SubprocessError, IndexError) as error:
        raise UserError(f"{name} cannot be simulated: its interpreter {python} does not run ({error})") from error
    if tuple(map(int, version)) < OLDEST:
        reason = f"{python} is Python {'.'.join(version)}, and the simulated node needs 3.11 or later"
        raise UserError(f"{name} cannot be simulated: {reason}: install {name} for a later Python")
    if has_bindings != "True":
        raise UserError(f"{name} cannot be simulated: {python} has no pynvml (nvidia-ml-py)")


def find_program(name: str, arguments: Sequence[str]) -> Program:
    """Return how to run a Python program with these arguments: its interpreter and the interpreter's arguments.

    Raise UserError if the program is missing or is not a Python program.
    """
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
            f"{name} cannot be simulated: {path} is not a Python program. Only programs that use pynvml can be "
            f"simulated (nvitop, gpustat, nvitop-exporter)"
        )
    python = shutil.which(interpreter)
    if python is None:
        raise UserError(f"{name} cannot be simulated: its interpreter {interpreter} does not exist: install it again")
    return Program(python, [*(option for option in options if not ISOLATING.fullmatch(option)), path, *arguments])


def _interpreter(first: bytes, second: bytes) -> list[str] | None:
    """Return the interpreter and its options from a script's first two lines; None if the script names no interpreter.

    If the first line names env, or a shell that executes the interpreter, return the interpreter itself.
    """
    if not first.startswith(b"#!"):
        return None
    words = shlex.split(first[2:].decode(errors="replace"))
    name = Path(words[0]).name if words else ""
    if name == "env":
        return [word for word in words[1:] if word != "-S"]
    if name in SHELLS and (long := LONG_PATH.match(second)):
        return [long["python"].decode(errors="replace")]
    return words
