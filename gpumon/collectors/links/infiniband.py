"""InfiniBand and RoCE ports from /sys/class/infiniband: the state of each, and what it counts."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection

from gpumon.collectors.links.files import Files, Reach, Troubles
from gpumon.model.bus_id import parsed
from gpumon.model.infiniband import DATA_BITS, DOWNED_BITS, ERRORS, HARDWARE_ERRORS, InfinibandLink, InfinibandPort
from gpumon.model.series_limits import MOST
from gpumon.model.snapshot import PortReading

log = logging.getLogger("gpumon.collectors.links")

CLASS = "class/infiniband"
COLLECTOR = "infiniband"
MOST_PORTS = MOST["ports"]
"""A host that gives each of its virtual machines a port must not flood the page; the first by name are read."""

WORD = 4
"""Bytes that port_rcv_data and port_xmit_data count as one."""
ACTIVE, LINK_UP = 4, 5
"""Of `state` and of `phys_state`."""


class Infiniband:
    """All ports. Remembers what they counted between two looks that count."""

    def __init__(self, reach: Reach, leave_aside: Collection[str] = ()) -> None:
        self._reach = reach
        self._leave_aside = leave_aside
        self._counts: dict[tuple[str, str], InfinibandPort] = {}
        self._count_troubles = Troubles()
        self._full: set[str] = set()
        self.left_out = 0
        """Ports beyond MOST_PORTS."""
        self.troubles = Troubles()
        """Of the last look at states, and of the last that counted."""

    def look(self, *, counting: bool) -> tuple[PortReading, ...]:
        """Every port as it stands; with `counting` its counters are read anew."""
        state_troubles = Troubles()
        if counting:
            self._count_troubles = Troubles()
        places = self._places(state_troubles)
        self.left_out = max(0, len(places) - MOST_PORTS)
        ports = tuple(
            self._port(device, port, state_troubles, counting=counting) for device, port in places[:MOST_PORTS]
        )
        self._counts = {place: self._counts[place] for place in places[:MOST_PORTS]}
        self.troubles = Troubles(state_troubles, self._count_troubles)
        return ports

    def _places(self, troubles: Troubles) -> list[tuple[str, str]]:
        """Device and port, in the order in which people count."""
        if COLLECTOR in self._leave_aside:
            return []
        devices = _names(self._reach(COLLECTOR), CLASS, troubles)
        return [
            (device, port)
            for device in sorted(set(devices) - set(self._leave_aside), key=_natural)
            for port in sorted(self._ports(device, troubles), key=_natural)
        ]

    def _ports(self, device: str, troubles: Troubles) -> list[str]:
        """None of a virtual function: its physical one is here as well, and counts the same wire."""
        files, folder = self._reach(device), f"{CLASS}/{device}"
        return [] if files.exists(f"{folder}/device/physfn") else _names(files, f"{folder}/ports", troubles)

    def _port(self, device: str, port: str, troubles: Troubles, *, counting: bool) -> PortReading:
        files, folder = self._reach(device), f"{CLASS}/{device}/ports/{port}"
        if counting or (device, port) not in self._counts:
            self._counts[device, port] = self._counted(files, folder)
        return PortReading(
            device=device,
            port=port,
            link_layer=_text(files, f"{folder}/link_layer", troubles) or "unknown",
            link=_link(files, folder, troubles),
            counts=self._counts[device, port],
            bus_id=self._address(device),
            board=_text(files, f"{CLASS}/{device}/board_id", troubles) or "",
            guid=self._guid(device),
            firmware=_text(files, f"{CLASS}/{device}/fw_ver", Troubles()) or "",
        )

    def _guid(self, device: str) -> str:
        """Of the card's function, which keeps it when the device is called otherwise; "" for none, or all zeros."""
        text = _text(self._reach(device), f"{CLASS}/{device}/node_guid", Troubles()) or ""
        return text if text.strip("0:") else ""

    def _address(self, device: str) -> str:
        """PCI address of a device; "" for one that is on no PCI bus."""
        text = _text(self._reach(device), f"{CLASS}/{device}/device/uevent", Troubles()) or ""
        match = re.search(r"^PCI_SLOT_NAME=(\S+)$", text, re.MULTILINE)
        return (parsed(match[1]) if match else None) or ""

    def _counted(self, files: Files, folder: str) -> InfinibandPort:
        own, hardware = f"{folder}/counters", f"{folder}/hw_counters"
        there = set(_names(files, own, self._count_troubles))
        more = set(_names(files, hardware, self._count_troubles))
        errors = {name: self._number(files, f"{own}/{name}", bits) for name, bits in ERRORS.items() if name in there}
        errors |= {name: self._number(files, f"{hardware}/{name}") for name in HARDWARE_ERRORS if name in more}

        def traffic(words: str, octets: str) -> float | None:
            if words in there:
                counted = self._number(files, f"{own}/{words}", DATA_BITS)
                return None if counted is None else counted * WORD
            return self._number(files, f"{hardware}/{octets}") if octets in more else None

        return InfinibandPort(
            receive_bytes_total=traffic("port_rcv_data", "rx_bytes"),
            transmit_bytes_total=traffic("port_xmit_data", "tx_bytes"),
            errors_total={name: value for name, value in errors.items() if value is not None} or None,
            link_downs_total=self._number(files, f"{own}/link_downed", DOWNED_BITS) if "link_downed" in there else None,
        )

    def _number(self, files: Files, path: str, bits: int | None = None) -> float | None:
        """None as well for a counter that is full: it says no more."""
        text = _text(files, path, self._count_troubles)
        if text is None or not text.isdecimal():  # a port without counters says "N/A (no PMA)"
            return None
        full = bits is not None and int(text) == (1 << bits) - 1
        if full and path not in self._full:
            log.warning("a counter is full and counts no more; perfquery -R resets it", extra={"file": path})
            self._full.add(path)
        elif not full and path in self._full:
            log.info("a counter that was full counts again", extra={"file": path})
            self._full.discard(path)
        return None if full else float(text)


def _link(files: Files, folder: str, troubles: Troubles) -> InfinibandLink:
    state = _code(_text(files, f"{folder}/state", troubles))
    physical = _code(_text(files, f"{folder}/phys_state", troubles))
    up = None if state is None else state == ACTIVE and physical in {LINK_UP, None}
    return InfinibandLink(
        port_up=None if up is None else float(up),
        # What a port that is down would be trained to, or was, is no speed.
        port_speed_bytes_per_second=_speed(_text(files, f"{folder}/rate", troubles)) if up else None,
    )


def _code(text: str | None) -> int | None:
    """The number before the name, as in "4: ACTIVE"."""
    number = (text or "").partition(":")[0]
    return int(number) if number.isdecimal() else None


def _speed(text: str | None) -> float | None:
    """Bytes per second, of "400 Gb/sec (4X NDR)"."""
    match = re.match(r"(\d+(?:\.\d+)?) Gb/sec", text or "")
    return float(match[1]) * 1e9 / 8 if match else None


def _names(files: Files, folder: str, troubles: Troubles) -> list[str]:
    try:
        return files.names(folder)
    except OSError as error:
        troubles.note(folder, error)
        return []


def _text(files: Files, path: str, troubles: Troubles) -> str | None:
    try:
        return files.read(path)
    except OSError as error:
        troubles.note(path, error)
        return None


def _natural(name: str) -> list[tuple[bool, int, str]]:
    """SamplerOrders mlx5_10 after mlx5_9."""
    return [(part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in re.split(r"(\d+)", name)]
