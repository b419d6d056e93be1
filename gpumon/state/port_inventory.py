"""Inventory of InfiniBand and RoCE ports: which are present, and which are expected after restarts. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from gpumon.model.infiniband import FABRIC, InfinibandLink, InfinibandPort, Placement, PortPatterns, matches
from gpumon.model.instant import Now
from gpumon.model.reading import rows
from gpumon.model.records import Counts, PortRecord
from gpumon.model.snapshot import PortReading, PortReadings
from gpumon.state.counters import advance, raw_values, totals
from gpumon.state.port_roles import with_roles

MAX_RECORDS = 256
"""Maximum number of stored ports. A limit is needed because virtual functions appear under ever new names."""
SETTLING_SECONDS = 30.0
"""Seconds for which a port must be missing before another port may replace it. The delay is needed because a driver
starts cards one after another.
"""
MIN_SERIES_PER_PORT = len(rows(InfinibandLink)) + len(rows(InfinibandPort)) + 1
"""Minimum number of series that a port exports: those of its two metric tables, and one info series."""

Place = tuple[str, str]
"""Current device name and port number of a port."""
Records = Mapping[str, PortRecord]


class MissingPort(NamedTuple):
    """A port that is expected but not present."""

    port: PortReading
    """Names and identity of the port, without readings."""
    wall: float
    """Unix time since which the port is missing, or at which an earlier run of the agent last read it."""
    identity: str = ""
    since: float = 0.0
    """Time at which the port was first missing, as Now.uptime."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PortInventory:
    """The ports that are present, the ports that are expected, and the state of their counters."""

    ports: tuple[PortReading, ...] = ()
    """PortReadings that are present, with counters as exported."""
    counters: Mapping[Place, Counts] = field(default_factory=dict)
    """Counters by port, sorted by the time of the port's last reading, the oldest first."""
    records: Records = field(default_factory=dict)
    """Every port that was present at some time, up to MAX_RECORDS, by identity."""
    here: Mapping[Place, str] = field(default_factory=dict)
    missing: tuple[MissingPort, ...] = ()
    left_out: int = 0
    """Highest number of ports at one time that were not read because of the limit."""


NO_PATTERNS = PortPatterns()


def read(
    inventory: PortInventory,
    read_ports: PortReadings,
    now: Now,
    *,
    complete: bool,
    patterns: PortPatterns = NO_PATTERNS,
) -> PortInventory:
    """Return the inventory after a reading of the ports. `complete`: a port that it does not list is missing."""
    before = {(port.device, port.port): port for port in inventory.ports}
    counters = dict(inventory.counters)
    current = _with_roles(inventory, read_ports.ports, patterns)
    ports = []
    for port in current:
        place = (port.device, port.port)
        raws = raw_values(port.counts)
        counters[place] = advance(counters.pop(place, {}), raws, {}, now.uptime, InfinibandPort)
        exported = replace(port, counts=replace(port.counts, **totals(port.counts, counters[place], {})))
        ports.append(_reuse(before.get(place), exported))
    here = _identities(current, inventory.records)
    inventory = replace(
        inventory,
        ports=tuple(ports),
        counters=dict(list(counters.items())[-MAX_RECORDS:]),
        records=_update_records(inventory.records, current, here, patterns.exclude, now.wall),
        here=here,
        missing=_without(inventory.missing, here.values()),
        left_out=max(inventory.left_out, read_ports.left_out),
    )
    return _find_missing(inventory, before, now) if complete else inventory


def _with_roles(
    inventory: PortInventory, ports: Sequence[PortReading], patterns: PortPatterns
) -> tuple[PortReading, ...]:
    """Return the ports with `role` and `role_reason` set, from the higher of each port's recorded and current speed.

    Clear `restricted` for ports that are expected: an adapter that fails looks restricted too.
    """
    names = _identities(ports, inventory.records)
    rated = []
    for port in ports:
        record = inventory.records.get(names[port.device, port.port])
        restricted = port.restricted and not (record is not None and record.expected)
        speed = _faster_speed(record.speed if record else None, port.link.port_speed_bytes_per_second)
        rated.append((replace(port, restricted=restricted), speed))
    return with_roles(rated, patterns.fabric)


def restore(inventory: PortInventory, stored: Iterable[PortRecord]) -> PortInventory:
    """Return the inventory with the stored ports. Absent ones become missing at the next complete reading."""
    records = {row.identity: row for row in stored}
    for identity, record in inventory.records.items():
        before = records.get(identity, record)
        records[identity] = replace(
            record,
            first_wall=min(record.first_wall, before.first_wall),
            first_up=record.first_up if before.first_up is None else before.first_up,
            last_up=before.last_up if record.last_up is None else record.last_up,
            speed=_faster_speed(before.speed, record.speed),
            expected=before.expected if record.expected is None else record.expected,
        )
    return replace(inventory, records=_limit(records))


