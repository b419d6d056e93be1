"""`gpumon status`: show the GPUs of a node and what is wrong, the worst first."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys

from gpumon import DEFAULT_PORT
from gpumon.cli.command_parser import CommandParser
from gpumon.cli.config_arguments import add_client_flags, client
from gpumon.outputs import terminal


def add(parser: CommandParser) -> None:
    parser.set_examples("gpumon status", f"gpumon status --url http://gpu-17:{DEFAULT_PORT}")
    add_client_flags(parser)


def run(args: argparse.Namespace) -> int:
    document = client(args).get("/api/v1/report", terminal.STATUS)
    if args.json:
        print(json.dumps(document, indent=2))
    else:
        color = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        print(terminal.status(document, shutil.get_terminal_size((120, 24)).columns, color=color), end="")
    return 0
