"""`gpumon probe allreduce`: make the agent run a probe, wait for it, and print its result.

Exit codes: 0 ok, 1 any other outcome, 2 no agent answered or the request was refused, 3 skipped. `gpumon probe history`
prints the stored probe runs, one per line.

`gpumon probe hold` and `unhold`: keep probes off the GPUs while a job uses them, for a scheduler's prolog.

Exit code of `hold`, 0: no process of a probe is on a GPU, and no probe starts before the hold ends. 1: this is not
certain, for example because no agent answers. 2: the request is invalid or was refused. Exit code of `unhold`, 0: the
owner has no hold; 1 and 2 as for `hold`.
"""

from __future__ import annotations

import argparse
import http.client
import json
import sys
import time
from collections.abc import Mapping
from typing import Any

from gpumon.cli.client import STORED_LATER, Client, ClientError, NoAgentError, RefusedError
from gpumon.cli.command_parser import CommandParser, UserError, for_seconds
from gpumon.cli.config_arguments import add_client_flags, add_reason_flag, client
from gpumon.model.durations import from_rfc3339
from gpumon.model.time_window import owner_problem, reason_problem
from gpumon.outputs.node_text import holds
from gpumon.outputs.probe_text import history, table
from gpumon.probe.core.probes import PROBES
from gpumon.probe.core.result import from_document

PATH = "/api/v1/probes"
PAGE = 1000
"""Number of stored runs that are requested from the agent at a time."""
POLL_SECONDS = 0.25
RECORD_SECONDS = 10.0
"""Seconds during which a run that the agent may not have recorded yet (status 404) is asked for again."""
OUTCOME_CODES = {"ok": 0, "skipped": 3}
FAILED = 1
BAR = 30


def add(parser: CommandParser) -> None:
    parser.set_examples("gpumon probe allreduce", "gpumon probe history --since 7d")
    for name, probe in PROBES.items():
        action = parser.add_action(
            name,
            f"run the probe {probe.name} now and wait "
            "(exit code: 0 ok, 1 any other outcome, 2 no agent, or refused, 3 skipped)",
            f"gpumon probe {name}",
            f"gpumon probe {name} --json",
        )
        add_reason_flag(action)
        add_client_flags(action)
    past = parser.add_action(
        "history", "show earlier runs", "gpumon probe history --since 7d", "gpumon probe history --probe copy --json"
    )
    past.add_argument("--since", metavar="WHEN", help="only runs since then: 7d, RFC 3339, or seconds since the epoch")
    past.add_argument("--probe", choices=sorted(PROBES), help="only runs of this probe")
    add_client_flags(past)
    _add_hold_actions(parser)


def run(args: argparse.Namespace) -> int:
    if args.action == "history":
        return _show_history(args)
    if args.action in {"hold", "unhold"}:
        return _change_hold(args)
    agent = client(args)
    document = _wait(agent, _begin(agent, args))
    if args.json:
        print(json.dumps(document, indent=2))
    else:
        started = from_rfc3339(document["started"]).timestamp()
        print(table(from_document(document | {"started": started})), end="")
    return OUTCOME_CODES.get(document["outcome"], FAILED)


def _begin(agent: Client, args: argparse.Namespace) -> str:
    """Request a run of a probe and return the id of the run. A skipped run has an id too."""
    try:
        return str(agent.change("POST", f"/probe/{args.action}", ("id",), reason=args.reason)["id"])
    except RefusedError as refusal:
        if refusal.status != http.client.CONFLICT or not refusal.problem.get("id"):
            raise
        return str(refusal.problem["id"])


def _wait(agent: Client, run: str) -> Any:
    deadline = time.monotonic() + RECORD_SECONDS
    while True:
        try:
            document = agent.get(f"{PATH}/{run}", ("id",))
        except RefusedError as refusal:
            if refusal.status != http.client.NOT_FOUND or time.monotonic() >= deadline:
                raise
            document = {"progress": None}
        if "outcome" in document:
            _show_progress("")
            return document
        _show_progress(_bar(document["progress"] or {}))
        time.sleep(POLL_SECONDS)


