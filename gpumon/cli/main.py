"""The command line: one row a subcommand. What a subcommand needs is imported when it runs."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

from gpumon import __version__
from gpumon.cli.errors import UserError

USAGE_ERROR, NOBODY_CAN_TELL = 2, 3
SEPARATOR = "--"


class Command(NamedTuple):
    """A subcommand and the module that runs it: gpumon.cli.<module>, functions `add` and `run`."""

    name: str
    module: str
    help: str
    runs: bool = False
    """What stands behind `--` is a program and its arguments, none of them ours."""
    usage_error: int = USAGE_ERROR
    """Exit code for arguments that are not understood."""


COMMANDS = (
    Command("serve", "serve", "run the agent"),
    Command("once", "once", "read the GPUs once and print what was seen"),
    Command("status", "status", "what is wrong on this node, and what to do"),
    Command(
        "check",
        "check",
        "is this node, or a job's part of it, fit for work? An exit code and one line",
        usage_error=NOBODY_CAN_TELL,
    ),
    Command("inventory", "inventory", "the GPUs that should be here, and accept that there are no more"),
    Command("ack", "ack", "acknowledge verdicts that are not so any more"),
    Command("probe", "probe", "run a probe by the running agent, show earlier runs, or keep probes away"),
    Command("release", "release", "let go of the GPUs for a while, for a reset or a driver upgrade"),
    Command("maintenance", "maintenance", "say that what happens for a while is planned, so that nothing pages"),
    Command("simulate", "simulate", "run another Python program, such as nvitop, on a simulated node", runs=True),
    Command("record", "record", "write down what NVML answers here, to be played back elsewhere"),
    Command("metrics", "metrics", "the catalogue of metrics"),
    Command("rules", "rules", "the alert rules"),
    Command("xid", "xid", "what an Xid means, and what to do about it"),
    Command("config", "config", "check or show the configuration"),
)


class _Parser(argparse.ArgumentParser):
    usage_error = USAGE_ERROR

    def error(self, message: str) -> NoReturn:
        if self.usage_error == NOBODY_CAN_TELL:  # Nagios reads the first line of this, and nothing of the other
            print(f"GPU UNKNOWN: {' '.join(message.replace('|', '/').split())}: see `gpumon check --help`.")
        self.print_usage(sys.stderr)
        self.exit(self.usage_error, f"{self.prog}: error: {message}\n")


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from gpumon.version import revision  # noqa: PLC0415 - to look for it takes longer than `gpumon check` has

        build = f" ({commit})" if (commit := revision()) else ""
        print(f"gpumon {__version__}{build}")
        parser.exit()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand. Returns its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    ends = given.index(SEPARATOR) if SEPARATOR in given else len(given)
    parser = _parser(given[:ends])
    chosen = parser.parse_args(given[:ends])
    command = next(one for one in COMMANDS if one.name == chosen.command)
    chosen.program = given[ends + 1 :]
    if chosen.program and not command.runs:
        parser.error(f"{command.name} runs no program: {SEPARATOR} {chosen.program[0]}")
    try:
        return int(_module(command).run(chosen))
    except UserError as error:
        print(f"gpumon: {error}", file=sys.stderr)
        return USAGE_ERROR
    except BrokenPipeError:  # the reader had seen enough, as in `gpumon metrics | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130


def _parser(given: Sequence[str]) -> argparse.ArgumentParser:
    first = [command for command in COMMANDS if [command.name] == given[:1]]  # to make parsers of all takes its time
    named = next((command for word in given for command in COMMANDS if command.name == word), COMMANDS[0])
    parser = _Parser(prog="gpumon", description="Watches the GPUs of this host.", allow_abbrev=False)
    parser.usage_error = named.usage_error
    parser.add_argument("--version", action=_Version, nargs=0, help="show program's version number and exit")
    subcommands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", prog=parser.prog)
    for command in first or COMMANDS:
        sub = subcommands.add_parser(command.name, help=command.help, description=command.help, allow_abbrev=False)
        sub.usage_error = command.usage_error
        if command.name in given:  # the others are not imported
            _module(command).add(sub)
    return parser


def _module(command: Command) -> Any:
    return importlib.import_module(f"gpumon.cli.{command.module}")
