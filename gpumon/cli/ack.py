"""`gpumon ack`: clear verdicts that are latched, and not so now."""

from __future__ import annotations

import argparse
import http.client
import json
import sys
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

from gpumon.cli.client import ClientError, Refused
from gpumon.cli.config_arguments import add_flags, client
from gpumon.cli.errors import UserError
from gpumon.outputs.verdict_text import name

PATH, MEMBERS = "/api/v1/health/ack", ("acknowledged", "refused", "stored")
WAIT_SECONDS = 30.0
"""Longer than the agent waits for its store."""
STILL_SO = 1


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("check", nargs="?", metavar="CHECK", help="as `gpumon status` names it: gpu_xid_critical")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--gpu", metavar="GPU", help="only of this one: uuid, index or PCI address")
    which.add_argument("--device", metavar="DEVICE", help="only of this device, as its verdict names it")
    which.add_argument("--all", action="store_true", dest="every", help="all that can be")
    parser.add_argument("--note", metavar="TEXT", default="", help="for the record: what was found or done")
    parser.add_argument("--json", action="store_true", help="the answer as JSON")
    add_flags(parser)


def run(chosen: argparse.Namespace) -> int:
    wanted = {"check": chosen.check, "gpu": chosen.gpu, "device": chosen.device}
    asked = {name: value for name, value in wanted.items() if value is not None}
    if bool(asked) == chosen.every:
        raise UserError("name a CHECK, --gpu GPU or --device DEVICE; or --all alone")
    asked |= {"all": "true"} if chosen.every else {}
    asked |= {"note": chosen.note} if chosen.note else {}
    agent = replace(client(chosen), timeout=WAIT_SECONDS)
    try:
        answer = agent.post(f"{PATH}?{urlencode(asked)}", MEMBERS)
    except Refused as refusal:
        if refusal.status != http.client.CONFLICT:
            raise UserError(str(refusal)) from refusal
        print(f"gpumon: {refusal}", file=sys.stderr)
        return STILL_SO
    except ClientError as error:
        raise UserError(str(error)) from error
    print(json.dumps(answer, indent=2) if chosen.json else "\n".join(_lines(answer)))
    return 0


def _lines(answer: Any) -> list[str]:
    lines = [f"acknowledged: {name(one)}: {one['reason']}" for one in answer["acknowledged"]]
    lines += [f"stays: {name(one)}: {one['reason']} {one['message']}" for one in answer["refused"]]
    if lines and not answer["stored"]:
        lines.append("The store is out of order: the agent remembers it, and stores it when it can. See gpumon status.")
    return lines or ["There is nothing to acknowledge."]
