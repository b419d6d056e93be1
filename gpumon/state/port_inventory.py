"""The ports that the agent knows, and what it was told of services. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from gpumon.model.infiniband import InfinibandLink, InfinibandPort
from gpumon.model.node import UNITS
from gpumon.model.now import Now
from gpumon.model.port_record import PortRecord
from gpumon.model.reading import SLOW, rows
from gpumon.model.snapshot import LinksSnapshot, PortReading
from gpumon.state import port_identity
from gpumon.state.counters import Counts, advance, raw_values, totals
from gpumon.state.messages import LinksStatus

STALE_SECONDS = 3 * SLOW.value
"""Age from which what the links child said last is no longer true."""
MOST_KNOWN = port_identity.MOST_KNOWN
"""Ports whose counters are remembered, so that they go on when a port is back."""
INFINIBAND, _, PROCESSES, _ = COLLECTORS = ("infiniband", "services", "processes", "schedulers")
"""As the links child names what it collects."""
SERIES_A_PORT = len(rows(InfinibandLink)) + len(rows(InfinibandPort))
"""At least."""


class MissingPort(NamedTuple):
    """A port that has been up and is not there."""

    port: PortReading
    """Without readings."""
    wall: float
    """Since when it is gone, in seconds since the epoch; of one that nobody has seen since the agent's start, when it
    was there last."""
    identity: str = ""
    since: float = 0.0
    """When it was missed first, on the clock of Now.uptime."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PortInventory:
    """What the links child said last, with the memory that counters need."""

    child: LinksStatus = LinksStatus()
    seen: LinksSnapshot | None = None
    seen_at: float = 0.0
    """When that arrived, on the clock of Now.uptime."""
    counts: Mapping[tuple[str, str], Counts] = field(default_factory=dict)
    """By device and port, those seen last at the end."""
    ports: tuple[PortReading, ...] = ()
    """As they are exported."""
    records: port_identity.Known = field(default_factory=dict)
    """Every port that was ever here."""
    here: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """By device and port, which of those it is."""
    gone: tuple[MissingPort, ...] = ()
    """Those of them that should be here and are not, while the others can be read."""
    ended: Mapping[str, float] = field(default_factory=dict)
    """How often each unit was seen to have ended."""
    left_out: int = 0
    """Most ports that were too many at once."""


def see(known: PortInventory, seen: LinksSnapshot, now: Now) -> PortInventory:
    """Take a look of the child: counters go on from where they were."""
    before = {(port.device, port.port): port for port in known.ports}
    counts = dict(known.counts)
    ports = []
    for port in seen.ports:
        place = (port.device, port.port)
        counts[place] = advance(counts.pop(place, {}), raw_values(port.counts), {}, now.uptime)
        shown = replace(port, counts=replace(port.counts, **totals(port.counts, counts[place], {})))
        ports.append(_same(before.get(place), shown))
    kept = dict(list(counts.items())[-MOST_KNOWN:])
    named = port_identity.identities(seen.ports, known.records)
    known = replace(
        known,
        seen=seen,
        seen_at=now.uptime,
        counts=kept,
        ports=tuple(ports),
        records=port_identity.met(known.records, seen.ports, named, now.wall),
        here=named,
        gone=_still_gone(known.gone, named.values()),
        ended={**known.ended} | {unit: known.ended.get(unit, 0.0) + 1 for unit in seen.ended},
        left_out=max(known.left_out, seen.left_out),
    )
    return _missing(known, before.keys(), now) if _all_listed(known) else known


def _all_listed(known: PortInventory) -> bool:
    """Where the list of devices, or of a device's ports, could not be read, nobody can tell what is not there."""
    seen, child = known.seen, known.child
    return seen is not None and not (INFINIBAND in seen.errors or seen.left_out or child.aside or child.trouble)


def listed(known: PortInventory, now: Now) -> bool:
    """What is not there now is not there."""
    return current(known, now) is not None and _all_listed(known)


def _still_gone(gone: Iterable[MissingPort], here: Collection[str]) -> tuple[MissingPort, ...]:
    return tuple(one for one in gone if one.identity not in here)


