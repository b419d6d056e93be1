"""Read state and counters of InfiniBand and RoCE ports from /sys/class/infiniband."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection

from gpumon.collectors.links.files import Files, Reach, ReadErrors
from gpumon.model.bus_id import parse_bus_id
from gpumon.model.infiniband import DATA_BITS, DOWNED_BITS, ERRORS, HARDWARE_ERRORS, InfinibandLink, InfinibandPort
from gpumon.model.series_limits import MAX_SERIES
from gpumon.model.snapshot import PortReading

log = logging.getLogger("gpumon.collectors.links")

CLASS = "class/infiniband"
COLLECTOR = "infiniband"
MAX_PORTS = MAX_SERIES["ports"]
"""Max number of ports, the first ones by name. It limits the metrics of a host with a port for each virtual machine."""

WORD = 4
"""Bytes per unit of port_rcv_data and port_xmit_data."""
ACTIVE, LINK_UP = 4, 5
"""Values of `state` and `phys_state`."""


class PortReader:
    """Reads all ports. The counters are kept between the polls that read them."""

    def __init__(self, reach: Reach, quarantined: Collection[str] = ()) -> None:
        self._reach = reach
        self._quarantined = quarantined
        self._counts: dict[tuple[str, str], InfinibandPort] = {}
        self._counter_errors = ReadErrors()
        self._full: set[str] = set()
        self.left_out = 0
        """Number of ports beyond MAX_PORTS."""
        self.read_errors = ReadErrors()
        """Errors of the last poll of states and of the last poll of counters."""

    def poll(self, *, counting: bool) -> tuple[PortReading, ...]:
        """Return all ports. Read their counters if `counting`; otherwise repeat the last ones."""
        state_errors = ReadErrors()
        if counting:
            self._counter_errors = ReadErrors()
        places = self._places(state_errors)
        self.left_out = max(0, len(places) - MAX_PORTS)
        ports = tuple(self._port(device, port, state_errors, counting=counting) for device, port in places[:MAX_PORTS])
        self._counts = {place: self._counts[place] for place in places[:MAX_PORTS]}
        self.read_errors = ReadErrors(state_errors, self._counter_errors)
        return ports

    def _places(self, read_errors: ReadErrors) -> list[tuple[str, str]]:
        """Return device and port number of each port, in natural order."""
        if COLLECTOR in self._quarantined:
            return []
        devices = _names(self._reach(COLLECTOR), CLASS, read_errors)
        return [
            (device, port)
            for device in sorted(set(devices) - set(self._quarantined), key=_natural)
            for port in sorted(self._ports(device, read_errors), key=_natural)
        ]

    def _ports(self, device: str, read_errors: ReadErrors) -> list[str]:
        """Return the ports of a device; empty for a virtual function, because the physical one counts its traffic."""
        files, folder = self._reach(device), f"{CLASS}/{device}"
        return [] if files.exists(f"{folder}/device/physfn") else _names(files, f"{folder}/ports", read_errors)

    def _port(self, device: str, port: str, read_errors: ReadErrors, *, counting: bool) -> PortReading:
        files, folder = self._reach(device), f"{CLASS}/{device}/ports/{port}"
        if counting or (device, port) not in self._counts:
            self._counts[device, port] = self._read_counters(files, folder)
        return PortReading(
            device=device,
            port=port,
            link_layer=_text(files, f"{folder}/link_layer", read_errors) or "unknown",
            link=_link(files, folder, read_errors),
            counts=self._counts[device, port],
            bus_id=self._address(device),
            board=_text(files, f"{CLASS}/{device}/board_id", read_errors) or "",
            guid=self._guid(device),
            firmware=_text(files, f"{CLASS}/{device}/fw_ver", ReadErrors()) or "",
        )

    def _guid(self, device: str) -> str:
        """Return the node GUID of the card, which survives a renaming; "" if it has none or it is zero."""
        text = _text(self._reach(device), f"{CLASS}/{device}/node_guid", ReadErrors()) or ""
        return text if text.strip("0:") else ""

    def _address(self, device: str) -> str:
        """Return the PCI address of a device; "" for one that is not on a PCI bus."""
        text = _text(self._reach(device), f"{CLASS}/{device}/device/uevent", ReadErrors()) or ""
        match = re.search(r"^PCI_SLOT_NAME=(\S+)$", text, re.MULTILINE)
        return (parse_bus_id(match[1]) if match else None) or ""

    def _read_counters(self, files: Files, folder: str) -> InfinibandPort:
        own, hardware = f"{folder}/counters", f"{folder}/hw_counters"
        there = set(_names(files, own, self._counter_errors))
        more = set(_names(files, hardware, self._counter_errors))
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
        """Return a counter's value; None if it cannot be read or has reached its maximum, where it stops."""
        text = _text(files, path, self._counter_errors)
        if text is None or not text.isdecimal():  # a port without counters has "N/A (no PMA)"
            return None
        full = bits is not None and int(text) == (1 << bits) - 1
        if full and path not in self._full:
            log.warning("a counter has reached its maximum and stopped; perfquery -R resets it", extra={"file": path})
            self._full.add(path)
        elif not full and path in self._full:
            log.info("a counter that had stopped counts again", extra={"file": path})
            self._full.discard(path)
        return None if full else float(text)


def _link(files: Files, folder: str, read_errors: ReadErrors) -> InfinibandLink:
    state = _code(_text(files, f"{folder}/state", read_errors))
    physical = _code(_text(files, f"{folder}/phys_state", read_errors))
    up = None if state is None else state == ACTIVE and physical in {LINK_UP, None}
    return InfinibandLink(
        port_up=None if up is None else float(up),
        # The rate of a port that is down is not its speed.
        port_speed_bytes_per_second=_speed(_text(files, f"{folder}/rate", read_errors)) if up else None,
    )


def _code(text: str | None) -> int | None:
    """Return the number before the name, as in "4: ACTIVE"."""
    number = (text or "").partition(":")[0]
    return int(number) if number.isdecimal() else None


def _speed(text: str | None) -> float | None:
    """Return bytes per second from "400 Gb/sec (4X NDR)"."""
    match = re.match(r"(\d+(?:\.\d+)?) Gb/sec", text or "")
    return float(match[1]) * 1e9 / 8 if match else None


def _names(files: Files, folder: str, read_errors: ReadErrors) -> list[str]:
    try:
        return files.names(folder)
    except OSError as error:
        read_errors.note(folder, error)
        return []


def _text(files: Files, path: str, read_errors: ReadErrors) -> str | None:
    try:
        return files.read(path)
    except OSError as error:
        read_errors.note(path, error)
        return None


def _natural(name: str) -> list[tuple[bool, int, str]]:
    """Return a sort key that orders mlx5_10 after mlx5_9."""
    return [(part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in re.split(r"(\d+)", name)]
