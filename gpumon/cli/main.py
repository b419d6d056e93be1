"""The command line: one row for each subcommand, whose module is imported when it runs."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple, NoReturn

from gpumon import __version__
from gpumon.cli.errors import UserError

USAGE_ERROR, UNKNOWN_HEALTH = 2, 3
SEPARATOR = "--"
_FORMATTER = partial(argparse.HelpFormatter, width=100)
"""Help has a fixed width, because reading that of the terminal takes 4 ms of every `gpumon check`."""


class Command(NamedTuple):
    """A subcommand and the module that runs it: gpumon.cli.<module>, functions `add` and `run`."""

    name: str
    module: str
    help: str
    runs: bool = False
    """The arguments behind `--` are a program and its arguments."""
    usage_error: int = USAGE_ERROR
    """Exit code for invalid arguments."""


COMMANDS = (
    Command("serve", "serve", "run the agent"),
    Command("once", "once", "read the GPUs once, without an agent, and print the readings"),
    Command("status", "status", "show what is wrong on this node and what to do"),
    Command(
        "check",
        "check",
        "report the health of this node, or of a job's GPUs, in one line and an exit code",
        usage_error=UNKNOWN_HEALTH,
    ),
    Command("inventory", "inventory", "show the expected GPUs and ports, or accept that some are gone"),
    Command("ack", "ack", "acknowledge verdicts of faults that are over"),
    Command("probe", "probe", "run a probe, show earlier runs, or hold probes off the GPUs"),
    Command("release", "release", "close the GPUs for some time, for a reset or a driver upgrade"),
    Command("maintenance", "maintenance", "announce planned work, during which no alert pages"),
    Command("simulate", "simulate", "run another Python program, such as nvitop, on a simulated node", runs=True),
    Command("record", "record", "record the answers of NVML on this host, to replay them elsewhere"),
    Command("metrics", "metrics", "list the metrics"),
    Command("rules", "rules", "print the Prometheus alert rules"),
    Command("xid", "xid", "explain an Xid and what to do about it"),
    Command("config", "config", "check or show the configuration"),
)


class _Parser(argparse.ArgumentParser):
    usage_error = USAGE_ERROR

    def error(self, message: str) -> NoReturn:
        if self.usage_error == UNKNOWN_HEALTH:  # Nagios reads the first line of standard output
            print(f"GPU UNKNOWN: {' '.join(message.replace('|', '/').split())}: see `gpumon check --help`.")
        self.print_usage(sys.stderr)
        self.exit(self.usage_error, f"{self.prog}: error: {message}\n")


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from gpumon.version import revision  # noqa: PLC0415 - it reads the disk

        build = f" ({commit})" if (commit := revision()) else ""
        print(f"gpumon {__version__}{build}")
        parser.exit()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    ends = given.index(SEPARATOR) if SEPARATOR in given else len(given)
    parser = _parser(given[:ends])
    args = parser.parse_args(given[:ends])
    command = next(command for command in COMMANDS if command.name == args.command)
    args.program = given[ends + 1 :]
    if args.program and not command.runs:
        parser.error(f"{command.name} does not run a program: {SEPARATOR} {args.program[0]}")
    try:
        return int(_module(command).run(args))
    except UserError as error:
        print(f"gpumon: {error}", file=sys.stderr)
        return USAGE_ERROR
    except BrokenPipeError:  # the reader has ended, as in `gpumon metrics | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130


def _parser(given: Sequence[str]) -> argparse.ArgumentParser:
    first = [command for command in COMMANDS if [command.name] == given[:1]]  # building all parsers takes time
    named = next((command for word in given for command in COMMANDS if command.name == word), COMMANDS[0])
    parser = _Parser(
        prog="gpumon", description="Monitor the GPUs of this host.", allow_abbrev=False, formatter_class=_FORMATTER
    )
    parser.usage_error = named.usage_error
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    subcommands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", prog=parser.prog)
    for command in first or COMMANDS:
        sub = subcommands.add_parser(
            command.name,
            help=command.help,
            description=command.help,
            allow_abbrev=False,
            formatter_class=_FORMATTER,
        )
        sub.usage_error = command.usage_error
        if command.name in given:  # the others are not imported
            _module(command).add(sub)
    return parser


def _module(command: Command) -> Any:
    return importlib.import_module(f"gpumon.cli.{command.module}")
