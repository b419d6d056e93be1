"""The command line of gpumon. COMMANDS lists the subcommands. The module of a subcommand is imported when it runs."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from gpumon.cli.command_parser import CommandParser, UserError, exit_code

FOREIGN_ANSWER = (
    "the answer is not that of this version of gpumon: restart the agent, or name another one with --socket or --url"
)


class Command(NamedTuple):
    """A subcommand. In the module gpumon.<room>.<name>, `add` adds its arguments to a parser, and `run` executes it."""

    name: str
    help: str
    room: str = "cli"

    @property
    def module(self) -> Any:
        return importlib.import_module(f"gpumon.{self.room}.{self.name}")


GROUPS: Mapping[str, tuple[Command, ...]] = {
    "Daily": (
        Command("status", "show what is wrong on this node and what to do"),
        Command("check", "report the health of this node, or of a job's GPUs, in one line and an exit code"),
        Command("fleet", "list the bad nodes of a fleet, with reason and action", "fleet"),
        Command("jobs", "show who holds the GPUs, since when, and how much of that time they were idle"),
        Command("usage", "add up who held the GPUs of a node or fleet, and how long these were idle", "fleet"),
        Command("events", "show the stored Xids and other errors of the kernel log, the newest first"),
        Command("xid", "explain an Xid and what to do about it"),
        Command("explain", "explain why a distributed PyTorch job hangs: which rank, and where"),
        Command("runbook", "show what to do about an alert"),
        Command("clear", "clear verdicts of faults that are over"),
        Command("maintenance", "mute the alerts of this node for some time, or end that"),
        Command("release", "close the GPUs for some time, for a reset or a driver upgrade"),
        Command("probe", "run a probe, show earlier runs, or hold probes off the GPUs"),
        Command("inventory", "show the expected GPUs and ports, or accept that some are gone"),
    ),
    "Installation": (
        Command("doctor", "check whether this host is ready, and print a remedy for each problem"),
        Command("serve", "run the agent"),
        Command("config", "check or show the configuration"),
        Command("mapping", "write which GPUs a Slurm job holds, for its prolog and epilog"),
        Command("notify", "send a test alert to the configured receivers"),
        Command("sd", "print the scrape targets of a fleet for Prometheus, or serve them", "fleet"),
        Command("rules", "print the Prometheus alert rules, or write the runbooks as web pages", "fleet"),
        Command("metrics", "list the metrics"),
        Command("version", "show the versions of gpumon and of what it uses"),
    ),
    "Development": (Command("once", "read the GPUs once, without an agent, and print the readings"),),
}
"""The subcommands as `gpumon --help` lists them."""
COMMANDS = tuple(command for group in GROUPS.values() for command in group)


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from gpumon.cli import version  # noqa: PLC0415 - it reads the disk

        print(version.line())
        parser.exit()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the subcommand that the arguments (default: sys.argv) name, and return its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    first = [command for command in COMMANDS if [command.name] == words[:1]]
    parser = command_parser(first)
    if not words:
        parser.print_help()
        return 0
    args = parser.parse_args(words)
    return exit_code("gpumon", lambda: _run(first[0], args))


def _run(command: Command, args: argparse.Namespace) -> int:
    try:
        return int(command.module.run(args))
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        if "socket" not in args:  # only the commands that ask an agent have this flag
            raise
        raise UserError(f"{FOREIGN_ANSWER} ({error!r})") from error


def command_parser(complete: Sequence[Command] = COMMANDS) -> CommandParser:
    """Return the parser with all subcommands, or those in `complete`, whose modules are imported, with arguments."""
    lines = ["Monitor the GPUs of this host."]
    for title, group in GROUPS.items():
        lines += ["", f"{title}:", *(f"  {command.name:<12} {command.help}" for command in group)]
    parser = CommandParser(prog="gpumon", usage="gpumon [-h] [--version] COMMAND ...", description="\n".join(lines))
    parser.set_examples("gpumon status", "gpumon probe history --since 7d")
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    subcommands = parser.add_subparsers(
        dest="command", required=True, metavar="COMMAND", prog=parser.prog, help=argparse.SUPPRESS
    )
    for command in complete or COMMANDS:
        sub = subcommands.add_parser(command.name, help=command.help, description=command.help)
        if command in complete:
            command.module.add(sub)
    return parser
