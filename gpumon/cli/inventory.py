"""`gpumon inventory`: show the expected GPUs and ports. `... accept`: expect them as they are now."""

from __future__ import annotations

import argparse
import json

from gpumon.cli.command_parser import CommandParser
from gpumon.cli.config_arguments import add_client_flags, add_reason_flag, client
from gpumon.outputs.inventory_table import render_inventory

PATH, MEMBERS = "/api/v1/inventory", ("gpus_expected", "gpus", "ports", "former_gpus")
WAIT_SECONDS = 30.0
"""Seconds to wait for the agent's response. The agent's own timeout for its store is shorter."""


def add(parser: CommandParser) -> None:
    parser.default_action = "show"
    parser.set_examples("gpumon inventory", "gpumon inventory accept mlx5_3/1")
    show = parser.add_action(
        "show", "show the expected GPUs and ports (default)", "gpumon inventory", "gpumon inventory --json"
    )
    accept = parser.add_action(
        "accept",
        "no longer expect missing GPUs, missing or down ports, and accept present port rates and PCIe widths",
        "gpumon inventory accept",
        "gpumon inventory accept mlx5_3/1",
    )
    accept.add_argument(
        "parts", nargs="*", metavar="PART", help="only this GPU (uuid or PCI address) or port (mlx5_3/1)"
    )
    add_reason_flag(accept)
    for action in (show, accept):
        add_client_flags(action)


def run(args: argparse.Namespace) -> int:
    agent = client(args, WAIT_SECONDS)
    if args.action == "show":
        document = agent.get(PATH, MEMBERS)
    else:
        document = agent.change("POST", f"{PATH}/accept", MEMBERS, part=args.parts, reason=args.reason)
    print(json.dumps(document, indent=2) if args.json else render_inventory(document))
    return 0
