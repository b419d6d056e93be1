"""`gpumon probe allreduce`: ask the running agent for a run, wait for it, print what it measured.

Exit codes: 0 ok, 1 any other outcome, 2 nobody could be asked, 3 skipped. `gpumon probe history` is in history.py,
`hold` and `unhold` are in hold.py.
"""

from __future__ import annotations

import argparse
import http.client
import json
import sys
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from gpumon.cli import probe_history, probe_hold
from gpumon.cli.client import Client, ClientError, Refused
from gpumon.cli.config_arguments import add_flags, client
from gpumon.cli.errors import UserError
from gpumon.outputs.probe_table import table
from gpumon.probe.core.probes import PROBES
from gpumon.probe.core.result import ProbeResult, from_document

ASK_SECONDS = 0.25
RECORD_SECONDS = 10.0
"""How long the result of a run that is over may take to its durable row, and be unknown until then."""
OUTCOME_CODES = {"ok": 0, "skipped": 3}
FAILED = 1
BAR = 30
ACTIONS = {probe_history.NAME: probe_history.run, **probe_hold.ACTIONS}
"""What is not the name of a probe."""


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Run a probe and wait for its result (exit code: 0 ok, 1 any other outcome, 2 nobody could be asked, "
        "3 skipped); show earlier results; or keep probes away (0 nothing of a run is on a GPU, 1 that is not certain, "
        "2 refused)."
    )
    parser.add_argument(
        "name",
        choices=(*sorted(PROBES), *ACTIONS),
        metavar="NAME",
        help=f"the probe to run: {', '.join(PROBES)}; history: earlier runs; hold, unhold: keep probes away",
    )
    parser.add_argument(
        "--json", action="store_true", help="the answer as JSON; of a run this is the default without a terminal"
    )
    probe_history.add(parser)
    probe_hold.add(parser)
    add_flags(parser)


def run(chosen: argparse.Namespace) -> int:
    probe_history.check(chosen)
    probe_hold.check(chosen)
    return ACTIONS.get(chosen.name, _run)(chosen)


def _run(chosen: argparse.Namespace) -> int:
    agent = client(chosen)
    try:
        document = _wait(agent, _begin(agent, chosen.name))
    except ClientError as error:
        raise UserError(str(error)) from error
    if chosen.json or not sys.stdout.isatty():
        print(json.dumps(document, indent=2))
    else:
        print(table(_result(document)), end="")
    return OUTCOME_CODES.get(document["outcome"], FAILED)


def _begin(agent: Client, name: str) -> str:
    """Id of the run. One that the guard refuses has an id too: it is on record as skipped."""
    try:
        return str(agent.post(f"/probe/{name}", ("id",))["id"])
    except Refused as refusal:
        if refusal.status != http.client.CONFLICT or not refusal.problem.get("id"):
            raise
        return str(refusal.problem["id"])


def _wait(agent: Client, run: str) -> Any:
    deadline = time.monotonic() + RECORD_SECONDS
    while True:
        document = _result_of(agent, run, patient=time.monotonic() < deadline)
        if "outcome" in document:
            _show("")
            return document
        _show(_bar(document.get("progress") or {}))
        time.sleep(ASK_SECONDS)


def _result_of(agent: Client, run: str, *, patient: bool) -> Any:
    try:
        return agent.get(f"/api/v1/probes/{run}", ("id",))
    except Refused as refusal:
        if refusal.status != http.client.NOT_FOUND or not patient:
            raise
        return {}


def _bar(progress: Mapping[str, Any]) -> str:
    ratio = float(progress.get("ratio", 0.0))
    done = "#" * round(ratio * BAR)
    return f"[{done:.<{BAR}}] {ratio:4.0%} {progress.get('message', 'starting')}"


def _show(line: str) -> None:
    """On a terminal, in place; nowhere else."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)


def _result(document: Any) -> ProbeResult:
    return from_document(document | {"started": datetime.fromisoformat(document["started"]).timestamp()})
