"""The command line `gpumon-sim`: a Python program on a simulated node, a fleet of simulated nodes, or a recording."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from gpumon.cli.command_parser import CommandParser, exit_code

SEPARATOR = "--"
COMMANDS = {"fleet": "gpumon_sim.fleet", "record": "gpumon_sim.recording.command"}
"""Modules with the functions `add` and `run` of a command. Any other first word is a profile: gpumon_sim.programs."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the arguments (default: sys.argv) name, and return its exit code.

    Return USAGE_ERROR after a UserError and 130 after ^C; raise SystemExit for invalid arguments and --help.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    ends = words.index(SEPARATOR) if SEPARATOR in words else len(words)
    name = words[0] if words and words[0] in COMMANDS else ""
    args = parser(name).parse_args(words[len(name.split()) : ends] or ([] if name else ["--help"]))
    args.program = words[ends + 1 :]
    if args.program and name:
        args.parser.error(f"{name} does not run a program: {SEPARATOR} {args.program[0]}")
    return exit_code("gpumon-sim", lambda: _module(name).run(args))


def parser(name: str) -> CommandParser:
    """Return the parser of a command, or of a program on a simulated node if `name` is empty."""
    module = _module(name)
    made = CommandParser(prog=f"gpumon-sim {name}".rstrip(), description=module.DESCRIPTION)
    module.add(made)
    return made


def _module(name: str) -> Any:
    return import_module(COMMANDS.get(name, "gpumon_sim.programs"))
