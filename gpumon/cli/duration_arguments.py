"""Parses durations, such as 5m, in the arguments of a subcommand."""

from __future__ import annotations

import argparse
import re

from gpumon.cli.errors import UserError
from gpumon.model import durations

_NEGATIVE = re.compile(r"-\.?[0-9]")


def accept_negative_values(parser: argparse.ArgumentParser) -> None:
    """Make the parser read `-5m` as a value, so that the command can reject it with a reason.

    By default argparse reads it as an unknown flag. No flag of this parser may begin with a digit.
    """
    parser._negative_number_matcher = _NEGATIVE  # noqa: SLF001 - argparse has no public setting for this


def duration(text: str) -> float:
    """Return a duration, such as 5m, in seconds. This is a function for `type=` of argparse.

    Raise argparse.ArgumentTypeError if the duration is invalid or 0.
    """
    seconds = durations.seconds(text)
    if not seconds:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration above 0: write 90s, 5m or 1h30m")
    return seconds


def parse_duration(text: str, flag: str = "") -> float:
    """Return a duration, such as 1h30m, in seconds.

    Raise UserError, which names `flag`, if the duration is invalid or 0.
    """
    seconds = durations.seconds(text)
    if not seconds:
        raise UserError(f"{flag} {text!r} is not a duration: write 90s, 5m or 1h30m".strip())
    return seconds
