"""`gpumon probe history`: print the stored runs, a line each, also without an agent.

Exit code 0, or 2 if neither the agent nor its store answers.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

from gpumon.cli.client import Client, ClientError, RefusedError
from gpumon.cli.config_arguments import find_agent
from gpumon.cli.errors import UserError
from gpumon.model import durations
from gpumon.outputs.probe_history import history
from gpumon.outputs.responses.probes import RunResponse
from gpumon.probe.core.probes import PROBES
from gpumon.store import probe_runs
from gpumon.store.probe_runs import RunQuery
from gpumon.store.store import Store
from gpumon.store.store_error import StoreError

NAME = "history"
PATH, MEMBERS = "/api/v1/probes", ("probes",)
PAGE = 1000
"""Maximum number of runs in one response of the agent."""
MAX_RUNS = 100_000


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--since", metavar="WHEN", help="with history: only runs since then: 7d, RFC 3339, or seconds since the epoch"
    )
    parser.add_argument("--probe", choices=sorted(PROBES), help="with history: only runs of this probe")


def check(args: argparse.Namespace) -> None:
    """Raise UserError if a flag of history is given without it."""
    if args.name != NAME and (args.since or args.probe):
        raise UserError("--since and --probe go with history: gpumon probe history --since 7d")


def run(args: argparse.Namespace) -> int:
    documents = _runs(args)
    if args.json:
        print(json.dumps(documents, indent=2))
    else:
        print(history(documents), end="")
    return 0


def _runs(args: argparse.Namespace) -> list[Any]:
    """Return the runs from the agent, or from its store if it does not answer. Raises UserError."""
    agent, _, path = find_agent(args)
    try:
        return list(_from_agent(agent, args))
    except RefusedError:
        raise
    except ClientError as silence:
        query = _query(args)
        try:
            with Store.open_copy(path) as store, store.reading() as connection:
                return [RunResponse.from_result(run).document() for run in probe_runs.find(connection, query).results]
        except StoreError as error:
            raise UserError(f"{silence} Its store cannot be read either: {error}") from error


def _from_agent(agent: Client, args: argparse.Namespace) -> Iterator[Any]:
    """Yield the runs, page by page."""
    wanted = {"since": args.since, "probe": args.probe, "limit": PAGE}
    while True:
        query = urlencode({name: value for name, value in wanted.items() if value is not None})
        page = agent.get(f"{PATH}?{query}", MEMBERS)["probes"]
        yield from page
        if len(page) < PAGE:
            return
        wanted["until"] = page[-1]["started"]


def _query(args: argparse.Namespace) -> RunQuery:
    since = None if args.since is None else durations.moment(args.since, time.time())
    if args.since is not None and since is None:
        raise UserError(f"--since {args.since!r} is invalid: give 7d, RFC 3339, or seconds since the epoch")
    return RunQuery(probe=args.probe, since=since, limit=MAX_RUNS)
