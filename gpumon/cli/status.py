"""`gpumon status`: show the GPUs of a node and what is wrong, the worst first."""

from __future__ import annotations

import argparse
import json
import shutil
from functools import partial

from gpumon import DEFAULT_PORT
from gpumon.cli.command_parser import CommandParser
from gpumon.cli.config_arguments import add_client_flags, client
from gpumon.cli.live_view import add_watch_flag, in_color, watch
from gpumon.outputs import terminal


def add(parser: CommandParser) -> None:
    parser.set_examples("gpumon status --watch", f"gpumon status --url http://gpu-17:{DEFAULT_PORT}")
    add_watch_flag(parser)
    add_client_flags(parser)


def run(args: argparse.Namespace) -> int:
    ask = partial(client(args).get, "/api/v1/report", terminal.STATUS)
    color = in_color()
    if args.watch is not None:
        return watch(lambda size: terminal.live(ask(), size.columns, size.lines, color=color), args.watch)
    document = ask()
    if args.json:
        print(json.dumps(document, indent=2))
    else:
        print(terminal.status(document, shutil.get_terminal_size((120, 24)).columns, color=color), end="")
    return 0
