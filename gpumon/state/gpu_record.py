"""Record of one GPU: updates the record after each reading, and builds the metric table to export. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from gpumon.health.products import Neighbours, expected_links, link_expectation
from gpumon.model.counter import Count, Counts
from gpumon.model.gpu import FAULTS, Gpu
from gpumon.model.gpu_state import GpuState
from gpumon.model.instant import Now
from gpumon.model.nvlink import ExpectedLinks, Nvlink
from gpumon.model.reading import rows
from gpumon.model.records import StoredGpu
from gpumon.model.snapshot import GpuReading
from gpumon.state.counters import (
    RESET_SHARE,
    advance,
    confirm_reset,
    integral_increments,
    raw_values,
    totals,
    was_reset,
)
from gpumon.state.gpu_idle import idle_since, link_rates, without_latched_use, without_own_use

AWAY_SECONDS = 10.0
"""Seconds without a reading after which the GPU may have been reset in between."""
_VOLATILE = frozenset({"ecc_errors_total", "pcie_replays_total"})
"""Counters that the driver starts at 0 when it initialises the GPU."""
_FAULT_ROWS: Mapping[str | None, dict[str, float]] = {
    fault: {name: float(name == fault) for name in FAULTS} for fault in (None, *FAULTS)
}
"""Value of the row `fault`, by the fault that is active."""
_IDENTITY = tuple(name for name, row in rows(Gpu).items() if row.identity)


def fail(gpu: GpuState, fault: str, detail: str, wall: float) -> GpuState:
    """Return the record with this fault, detected at the wall time `wall`.

    `since` does not change if the GPU already had the same fault. A GPU with the fault `missing` is marked as absent.
    """
    since = gpu.since if gpu.fault == fault else wall
    missing = fault == "missing"
    index = None if missing else gpu.nvml_index
    before = (gpu.fault, gpu.detail, gpu.since, gpu.absent, gpu.nvml_index)
    if before == (fault, detail, since, missing, index):
        return gpu
    return replace(gpu, fault=fault, detail=detail, since=since, absent=missing, nvml_index=index)


def read(
    gpu: GpuState, reading: GpuReading, around: Neighbours, now: Now, boot_id: str, *, own: bool = False
) -> GpuState:
    """Return the record after a reading.

    `around`: the GPUs of the host, by which the expected NVLinks are determined. `own`: whether the agent's probe uses
    this GPU now.
    """
    if gpu.nvml_index != reading.index:
        gpu = replace(gpu, nvml_index=reading.index)
    values = reading.gpu
    if values is None:
        return fail(gpu, reading.fault or "unknown", reading.error, now.wall)
    counted = without_own_use(reading) if own else without_latched_use(reading)
    after = _answer_fields(gpu, counted, values, around, now)
    after |= {"link_rates": {}, "own_at": now.at} if own else _usage(gpu, reading, values, now)
    if _was_reset_since_stored(gpu, values, boot_id):
        after["reset_at"] = now.at
    return replace(gpu, **after, stored=_stored_row(gpu, after["identity"], values, now, boot_id))


def _answer_fields(gpu: GpuState, reading: GpuReading, values: Gpu, around: Neighbours, now: Now) -> dict[str, Any]:
    which = link_expectation(
        values.name, values.nvlinks, mig=bool(values.mig_mode), guest=bool(reading.guest), around=around
    )
    peers = reading.peers or gpu.peers
    away = frozenset(link for link, peer in peers.items() if peer.peer in around.passed_through)
    last = None if gpu.reading is None else (gpu.reading.links, gpu.expects, gpu.passed_through_links)
    links = {} if last == (reading.links, which, away) else _read_links(gpu, reading.links, which, away, now)
    link_counters = links.get("link_counters", gpu.link_counters)
    counters = advance(gpu.counters, raw_values(values), integral_increments(reading.increments), now.uptime)
    identity = {name: value for name in _IDENTITY if (value := getattr(values, name)) is not None}
    reset = _was_reset(gpu, counters, values, now)
    if reset:
        counters = confirm_reset(counters)
        link_counters = {link: confirm_reset(row) for link, row in link_counters.items()}
    return links | {
        "link_counters": link_counters,
        "identity": gpu.identity if identity.items() <= gpu.identity.items() else {**gpu.identity, **identity},
        "fault": None,
        "detail": "",
        "since": None,
        "absent": False,
        "reading": reading,
        "ecc_volatile": values.ecc_errors_total,
        "c2c_links": reading.c2c_links,
        "fabric": reading.fabric,
        "migs": reading.migs,
        "pids": reading.pids,
        "pids_at": reading.pids_at,
        "link_bytes": reading.link_bytes,
        "read_at": now.uptime,
        "observed_seconds": gpu.observed_seconds + reading.watched,
        "counters": counters,
        "reset_at": now.at if reset else gpu.reset_at,
        "peers": gpu.peers if peers == gpu.peers else peers,
        "peer_access": reading.peer_access or gpu.peer_access,
        "platform": gpu.platform if reading.platform in {None, gpu.platform} else reading.platform,
    }


def _usage(before: GpuState, reading: GpuReading, values: Gpu, now: Now) -> dict[str, Any]:
    rates = link_rates(before.reading, reading, before.link_rates, before.own_at)
    moved = sum(rates.values()) if rates else None
    unread = None if before.read_at is None or before.fault is not None else now.uptime - before.read_at
    since = idle_since(before.idle_since, values, moved, now, unread=unread)
    return {"link_rates": rates, "idle_since": since}


def _stored_row(gpu: GpuState, identity: Mapping[str, str], values: Gpu, now: Now, boot_id: str) -> StoredGpu:
    """Return the GPU's row for the store. Values that this reading does not have are taken from the earlier row."""
    stored, energy = gpu.stored, values.energy_joules_total
    return StoredGpu(
        uuid=gpu.uuid,
        bus_id=gpu.bus_id,
        serial=identity.get("serial", ""),
        name=identity.get("name", ""),
        vbios=identity.get("vbios", ""),
        inforom=identity.get("inforom", ""),
        gsp=identity.get("gsp", ""),
        first_wall=now.wall if stored is None else stored.first_wall,
        last_wall=now.wall,
        gpu=gpu.index,
        boot_id=boot_id,
        nvlinks=int(values.nvlinks) if values.nvlinks is not None else stored.nvlinks if stored else None,
        energy=energy if energy is not None else stored.energy if stored else None,
        **_lanes(stored, gpu.bus_id, values.pcie_link_width),
    )


