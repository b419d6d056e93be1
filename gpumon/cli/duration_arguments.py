"""Durations among the arguments of a subcommand."""

from __future__ import annotations

import argparse
import re

_BELOW_ZERO = re.compile(r"-\.?[0-9]")


def read_below_zero(parser: argparse.ArgumentParser) -> None:
    """Have `-5m` read as a value, so that the command can say what is wrong with it; no flag of ours is a digit.

    To argparse it is a flag that nobody knows, or the end of the one before it: "expected one argument".
    """
    parser._negative_number_matcher = _BELOW_ZERO  # noqa: SLF001 - there is no other way to say which these are
