"""`gpumon probe history`: the runs that the agent remembers, a line each. Exit code 0; 2 where nobody can be asked."""

from __future__ import annotations

import argparse
import json
from urllib.parse import urlencode

from gpumon.client import ClientError
from gpumon.commands import UserError
from gpumon.commands.settings import client
from gpumon.outputs.probe_history import history
from gpumon.probe.probes import PROBES

NAME = "history"
MOST = 1000


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--since", metavar="WHEN", help="of history: 7d, RFC 3339, or seconds since the epoch")
    parser.add_argument("--probe", choices=sorted(PROBES), help="of history: only runs of this probe")


def check(chosen: argparse.Namespace) -> None:
    """What means nothing here. Raises UserError."""
    if chosen.name != NAME and (chosen.since or chosen.probe):
        raise UserError("--since and --probe go with history: gpumon probe history --since 7d")


def run(chosen: argparse.Namespace) -> int:
    wanted = {"since": chosen.since, "probe": chosen.probe, "limit": MOST}
    query = urlencode({name: value for name, value in wanted.items() if value is not None})
    try:
        runs = client(chosen).get(f"/api/v1/probes?{query}", ("probes",))["probes"]
    except ClientError as error:
        raise UserError(str(error)) from error
    if chosen.json:
        print(json.dumps(runs, indent=2))
    else:
        print(history(runs), end="")
    return 0