def _missing(known: PortInventory, before: Collection[tuple[str, str]], now: Now) -> PortInventory:
    """With those that should be here and are not. `before`: the ports that were here at the last look."""
    here, was = known.here.values(), {one.identity: one for one in known.gone}
    settled = [one.identity for one in known.gone if now.uptime - one.since >= port_identity.SETTLING_SECONDS]
    records = port_identity.replaced(known.records, here, settled)
    missed = port_identity.missed(records, here)
    called = port_identity.names(missed, {device for device, _ in known.here})
    gone = []
    for one in missed:
        if one.identity in called:
            wall = now.wall if (one.device, one.port) in before else one.last_wall
            bare = _bare(one, called[one.identity])
            begun = was.get(one.identity) or MissingPort(bare, wall, one.identity, now.uptime)
            gone.append(begun._replace(port=bare))
    return replace(known, records=records, gone=tuple(gone))


def _bare(one: PortRecord, name: str) -> PortReading:
    """It has no readings."""
    return PortReading(
        device=name,
        port=one.port,
        link_layer=one.link_layer,
        link=InfinibandLink(),
        counts=InfinibandPort(),
        bus_id=one.bus_id,
        board=one.board,
        guid=one.guid,
        firmware=one.firmware,
    )


def recalled(known: PortInventory, stored: Iterable[PortRecord]) -> PortInventory:
    """With what the store knew of ports; those that are not there are missed from the next look on."""
    return replace(known, records=port_identity.recalled(known.records, stored))


def accepted(known: PortInventory, down: Collection[str], slow: Mapping[str, float]) -> PortInventory:
    """A person has accepted that these ports are down or gone, and that those are slower than they were."""
    records = port_identity.slower(port_identity.expected_no_more(known.records, down), slow)
    return replace(known, records=records, gone=_still_gone(known.gone, down))


def by_name(known: PortInventory) -> dict[str, PortRecord]:
    """What is remembered of the ports that are here, and of those that are missed, as verdicts name them."""
    here = {f"{device}/{port}": identity for (device, port), identity in known.here.items()}
    gone = {f"{one.port.device}/{one.port.port}": one.identity for one in known.gone}
    return {name: known.records[identity] for name, identity in {**gone, **here}.items() if identity in known.records}


def left(known: PortInventory) -> set[str]:
    """Names of the ports that were here and are expected no more."""
    here = set(known.here.values())
    gone = [one for one in known.records.values() if one.expected is False and one.identity not in here]
    names = {f"{name}/{one.port}" for one in gone for name in (one.device, one.bus_id) if name}
    return names - by_name(known).keys()


def _same(before: PortReading | None, after: PortReading) -> PortReading:
    """With the parts that have not changed as the objects they were: the page keeps their lines."""
    if before is None or before == after:
        return before or after
    return replace(
        after,
        link=before.link if before.link == after.link else after.link,
        counts=before.counts if before.counts == after.counts else after.counts,
    )


def current(known: PortInventory, now: Now) -> LinksSnapshot | None:
    """What is true now; None when nothing was heard for too long."""
    return known.seen if known.seen is not None and now.uptime - known.seen_at <= STALE_SECONDS else None


def services(seen: LinksSnapshot | None) -> dict[str, float | None]:
    """By row of Node."""
    running = {} if seen is None else seen.services
    return {row: float(running[unit]) if unit in running else None for row, unit in UNITS.items()}


def stops(known: PortInventory) -> dict[str, float] | None:
    """How often each service that is installed was seen to have ended, by its name in the rows of Node."""
    if known.seen is None:
        return None
    rows_of = {unit: row.removesuffix("_up") for row, unit in UNITS.items()}
    counted = {rows_of[unit]: known.ended.get(unit, 0.0) for unit in {**known.seen.services, **known.ended}}
    return counted or None


def notice(known: PortInventory, now: Now) -> str | None:
    """What cannot be seen of the links, in words."""
    return "; ".join(_troubles(known, now)) or None


def _troubles(known: PortInventory, now: Now) -> Iterator[str]:
    for subject, aside in known.child.aside.items():
        yield f"{subject} is left aside: {aside.detail}"
    if known.child.trouble:
        yield known.child.trouble
    seen = current(known, now)
    if seen is not None:
        yield from (f"{collector}: {words}" for collector, words in seen.errors.items())
    elif known.seen is not None:
        yield f"nothing was read for more than {STALE_SECONDS:g} s"
