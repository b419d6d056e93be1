"""The argument parser of commands, types of their arguments, and their errors and exit codes."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from gpumon.config.configuration_error import did_you_mean
from gpumon.model import durations

WIDTH = 100
"""Width of help texts in columns: reading the terminal's width would take 4 ms of every `gpumon check`."""
INDENT = "  "


class _Formatter(argparse.HelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=WIDTH)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        """Return a help text with its lines wrapped, except indented lines, which are examples."""
        lines = text.splitlines()
        return "\n".join(
            line if line.startswith(INDENT) else super(_Formatter, self)._fill_text(line, width, indent)
            for line in lines
        )


class CommandParser(argparse.ArgumentParser):
    """The argument parser of `gpumon`, of a subcommand, or of an action such as `start` of a subcommand."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=_Formatter, **options)
        self.usage_error = USAGE_ERROR
        """Exit code for invalid arguments."""
        self.on_error: Callable[[str], object] = lambda _: None
        """Function that is called with the message of a usage error before the parser exits."""
        self.default_action = ""
        """Name of the action that is used if the command line names no action."""
        self.examples: tuple[str, ...] = ()
        self.set_defaults(parser=self)
        self._action_parsers: Any = None
        self._negative_number_matcher = re.compile(r"-\.?[0-9]")
        """Makes argparse read `-5m` as a value, which a command rejects with a reason, and not as an unknown flag."""

    def add_action(self, name: str, meaning: str, *examples: str) -> CommandParser:
        """Add an action, such as `start`, to this subcommand, and return its parser. `meaning` is its help text."""
        if self._action_parsers is None:
            self._action_parsers = self.add_subparsers(dest="action", required=True, metavar="ACTION", title="actions")
        parser: CommandParser = self._action_parsers.add_parser(name, help=meaning, description=meaning)
        parser.set_examples(*examples)
        return parser

    def set_examples(self, *commands: str) -> None:
        """Set the example commands that the help shows at its end."""
        self.examples = commands
        self.epilog = "\n".join(["Examples:", *(f"{INDENT}{command}" for command in commands)])

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse the arguments, with `default_action` if no action is named. An error names this command."""
        if self.default_action and (not args or args[0].startswith("-")) and not {"-h", "--help"} & set(args):
            args = [self.default_action, *args]
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            near = did_you_mean(unknown[0].partition("=")[0], self._option_string_actions)
            self.error(f"unrecognized arguments: {' '.join(unknown)}{f'; {near}' if near.startswith('did') else ''}")
        return parsed, unknown

    def error(self, message: str) -> NoReturn:
        self.on_error(message)
        self.print_usage(sys.stderr)
        self.exit(self.usage_error, f"{self.prog}: error: {message}\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:  # noqa: SLF001 - no public name
            names = list(action.choices)
            raise argparse.ArgumentError(None, f"there is no command {value!r}; {did_you_mean(value, names)}")
        super()._check_value(action, value)


USAGE_ERROR = 2


class UserError(Exception):
    """Raised for an error that the user can correct. The message states what is wrong and what to do."""


def exit_code(program: str, run: Callable[[], int]) -> int:
    """Run a command and return its exit code: USAGE_ERROR after a UserError, which is printed, and 130 after ^C."""
    try:
        return int(run())
    except UserError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return USAGE_ERROR
    except BrokenPipeError:  # the reader has ended, as in `gpumon metrics | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130


def duration(text: str) -> float:
    """Return a duration such as 5m in seconds, for `type=` of argparse: ArgumentTypeError if it is invalid or 0."""
    seconds = durations.seconds(text)
    if not seconds:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration above 0: write 90s, 5m or 1h30m")
    return seconds


def for_seconds(text: str) -> float:
    """Return the value of the flag --for, such as 1h30m, in seconds. Raise UserError if it is invalid or 0."""
    seconds = durations.seconds(text)
    if not seconds:
        raise UserError(f"--for {text!r} is not a duration: write 90s, 5m or 1h30m")
    return seconds
