"""The inventory as plain values, ready for JSON, and as a table for people: of the agent, or of its store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpumon.health.expectation import BASES, Basis
from gpumon.model.error_event import Board
from gpumon.model.gpu import Gpu
from gpumon.model.gpu_state import GpuState
from gpumon.model.port_record import KnownPort
from gpumon.outputs.document import gpu as gpu_document
from gpumon.outputs.terminal import printable
from gpumon.outputs.words import ABSENT, rfc3339
from gpumon.state import expected_gpus
from gpumon.state.report import Gone, Left, Report

Document = dict[str, Any]

LEFT = {
    Left.GIVEN: "belongs to another driver",
    Left.EXCLUDED: "excluded by the configuration",
    Left.REPLACED: "was replaced",
    Left.ACCEPTED: "is expected no more",
}
"""Why a GPU that was here is not missed, in words."""
AGENT, STORE = SOURCES = ("agent", "store")
FIRMWARE = ("vbios", "inforom", "gsp")
COLUMNS = {
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
"""Keys of a GPU, and their titles."""
PORT_COLUMNS = {
    "device": "DEVICE",
    "port": "PORT",
    "state": "STATE",
    "link_layer": "LINK LAYER",
    "gigabits_per_second": "GBIT/S",
    "pci_bus_id": "PCI BUS ID",
    "board": "BOARD",
    "firmware": "FIRMWARE",
    "first_up": "FIRST UP",
    "last_up": "LAST UP",
    "guid": "GUID",
}
"""The same of a port."""
UP, DOWN, MISSING, UNWIRED, ACCEPTED, UNKNOWN = PORT_STATES = (
    "up",
    "down",
    "missing",
    "unwired",
    "accepted",
    "unknown",
)
"""Of a port: up; should be up and is not; should be there; has never been in use; is down, as accepted."""
_GAP = "  "


def inventory(report: Report) -> Document:
    """Every GPU that should be here, how many that are and who says so, and those that were here."""
    wanted = report.expectation
    visible = report.node.gpus_visible
    return {
        "source": AGENT,
        "place": wanted.place,
        "gpus_expected": wanted.count,
        "basis": wanted.basis.value,
        "basis_words": BASES[wanted.basis],
        "gpus_visible": None if visible is None else int(visible),
        "gpus_possible": wanted.may,
        "unlisted": list(wanted.unlisted),
        "gpus": [_of_state(state) for state in report.gpus],
        "ports": list(_ports(report)),
        "gone": _gone(report.memory.gone),
    }


def stored(seen: Iterable[Board], accepted: int | None, ports: Iterable[KnownPort] = ()) -> Document:
    """The same of what the last agent knew, and of how many a person has accepted."""
    known = tuple(seen)
    here = list(_numbered(board for board in known if board.expected))
    basis = Basis.LEARNED if accepted is None else Basis.ACCEPTED
    return {
        "source": STORE,
        "place": None,
        "gpus_expected": max(len(here), accepted or 0),
        "basis": basis.value,
        "basis_words": BASES[basis],
        "gpus_visible": None,
        "gpus_possible": None,
        "unlisted": [],
        "gpus": [
            _of_board(board) for board in sorted(here, key=lambda one: (one.gpu is None, one.gpu or 0, one.bus_id))
        ],
        "ports": [_of_port(one, one.device, None) for one in _in_order(ports) if one.expected is not False],
        "gone": _gone(expected_gpus.gone(known, accepted=accepted is not None)),
    }


def _gone(known: Mapping[str, Gone]) -> list[Document]:
    return [
        {"uuid": uuid, "pci_bus_id": one.bus_id, "why": one.why.value, "why_words": LEFT[one.why]}
        for uuid, one in known.items()
    ]


def _numbered(boards: Iterable[Board]) -> Iterator[Board]:
    """One that was missing when the others were counted anew has no index: the GPU that was seen later has it."""
    taken = set[int]()
    for board in sorted(boards, key=lambda one: -one.last_wall):
        yield replace(board, gpu=None) if board.gpu in taken else board
        if board.gpu is not None:
            taken.add(board.gpu)


def _of_state(state: GpuState) -> Document:
    shown, board = gpu_document(state), state.board
    return {
        "gpu": state.index,
        "uuid": state.uuid,
        "state": shown["state"],
        "detail": shown["detail"],
        **{name: shown[name] for name in ("name", "serial", "pci_bus_id")},
        "nvlinks": _links(state.gpu, board),
        **{name: shown[name] for name in FIRMWARE},
        "first_seen": None if board is None else rfc3339(board.first_wall),
        "last_seen": None if board is None else rfc3339(board.last_wall),
    }


def _links(gpu: Gpu, board: Board | None) -> int | None:
    if gpu.nvlinks is not None:
        return int(gpu.nvlinks)
    return None if board is None else board.nvlinks


def _of_board(board: Board) -> Document:
    return {
        "gpu": board.gpu,
        "uuid": board.uuid,
        "state": None,
        "detail": "",
        "name": board.name or None,
        "serial": board.serial or None,
        "pci_bus_id": board.bus_id,
        "nvlinks": board.nvlinks,
        **{name: getattr(board, name) or None for name in FIRMWARE},
        "first_seen": rfc3339(board.first_wall),
        "last_seen": rfc3339(board.last_wall),
    }


def _ports(report: Report) -> Iterator[Document]:
    """Those that are here, or should be."""
    links = report.memory.links
    missed = {one.identity: one.port.device for one in report.gone_ports}
    up = {links.here.get((one.device, one.port)): one.link.port_up for one in report.ports}
    for one in _in_order(links.records.values()):
        if one.identity in missed:
            yield _of_port(one, missed[one.identity], MISSING)
        elif one.identity in links.here.values():
            yield _of_port(one, one.device, _port_state(one, up.get(one.identity)))
        elif one.expected:
            yield _of_port(one, one.device, UNKNOWN)


def _port_state(one: KnownPort, up: float | None) -> str:
    if up is None:
        return UNKNOWN
    return UP if up else {None: UNWIRED, True: DOWN, False: ACCEPTED}[one.expected]


def _in_order(ports: Iterable[KnownPort]) -> list[KnownPort]:
    return sorted(ports, key=lambda one: (one.bus_id, one.device, one.port))


def _of_port(one: KnownPort, device: str, state: str | None) -> Document:
    return {
        "device": device,
        "port": one.port,
        "state": state,
        "link_layer": one.link_layer,
        "gigabits_per_second": None if one.speed is None else round(one.speed * 8 / 1e9),
        "pci_bus_id": one.bus_id or None,
        "board": one.board or None,
        "firmware": one.firmware or None,
        "guid": one.guid or None,
        **{name: rfc3339(getattr(one, name)) for name in ("first_up", "last_up")},
    }


def table(document: Document) -> str:
    """How many there should be, a line a GPU and a line a port, and who is not missed."""
    lines = [*_heading(document), "", *_columns(COLUMNS, document["gpus"])]
    if document["ports"]:
        lines += ["", *_columns(PORT_COLUMNS, document["ports"])]
    lines += [""] * bool(document["gone"])
    lines += [f"{one['uuid']} at {one['pci_bus_id']} {one['why_words']}." for one in document["gone"]]
    return "\n".join(map(printable, lines))


def _heading(document: Document) -> list[str]:
    expected, visible = document["gpus_expected"], document["gpus_visible"]
    should = f"{expected} GPU{'' if expected == 1 else 's'} should be here, {document['basis_words']}"
    if document["source"] == STORE:
        return ["No agent answers: this is what its store knows.", f"{should}."]
    counted = "nobody can count them now" if visible is None else f"the driver counts {visible}"
    lines = [f"{should}; {counted}."]
    if document["gpus_possible"] is not None:
        lines.append(f"There may be {document['gpus_possible']}: this is a {document['place']}, and has its share.")
    if document["unlisted"]:
        lines.append(f"On the PCI bus, and not listed by the driver: {', '.join(document['unlisted'])}.")
    return lines


def _columns(titles: Mapping[str, str], items: Iterable[Document]) -> list[str]:
    rows = [tuple(titles.values()), *(tuple(_cell(key, one[key]) for key in titles) for one in items)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [_row(row, widths) for row in rows]


def _cell(key: str, value: Any) -> str:
    if value is None:
        return ABSENT
    return str(value)[:10] if key.startswith(("first_", "last_")) else str(value)


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    return _GAP.join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
