"""`gpumon maintenance`: say that what happens to the node for a while is planned, so that nothing pages."""

from __future__ import annotations

import argparse
import json
from typing import Any
from urllib.parse import urlencode

from gpumon.cli.client import Client, ClientError
from gpumon.cli.config_arguments import add_flags, client
from gpumon.cli.duration_arguments import read_below_zero
from gpumon.cli.errors import UserError
from gpumon.model import durations
from gpumon.model.time_window import reason_problem
from gpumon.outputs import window_sentences

PATH, MEMBERS = "/api/v1/maintenance", ("maintenance",)
CHANGED = (*MEMBERS, "stored")
UNSTORED = "It is not on disk: the store cannot be written now. An agent that starts before it can be does not know it."
NONE = "The node is not in maintenance."


def add(parser: argparse.ArgumentParser) -> None:
    read_below_zero(parser)
    parser.add_argument("action", nargs="?", choices=("start", "end"), help="without it: show")
    parser.add_argument("lasting", nargs="?", metavar="DURATION", help="of start: how long, such as 2h")
    parser.add_argument("--reason", help="of start: why, in a few words that everybody may read")
    parser.add_argument("--json", action="store_true", help="the answer as JSON")
    add_flags(parser)


def run(chosen: argparse.Namespace) -> int:
    if chosen.action != "start" and (chosen.lasting or chosen.reason):
        raise UserError("a duration and --reason go with start: gpumon maintenance start 2h --reason WHY")
    try:
        answer = _ask(client(chosen), chosen)
    except ClientError as error:
        raise UserError(str(error)) from error
    if chosen.json:
        print(json.dumps(answer, indent=2))
    else:
        print(*window_sentences.maintenance(answer["maintenance"]) or [NONE], sep="\n")
        if not answer.get("stored", True):
            print(UNSTORED)
    return 0


def _ask(agent: Client, chosen: argparse.Namespace) -> Any:
    if chosen.action is None:
        return agent.get(PATH, MEMBERS)
    if chosen.action == "end":
        return agent.change("DELETE", PATH, CHANGED)
    wanted = {"for_seconds": _seconds(chosen.lasting), "reason": _reason(chosen.reason)}
    return agent.post(f"{PATH}?{urlencode(wanted)}", CHANGED)


def _seconds(lasting: str | None) -> float:
    seconds = durations.seconds(lasting or "")
    if not seconds:
        wrong = "start needs a duration" if lasting is None else f"{lasting!r} is no duration"
        raise UserError(f"{wrong}: give it as 30m, 2h or 1h30m")
    return seconds


def _reason(reason: str | None) -> str:
    wrong = reason_problem(reason or "", required=True)
    if wrong:
        raise UserError(f'{wrong} Say why in a few words: --reason "new power supply".')
    return reason or ""
