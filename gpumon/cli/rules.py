"""`gpumon rules render`: print the alert rules for Prometheus."""

from __future__ import annotations

import argparse

from gpumon.cli.command_parser import CommandParser
from gpumon.cli.duration_arguments import duration
from gpumon.health.alert_rules import STALE_SECONDS, render, rules
from gpumon.health.last_verdicts import KEEP_SECONDS


def add(parser: CommandParser) -> None:
    examples = ("gpumon rules render > gpumon.yml", "gpumon rules render --stale-after 2m")
    parser.set_examples(*examples)
    render_action = parser.add_action("render", "print the alert rules", *examples)
    render_action.add_argument(
        "--stale-after",
        type=duration,
        default=STALE_SECONDS,
        metavar="DURATION",
        help="age of the last complete poll above which GpumonStale fires (default: %(default)gs)",
    )
    render_action.add_argument(
        "--keep-for",
        type=duration,
        default=KEEP_SECONDS,
        metavar="DURATION",
        help="time for which the verdicts of an agent that cannot be scraped are kept (default: %(default)gs)",
    )


def run(args: argparse.Namespace) -> int:
    print(render(rules(args.stale_after), args.keep_for), end="")
    return 0
