"""`gpumon version`: show the versions of gpumon, Python, nvidia-ml-py and torch."""

from __future__ import annotations

import argparse
import platform
from importlib.metadata import distributions

from gpumon import __version__
from gpumon.cli.command_parser import CommandParser
from gpumon.version import revision


def add(parser: CommandParser) -> None:
    parser.set_examples("gpumon version", "gpumon version > versions.txt")


def run(_: argparse.Namespace) -> int:
    used = [f"{each.name} {each.version}" for each in distributions() if each.name in {"nvidia-ml-py", "torch"}]
    print("\n".join((line(), f"Python {platform.python_version()}", *sorted(used))))
    return 0


def line() -> str:
    """Return a text with the version of gpumon and, if available, the git revision of its source."""
    return f"gpumon {__version__} ({commit})" if (commit := revision()) else f"gpumon {__version__}"
