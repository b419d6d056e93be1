"""One GPU as the agent knows it: what each reading makes of it, and what is exported of it. Identity never vanishes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gpumon.health.products import Expects, Neighbours, expected, expects
from gpumon.model.fabric import Platform
from gpumon.model.gpu import FAULTS, Gpu
from gpumon.model.now import Now
from gpumon.model.nvlink import Nvlink, NvlinkPeer
from gpumon.model.reading import rows
from gpumon.model.snapshot import GpuReading
from gpumon.model.stored_gpu import StoredGpu
from gpumon.state.counters import RESET_SHARE, Count, Counts, advance, began_anew, begun, gained, raw_values, totals
from gpumon.state.gpu_idle import idle_since, traffic, without_own

AWAY_SECONDS = 10.0
"""After so long without a reading a GPU may have been reset in between."""
_VOLATILE = frozenset({"ecc_errors_total", "pcie_replays_total"})
"""What the driver counts from the moment at which it took the GPU up."""
_IDENTITY = tuple(name for name, row in rows(Gpu).items() if row.identity)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRecord:
    """One GPU, with the memory that its counters need. `seen` is its last reading."""

    bus_id: str
    uuid: str
    index: int
    nvml_index: int | None = None
    """What the driver last called it; None while the driver does not list it, or nobody can tell."""
    identity: Mapping[str, str] = field(default_factory=dict)
    fault: str | None = None
    detail: str = ""
    since: float | None = None
    """Wall time at which the fault was found."""
    seen: GpuReading | None = None
    seen_at: float | None = None
    """When it was last read, on the clock of Now.uptime."""
    observed: float = 0.0
    counts: Counts = field(default_factory=dict)
    link_counts: Mapping[str, Counts] = field(default_factory=dict)
    links: Mapping[str, Nvlink] = field(default_factory=dict)
    """As they are exported: the same objects until one of them is read anew and differs."""
    expects: Expects = Expects.UNKNOWN
    """Which of its links should be up."""
    away: frozenset[str] = frozenset()
    """Links that lead to a GPU that a virtual machine has."""
    been_up: frozenset[str] = frozenset()
    """Links that have been up since the agent's start."""
    peers: Mapping[str, NvlinkPeer] = field(default_factory=dict)
    peer_access: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    platform: Platform | None = None
    """Identity: these stay, whatever becomes of the GPU."""
    begun_at: float | None = None
    """Boot clock at which its counters were last seen to have begun anew."""
    recalled: bool = False
    """It has not told its name in this life of the agent: it is that of the board that was last seen here."""
    numbered: bool = False
    """Its index is that of this boot, and no guess."""
    traffic: float | None = None
    """Over NVLink and PCIe, both ways, in bytes a second."""
    idle_since: float | None = None
    """Boot clock since when nobody has been seen to use it, the agent's own probe aside; None while somebody does."""
    absent: bool = False
    """Nobody has seen anything of it since the agent's start, or in the last whole poll."""
    board: StoredGpu | None = None
    """What the store is to know of it; None until it has told its name."""


def fail(gpu: GpuRecord, fault: str, detail: str, wall: float) -> GpuRecord:
    """The GPU with this fault; since when, if it is the same as before."""
    since = gpu.since if gpu.fault == fault else wall
    missing = fault == "missing"
    index = None if missing else gpu.nvml_index
    return replace(gpu, fault=fault, detail=detail, since=since, absent=missing, nvml_index=index)


def read(
    gpu: GpuRecord, seen: GpuReading, around: Neighbours, now: Now, boot_id: str, *, own: bool = False
) -> GpuRecord:
    """The GPU after a poll of it; while the agent was away, it may have been reset. `own`: the probe loads it."""
    told = seen.gpu
    if told is None:
        return fail(gpu, seen.fault or "unknown", seen.error, now.wall)
    after = _used(gpu, _answered(gpu, without_own(seen) if own else seen, told, around, now), seen, now, own=own)
    board = _board(after, gpu.board, told, now, boot_id)
    return replace(after, board=board, begun_at=now.at if _was_reset(gpu, told, boot_id) else after.begun_at)


def _answered(gpu: GpuRecord, seen: GpuReading, told: Gpu, around: Neighbours, now: Now) -> GpuRecord:
    what = expects(told.name, told.nvlinks, mig=bool(told.mig_mode), guest=bool(seen.guest), around=around)
    away = frozenset(link for link, one in (seen.peers or gpu.peers).items() if one.peer in around.given_away)
    if gpu.seen is None or gpu.seen.links != seen.links or (gpu.expects, gpu.away) != (what, away):
        gpu = _read_links(replace(gpu, expects=what, away=away), seen.links, now)
    counts = advance(gpu.counts, raw_values(told), gained(seen.increments), now.uptime)
    identity = {name: value for name in _IDENTITY if (value := getattr(told, name)) is not None}
    anew = _began_anew(gpu, counts, told, now)
    return replace(
        gpu,
        identity={**gpu.identity, **identity},
        fault=None,
        detail="",
        since=None,
        absent=False,
        seen=seen,
        seen_at=now.uptime,
        observed=gpu.observed + seen.watched,
        counts=begun(counts) if anew else counts,
        link_counts={link: begun(one) for link, one in gpu.link_counts.items()} if anew else gpu.link_counts,
        begun_at=now.at if anew else gpu.begun_at,
        peers=gpu.peers if not seen.peers or seen.peers == gpu.peers else seen.peers,
        peer_access=seen.peer_access or gpu.peer_access,
        platform=gpu.platform if seen.platform in {None, gpu.platform} else seen.platform,
    )


