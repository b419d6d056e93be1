"""`gpumon clear`: clear latched verdicts of faults that are over."""

from __future__ import annotations

import argparse
import http.client
import json
import sys
from typing import Any

from gpumon.cli.client import STORED_LATER, RefusedError
from gpumon.cli.command_parser import CommandParser, UserError
from gpumon.cli.config_arguments import add_client_flags, client
from gpumon.outputs.problems import verdict_name

PATH, MEMBERS = "/api/v1/clear", ("cleared", "refused", "stored")
WAIT_SECONDS = 30.0
"""Seconds to wait for the agent's response. The agent's own timeout for its store is shorter."""
STILL_ACTIVE = 1


def add(parser: CommandParser) -> None:
    parser.description = (
        "Clear verdicts that remain although their fault is over. A fault that is still active is refused (exit code "
        "1): `gpumon maintenance` mutes its alerts."
    )
    parser.set_examples('gpumon clear gpu_xid_critical --gpu 3 --note "board reseated"', "gpumon clear --all")
    parser.add_argument(
        "check", nargs="?", metavar="CHECK", help="name of the check in `gpumon status`, such as gpu_xid_critical"
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--gpu", metavar="GPU", help="only verdicts on this GPU: uuid, index or PCI address")
    which.add_argument("--device", metavar="DEVICE", help="only verdicts on this device, as the verdict names it")
    which.add_argument("--all", action="store_true", dest="every", help="every verdict whose fault is over")
    parser.add_argument("--note", metavar="TEXT", help="note for the history: what was observed or done")
    add_client_flags(parser)


def run(args: argparse.Namespace) -> int:
    which = {"check": args.check, "gpu": args.gpu, "device": args.device}
    if args.every == any(value is not None for value in which.values()):
        raise UserError("name a CHECK, --gpu GPU or --device DEVICE, or give --all alone")
    every = "true" if args.every else None
    try:
        response = client(args, WAIT_SECONDS).change("POST", PATH, MEMBERS, **which, all=every, note=args.note)
    except RefusedError as refusal:
        if refusal.status != http.client.CONFLICT:
            raise
        if args.json:
            print(json.dumps(refusal.problem, indent=2))
        print(f"gpumon: {refusal}", file=sys.stderr)
        return STILL_ACTIVE
    print(json.dumps(response, indent=2) if args.json else "\n".join(_lines(response)))
    return STILL_ACTIVE if response["refused"] and not args.every else 0


def _lines(response: Any) -> list[str]:
    lines = [f"cleared: {verdict_name(verdict)}: {verdict['reason']}" for verdict in response["cleared"]]
    lines += [
        f"not cleared: {verdict_name(verdict)}: {verdict['reason']} {verdict['message']}"
        for verdict in response["refused"]
    ]
    if lines and not response["stored"]:
        lines.append(STORED_LATER)
    return lines or ["There is nothing to clear."]
