"""Interconnects on the status page: a matrix of NVLinks by GPU, the fabric of each GPU, and the ports of the node."""

from __future__ import annotations

from dataclasses import dataclass

from gpumon.model.infiniband import OTHER
from gpumon.model.nvlink import COMPLETED
from gpumon.outputs.formatting import count, line_rate
from gpumon.outputs.node_text import fabric_fault, link_errors, link_state
from gpumon.outputs.responses.base import Document

SIGNS = {"ok": "", "erring": "!", "down": "✕", "unknown": "·"}
"""Character for each state of an NVLink, in addition to its color. `erring`: it is up and has errors."""
SERVICES = {"fabric_manager_up": "fabric manager", "imex_up": "IMEX"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkCell:
    """Cell of the NVLink matrix: one NVLink of a GPU. `tone` is its state, a key of SIGNS."""

    tone: str
    sign: str
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRow:
    """Row of the NVLink matrix: one GPU."""

    gpu: int
    cells: tuple[LinkCell | None, ...]
    """By link number; None for a link that only other GPUs have. Empty if the state of no link is known."""
    up: str
    remarks: tuple[tuple[str, str], ...]
    """Pairs of a text about NVLinks, the fabric or chip-to-chip links, and its CSS class ("" or "critical")."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PortItem:
    """Entry of the port list: one InfiniBand or RoCE port. `tone` is its CSS class."""

    name: str
    tone: str
    state: str
    notes: tuple[str, ...]


def matrix(document: Document) -> list[LinkRow]:
    """Return a row for each GPU that has NVLinks, chip-to-chip links or a fabric. All rows have the same columns."""
    by_gpu: dict[str, list[Document]] = {}
    for link in document["links"]:
        by_gpu.setdefault(link["uuid"], []).append(link)
    reported = any(link["up"] is not None for link in document["links"])
    columns = max((link["link"] + 1 for link in document["links"] if reported), default=0)
    gpus = (gpu for gpu in document["gpus"] if gpu["uuid"] in by_gpu or gpu["c2c_links"] or _fabric(gpu))
    return [_row(gpu, by_gpu.get(gpu["uuid"], []), columns) for gpu in gpus]


def common_remarks(rows: list[LinkRow]) -> list[str]:
    """Return the uncritical remarks that all rows have, which the page shows only once; empty for a single row."""
    if len(rows) < 2:
        return []
    first, *others = rows
    return [text for text, tone in first.remarks if not tone and all((text, tone) in row.remarks for row in others)]


def has_details(rows: list[LinkRow], common: list[str]) -> bool:
    """Return True if a row has cells, or remarks that are not in `common`, so that the page must show the matrix."""
    return any(row.cells or {text for text, _ in row.remarks} - set(common) for row in rows)


def services(node: Document) -> list[tuple[str, str]]:
    """Return a text and its CSS class ("" or "critical") for each installed service: fabric manager, IMEX daemon."""
    return [
        (f"{name} {'running' if node[key] else 'not running'}", "" if node[key] else "critical")
        for key, name in SERVICES.items()
        if node[key] is not None
    ]


def _row(gpu: Document, links: list[Document], columns: int) -> LinkRow:
    cells = {link["link"]: _cell(link) for link in links}
    reported = [link["up"] for link in links if link["up"] is not None]
    up = f"{count(sum(reported))} of {len(links)}" if reported else "unknown" if links and columns else ""
    unknown = ((f"{len(links)} NVLinks, state unknown", ""),) if links and not columns else ()
    fault, fabric, remarks = fabric_fault(gpu), _fabric(gpu), list(unknown)
    if fault or fabric:
        remarks.append((fault, "critical") if fault else (fabric, ""))
    c2c_links = [link["up"] for link in gpu["c2c_links"] if link["up"] is not None]
    if c2c_links:
        tone = "" if all(c2c_links) else "critical"
        remarks.append((f"C2C {count(sum(c2c_links))} of {len(c2c_links)}", tone))
    all_columns = tuple(cells.get(number) for number in range(columns))
    return LinkRow(gpu=gpu["gpu"], cells=all_columns, up=up, remarks=tuple(remarks))


def _cell(link: Document) -> LinkCell:
    state, errors = link_state(link), link_errors(link)
    tone = {"down": "down", "unknown": "unknown"}.get(state, "erring" if errors else "ok")
    peer = f"to {link['peer_type']} {link['peer'] or ''}".rstrip() if link["peer_type"] else ""
    title = ", ".join(filter(None, (f"NVLink {link['link']}: {state}", *errors, peer)))
    return LinkCell(tone=tone, sign=SIGNS[tone], title=title)


def _fabric(gpu: Document) -> str:
    fabric = gpu["fabric"]
    if fabric is None or not fabric["state"]:
        return ""
    clique = f", clique {fabric['clique_id']}" if fabric["cluster_uuid"] and fabric["clique_id"] else ""
    return f"in the fabric{clique}" if fabric["state"] == COMPLETED else fabric_fault(gpu)


def port_item(port: Document) -> PortItem:
    state = {1: "up", 0: "down"}.get(port["port_up"], "unknown")
    downs, speed = port["link_downs_total"], port["port_speed_bytes_per_second"]
    notes = (
        "" if speed is None else line_rate(speed),
        port["link_layer"],
        f"GPU\N{NO-BREAK SPACE}{port['gpu']}" if port["gpu"] else "",
        f"not of the fabric: {port['role_reason']}" if port["role"] == OTHER else "",
        f"went down {count(downs)} times" if downs else "",
    )
    return PortItem(
        name=f"{port['device']}/{port['port']}",
        tone={"up": "ok", "down": "down"}.get(state, "unknown"),
        state=state,
        notes=tuple(filter(None, notes)),
    )
