"""The ports that the agent knows, and what it was told of services. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from gpumon.arrival import LinksChild
from gpumon.counters import Counts, advance, raw_values, totals
from gpumon.moment import Moment
from gpumon.snapshot.infiniband import InfinibandLink, InfinibandPort
from gpumon.snapshot.node import UNITS
from gpumon.snapshot.reading import SLOW, rows
from gpumon.snapshot.snapshot import LinksSeen, SeenPort

STALE_SECONDS = 3 * SLOW.value
"""Age from which what the links child said last is no longer true."""
MOST_KNOWN = 256
"""Ports whose counters are remembered, so that they go on when a port is back."""
INFINIBAND, _, PROCESSES = COLLECTORS = ("infiniband", "services", "processes")
"""As the links child names what it collects."""
SERIES_A_PORT = len(rows(InfinibandLink)) + len(rows(InfinibandPort))
"""At least."""


class GonePort(NamedTuple):
    """A port that was there."""

    port: SeenPort
    """Without readings."""
    wall: float
    """Since when it is gone, in seconds since the epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownLinks:
    """What the links child said last, with the memory that counters need."""

    child: LinksChild = LinksChild()
    seen: LinksSeen | None = None
    seen_at: float = 0.0
    """When that arrived, on the clock of Moment.lived."""
    counts: Mapping[tuple[str, str], Counts] = field(default_factory=dict)
    """By device and port, those seen last at the end."""
    ports: tuple[SeenPort, ...] = ()
    """As they are exported."""
    gone: tuple[GonePort, ...] = ()
    """Those that were there, while the others could be read."""
    ended: Mapping[str, float] = field(default_factory=dict)
    """How often each unit was seen to have ended."""
    left_out: int = 0
    """Most ports that were too many at once."""


def see(known: KnownLinks, seen: LinksSeen, now: Moment) -> KnownLinks:
    """Take a look of the child: counters go on from where they were."""
    before = {(port.device, port.port): port for port in known.ports}
    counts = dict(known.counts)
    ports = []
    for port in seen.ports:
        place = (port.device, port.port)
        counts[place] = advance(counts.pop(place, {}), raw_values(port.counts), {})
        shown = replace(port, counts=replace(port.counts, **totals(port.counts, counts[place], {})))
        ports.append(_same(before.get(place), shown))
    kept = dict(list(counts.items())[-MOST_KNOWN:])
    return replace(
        known,
        seen=seen,
        seen_at=now.lived,
        counts=kept,
        ports=tuple(ports),
        gone=_gone(known, seen, now),
        ended={**known.ended} | {unit: known.ended.get(unit, 0.0) + 1 for unit in seen.ended},
        left_out=max(known.left_out, seen.left_out),
    )


def _gone(known: KnownLinks, seen: LinksSeen, now: Moment) -> tuple[GonePort, ...]:
    """Where the list of devices, or of a device's ports, could not be read, nobody can tell."""
    here = {(port.device, port.port) for port in seen.ports}
    still = tuple(one for one in known.gone if (one.port.device, one.port.port) not in here)
    if INFINIBAND in seen.errors or seen.left_out or known.child.aside or known.child.trouble:
        return still
    missing = (port for port in known.ports if (port.device, port.port) not in here)
    bare = (replace(port, link=InfinibandLink(), counts=InfinibandPort()) for port in missing)
    return (*still, *(GonePort(port, now.wall) for port in bare))[-MOST_KNOWN:]


def _same(before: SeenPort | None, after: SeenPort) -> SeenPort:
    """With the parts that have not changed as the objects they were: the page keeps their lines."""
    if before is None or before == after:
        return before or after
    return replace(
        after,
        link=before.link if before.link == after.link else after.link,
        counts=before.counts if before.counts == after.counts else after.counts,
    )


def current(known: KnownLinks, now: Moment) -> LinksSeen | None:
    """What is true now; None when nothing was heard for too long."""
    return known.seen if known.seen is not None and now.lived - known.seen_at <= STALE_SECONDS else None


def services(seen: LinksSeen | None) -> dict[str, float | None]:
    """By row of Node."""
    running = {} if seen is None else seen.services
    return {row: float(running[unit]) if unit in running else None for row, unit in UNITS.items()}


def stops(known: KnownLinks) -> dict[str, float] | None:
    """How often each service that is installed was seen to have ended, by its name in the rows of Node."""
    if known.seen is None:
        return None
    rows_of = {unit: row.removesuffix("_up") for row, unit in UNITS.items()}
    counted = {rows_of[unit]: known.ended.get(unit, 0.0) for unit in {**known.seen.services, **known.ended}}
    return counted or None


def notice(known: KnownLinks, now: Moment) -> str | None:
    """What cannot be seen of the links, in words."""
    return "; ".join(_troubles(known, now)) or None


def _troubles(known: KnownLinks, now: Moment) -> Iterator[str]:
    for subject, aside in known.child.aside.items():
        yield f"{subject} is left aside: {aside.detail}"
    if known.child.trouble:
        yield known.child.trouble
    seen = current(known, now)
    if seen is not None:
        yield from (f"{collector}: {words}" for collector, words in seen.errors.items())
    elif known.seen is not None:
        yield f"nothing was read for more than {STALE_SECONDS:g} s"
