"""`gpumon config check` and `gpumon config show`."""

from __future__ import annotations

import argparse

from gpumon.cli.config_arguments import add_flags, configuration_to_start
from gpumon.config.load import show


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("check", "show"), help="check: validate the configuration; show: print it")
    add_flags(parser)


def run(chosen: argparse.Namespace) -> int:
    settings = configuration_to_start(chosen)
    print("the configuration is valid" if chosen.action == "check" else show(settings), end="")
    print(end="\n" if chosen.action == "check" else "")
    return 0
