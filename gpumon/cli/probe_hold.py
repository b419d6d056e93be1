"""`gpumon probe hold` and `unhold`: hold probes off the GPUs while a job uses them.

For a scheduler's prolog. Exit code 0: no process of a probe is on a GPU, nor will be before the hold ends. 1: this is
not certain. 2: the request is invalid or was refused.
"""

from __future__ import annotations

import argparse
import http.client
import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from gpumon.cli import offline_hold
from gpumon.cli.client import STORED_LATER, Client, ClientError, NoAgentError, RefusedError
from gpumon.cli.config_arguments import find_agent
from gpumon.cli.duration_arguments import accept_negative_values, parse_duration
from gpumon.cli.errors import UserError
from gpumon.cli.offline_hold import HoldOutcome, StoreInUseError
from gpumon.config.model import Configuration
from gpumon.model.time_window import owner_problem, reason_problem
from gpumon.outputs.window_sentences import holds

PATH, MEMBERS = "/api/v1/probes/hold", ("hold",)
CHANGED = (*MEMBERS, "stored")
TTL = "15m"
PATIENCE_SECONDS = 5.0
"""For an agent that answers, starts or stops: it has 3 s to end the processes of a run."""
RETRY_SECONDS = 0.1
UNCERTAIN = 1
NO_HOLD = "No hold is in force."
FREE = "No process of a probe is on a GPU."


def add(parser: argparse.ArgumentParser) -> None:
    accept_negative_values(parser)
    parser.add_argument("--ttl", metavar="DURATION", help=f"with hold: length of the hold ({TTL})")
    parser.add_argument(
        "--owner", help="with hold and unhold: owner of the hold, such as a job id; each owner has one hold"
    )
    parser.add_argument("--reason", help="with hold: reason, a short text that every user can read")


def check(args: argparse.Namespace) -> None:
    """Raise UserError for arguments that the agent would refuse or that have no meaning here."""
    if args.name != "hold" and (args.ttl or args.reason):
        raise UserError("--ttl and --reason go with hold: gpumon probe hold --ttl 15m")
    if args.name not in ACTIONS and args.owner is not None:
        raise UserError("--owner goes with hold and unhold: gpumon probe hold --owner 4711")
    problem = reason_problem(args.reason or "") or owner_problem(args.owner or "")
    if problem:
        raise UserError(f"{problem} Use a shorter or simpler text.")


def begin(args: argparse.Namespace) -> int:
    """Hold probes; return when no process of a run is left."""
    seconds, reason, owner = parse_duration(args.ttl or TTL, "--ttl"), args.reason or "", args.owner or ""
    query = urlencode({"for_seconds": seconds, "reason": reason, "owner": owner})
    return _request(
        args,
        lambda agent: agent.post(f"{PATH}?{query}", CHANGED),
        lambda settings, store: offline_hold.hold(
            store, seconds, reason, owner, max_seconds=settings.probe.max_hold_seconds
        ),
        FREE,
    )


def end(args: argparse.Namespace) -> int:
    owner = args.owner or ""
    return _request(
        args,
        lambda agent: agent.change("DELETE", f"{PATH}?{urlencode({'owner': owner})}", CHANGED),
        lambda _, store: offline_hold.unhold(store, owner),
        "",
    )


ACTIONS: Mapping[str, Callable[[argparse.Namespace], int]] = {"hold": begin, "unhold": end}


def _request(
    args: argparse.Namespace,
    online: Callable[[Client], Any],
    offline: Callable[[Configuration, Path], HoldOutcome],
    success: str,
) -> int:
    """Send the request to the agent, or change the store if no agent runs; print the result."""
    agent, settings, store = find_agent(args)
    try:
        outcome = _retry(replace(agent, timeout=PATIENCE_SECONDS), online, lambda: offline(settings, store))
    except RefusedError as refusal:
        if refusal.status != http.client.CONFLICT:
            raise
        outcome = HoldOutcome(refusal.problem, str(refusal), certain=False)
    except ClientError as error:
        outcome = HoldOutcome({}, str(error), certain=False)
    if not outcome.certain:
        print(f"gpumon: {outcome.message}", file=sys.stderr)
        return UNCERTAIN
    if args.json:
        print(json.dumps(outcome.document, indent=2))
        return 0
    try:
        held = holds(outcome.document["hold"])
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise ClientError("the answer is not that of this version of gpumon: restart the agent") from error
    remarks = [outcome.message] if outcome.message else [success, "" if outcome.document["stored"] else STORED_LATER]
    print(*filter(None, [*(held or [NO_HOLD]), *remarks]), sep="\n")
    return 0


def _retry(agent: Client, online: Callable[[Client], Any], offline: Callable[[], HoldOutcome]) -> HoldOutcome:
    """Return the outcome with the agent, or without one. Retry while an agent starts or ends."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            agent.get(PATH, MEMBERS)  # needs no token, which a host without an agent may lack
            return HoldOutcome(online(agent), "")
        except NoAgentError as absent:
            try:
                return offline()
            except StoreInUseError as error:
                if time.monotonic() > deadline:
                    raise ClientError(f"{error}; {absent}") from error
        time.sleep(RETRY_SECONDS)