def accept(inventory: PortInventory, down: Collection[str], slow: Mapping[str, float]) -> PortInventory:
    """Return the inventory after the ports `down` and the speeds `slow` in bytes/s, by identity, were accepted."""
    records = dict(inventory.records)
    for identity in records.keys() & set(down):
        records[identity] = replace(records[identity], expected=False)
    for identity in records.keys() & slow.keys():
        records[identity] = replace(records[identity], speed=slow[identity])
    return replace(inventory, records=records, missing=_without(inventory.missing, down))


def by_name(inventory: PortInventory) -> dict[str, PortRecord]:
    """Return the records of ports that are present or missing, by the name that verdicts use: "device/port"."""
    here = {f"{device}/{port}": identity for (device, port), identity in inventory.here.items()}
    missing = {f"{gone.port.device}/{gone.port.port}": gone.identity for gone in inventory.missing}
    records = inventory.records
    return {name: records[identity] for name, identity in {**missing, **here}.items() if identity in records}


def removed_ports(inventory: PortInventory) -> set[str]:
    """Return the names ("device/port" and "bus id/port") of absent ports that are no longer expected.

    A name that a present or missing port has (`by_name`) is left out.
    """
    here = set(inventory.here.values())
    gone = [record for record in inventory.records.values() if record.expected is False and record.identity not in here]
    names = {f"{name}/{record.port}" for record in gone for name in (record.device, record.bus_id) if name}
    return names - by_name(inventory).keys()


def _reuse(before: PortReading | None, after: PortReading) -> PortReading:
    """Return `before` if equal to `after`; else `after`, with `link` and `counts` from `before` if these are equal."""
    if before is None or before == after:
        return before or after
    return replace(
        after,
        link=before.link if before.link == after.link else after.link,
        counts=before.counts if before.counts == after.counts else after.counts,
    )


# Identity of ports


def _identities(ports: Sequence[PortReading], records: Records) -> dict[Place, str]:
    """Return the identity of each port by device name and port number: GUID of its card, else PCI address, else name.

    If several ports have the same GUID and port number, the PCI address is added. A port without a GUID gets the
    identity of an existing record with its PCI address and port number, if there is one.
    """
    counted = Counter((port.guid, port.port) for port in ports)
    return {
        (port.device, port.port): _identity(port, records, unique=counted[port.guid, port.port] == 1) for port in ports
    }


def _identity(port: PortReading, records: Records, *, unique: bool) -> str:
    if port.guid:
        return f"{port.guid}/{port.port}" if unique else f"{port.guid}@{port.bus_id}/{port.port}"
    address = f"{port.bus_id or port.device}/{port.port}"
    place = (port.bus_id, port.port)
    there = (name for name, record in records.items() if port.bus_id and (record.bus_id, record.port) == place)
    return address if address in records else next(there, address)


def _update_records(
    records: Records, ports: Iterable[PortReading], named: Mapping[Place, str], exclude: Collection[str], wall: float
) -> Records:
    """Return the records after a reading of these ports. Ports that match `exclude` are not expected."""
    after = dict(records)
    for port in ports:
        identity = named[port.device, port.port]
        record = records.get(identity) or PortRecord(
            identity=identity,
            device=port.device,
            port=port.port,
            bus_id=port.bus_id,
            guid=port.guid,
            link_layer=port.link_layer,
            board=port.board,
            firmware=port.firmware,
            first_wall=wall,
            last_wall=wall,
        )
        after[identity] = _update_record(record, port, wall)
    after = _limit(after)
    for identity, record in after.items():
        if record.expected and matches(exclude, record.device, record.bus_id, record.board):
            after[identity] = replace(record, expected=False)
    return after


def _update_record(record: PortRecord, port: PortReading, wall: float) -> PortRecord:
    returned = record.expected is False and wall - record.last_wall > SETTLING_SECONDS
    after = replace(
        record,
        first_wall=wall if returned else record.first_wall,
        device=port.device,
        bus_id=port.bus_id,
        guid=port.guid or record.guid,
        link_layer=port.link_layer,
        board=port.board or record.board,
        firmware=port.firmware or record.firmware,
        last_wall=wall,
        role=port.role,
    )
    if port.restricted:
        return after
    if not port.link.port_up:
        return replace(after, expected=True) if port.used and record.expected is None else after
    first, before = record.first_up, None if record.expected is False else record.speed
    speed = _faster_speed(before, port.link.port_speed_bytes_per_second)
    return replace(after, first_up=wall if first is None else first, last_up=wall, speed=speed, expected=True)


