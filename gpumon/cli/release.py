"""`gpumon release`: have the running agent let go of the GPUs for a while, and wait until it has."""

from __future__ import annotations

import argparse
import http.client
import json
import sys
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

from gpumon.cli.client import Client, ClientError, RefusedError
from gpumon.cli.config_arguments import add_flags, client
from gpumon.cli.duration_arguments import read_below_zero
from gpumon.cli.errors import UserError
from gpumon.model import durations
from gpumon.outputs.window_sentences import releases

PATH, MEMBERS = "/api/v1/release", ("windows",)
WAIT_SECONDS = 30.0
"""Longer than the agent waits for what is held."""
HELD = 1


def add(parser: argparse.ArgumentParser) -> None:
    read_below_zero(parser)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--for", dest="lasting", metavar="DURATION", help="how long, such as 5m; without it: show")
    what.add_argument("--end", action="store_true", help="open the GPUs again at once")
    parser.add_argument("--gpu", metavar="GPU", help="only this one: uuid, index or PCI address")
    parser.add_argument("--json", action="store_true", help="the answer as JSON")
    add_flags(parser)


def run(chosen: argparse.Namespace) -> int:
    if chosen.gpu is not None and chosen.lasting is None and not chosen.end:
        raise UserError("--gpu alone says nothing: add --for DURATION or --end")
    agent = replace(client(chosen), timeout=WAIT_SECONDS)
    try:
        answer, code = _ask(agent, chosen), 0
    except RefusedError as refusal:
        if refusal.status != http.client.CONFLICT:
            raise UserError(str(refusal)) from refusal
        print(f"gpumon: {refusal}", file=sys.stderr)
        answer, code = refusal.problem["release"], HELD
    except ClientError as error:
        raise UserError(str(error)) from error
    if chosen.json:
        print(json.dumps(answer, indent=2))
    else:
        print(*releases(answer["windows"]) or ["No GPU is released."], sep="\n")
        if chosen.lasting and not code:
            print("No process of gpumon holds it any more.")
    return code


def _ask(agent: Client, chosen: argparse.Namespace) -> Any:
    gpu = {} if chosen.gpu is None else {"gpu": chosen.gpu}
    if chosen.end:
        return agent.change("DELETE", f"{PATH}?{urlencode(gpu)}", MEMBERS)
    if chosen.lasting is None:
        return agent.get(PATH, MEMBERS)
    seconds = durations.seconds(chosen.lasting)
    if not seconds:
        raise UserError(f"--for {chosen.lasting!r} is no duration: give it as 90s, 5m or 1h")
    return agent.post(f"{PATH}?{urlencode({'for_seconds': seconds, **gpu})}", MEMBERS)
