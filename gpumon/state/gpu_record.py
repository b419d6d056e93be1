"""Record of one GPU: updates it after each reading. `gpu_view` builds the metric table to export. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from gpumon.health.products import Neighbours, expected_links, is_utilization_latched, link_expectation, memory_in_use
from gpumon.model.gpu import Gpu
from gpumon.model.gpu_state import GpuState
from gpumon.model.instant import Now
from gpumon.model.nvlink import Nvlink
from gpumon.model.reading import Integral, rows
from gpumon.model.records import Count, Counts, StoredGpu
from gpumon.model.snapshot import GpuReading, Increments
from gpumon.probe.core.preflight import IDLE_TRAFFIC, IDLE_UTILIZATION, idle_bytes
from gpumon.state.counters import (
    RESET_SHARE,
    advance,
    confirm_reset,
    integral_increments,
    raw_values,
    totals,
    was_reset,
)

AWAY_SECONDS = 10.0
"""Seconds without a reading after which the GPU may have been reset in between."""
GAP_SECONDS = 120.0
"""Seconds without a reading after which it is unknown whether the GPU was used in between."""
_COUNTED = ("nvlink_receive_bytes_total", "nvlink_transmit_bytes_total")
_INTEGRATED = ("pcie_receive_bytes_total", "pcie_transmit_bytes_total")
_VOLATILE = frozenset({"ecc_errors_total", "pcie_replays_total"})
"""Counters that the driver starts at 0 when it initialises the GPU."""
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
    gains = integral_increments(counted_increments(reading, own=own))
    counters = advance(gpu.counters, raw_values(values), gains, now.uptime)
    identity = {name: value for name in _IDENTITY if (value := getattr(values, name)) is not None}
    peers = reading.peers or gpu.peers
    after = {
        "link_counters": gpu.link_counters,
        **_read_links(gpu, reading, values, around, now),
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
        "observed_seconds": gpu.observed_seconds + (0.0 if own else reading.watched),
        "counters": counters,
        "peers": gpu.peers if peers == gpu.peers else peers,
        "peer_access": reading.peer_access or gpu.peer_access,
        "platform": gpu.platform if reading.platform in {None, gpu.platform} else reading.platform,
        **({"link_rates": {}, "own_at": now.at} if own else _usage(gpu, reading, values, now)),
    }
    if _was_reset(gpu, counters, values, now, boot_id):
        links = {link: confirm_reset(row) for link, row in after["link_counters"].items()}
        after |= {"counters": confirm_reset(counters), "link_counters": links, "reset_at": now.at}
    return replace(gpu, **after, stored=_stored_row(gpu, after["identity"], values, now, boot_id))


def _usage(before: GpuState, reading: GpuReading, values: Gpu, now: Now) -> dict[str, Any]:
    rates = link_rates(before.reading, reading, before.link_rates, before.own_at)
    moved = sum(rates.values()) if rates else None
    unread = None if before.read_at is None or before.fault is not None else now.uptime - before.read_at
    since = idle_since(before.idle_since, values, moved, now, unread=unread)
    return {"link_rates": rates, "idle_since": since}


def _stored_row(gpu: GpuState, identity: Mapping[str, str], values: Gpu, now: Now, boot_id: str) -> StoredGpu:
    """Return the GPU's row for the store. Values that this reading does not have are taken from the earlier row.

    PCIe lanes: the highest number at this address, or the accepted number.
    """
    stored, energy, lanes = gpu.stored, values.energy_joules_total, values.pcie_link_width
    widest = stored is None or stored.bus_id != gpu.bus_id or (lanes or 0.0) > (stored.lanes or 0.0)
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
        lanes=lanes if stored is None or widest else stored.lanes,
        lanes_accepted=stored is not None and not widest and stored.lanes_accepted,
    )


def _was_reset(gpu: GpuState, counters: Counts, values: Gpu, now: Now, boot_id: str) -> bool:
    """Return True if the driver's counters of this GPU have restarted.

    The energy counter starts when the driver initialises the GPU, and grows even on an idle GPU. The first reading of
    this run of the agent is compared with the energy stored in this boot, unless persistence mode is disabled. If there
    is no such counter, error counters that are lower after a time without readings show the restart.
    """
    before, after = (rows_.get("energy_joules_total", {}).get("") for rows_ in (gpu.counters, counters))
    stored = gpu.stored if gpu.reading is None else None
    # Without persistence mode the counter restarts whenever no process has the GPU open.
    if stored is not None and stored.boot_id == boot_id and values.persistence_mode != 0:
        before = Count(0.0, stored.energy)
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


def _read_links(gpu: GpuState, reading: GpuReading, values: Gpu, around: Neighbours, now: Now) -> dict[str, Any]:
    """Return the fields of the record about NVLinks; none if the reading has the links of the last one."""
    which = link_expectation(
        values.name, values.nvlinks, mig=bool(values.mig_mode), guest=bool(reading.guest), around=around
    )
    peers = reading.peers or gpu.peers
    away = frozenset(link for link, peer in peers.items() if peer.peer in around.passed_through)
    last = None if gpu.reading is None else (gpu.reading.links, gpu.expects, gpu.passed_through_links)
    if last == (reading.links, which, away):
        return {}
    counters = dict(gpu.link_counters)
    for link, row in reading.links.items():
        counters[link] = advance(counters.get(link, {}), raw_values(row), {}, now.uptime, Nvlink)
    once_up = gpu.links_once_up | {link for link, row in reading.links.items() if row.up}
    wanted = set(expected_links(which, reading.links, once_up)) - away
    exported = {}
    for link, row in reading.links.items():
        up = row.up if row.up or link in wanted else None
        after = replace(row, up=up, **totals(row, counters[link], {}))
        exported[link] = old if (old := gpu.links.get(link)) == after else after
    return {
        "link_counters": counters,
        "link_sums": _link_sums(counters),
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


# Whether the GPU is in use


@cache
def busy_rows() -> tuple[str, ...]:
    """Return the names of the rows of Gpu that measure its use. They are always integrals."""
    return tuple(name for name, row in rows(Gpu).items() if isinstance(row.source, Integral))


def counted_increments(reading: GpuReading, *, own: bool) -> Increments:
    """Return the increments of the reading with 0 for use that does not count.

    That is all use of a GPU that the agent's probe uses (`own`), and busy time while the utilization is latched: the
    GPU is idle.
    """
    if own:
        uncounted = busy_rows()
    elif reading.gpu is not None and is_utilization_latched(reading.gpu):
        uncounted = ("busy_seconds_total",)
    else:
        return reading.increments
    return {name: 0.0 if name in uncounted else gain for name, gain in reading.increments.items()}


def link_rates(
    before: GpuReading | None, reading: GpuReading, held: Mapping[str, float], own_at: float
) -> Mapping[str, float]:
    """Return the traffic over NVLink and PCIe in bytes per second, by row of Gpu.

    That over PCIe is since the last reading, that over NVLink between the last two readings of the slow tier. `held`:
    the result for the last reading. `own_at`: boot clock at which the agent's probe last used the GPU; counters that
    were read before do not count. A row whose traffic cannot be computed is absent.
    """
    if before is None or before.gpu is None or reading.gpu is None or not reading.watched:
        return {}
    pcie = {name: gain for name in _INTEGRATED if isinstance(gain := reading.increments.get(name), float)}
    rates = {name: gain / reading.watched for name, gain in pcie.items()}
    was_at, read_at = before.slow_at, reading.slow_at
    if was_at is None or read_at is None or read_at <= was_at:
        return rates | {name: held[name] for name in _COUNTED if name in held}
    counts = {name: (getattr(before.gpu, name), getattr(reading.gpu, name)) for name in _COUNTED}
    return rates | {
        name: (now - was) / (read_at - was_at)
        for name, (was, now) in counts.items()
        if was is not None and now is not None and now >= was and was_at > own_at
    }


def is_in_use(gpu: Gpu, moved: float | None) -> bool:
    """Return True if a reading shows that the GPU is in use. `moved` is its traffic in bytes per second.

    PCIe traffic is unknown on GPUs before Hopper. On these, a transfer shows as memory utilization and as memory in
    use.
    """
    utilization = 0.0 if is_utilization_latched(gpu) else gpu.utilization_ratio or 0.0
    return bool(
        gpu.processes
        or max(utilization, gpu.memory_utilization_ratio or 0.0) > IDLE_UTILIZATION
        or (memory_in_use(gpu) or 0.0) > idle_bytes(exact=gpu.memory_reserved_bytes is not None)
        or (moved or 0.0) > IDLE_TRAFFIC
    )


def idle_since(before: float | None, gpu: Gpu, moved: float | None, now: Now, *, unread: float | None) -> float | None:
    """Return the boot clock time since which the GPU is idle; None while it is in use.

    `before` is the result for the previous reading. `moved` is the GPU's traffic in bytes per second. `unread` is the
    number of seconds since the last reading, None if there was no reading or it failed.
    """
    if is_in_use(gpu, moved):
        return None
    return now.at if before is None or unread is None or unread > GAP_SECONDS else before