def _used(before: GpuRecord, after: GpuRecord, seen: GpuReading, now: Now, *, own: bool) -> GpuRecord:
    """With what is known of who uses it. What the probe does changes nothing."""
    if own or seen.gpu is None:
        return after
    moved = traffic(before.seen, seen)
    unseen = None if before.seen_at is None or before.fault is not None else now.uptime - before.seen_at
    since = idle_since(before.idle_since, seen.gpu, moved, now, unseen=unseen)
    return replace(after, traffic=moved, idle_since=since)


def _board(gpu: GpuRecord, stored: StoredGpu | None, told: Gpu, now: Now, boot_id: str) -> StoredGpu:
    """What the store is to know of it."""
    energy = told.energy_joules_total
    return StoredGpu(
        uuid=gpu.uuid,
        bus_id=gpu.bus_id,
        serial=gpu.identity.get("serial", ""),
        name=gpu.identity.get("name", ""),
        vbios=gpu.identity.get("vbios", ""),
        inforom=gpu.identity.get("inforom", ""),
        gsp=gpu.identity.get("gsp", ""),
        first_wall=now.wall if stored is None else stored.first_wall,
        last_wall=now.wall,
        gpu=gpu.index,
        boot_id=boot_id,
        nvlinks=int(told.nvlinks) if told.nvlinks is not None else stored.nvlinks if stored else None,
        energy=energy if energy is not None else stored.energy if stored else None,
    )


def _was_reset(before: GpuRecord, told: Gpu, boot_id: str) -> bool:
    """Since it was stored, in this boot: seen at its first reading, by the energy that the driver has counted."""
    stored = before.board
    if before.seen is not None or stored is None or stored.boot_id != boot_id:
        return False
    kept_open = told.persistence_mode != 0  # else it begins anew whenever nobody has it open
    return kept_open and began_anew(Count(0.0, stored.energy), Count(0.0, told.energy_joules_total))


def _began_anew(gpu: GpuRecord, counts: Counts, told: Gpu, now: Now) -> bool:
    """Energy is counted from the moment at which the driver took the GPU up, and grows on the idlest GPU.

    Where it is not counted, errors that fell while nobody could read the GPU are the proof.
    """
    was, energy = (one.get("energy_joules_total", {}).get("") for one in (gpu.counts, counts))
    if was is not None and energy is not None:
        return began_anew(was, energy)
    away = gpu.fault is not None or (gpu.seen_at is not None and now.uptime - gpu.seen_at > AWAY_SECONDS)
    return away and any(
        raw < RESET_SHARE * (known.raw or 0.0)
        for name, labelled in raw_values(told).items()
        if name in _VOLATILE
        for label, raw in labelled.items()
        if (known := gpu.counts.get(name, {}).get(label)) is not None
    )


def _read_links(gpu: GpuRecord, links: Mapping[str, Nvlink], now: Now) -> GpuRecord:
    before = gpu.link_counts
    counts = {link: advance(before.get(link, {}), raw_values(one), {}, now.uptime) for link, one in links.items()}
    been_up = gpu.been_up | {link for link, one in links.items() if one.up}
    wanted = set(expected(gpu.expects, links, been_up)) - gpu.away
    shown = {
        link: replace(one, up=one.up if one.up or link in wanted else None, **totals(one, counts[link], {}))
        for link, one in links.items()
    }
    return replace(gpu, link_counts={**gpu.link_counts, **counts}, links=shown, been_up=been_up)


def readings(
    gpu: GpuRecord, xids: Mapping[str, tuple[float, float]], fault: str | None, *, released: bool = False
) -> Gpu:
    """The GPU as it is exported: everything while it answers, what never vanishes while it does not."""
    own: dict[str, Any] = {
        **gpu.identity,
        "up": None if released and fault is None else float(fault is None),
        "released": float(released),
        "fault": {name: float(name == fault) for name in FAULTS},
        "observed_seconds_total": gpu.observed,
        "xid_errors_total": {xid: count for xid, (count, _) in xids.items()},
        "xid_last_timestamp_seconds": {xid: last for xid, (_, last) in xids.items() if last} or None,
    }
    if released or fault is not None or gpu.seen is None or gpu.seen.gpu is None:
        return Gpu(**own)
    up = [link.up for link in gpu.links.values() if link.up is not None]
    own |= totals(gpu.seen.gpu, gpu.counts, gained(gpu.seen.increments))
    return replace(gpu.seen.gpu, nvlinks_active=float(sum(up)) if up else None, **own)
