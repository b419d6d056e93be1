"""`gpumon events`: print the stored errors of GPUs, NVSwitches and network adapters, the newest first."""

from __future__ import annotations

import argparse
import json
import sys

from gpumon.cli.command_parser import CommandParser
from gpumon.cli.config_arguments import add_client_flags, client
from gpumon.health.alert_texts import SEVERITIES
from gpumon.outputs.node_text import event_table

PATH, MEMBERS = "/api/v1/events", ("events", "complete")
FILTERS = ("gpu", "severity", "since", "limit")


def add(parser: CommandParser) -> None:
    parser.set_examples("gpumon events", "gpumon events --gpu 3 --since 7d")
    parser.add_argument("--gpu", metavar="GPU", help="only of this GPU: index or uuid")
    parser.add_argument("--severity", choices=SEVERITIES, help="only of this severity")
    parser.add_argument(
        "--since", metavar="WHEN", help="only events since then: 7d, RFC 3339, or seconds since the epoch"
    )
    parser.add_argument("--limit", type=int, default=20, metavar="N", help="at most N events, 1 to 1000 (default 20)")
    add_client_flags(parser)


def run(args: argparse.Namespace) -> int:
    filters = {name: getattr(args, name) for name in FILTERS}
    answer = client(args).get(PATH, MEMBERS, **filters)
    print(json.dumps(answer["events"], indent=2) if args.json else event_table(answer["events"]))
    if not answer["complete"]:
        print("gpumon: the store did not answer: older events may be missing", file=sys.stderr)
    return 0
