"""`gpumon metrics`: list the metrics that the agent exports."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from gpumon.cli.command_parser import CommandParser
from gpumon.outputs.metric_catalogue import catalogue, text


def add(parser: CommandParser) -> None:
    parser.set_examples("gpumon metrics", "gpumon metrics --json")
    parser.add_argument("--json", action="store_true", help="print the list as JSON")


def run(args: argparse.Namespace) -> int:
    entries = catalogue()
    print(json.dumps([asdict(entry) for entry in entries], indent=2) if args.json else text(entries).rstrip("\n"))
    return 0
