"""The inventory of expected GPUs and ports as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gpumon.outputs.formatting import ABSENT, columns
from gpumon.outputs.responses.base import Document
from gpumon.outputs.terminal import printable

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
"""Columns of the table of GPUs: the title of each column, by the field of the GPU's response that it shows."""
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
"""Columns of the table of ports: the title of each column, by the field of the port's response that it shows."""


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
