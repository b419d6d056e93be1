"""`gpumon maintenance`: mute the alerts of the node for planned work."""

from __future__ import annotations

import argparse
import json

from gpumon.cli.client import STORED_LATER
from gpumon.cli.command_parser import CommandParser, UserError, for_seconds
from gpumon.cli.config_arguments import add_client_flags, add_reason_flag, client
from gpumon.model.time_window import reason_problem
from gpumon.outputs import node_text

PATH, MEMBERS, KIND = "/api/v1/windows", ("windows",), "maintenance"
CHANGED = (*MEMBERS, "stored")
EXAMPLE = 'gpumon maintenance start --for 2h --reason "new power supply"'
NONE = "The node is not in maintenance."


def add(parser: CommandParser) -> None:
    parser.default_action = "show"
    parser.set_examples(EXAMPLE, "gpumon maintenance end")
    show = parser.add_action(
        "show", "show the maintenance (default)", "gpumon maintenance", "gpumon maintenance --json"
    )
    start = parser.add_action(
        "start",
        "mute the alerts of this node; the agent must run",
        EXAMPLE,
        'gpumon maintenance start --for 30m --reason "reboot" --json',
    )
    start.add_argument("--for", dest="duration", required=True, metavar="DURATION", help="length, such as 2h")
    start.add_argument("--reason", required=True, help="a short text that every user can read")
    end = parser.add_action(
        "end", "end the maintenance before its deadline", "gpumon maintenance end", "gpumon maintenance end --json"
    )
    add_reason_flag(end)
    for action in (show, start, end):
        add_client_flags(action)


def run(args: argparse.Namespace) -> int:
    agent = client(args)
    if args.action == "show":
        response = agent.get(PATH, MEMBERS, kind=KIND)
    elif args.action == "end":
        response = agent.change("DELETE", PATH, CHANGED, kind=KIND, reason=args.reason)
    else:
        seconds = for_seconds(args.duration)
        if problem := reason_problem(args.reason, required=True):
            raise UserError(f'{problem} Give it as a short text: --reason "new power supply".')
        response = agent.change("POST", PATH, CHANGED, kind=KIND, for_seconds=seconds, reason=args.reason)
    if args.json:
        print(json.dumps(response, indent=2))
    else:
        last = max(response["windows"], key=lambda window: str(window["until"]), default=None)
        print(*node_text.maintenance(last) or [NONE], sep="\n")
        if not response.get("stored", True):
            print(STORED_LATER)
    return 0
