"""`gpumon rules render`: print the alert rules for Prometheus."""

from __future__ import annotations

import argparse

from gpumon.health.alert_rules import STALE_SECONDS, render, rules


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("render",))
    parser.add_argument(
        "--stale-seconds",
        type=float,
        default=STALE_SECONDS,
        metavar="SECONDS",
        help="age of the last complete poll above which GpumonStale fires (default: %(default)g)",
    )


def run(args: argparse.Namespace) -> int:
    print(render(rules(args.stale_seconds)), end="")
    return 0
