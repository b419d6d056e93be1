"""`gpumon rules render`: the alert rules for Prometheus, with this configuration's thresholds."""

from __future__ import annotations

import argparse

from gpumon.cli.config_arguments import add_flags, configuration
from gpumon.config.component_settings import terms
from gpumon.health.alerts.render import render


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("render",))
    add_flags(parser)


def run(chosen: argparse.Namespace) -> int:
    print(render(terms(configuration(chosen)).rules), end="")
    return 0
