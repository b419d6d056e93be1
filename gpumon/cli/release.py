"""`gpumon release`: make the agent close the GPUs for some time, and wait until it has closed them."""

from __future__ import annotations

import argparse
import http.client
import json
import sys
from typing import Any

from gpumon.cli.client import RefusedError
from gpumon.cli.command_parser import CommandParser, UserError, for_seconds
from gpumon.cli.config_arguments import add_client_flags, client
from gpumon.outputs.node_text import releases

PATH, MEMBERS, KIND = "/api/v1/windows", ("windows",), "release"
WAIT_SECONDS = 30.0
"""Seconds to wait for the agent's response. The agent's own timeout for closing the GPUs is shorter."""
STILL_OPEN = 1


class _Once(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, args: argparse.Namespace, value: Any, *_: object) -> None:
        if getattr(args, self.dest) is not None:
            parser.error("a request releases one GPU or all: give --gpu once, and run the command for each GPU")
        setattr(args, self.dest, value)


def add(parser: CommandParser) -> None:
    parser.set_examples("gpumon release --for 5m --gpu 3", "gpumon release --end")
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--for",
        dest="duration",
        metavar="DURATION",
        help="release for this time, such as 5m; without it: show the releases",
    )
    group.add_argument("--end", action="store_true", help="end the release now")
    parser.add_argument("--gpu", action=_Once, metavar="GPU", help="only this GPU: uuid, index or PCI address")
    parser.add_argument("--reason", metavar="TEXT", help="why; every user can read it")
    add_client_flags(parser)


def run(args: argparse.Namespace) -> int:
    if args.gpu is not None and args.duration is None and not args.end:
        raise UserError("--gpu needs another flag: add --for DURATION or --end")
    agent, code = client(args, WAIT_SECONDS), 0
    query = {"kind": KIND, "gpu": args.gpu, "reason": args.reason}
    try:
        if args.end:
            response = agent.change("DELETE", PATH, MEMBERS, **query)
        elif args.duration is None:
            response = agent.get(PATH, MEMBERS, kind=KIND)
        else:
            response = agent.change("POST", PATH, MEMBERS, **query, for_seconds=for_seconds(args.duration))
    except RefusedError as refusal:
        if refusal.status != http.client.CONFLICT or "windows" not in refusal.problem:
            raise
        print(f"gpumon: {refusal}", file=sys.stderr)
        response, code = {"windows": refusal.problem["windows"]}, STILL_OPEN
    if args.json:
        print(json.dumps(response, indent=2))
    else:
        print(*releases(response["windows"]) or ["No GPU is released."], sep="\n")
        if args.duration and not code:
            print("No process of gpumon has a released GPU open.")
    return code
