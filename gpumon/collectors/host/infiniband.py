"""Read the state and counters of InfiniBand, RoCE and EFA ports from /sys/class/infiniband.

Also warn of patterns in the settings `links.exclude` and `links.fabric` that match no network adapter.
"""

from __future__ import annotations

import errno
import logging
import re
from collections.abc import Iterator

from gpumon.collectors.host.reader import Files, ReadErrors, Turn, list_names, read_text
from gpumon.collectors.host.topology import PciTopology
from gpumon.model.bus_id import parse_bus_id
from gpumon.model.infiniband import (
    DATA_BITS,
    DEVICE_ERRORS,
    DOWNED_BITS,
    EFA,
    ERRORS,
    HARDWARE_ERRORS,
    InfinibandLink,
    InfinibandPort,
    Placement,
    matches,
)
from gpumon.model.reading import MAX_SERIES, SLOW
from gpumon.model.snapshot import PortReading, PortReadings

log = logging.getLogger("gpumon.collectors.host")

CLASS = "class/infiniband"
MAX_PORTS = MAX_SERIES["ports"]
"""Max number of ports that are read, in the order of their names: a host may have one for each virtual machine."""

AFTER_POLLS = 5
"""Number of polls, 15 s apart, after which the patterns are compared with the adapters, which are all present then."""
WORD = 4
"""Bytes in one unit of the counters port_rcv_data and port_xmit_data."""
_COUNTERS = frozenset({*ERRORS, "port_rcv_data", "port_xmit_data", "link_downed"})
"""Names of the files in a port's folder `counters` that are read."""
_CARRIER = ("carrier_down_count", "carrier_changes")
"""Files of a network interface. The first counts link downs (since Linux 4.16), the second both ups and downs."""
ACTIVE, LINK_UP = 4, 5
"""Numbers in the sysfs files `state` (ACTIVE) and `phys_state` (LINK_UP) of a port that is up."""