def _bar(progress: Mapping[str, Any]) -> str:
    ratio = float(progress.get("ratio", 0.0))
    done = "#" * round(ratio * BAR)
    return f"[{done:.<{BAR}}] {ratio:4.0%} {progress.get('message', 'starting')}"


def _show_progress(line: str) -> None:
    """Replace the progress line on the terminal. Print nothing if standard error is not a terminal."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)


def _show_history(args: argparse.Namespace) -> int:
    agent, runs, until = client(args), list[Any](), None
    while True:
        page = agent.get(PATH, ("probes",), since=args.since, probe=args.probe, limit=PAGE, until=until)["probes"]
        runs += page
        if len(page) < PAGE:
            break
        until = page[-1]["started"]
    if args.json:
        print(json.dumps(runs, indent=2))
    else:
        print(history(runs), end="")
    return 0


HOLD_PATH, CHANGED = "/api/v1/windows", ("windows", "stored")
DURATION = "15m"
PATIENCE_SECONDS = 5.0
"""Maximum seconds to wait for a response, which takes up to 4 s, and to retry while no agent listens."""
RETRY_SECONDS = 0.1
UNCERTAIN = 1
NO_HOLD = "No hold is in force."
FREE = "No process of a probe is on a GPU."
NOT_CERTAIN = "it is not certain that no probe runs. Restart the agent."
NOT_HELD = "Nothing was changed: only a running agent can begin or end a hold."


def _add_hold_actions(parser: CommandParser) -> None:
    hold = parser.add_action(
        "hold",
        "hold probes off the GPUs (exit code: 0 no process of a probe is on a GPU, 1 one may be, 2 refused)",
        "gpumon probe hold --for 2h --owner 4711 --reason prolog",
        "gpumon probe hold --json",
    )
    hold.add_argument(
        "--for", dest="duration", default=DURATION, metavar="DURATION", help=f"length of the hold ({DURATION})"
    )
    hold.add_argument("--reason", default="", help="a short text that every user can read")
    unhold = parser.add_action(
        "unhold", "end a hold", "gpumon probe unhold --owner 4711", "gpumon probe unhold --owner 4711 --json"
    )
    add_reason_flag(unhold)
    for action in (hold, unhold):
        action.add_argument(
            "--owner", default="", help="owner of the hold, such as a job id; each owner has at most one hold"
        )
        add_client_flags(action)


def _change_hold(args: argparse.Namespace) -> int:
    method, success, query = "DELETE", "", {"owner": args.owner, "reason": args.reason}
    if args.action == "hold":
        if problem := reason_problem(args.reason) or owner_problem(args.owner):
            raise UserError(f"{problem} Use a shorter or simpler text.")
        method, success, query = "POST", FREE, query | {"for_seconds": for_seconds(args.duration)}
    agent = client(args, PATIENCE_SECONDS)
    try:
        response = _retry(agent, method, query)
    except ClientError as error:
        if isinstance(error, RefusedError) and error.status != http.client.CONFLICT:
            raise
        print(f"gpumon: {error}{f' {NOT_HELD}' if isinstance(error, NoAgentError) else ''}", file=sys.stderr)
        return UNCERTAIN
    held = holds(response["windows"])
    if success and not held:
        print(f"gpumon: the agent answered, and no hold is in force: {NOT_CERTAIN}", file=sys.stderr)
        return UNCERTAIN
    if args.json:
        print(json.dumps(response, indent=2))
        return 0
    stored = "" if response["stored"] else STORED_LATER
    print(*filter(None, [*(held or [NO_HOLD]), success, stored]), sep="\n")
    return 0


def _retry(agent: Client, method: str, query: Mapping[str, object]) -> Any:
    """Send a request and return the response. Retry while no agent listens: a job may begin while the agent starts."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return agent.change(method, HOLD_PATH, CHANGED, kind="hold", **query)
        except NoAgentError:
            if time.monotonic() > deadline:
                raise
        time.sleep(RETRY_SECONDS)
