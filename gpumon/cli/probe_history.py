"""`gpumon probe history`: the runs that are stored, a line each; without an agent too.

Exit code 0; 2 where nobody can be asked.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

from gpumon.cli.client import Client, ClientError, Refused
from gpumon.cli.config_arguments import meant
from gpumon.cli.errors import UserError
from gpumon.model import durations
from gpumon.outputs.probe_history import history
from gpumon.outputs.responses.probes import RunResponse
from gpumon.probe.core.probes import PROBES
from gpumon.store.errors import StoreError
from gpumon.store.runs import RunQuery
from gpumon.store.store import Store

NAME = "history"
PATH, MEMBERS = "/api/v1/probes", ("probes",)
PAGE = 1000
"""Most that the agent answers with at once."""
MOST = 100_000


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--since", metavar="WHEN", help="of history: 7d, RFC 3339, or seconds since the epoch")
    parser.add_argument("--probe", choices=sorted(PROBES), help="of history: only runs of this probe")


def check(chosen: argparse.Namespace) -> None:
    """What means nothing here. Raises UserError."""
    if chosen.name != NAME and (chosen.since or chosen.probe):
        raise UserError("--since and --probe go with history: gpumon probe history --since 7d")


def run(chosen: argparse.Namespace) -> int:
    found = _known(chosen)
    if chosen.json:
        print(json.dumps(found, indent=2))
    else:
        print(history(found), end="")
    return 0


def _known(chosen: argparse.Namespace) -> list[Any]:
    """What the agent says; if it says nothing, what its store holds."""
    agent, _, path = meant(chosen)
    try:
        return list(_asked(agent, chosen))
    except Refused as refusal:
        raise UserError(str(refusal)) from refusal
    except ClientError as silence:
        query = _query(chosen)
        try:
            with Store.open_copy(path) as store:
                return [RunResponse.from_result(run).document() for run in store.probe_runs(query).results]
        except StoreError as error:
            raise UserError(f"{silence} Its store cannot be read either: {error}") from error


def _asked(agent: Client, chosen: argparse.Namespace) -> Iterator[Any]:
    """Page by page."""
    wanted = {"since": chosen.since, "probe": chosen.probe, "limit": PAGE}
    while True:
        query = urlencode({name: value for name, value in wanted.items() if value is not None})
        page = agent.get(f"{PATH}?{query}", MEMBERS)["probes"]
        yield from page
        if len(page) < PAGE:
            return
        wanted["until"] = page[-1]["started"]


def _query(chosen: argparse.Namespace) -> RunQuery:
    since = None if chosen.since is None else durations.moment(chosen.since, time.time())
    if chosen.since is not None and since is None:
        raise UserError(f"--since {chosen.since!r} cannot be read: give 7d, RFC 3339, or seconds since the epoch")
    return RunQuery(probe=chosen.probe, since=since, limit=MOST)