class PortReader:
    """Reads the InfiniBand, RoCE and EFA ports. Repeats the last values of counters in polls that do not read them."""

    def __init__(self) -> None:
        self._count_at = 0.0
        self._polls = 0
        """Number of polls that have read the counters of all adapters."""
        self._topology = PciTopology()
        self._placements: dict[str, Placement] = {}
        self._guids: dict[str, str] = {}
        self._invalid: set[str] = set()
        """Paths of counter files that failed with EINVAL and were never read successfully. They are not read again,
        because each such read makes the driver write a line to the kernel log.
        """
        self._answered: set[str] = set()
        """Paths of counter files that were read successfully. If EINVAL follows later, the adapter has a fault."""
        self._restricted: dict[tuple[str, str], bool] = {}
        """Whether reads of all counters of a port fail with EINVAL, by device and port number."""
        self._counts: dict[tuple[str, str], InfinibandPort] = {}
        self._counter_errors = ReadErrors()
        """Read errors of counters in the last turn that read them."""
        self._full: set[str] = set()

    def __call__(self, turn: Turn) -> PortReadings:
        """Return the readings of the first MAX_PORTS ports.

        Counters are read every 15 s (SLOW), and those of new ports.
        """
        self._turn, counting = turn, turn.at >= self._count_at
        if counting:
            self._count_at = turn.at + SLOW.value
            self._counter_errors = ReadErrors()
            self._topology.refresh(turn.sysfs)
            self._placements = {}
        places = self._places()
        if counting and not turn.orders.quarantined:
            self._polls += 1
            if self._polls == AFTER_POLLS:
                self._log_unmatched_patterns()
        for device in self._guids.keys() - {device for device, _ in places}:
            del self._guids[device]
            self._retry(device)
        ports = tuple(self._port(device, port, counting=counting) for device, port in places[:MAX_PORTS])
        self._counts = {place: self._counts[place] for place in places[:MAX_PORTS]}
        turn.errors.include(self._counter_errors)
        return PortReadings(ports=ports, left_out=max(0, len(places) - MAX_PORTS))

    def _log_unmatched_patterns(self) -> None:
        """Log the configured patterns that match no network adapter."""
        adapters = {
            device: (self._bus(device)[1], self._board(device)) for device in list_names(self._turn.sysfs, CLASS)
        }
        present = ", ".join(f"{device} ({' '.join(filter(None, names))})" for device, names in adapters.items())
        for setting, patterns in (
            ("links.exclude", self._turn.orders.exclude),
            ("links.fabric", self._turn.orders.fabric),
        ):
            for pattern in patterns:
                if not any(matches((pattern,), device, *names) for device, names in adapters.items()):
                    log.warning(
                        "a pattern matches no network adapter: correct or remove it",
                        extra={"setting": setting, "pattern": pattern, "adapters": present or "none"},
                    )

    def _retry(self, device: str) -> None:
        """Forget which counter files of a device failed or were read. Called if the device was removed or replaced."""
        folder = f"{CLASS}/{device}/"
        self._invalid = {path for path in self._invalid if not path.startswith(folder)}
        self._answered = {path for path in self._answered if not path.startswith(folder)}

    def _places(self) -> list[tuple[str, str]]:
        """Return the device name and port number of each port to read, in natural order: mlx5_10 follows mlx5_9."""
        orders, errors = self._turn.orders, self._turn.errors
        return [
            (device, port)
            for device in sorted(
                set(list_names(self._turn.sysfs, CLASS, errors)) - set(orders.quarantined), key=_natural_sort_key
            )
            if not (orders.exclude and matches(orders.exclude, device, self._bus(device)[1], self._board(device)))
            for port in sorted(self._ports(device, errors), key=_natural_sort_key)
        ]

    def _board(self, device: str) -> str:
        return read_text(self._turn.device(device), f"{CLASS}/{device}/board_id")

    def _ports(self, device: str, read_errors: ReadErrors) -> list[str]:
        """Return a device's port numbers; [] for a virtual function, whose traffic the physical function counts."""
        files, folder = self._turn.device(device), f"{CLASS}/{device}"
        return [] if files.exists(f"{folder}/device/physfn") else list_names(files, f"{folder}/ports", read_errors)

    def _port(self, device: str, port: str, *, counting: bool) -> PortReading:
        read_errors = self._turn.errors
        files, folder = self._turn.device(device), f"{CLASS}/{device}/ports/{port}"
        guid = read_text(self._turn.device(device), f"{CLASS}/{device}/node_guid")
        guid = guid if guid.strip("0:") else ""  # a renaming of the device does not change it
        if self._guids.setdefault(device, guid) != guid:  # the device was replaced
            self._guids[device] = guid
            self._retry(device)
        if counting or (device, port) not in self._counts:
            self._counts[device, port] = self._read_counters(files, device, port)
            self._restricted[device, port] = self._is_restricted(files, f"{folder}/counters")
        if device not in self._placements:
            self._placements[device] = self._topology.placement(files, f"{CLASS}/{device}")
        driver, bus_id = self._bus(device)
        return PortReading(
            device=device,
            port=port,
            link_layer=read_text(files, f"{folder}/link_layer", read_errors) or "unknown",
            link=_efa_link(files, device, port, read_errors) if driver == EFA else _link(files, folder, read_errors),
            counts=self._counts[device, port],
            bus_id=bus_id,
            board=read_text(files, f"{CLASS}/{device}/board_id", read_errors),
            guid=guid,
            firmware=read_text(files, f"{CLASS}/{device}/fw_ver"),
            driver=driver,
            restricted=self._restricted[device, port],
            placement=self._placements[device],
        )

    def _is_restricted(self, files: Files, folder: str) -> bool:
        """Return True if reads of all files of _COUNTERS that are in this folder fail with EINVAL."""
        invalid = {path for path in self._invalid if path.startswith(folder)}
        there = {f"{folder}/{name}" for name in list_names(files, folder)} if invalid else set()
        return bool(invalid) and {path for path in there if path.rpartition("/")[2] in _COUNTERS} <= invalid

    def _bus(self, device: str) -> tuple[str, str]:
        """Return the kernel driver and PCI address of a device; the address is "" if the device is not on a PCI bus."""
        text = read_text(self._turn.device(device), f"{CLASS}/{device}/device/uevent")
        values = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
        return values.get("DRIVER", ""), parse_bus_id(values.get("PCI_SLOT_NAME", "")) or ""

    def _read_counters(self, files: Files, device: str, port: str) -> InfinibandPort:
        folder = f"{CLASS}/{device}/ports/{port}"
        own, hardware, of_device = f"{folder}/counters", f"{folder}/hw_counters", f"{CLASS}/{device}/hw_counters"
        there = set(list_names(files, own, self._counter_errors))
        more = set(list_names(files, hardware, self._counter_errors))
        errors = {name: self._number(files, f"{own}/{name}", bits) for name, bits in ERRORS.items() if name in there}
        errors |= {name: self._number(files, f"{hardware}/{name}") for name in HARDWARE_ERRORS if name in more}
        if self._bus(device)[0] == EFA:
            errors |= {name: self._number(files, f"{of_device}/{name}") for name in DEVICE_ERRORS}

        def traffic(words: str, octets: str) -> float | None:
            if words in there:
                counted = self._number(files, f"{own}/{words}", DATA_BITS)
                return None if counted is None else counted * WORD
            return self._number(files, f"{hardware}/{octets}") if octets in more else None

        return InfinibandPort(
            receive_bytes_total=traffic("port_rcv_data", "rx_bytes"),
            transmit_bytes_total=traffic("port_xmit_data", "tx_bytes"),
            errors_total={name: value for name, value in errors.items() if value is not None} or None,
            link_downs_total=max(
                (value for value in self._link_downs(files, device, port) if value is not None), default=None
            ),
        )

    def _link_downs(self, files: Files, device: str, port: str) -> Iterator[float | None]:
        """Yield each counter of link downs: the port's and, except on InfiniBand, that of its network interface."""
        folder = f"{CLASS}/{device}/ports/{port}"
        if files.exists(f"{folder}/counters/link_downed"):
            yield self._number(files, f"{folder}/counters/link_downed", DOWNED_BITS)
        # An InfiniBand port may have an interface too (IPoIB), which also goes down for reasons other than the link.
        if read_text(files, f"{folder}/link_layer") != "InfiniBand" and (netdev := _netdev(files, device, port)):
            downs, changes = (read_text(files, f"{netdev}/{name}") for name in _CARRIER)
            if downs.isdecimal():
                yield float(downs)
            elif changes.isdecimal():  # ups and downs alternate, beginning with an up
                yield float(int(changes) // 2)

    def _number(self, files: Files, path: str, bits: int | None = None) -> float | None:
        """Return a counter's value; None if it cannot be read, or was already at its maximum in an earlier poll.

        A counter with `bits` bits stops at its maximum. The poll that first reads the maximum returns it.
        """
        if path in self._invalid:
            return None
        try:
            text = files.read(path)
        except OSError as error:
            if error.errno == errno.EINVAL and path not in self._answered:
                self._invalid.add(path)
            self._counter_errors.note(path, error)
            return None
        self._answered.add(path)
        if not text.isdecimal():  # a port without counters has "N/A (no PMA)"
            return None
        full = bits is not None and int(text) == (1 << bits) - 1
        if full and path in self._full:
            return None
        if full:
            log.warning("a counter has reached its maximum and stopped; perfquery -R resets it", extra={"file": path})
            self._full.add(path)
        elif path in self._full:
            log.info("a counter that had stopped counts again", extra={"file": path})
            self._full.discard(path)
        return float(text)


def _link(files: Files, folder: str, read_errors: ReadErrors) -> InfinibandLink:
    state = _code(read_text(files, f"{folder}/state", read_errors))
    physical = _code(read_text(files, f"{folder}/phys_state", read_errors))
    up = None if state is None else state == ACTIVE and physical in {LINK_UP, None}
    return InfinibandLink(
        port_up=None if up is None else float(up),
        # The rate that a port shows while it is down is not the speed of the link.
        port_speed_bytes_per_second=_speed(read_text(files, f"{folder}/rate", read_errors)) if up else None,
    )


def _efa_link(files: Files, device: str, port: str, read_errors: ReadErrors) -> InfinibandLink:
    """Return speed and state of an EFA port: the state of its network interface, because its own is always active."""
    netdev = _netdev(files, device, port)
    state = read_text(files, f"{netdev}/operstate", read_errors) if netdev else ""
    up = {"up": 1.0, "down": 0.0, "lowerlayerdown": 0.0}.get(state)
    rate = read_text(files, f"{CLASS}/{device}/ports/{port}/rate", read_errors)
    return InfinibandLink(port_up=up, port_speed_bytes_per_second=None if up == 0 else _speed(rate))


def _netdev(files: Files, device: str, port: str) -> str | None:
    """Return the folder of the port's network interface; None unless exactly one interface has the port's number."""
    folder = f"{CLASS}/{device}/device/net"
    names = list_names(files, folder)
    own = [name for name in names if read_text(files, f"{folder}/{name}/dev_port") == str(int(port) - 1)]
    return f"{folder}/{own[0]}" if len(own) == 1 else None


def _code(text: str) -> int | None:
    """Return the number in a state such as "4: ACTIVE"; None if there is none."""
    number = text.partition(":")[0]
    return int(number) if number.isdecimal() else None


def _speed(text: str) -> float | None:
    """Return the bytes per second of a rate such as "400 Gb/sec (4X NDR)"; None if it has another form."""
    match = re.match(r"(\d+(?:\.\d+)?) Gb/sec", text)
    return float(match[1]) * 1e9 / 8 if match else None


def _natural_sort_key(name: str) -> list[tuple[bool, int, str]]:
    """Return a sort key that orders mlx5_10 after mlx5_9."""
    return [(part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in re.split(r"(\d+)", name)]
