"""What the page shows of links: a matrix of NVLinks by GPU, their fabric, and the ports of the node."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpumon.model.fabric import COMPLETED
from gpumon.outputs.connections import counted, fabric_trouble, link_state
from gpumon.outputs.responses.base import Document
from gpumon.outputs.words import count, line_rate

SIGNS = {"ok": "", "erring": "!", "down": "✕", "unknown": "·"}
"""So that no state is told by its color alone."""
SERVICES = {"fabric_manager_up": "fabric manager", "imex_up": "IMEX"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One NVLink."""

    link: int
    tone: str
    """ok, erring, down or unknown."""
    title: str

    @property
    def sign(self) -> str:
        return SIGNS[self.tone]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """The links of one GPU."""

    gpu: int
    cells: tuple[Cell | None, ...]
    """By number; None where the GPU has no such link and another has. None at all where no link is known."""
    up: str
    remarks: tuple[tuple[str, str], ...]
    """Words with their tone: fabric, chip-to-chip links."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """One InfiniBand or RoCE port."""

    name: str
    tone: str
    state: str
    notes: tuple[str, ...]


def matrix(document: Document) -> list[Line]:
    """A line for each GPU that has links or a fabric, all with the same columns."""
    by_gpu: dict[str, list[Document]] = {}
    for link in document["links"]:
        by_gpu.setdefault(link["uuid"], []).append(link)
    known = any(link["up"] is not None for link in document["links"])
    most = max((link["link"] + 1 for link in document["links"] if known), default=0)
    gpus = (gpu for gpu in document["gpus"] if gpu["uuid"] in by_gpu or gpu["c2c_links"] or _fabric(gpu))
    return [_line(gpu, by_gpu.get(gpu["uuid"], []), most) for gpu in gpus]


def shared(lines: list[Line]) -> list[str]:
    """What is said of every GPU: once is enough."""
    if len(lines) < 2:
        return []
    first, *others = lines
    return [words for words, tone in first.remarks if not tone and all((words, tone) in one.remarks for one in others)]


def worth_drawing(lines: list[Line], same: list[str]) -> bool:
    """Whether the matrix says more than what is said of every GPU."""
    return any(line.cells or {words for words, _ in line.remarks} - set(same) for line in lines)


def services(node: Document) -> list[tuple[str, str]]:
    """Each service that the links need and that is installed, with its tone."""
    return [
        (f"{name} {'runs' if node[key] else 'does not run'}", "" if node[key] else "critical")
        for key, name in SERVICES.items()
        if node[key] is not None
    ]


def ports(document: Document) -> list[Port]:
    return [_port(one) for one in document["ports"]]


def _line(gpu: Document, links: list[Document], most: int) -> Line:
    cells = {link["link"]: _cell(link) for link in links}
    known = [link["up"] for link in links if link["up"] is not None]
    up = f"{count(sum(known))} of {len(links)}" if known else "not known" if links and most else ""
    unknown = ((f"{len(links)} NVLinks, not known to be up or down", ""),) if links and not most else ()
    cells_of_all = tuple(cells.get(number) for number in range(most))
    return Line(gpu=gpu["gpu"], cells=cells_of_all, up=up, remarks=(*unknown, *_remarks(gpu)))


def _cell(link: Document) -> Cell:
    state, errors = link_state(link), counted(link)
    tone = {"down": "down", "not known": "unknown"}.get(state, "erring" if errors else "ok")
    peer = f"to {link['peer_type']} {link['peer'] or ''}".rstrip() if link["peer_type"] else ""
    title = ", ".join(filter(None, (f"NVLink {link['link']}: {state}", *errors, peer)))
    return Cell(link=link["link"], tone=tone, title=title)


def _remarks(gpu: Document) -> Iterator[tuple[str, str]]:
    trouble = fabric_trouble(gpu)
    if trouble:
        yield trouble, "critical"
    elif _fabric(gpu):
        yield _fabric(gpu), ""
    there = [link["up"] for link in gpu["c2c_links"] if link["up"] is not None]
    if there:
        yield f"C2C {count(sum(there))} of {len(there)}", "" if all(there) else "critical"


def _fabric(gpu: Document) -> str:
    """The fabric that it has joined; empty when none."""
    fabric = gpu["fabric"]
    if fabric is None or not fabric["state"]:
        return ""
    clique = f", clique {fabric['clique_id']}" if fabric["cluster_uuid"] and fabric["clique_id"] else ""
    return f"in the fabric{clique}" if fabric["state"] == COMPLETED else fabric_trouble(gpu)


def _port(one: Document) -> Port:
    state = {1: "up", 0: "down"}.get(one["port_up"], "not known")
    downs, speed = one["link_downs_total"], one["port_speed_bytes_per_second"]
    notes = (
        "" if speed is None else line_rate(speed),
        one["link_layer"],
        f"went down {count(downs)} times" if downs else "",
    )
    return Port(
        name=f"{one['device']}/{one['port']}",
        tone={"up": "ok", "down": "down"}.get(state, "unknown"),
        state=state,
        notes=tuple(filter(None, notes)),
    )
