"""`gpumon inventory`: show the expected GPUs and ports. `... accept`: expect them as they are now."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping
from typing import Any

from gpumon.cli.command_parser import CommandParser
from gpumon.cli.config_arguments import add_client_flags, add_reason_flag, client
from gpumon.model.printable import printable
from gpumon.outputs.formatting import ABSENT, columns
from gpumon.outputs.responses.base import Document

PATH, MEMBERS = "/api/v1/inventory", ("gpus_expected", "gpus", "ports", "former_gpus")
WAIT_SECONDS = 30.0
"""Seconds to wait for the agent's response. The agent's own timeout for its store is shorter."""
GPU_COLUMNS = {
    "gpu": "GPU",
    "state": "STATE",
    "name": "NAME",
    "serial": "SERIAL",
    "pci_bus_id": "PCI BUS ID",
    "nvlinks": "LINKS",
    "vbios": "VBIOS",
    "inforom": "INFOROM",
    "gsp": "GSP",
    "first_seen": "FIRST SEEN",
    "last_seen": "LAST SEEN",
    "uuid": "UUID",
}
PORT_COLUMNS = {
    "device": "DEVICE",
    "port": "PORT",
    "state": "STATE",
    "role": "ROLE",
    "link_layer": "LINK LAYER",
    "port_speed_bytes_per_second": "GBIT/S",
    "pci_bus_id": "PCI BUS ID",
    "board": "BOARD",
    "firmware": "FIRMWARE",
    "first_up": "FIRST UP",
    "last_up": "LAST UP",
    "guid": "GUID",
}
"""Title of each column of the tables of GPUs and ports, by the field of the response that it shows."""


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


def render_inventory(document: Document) -> str:
    """Return the inventory response as text: the numbers of GPUs, a line for each GPU and port, and former GPUs."""
    lines = [*_heading(document), "", *_table(GPU_COLUMNS, document["gpus"])]
    if document["ports"]:
        lines += ["", *_table(PORT_COLUMNS, document["ports"])]
    lines += [""] * bool(document["former_gpus"])
    lines += [f"{gpu['uuid']} at {gpu['pci_bus_id']} {gpu['message']}." for gpu in document["former_gpus"]]
    return "\n".join(map(printable, lines))


def _heading(document: Document) -> list[str]:
    expected, visible = document["gpus_expected"], document["gpus_visible"]
    should = f"{expected} GPU{'' if expected == 1 else 's'} expected, {document['basis_text']}"
    counted = "the driver does not report a count" if visible is None else f"the driver counts {visible}"
    lines = [f"{should}; {counted}."]
    if document["gpus_possible"] is not None:
        lines.append(f"The host may have {document['gpus_possible']}: this is a {document['place']} with part of them.")
    if document["unlisted"]:
        lines.append(f"On the PCI bus, but not listed by the driver: {', '.join(document['unlisted'])}.")
    return lines


def _table(titles: Mapping[str, str], items: Iterable[Document]) -> list[str]:
    return columns([[*titles.values()], *([_cell(name, item[name]) for name in titles] for item in items)])


def _cell(name: str, value: Any) -> str:
    if value is None:
        return ABSENT
    if name == "port_speed_bytes_per_second":
        return str(round(value * 8 / 1e9))
    return str(value)[:10] if name.startswith(("first_", "last_")) else str(value)
