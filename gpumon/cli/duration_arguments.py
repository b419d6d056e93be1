"""Parses durations, such as 5m, in the arguments of a subcommand."""

from __future__ import annotations

import argparse

from gpumon.cli.errors import UserError
from gpumon.model import durations


def duration(text: str) -> float:
    """Return a duration, such as 5m, in seconds. This is a function for `type=` of argparse.

    Raise argparse.ArgumentTypeError if the duration is invalid or 0.
    """
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
