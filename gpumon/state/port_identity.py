"""Which ports belong here, over restarts and reboots: remembered, called otherwise, replaced, accepted. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from gpumon.model.port_record import PortRecord
from gpumon.model.snapshot import PortReading

MOST_KNOWN = 256
"""Ports that are remembered: virtual functions come and go under new names."""
SETTLING_SECONDS = 30.0
"""How long a port has to be gone before another may take its place: a driver brings up one card after the other."""

Place = tuple[str, str]
"""Device and port, as they are called now."""
Known = Mapping[str, PortRecord]
"""By identity."""


def identities(ports: Sequence[PortReading], known: Known) -> dict[Place, str]:
    """Who each of these is: by the GUID of its card, else by its PCI address, else by its name."""
    alike = Counter((one.guid, one.port) for one in ports)
    return {(one.device, one.port): _identity(one, known, alone=alike[one.guid, one.port] == 1) for one in ports}


def _identity(one: PortReading, known: Known, *, alone: bool) -> str:
    if one.guid:
        return f"{one.guid}/{one.port}" if alone else f"{one.guid}@{one.bus_id}/{one.port}"
    by_address = f"{one.bus_id or one.device}/{one.port}"
    there = (name for name, port in known.items() if one.bus_id and (port.bus_id, port.port) == (one.bus_id, one.port))
    return by_address if by_address in known else next(there, by_address)


def met(known: Known, ports: Iterable[PortReading], named: Mapping[Place, str], wall: float) -> Known:
    """With what is seen of these now."""
    after = dict(known)
    for one in ports:
        identity = named[one.device, one.port]
        after[identity] = _met(known.get(identity) or _stranger(identity, one, wall), one, wall)
    return _bounded(after)


def _stranger(identity: str, one: PortReading, wall: float) -> PortRecord:
    """Seen for the first time."""
    return PortRecord(
        identity=identity,
        device=one.device,
        port=one.port,
        bus_id=one.bus_id,
        guid=one.guid,
        link_layer=one.link_layer,
        board=one.board,
        firmware=one.firmware,
        first_wall=wall,
        last_wall=wall,
    )


def _met(known: PortRecord, one: PortReading, wall: float) -> PortRecord:
    returned = known.expected is False and wall - known.last_wall > SETTLING_SECONDS
    met = replace(
        known,
        first_wall=wall if returned else known.first_wall,
        device=one.device,
        bus_id=one.bus_id,
        guid=one.guid or known.guid,
        link_layer=one.link_layer,
        board=one.board or known.board,
        firmware=one.firmware or known.firmware,
        last_wall=wall,
    )
    if not one.link.port_up:
        return replace(met, expected=True) if one.used and known.expected is None else met
    first, before = known.first_up, None if known.expected is False else known.speed
    speed = _faster(before, one.link.port_speed_bytes_per_second)
    return replace(met, first_up=wall if first is None else first, last_up=wall, speed=speed, expected=True)


def _faster(one: float | None, other: float | None) -> float | None:
    return max((speed for speed in (one, other) if speed), default=None)


def _bounded(known: dict[str, PortRecord]) -> Known:
    """Those that are expected go last, and those seen last."""
    if len(known) <= MOST_KNOWN:
        return known
    order = sorted(known.values(), key=lambda one: (bool(one.expected), one.last_wall))
    return {one.identity: one for one in order[-MOST_KNOWN:]}


def recalled(known: Known, stored: Iterable[PortRecord]) -> Known:
    """With what the store knew; what was seen since the start is newer, but not since when."""
    before = {one.identity: one for one in stored}
    return _bounded({**before, **{name: _since(one, before.get(name)) for name, one in known.items()}})


def _since(one: PortRecord, before: PortRecord | None) -> PortRecord:
    if before is None:
        return one
    return replace(
        one,
        first_wall=min(one.first_wall, before.first_wall),
        first_up=one.first_up if before.first_up is None else before.first_up,
        last_up=before.last_up if one.last_up is None else one.last_up,
        speed=_faster(before.speed, one.speed),
        expected=before.expected if one.expected is None else one.expected,
    )


def missed(known: Known, here: Collection[str]) -> list[PortRecord]:
    """Should be up, and are not there; the one that was seen last comes first."""
    gone = (one for name, one in known.items() if one.expected and name not in here)
    return sorted(gone, key=lambda one: (-one.last_wall, one.identity))


def replaced(known: Known, here: Collection[str], gone: Collection[str]) -> Known:
    """Without those that others stand in for: at the same address, or as many as are gone of a kind.

    `gone`: those that have been for a while. Only who came after one was seen last stands in for it; at its address
    that is expected to be up as well.
    """
    after = dict(known)
    heirs = set[str]()
    for old in [one for one in missed(known, here) if one.identity in gone]:
        heir = next((one for one in _newer(after, here, old) if _same_place(one, old)), None)
        if heir is not None:
            heirs.add(heir.identity)
            after[heir.identity] = replace(heir, expected=True)
            after[old.identity] = replace(old, expected=False)
    left = [one for one in missed(after, here) if one.identity in gone]
    for layer in {one.link_layer for one in left}:
        olds = [one for one in left if one.link_layer == layer]
        news = {one.identity for old in olds for one in _newer(after, here, old) if one.expected} - heirs
        if len(news) >= len(olds):
            after |= {one.identity: replace(one, expected=False) for one in olds}
    return after


def _newer(known: Known, here: Collection[str], old: PortRecord) -> Iterator[PortRecord]:
    """Ports of the same kind of network that are here, and came after the old one was seen last."""
    for name in here:
        one = known.get(name)
        if one is not None and one.first_wall > old.last_wall and one.link_layer == old.link_layer:
            yield one


def _same_place(one: PortRecord, other: PortRecord) -> bool:
    return bool(one.bus_id) and (one.bus_id, one.port) == (other.bus_id, other.port)


def expected_no_more(known: Known, down: Iterable[str]) -> Known:
    """A person has accepted that these are down or gone."""
    return {**known, **{name: replace(known[name], expected=False) for name in down if name in known}}


def slower(known: Known, speeds: Mapping[str, float]) -> Known:
    """A person has accepted that these run at these speeds."""
    return {**known, **{name: replace(known[name], speed=speed) for name, speed in speeds.items() if name in known}}


def names(ports: Sequence[PortRecord], taken: Collection[str]) -> dict[str, str]:
    """What to call the devices of ports that are gone, by identity: as before, unless another is called so now."""
    found: dict[str, str] = {}
    used = {(device, "") for device in taken}
    for one in ports:
        wanted = (one.device, one.bus_id, one.identity.rpartition("/")[0])
        name = next((name for name in wanted if name and not {(name, ""), (name, one.port)} & used), None)
        if name is not None:  # else it has none but that of a device that is here
            used.add((name, one.port))
            found[one.identity] = name
    return found
