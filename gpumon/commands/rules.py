"""`gpumon rules render`: the alert rules for Prometheus, with this configuration's thresholds."""

from __future__ import annotations

import argparse

from gpumon.alerts.render import render
from gpumon.commands.settings import add_flags, configuration
from gpumon.wiring import terms


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("render",))
    add_flags(parser)


def run(chosen: argparse.Namespace) -> int:
    print(render(terms(configuration(chosen)).rules), end="")
    return 0