def _lanes(stored: StoredGpu | None, bus_id: str, lanes: float | None) -> dict[str, Any]:
    """Return the fields of StoredGpu about PCIe lanes: the highest number at this address or the accepted number."""
    if stored is None or stored.bus_id != bus_id or (lanes or 0.0) > (stored.lanes or 0.0):
        return {"lanes": lanes}
    return {"lanes": stored.lanes, "lanes_accepted": stored.lanes_accepted}


def _was_reset_since_stored(before: GpuState, values: Gpu, boot_id: str) -> bool:
    """Return True if the GPU was reset in this boot after it was stored.

    A reset shows in the first energy reading of this run of the agent, which is then much lower than the stored one.
    Return False if persistence mode is disabled.
    """
    stored = before.stored
    if before.reading is not None or stored is None or stored.boot_id != boot_id:
        return False
    kept_open = values.persistence_mode != 0  # else it restarts whenever no process has the GPU open
    return kept_open and was_reset(Count(0.0, stored.energy), Count(0.0, values.energy_joules_total))


def _was_reset(gpu: GpuState, counters: Counts, values: Gpu, now: Now) -> bool:
    """Return True if the driver's counters of this GPU have restarted.

    The energy counter starts when the driver initialises the GPU, and grows even on an idle GPU. If there is no such
    counter, error counters that are lower after a time without readings show the restart.
    """
    before, after = (rows_.get("energy_joules_total", {}).get("") for rows_ in (gpu.counters, counters))
    if before is not None and after is not None:
        return was_reset(before, after)
    away = gpu.fault is not None or (gpu.read_at is not None and now.uptime - gpu.read_at > AWAY_SECONDS)
    return away and any(
        raw < RESET_SHARE * (count.raw or 0.0)
        for name, labelled in raw_values(values).items()
        if name in _VOLATILE
        for label, raw in labelled.items()
        if (count := gpu.counters.get(name, {}).get(label)) is not None
    )


