"""`gpumon probe history`: print the stored probe runs, one per line."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any

from gpumon.cli.client import Client
from gpumon.cli.command_parser import CommandParser
from gpumon.cli.config_arguments import add_client_flags, client
from gpumon.outputs.probe_history import history
from gpumon.probe.core.probes import PROBES

PATH, MEMBERS = "/api/v1/probes", ("probes",)
PAGE = 1000
"""Number of runs that are requested from the agent at a time."""


def add(parser: CommandParser) -> None:
    action = parser.add_action(
        "history", "show earlier runs", "gpumon probe history --since 7d", "gpumon probe history --probe copy --json"
    )
    action.add_argument(
        "--since", metavar="WHEN", help="only runs since then: 7d, RFC 3339, or seconds since the epoch"
    )
    action.add_argument("--probe", choices=sorted(PROBES), help="only runs of this probe")
    add_client_flags(action)


def run(args: argparse.Namespace) -> int:
    documents = list(_runs(client(args), args))
    if args.json:
        print(json.dumps(documents, indent=2))
    else:
        print(history(documents), end="")
    return 0


def _runs(agent: Client, args: argparse.Namespace) -> Iterator[Any]:
    """Yield the stored probe runs as JSON objects, the newest first. They are requested page by page."""
    until = None
    while True:
        page = agent.get(PATH, MEMBERS, since=args.since, probe=args.probe, limit=PAGE, until=until)["probes"]
        yield from page
        if len(page) < PAGE:
            return
        until = page[-1]["started"]
