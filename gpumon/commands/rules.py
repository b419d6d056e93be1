"""`gpumon rules render`: the alert rules for Prometheus, with this configuration's thresholds."""

from __future__ import annotations

import argparse

from gpumon.alerts.render import render
from gpumon.alerts.rules import rules
from gpumon.commands.settings import add_flags, configuration
from gpumon.health.xids import CRITICAL_XIDS


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("render",))
    add_flags(parser)


def run(chosen: argparse.Namespace) -> int:
    print(render(rules(configuration(chosen).alerts.thresholds, CRITICAL_XIDS)), end="")
    return 0
