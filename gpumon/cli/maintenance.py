"""`gpumon maintenance`: announce planned work on the node, during which no alert pages."""

from __future__ import annotations

import argparse
import json
from typing import Any
from urllib.parse import urlencode

from gpumon.cli.client import STORED_LATER, Client
from gpumon.cli.config_arguments import add_client_flags, client
from gpumon.cli.duration_arguments import accept_negative_values, parse_duration
from gpumon.cli.errors import UserError
from gpumon.model.time_window import reason_problem
from gpumon.outputs import window_sentences

PATH, MEMBERS = "/api/v1/maintenance", ("maintenance",)
CHANGED = (*MEMBERS, "stored")
NONE = "The node is not in maintenance."


def add(parser: argparse.ArgumentParser) -> None:
    accept_negative_values(parser)
    parser.add_argument("action", nargs="?", choices=("start", "end"), help="without an action: show the maintenance")
    parser.add_argument("duration", nargs="?", metavar="DURATION", help="with start: length, such as 2h")
    parser.add_argument("--reason", help="with start: reason, a short text that every user can read")
    parser.add_argument("--json", action="store_true", help="print the response as JSON")
    add_client_flags(parser)


def run(args: argparse.Namespace) -> int:
    if args.action != "start" and (args.duration or args.reason):
        raise UserError("a duration and --reason go with start: gpumon maintenance start 2h --reason WHY")
    response = _send(client(args), args)
    if args.json:
        print(json.dumps(response, indent=2))
    else:
        print(*window_sentences.maintenance(response["maintenance"]) or [NONE], sep="\n")
        if not response.get("stored", True):
            print(STORED_LATER)
    return 0


def _send(agent: Client, args: argparse.Namespace) -> Any:
    if args.action is None:
        return agent.get(PATH, MEMBERS)
    if args.action == "end":
        return agent.change("DELETE", PATH, CHANGED)
    if args.duration is None:
        raise UserError("start needs a duration: gpumon maintenance start 2h --reason WHY")
    query = {"for_seconds": parse_duration(args.duration), "reason": _reason(args.reason or "")}
    return agent.post(f"{PATH}?{urlencode(query)}", CHANGED)


def _reason(reason: str) -> str:
    problem = reason_problem(reason, required=True)
    if problem:
        raise UserError(f'{problem} Give it as a short text: --reason "new power supply".')
    return reason