def _faster_speed(speed: float | None, other: float | None) -> float | None:
    return max((value for value in (speed, other) if value), default=None)


def _limit(records: dict[str, PortRecord]) -> dict[str, PortRecord]:
    """Return at most MAX_RECORDS records. Drop unexpected ports first, then the ports with the oldest last reading."""
    if len(records) <= MAX_RECORDS:
        return records
    order = sorted(records.values(), key=lambda record: (bool(record.expected), record.last_wall))
    return {record.identity: record for record in order[-MAX_RECORDS:]}


# Missing ports and their replacement


def _without(missing: Iterable[MissingPort], identities: Collection[str]) -> tuple[MissingPort, ...]:
    return tuple(port for port in missing if port.identity not in identities)


def _find_missing(inventory: PortInventory, before: Mapping[Place, PortReading], now: Now) -> PortInventory:
    """Return the inventory with `missing` and replaced ports updated. `before`: the ports of the previous snapshot."""
    here = inventory.here.values()
    already_missing = {port.identity: port for port in inventory.missing}
    long_missing = [port.identity for port in inventory.missing if now.uptime - port.since >= SETTLING_SECONDS]
    records = _replace_missing(inventory.records, here, long_missing)
    absent = _absent_ports(records, here)
    names = _names(absent, {device for device, _ in inventory.here})
    missing = []
    for record in absent:
        if record.identity in names:
            wall = now.wall if (record.device, record.port) in before else record.last_wall
            gone = already_missing.get(record.identity)
            last = before.get((record.device, record.port)) if gone is None else gone.port
            port = _without_readings(record, names[record.identity], last)
            gone = gone or MissingPort(port, wall, record.identity, now.uptime)
            missing.append(gone._replace(port=port))
    return replace(inventory, records=records, missing=tuple(missing))


def _without_readings(record: PortRecord, name: str, last: PortReading | None) -> PortReading:
    return PortReading(
        device=name,
        port=record.port,
        link_layer=record.link_layer,
        link=InfinibandLink(),
        counts=InfinibandPort(),
        bus_id=record.bus_id,
        board=record.board,
        guid=record.guid,
        firmware=record.firmware,
        placement=Placement() if last is None else last.placement,
        role=record.role or FABRIC,
        role_reason="" if last is None else last.role_reason,
    )


def _absent_ports(records: Records, here: Collection[str]) -> list[PortRecord]:
    gone = (record for identity, record in records.items() if record.expected and identity not in here)
    return sorted(gone, key=lambda record: (-record.last_wall, record.identity))


def _replace_missing(records: Records, here: Collection[str], long_missing: Collection[str]) -> Records:
    """Return the records, with missing ports that other ports replace marked as no longer expected.

    A port of `long_missing` is replaced if a newer port of its link layer is at the same address, or if at least as
    many newer ports are in use as ports are missing. `here`: identities of the present ports.
    """
    if not long_missing:
        return records
    after = dict(records)
    heirs = set[str]()
    for old in [record for record in _absent_ports(records, here) if record.identity in long_missing]:
        newer = _newer_ports(after, here, old) if old.bus_id else ()
        heir = next((new for new in newer if (new.bus_id, new.port) == (old.bus_id, old.port)), None)
        if heir is not None:
            heirs.add(heir.identity)
            after[heir.identity] = replace(heir, expected=True)
            after[old.identity] = replace(old, expected=False)
    left = [record for record in _absent_ports(after, here) if record.identity in long_missing]
    for layer in {record.link_layer for record in left}:
        olds = [record for record in left if record.link_layer == layer]
        news = {new.identity for old in olds for new in _newer_ports(after, here, old) if new.expected} - heirs
        if len(news) >= len(olds):
            after |= {old.identity: replace(old, expected=False) for old in olds}
    return after


def _newer_ports(records: Records, here: Collection[str], old: PortRecord) -> Iterator[PortRecord]:
    for identity in here:
        record = records.get(identity)
        if record is not None and record.first_wall > old.last_wall and record.link_layer == old.link_layer:
            yield record


def _names(absent: Sequence[PortRecord], used_devices: Collection[str]) -> dict[str, str]:
    """Return a device name for each absent port, by identity: its last name if still free, else its address or GUID."""
    names: dict[str, str] = {}
    used = {(device, "") for device in used_devices}
    for record in absent:
        candidates = (record.device, record.bus_id, record.identity.rpartition("/")[0])
        name = next((name for name in candidates if name and not {(name, ""), (name, record.port)} & used), None)
        if name is not None:  # else the port has no unique name and is left out
            used.add((name, record.port))
            names[record.identity] = name
    return names