def _read_links(
    gpu: GpuState, links: Mapping[str, Nvlink], which: ExpectedLinks, away: frozenset[str], now: Now
) -> dict[str, Any]:
    before = gpu.link_counters
    counters = {
        link: advance(before.get(link, {}), raw_values(row), {}, now.uptime, Nvlink) for link, row in links.items()
    }
    once_up = gpu.links_once_up | {link for link, row in links.items() if row.up}
    wanted = set(expected_links(which, links, once_up)) - away
    exported = {}
    for link, row in links.items():
        up = row.up if row.up or link in wanted else None
        after = replace(row, up=up, **totals(row, counters[link], {}))
        exported[link] = old if (old := gpu.links.get(link)) == after else after
    return {
        "link_counters": {**before, **counters},
        "link_sums": _link_sums({**before, **counters}),
        "links": exported,
        "links_once_up": once_up,
        "expects": which,
        "passed_through_links": away,
    }


def _link_sums(counters: Mapping[str, Counts]) -> dict[str, dict[str, float]]:
    """Return, by row and label value, the sum of each counter over all links, including links that are gone."""
    sums: dict[str, dict[str, float]] = {}
    for row, counts in (each for link in counters.values() for each in link.items()):
        total = sums.setdefault(row, {})
        for label, count in counts.items():
            total[label] = total.get(label, 0.0) + count.total
    return sums


def readings(
    gpu: GpuState,
    xids: Mapping[str, tuple[float, float]],
    fault: str | None,
    *,
    critical: Collection[int] = (),
    released: bool = False,
    health: float | None = None,
    slot_lanes: int | None = None,
    before: Gpu | None = None,
) -> Gpu:
    """Return the metrics to export for a GPU.

    If the GPU is released, does not answer or was never read, only the rows that need no reading have values: identity,
    state, health, observed seconds and Xids. If a labelled row that this function computes equals that of `before`, it
    is the same object. This is not so for labelled rows that are taken from the reading unchanged.

    `xids`: number of errors, and wall time of the last, by Xid. `critical`: the Xids that are critical. `slot_lanes`:
    number of PCIe lanes that the port above the GPU supports.
    """
    own: dict[str, Any] = {
        **gpu.identity,
        "up": None if released and fault is None else float(fault is None),
        "released": float(released),
        "fault": _FAULT_ROWS[fault],
        "health": health,
        "observed_seconds_total": gpu.observed_seconds,
        "xid_errors_total": {xid: count for xid, (count, _) in xids.items()},
        "xid_critical_errors_total": sum(count for xid, (count, _) in xids.items() if int(xid) in critical),
        "xid_last_timestamp_seconds": {xid: last for xid, (_, last) in xids.items() if last} or None,
    }
    if released or fault is not None or gpu.reading is None or gpu.reading.gpu is None:
        return Gpu(**_reuse(own, before))
    own |= _link_counts(gpu, gpu.reading)
    own |= totals(gpu.reading.gpu, gpu.counters, integral_increments(gpu.reading.increments))
    if slot_lanes and (lanes := gpu.reading.gpu.pcie_link_width_max):
        own["pcie_link_width_max"] = min(lanes, float(slot_lanes))
    return replace(gpu.reading.gpu, **_reuse(own, before))


def _link_counts(gpu: GpuState, reading: GpuReading) -> dict[str, Any]:
    up = [link.up for link in gpu.links.values() if link.up is not None]
    c2c = [link.up for link in reading.c2c_links.values() if link.up is not None]
    return {
        "nvlinks_expected": float(len(up)) if up else None,
        "nvlinks_active": float(sum(up)) if up else None,
        "nvlink_errors_total": gpu.link_sums.get("errors_total"),
        "nvlink_recoveries_total": gpu.link_sums.get("recoveries_total"),
        "c2c_links_expected": float(len(c2c)) if c2c else None,
        "c2c_links_active": float(sum(c2c)) if c2c else None,
    }


def _reuse(values: dict[str, Any], before: Gpu | None) -> dict[str, Any]:
    for name, value in values.items():
        if isinstance(value, dict) and value == (old := getattr(before, name, None)):
            values[name] = old
    return values
