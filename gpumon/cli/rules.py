"""`gpumon rules render`: print the alert rules for Prometheus."""

from __future__ import annotations

import argparse

from gpumon.cli.command_parser import CommandParser
from gpumon.health.alert_rules import STALE_SECONDS, render, rules
from gpumon.health.last_verdicts import KEEP_SECONDS


def add(parser: CommandParser) -> None:
    parser.set_examples("gpumon rules render > gpumon.yml", "gpumon rules render --stale-seconds 120")
    parser.add_argument("action", choices=("render",))
    parser.add_argument(
        "--stale-seconds",
        type=float,
        default=STALE_SECONDS,
        metavar="SECONDS",
        help="age of the last complete poll above which GpumonStale fires (default: %(default)g)",
    )
    parser.add_argument(
        "--keep-seconds",
        type=float,
        default=KEEP_SECONDS,
        metavar="SECONDS",
        help="time for which the verdicts of an agent that cannot be scraped are kept (default: %(default)g)",
    )


def run(args: argparse.Namespace) -> int:
    print(render(rules(args.stale_seconds), args.keep_seconds), end="")
    return 0
