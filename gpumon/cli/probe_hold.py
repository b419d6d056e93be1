"""`gpumon probe hold` and `unhold`: keep probes off the GPUs while a job uses them, for a scheduler's prolog.

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
from gpumon.cli.command_parser import CommandParser
from gpumon.cli.config_arguments import add_client_flags, add_reason_flag, client
from gpumon.cli.duration_arguments import for_seconds
from gpumon.cli.errors import UserError
from gpumon.model.time_window import owner_problem, reason_problem
from gpumon.outputs.window_sentences import holds

PATH, CHANGED = "/api/v1/probes/hold", ("hold", "stored")
DURATION = "15m"
PATIENCE_SECONDS = 5.0
"""Maximum seconds to wait for a response, and to retry while no agent listens. The agent answers a request for a hold
within about 4 s.
"""
RETRY_SECONDS = 0.1
UNCERTAIN = 1
NO_HOLD = "No hold is in force."
FREE = "No process of a probe is on a GPU."
NOT_CERTAIN = "it is not certain that no probe runs. Restart the agent."
NOT_HELD = "Nothing was changed: only a running agent can begin or end a hold."


def add(parser: CommandParser) -> None:
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


def begin(args: argparse.Namespace) -> int:
    """Begin a hold, and wait until no process of a probe is on a GPU. Return the exit code."""
    problem = reason_problem(args.reason) or owner_problem(args.owner)
    if problem:
        raise UserError(f"{problem} Use a shorter or simpler text.")
    seconds = for_seconds(args.duration)
    return _send(args, "POST", {"for_seconds": seconds, "reason": args.reason, "owner": args.owner}, FREE)


def end(args: argparse.Namespace) -> int:
    return _send(args, "DELETE", {"owner": args.owner, "reason": args.reason}, "")


def _send(args: argparse.Namespace, method: str, query: Mapping[str, object], success: str) -> int:
    """Send a request about a hold to the agent, print the result, and return the exit code."""
    agent = client(args, PATIENCE_SECONDS)
    try:
        response = _retry(agent, method, query)
    except ClientError as error:
        if isinstance(error, RefusedError) and error.status != http.client.CONFLICT:
            raise
        absent = isinstance(error, NoAgentError)
        print(f"gpumon: {error}{f' {NOT_HELD}' if absent else ''}", file=sys.stderr)
        return UNCERTAIN
    held = holds(response["hold"])
    if success and not held:
        print(f"gpumon: the agent answered, and no hold is in force: {NOT_CERTAIN}", file=sys.stderr)
        return UNCERTAIN
    if args.json:
        print(json.dumps(response, indent=2))
        return 0
    remarks = [success, "" if response["stored"] else STORED_LATER]
    print(*filter(None, [*(held or [NO_HOLD]), *remarks]), sep="\n")
    return 0


def _retry(agent: Client, method: str, query: Mapping[str, object]) -> Any:
    """Send a request and return the response. Retry for PATIENCE_SECONDS while no agent listens.

    The agent thus gets the hold of a job that begins while the agent starts.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return agent.change(method, PATH, CHANGED, **query)
        except NoAgentError:
            if time.monotonic() > deadline:
                raise
        time.sleep(RETRY_SECONDS)
