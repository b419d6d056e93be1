"""The section `inventory`: the GPUs, their driver and the sampler child that reads them. Pure.

A GPU is not read during its release, and then until a child opens the GPU again, which may take long. In all this time
the GPU counts neither as healthy nor as failed.
"""

from __future__ import annotations

import logging
import operator
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from gpumon.health.verdict import OK, UNKNOWN
from gpumon.model.error_event import UNNAMED
from gpumon.model.gpu_state import GpuState
from gpumon.model.node import Driver
from gpumon.model.snapshot import SANDBOX, DriverStatus, PciBus, SamplerStatus, Snapshot
from gpumon.model.time_window import NODE, released_scopes
from gpumon.state import gpu_inventory
from gpumon.state.gpu_inventory import GpuInventory, Removal
from gpumon.state.gpu_view import ViewInputs, view
from gpumon.state.limit_series import limit_gpu
from gpumon.state.messages import Acceptance, Message, ReleaseHolders, StoredState
from gpumon.state.report import Report
from gpumon.state.section import LogLine, ReducerSettings, Step, reuse_if_equal

NOT_READ = "not read yet"
"""`detail` of a GPU that has not been read since the start of the agent and has no other fault."""
RESUME_SECONDS = 75.0
"""Maximum seconds from the end of a release to the first reading: slightly more than a driver call that opens a GPU
may take.
"""


def apply(inventory: GpuInventory, step: Step) -> GpuInventory:
    """Return the GPUs after a message."""
    report = step.report
    match step.message:
        case Snapshot():
            own, restored = report.probe.own_load(step.now.at), report.agent.restored
            inventory = gpu_inventory.poll(
                inventory, step.message, step.now, report.boot_id, own=own, restored=restored
            )
        case DriverStatus():
            inventory = replace(inventory, status=step.message)
        case PciBus():
            inventory = gpu_inventory.read_bus(inventory, step.message)
        case SamplerStatus(quarantined=quarantined):
            inventory = replace(gpu_inventory.quarantine(inventory, quarantined), samplers=step.message)
        case StoredState():
            inventory = gpu_inventory.restore(inventory, step.message, report.boot_id)
        case Acceptance():
            inventory = gpu_inventory.accept(inventory, step.message)
        case ReleaseHolders(holders=holders):
            inventory = replace(inventory, release_holders=holders)
    # Open verdicts name a GPU by PCI address until its uuid is read. It needs an index before the first poll.
    unnamed = {name.removeprefix(UNNAMED).upper() for _, name in report.health.open if name.startswith(UNNAMED)}
    inventory = gpu_inventory.expect_unnamed(_end_resuming(inventory, step.message), unnamed)
    return _with_view(_with_releases(inventory, step), step)


# Releases


def _with_releases(inventory: GpuInventory, step: Step) -> GpuInventory:
    """Return the inventory with the releases in force, and with `resuming` updated for those that ended."""
    before, after = inventory.released, released_scopes(step.report.windows)
    if before == after:
        return inventory
    ended = _covered_bus_ids(before, inventory) - _covered_bus_ids(after, inventory)
    resuming = {**inventory.resuming, **dict.fromkeys(ended, step.now.uptime + RESUME_SECONDS)}
    left = {bus_id: until for bus_id, until in resuming.items() if not after & {NODE, bus_id}}
    return replace(inventory, released=after, resuming=left)


def _end_resuming(inventory: GpuInventory, message: Message) -> GpuInventory:
    """Return the inventory without the GPUs in `resuming` that were read, or could not be read, according to a message.

    After an incomplete Snapshot, the others have RESUME_SECONDS from this Snapshot on.
    """
    if not inventory.resuming:
        return inventory
    left = {
        bus_id: until for bus_id, until in inventory.resuming.items() if not _reports_on(message, bus_id, inventory)
    }
    first_poll = isinstance(message, Snapshot) and not message.complete  # it opens one GPU after another
    if first_poll and inventory.polled_at is not None:
        left = dict.fromkeys(left, inventory.polled_at + RESUME_SECONDS)
    return replace(inventory, resuming=left)


def _reports_on(message: Message, bus_id: str, inventory: GpuInventory) -> bool:
    match message:
        case Snapshot():
            unopened = inventory.unopened(inventory.polled_at or 0.0) - {*message.present}
            is_read = bus_id == NODE or any(gpu.bus_id == bus_id for gpu in message.gpus)
            return is_read or (message.complete and bus_id not in unopened)
        case DriverStatus():
            return not message.up
        case SamplerStatus():
            return bus_id in message.quarantined
    return False


def _covered_bus_ids(released: frozenset[str], inventory: GpuInventory) -> set[str]:
    return {*released, *(inventory.gpus if NODE in released else ())}


# What outputs and checks read


def _with_view(inventory: GpuInventory, step: Step) -> GpuInventory:
    settings, uptime = step.settings, step.now.uptime
    fresh = inventory.polled_at is not None and uptime - inventory.polled_at <= settings.stale_after
    resuming = {bus_id for bus_id, until in inventory.resuming.items() if until > uptime}
    unwatched = _covered_bus_ids(inventory.released, inventory) | resuming
    down = None if NODE in unwatched else _down_reason(inventory, settings, fresh=fresh)
    inventory = replace(inventory, fresh=fresh, unwatched=unwatched, down=down)
    views = {
        bus_id: view(gpu, _view_inputs(gpu, inventory, step), inventory.views.get(bus_id))
        for bus_id, gpu in inventory.gpus.items()
    }
    dropped: Counter[str] = Counter()
    states = tuple(limit_gpu(each.shown, dropped) for each in sorted(views.values(), key=lambda each: each.gpu.index))
    same = len(states) == len(inventory.states) and all(map(operator.is_, states, inventory.states))
    status = inventory.status
    alive = status is not None and status.up and NODE not in unwatched
    driver = Driver(driver=status.driver, nvml=status.nvml, cuda=status.cuda) if status and alive else Driver()
    expected = gpu_inventory.gpu_expectation(inventory, settings.expected)
    return replace(
        inventory,
        views=views,
        states=inventory.states if same else states,
        dropped=dropped,
        driver=reuse_if_equal(inventory.driver, driver),
        expectation=reuse_if_equal(inventory.expectation, expected),
    )


def _down_reason(inventory: GpuInventory, settings: ReducerSettings, *, fresh: bool) -> str | None:
    status, samplers = inventory.status, inventory.samplers
    if status is not None and not status.up:
        return f"{status.error}: {status.remedy}"
    if samplers.hang and not fresh:
        return samplers.hang
    if samplers.gave_up:
        return "too many children cannot be ended; see abandoned_children"
    if not fresh and inventory.polled_at is not None:
        return f"no poll for more than {settings.stale_after:g} s"
    crashes = samplers.restarts.get("crash")
    if status is None and crashes:
        return f"the sampler has crashed {crashes:.0f} times before its first message: see the log"
    return None


def _view_inputs(gpu: GpuState, inventory: GpuInventory, step: Step) -> ViewInputs:
    report, released, stale_after = step.report, gpu.bus_id in inventory.unwatched, step.settings.stale_after
    fault, detail, since = gpu.fault, gpu.detail, gpu.since
    if fault is None and not released:
        if inventory.down is not None or gpu.read_at is None:
            fault, detail = "unknown", inventory.down or NOT_READ
        elif step.now.uptime - gpu.read_at > stale_after:
            fault, detail = "unknown", f"not read for more than {stale_after:g} s"
    verdict = report.health.open.get((f"gpu_{fault}", gpu.uuid)) if gpu.restored else None
    if verdict is not None and since is not None:  # an earlier run of the agent detected the fault
        since = min(since, verdict.raised.wall)
    lowest = UNKNOWN if released or fault is not None else OK
    return ViewInputs(
        xids=report.errors.xids.get(gpu.uuid),
        catalogue=report.catalogue,
        fault=fault,
        detail=detail,
        since=since,
        health=float(max(report.health.level_of(gpu.uuid), lowest)),
        released=released,
        port_above=inventory.pci.ports.get(gpu.bus_id),
        slot_lanes=inventory.pci.slot_lanes.get(gpu.bus_id),
    )


# Log lines


def changes(before: Report, after: Report) -> Iterator[LogLine]:
    """Yield the log lines for what changed in the driver, the GPUs and their NVLinks."""
    if before.inventory.status != after.inventory.status:
        yield from _driver(after)
    if after.inventory.pci.place == SANDBOX != before.inventory.pci.place:
        yield LogLine(logging.WARNING, "sysfs shows no NVIDIA GPU; monitoring those that the driver lists", {})
    if before.gpus is not after.gpus:
        previous = {state.bus_id: state for state in before.gpus}
        for state in after.gpus:
            yield from _gpu(previous.get(state.bus_id), state)
            yield from _nvlinks(previous.get(state.bus_id), state)
    if before.inventory.removed is not after.inventory.removed and before.agent.restored is after.agent.restored:
        for uuid, gone in after.inventory.removed.items():
            if before.inventory.removed.get(uuid) != gone:
                yield LogLine(logging.WARNING, _REMOVED[gone.why], {"uuid": uuid, "pci_bus_id": gone.bus_id})


def _driver(report: Report) -> Iterator[LogLine]:
    status = report.inventory.status
    if status is not None and status.up:
        yield LogLine(logging.INFO, "the driver answers", {"driver": status.driver, "nvml": status.nvml})
    elif status is not None:
        level = logging.INFO if report.node.nvml_up is None else logging.ERROR
        yield LogLine(level, "the driver cannot be read", {"error": status.error, "remedy": status.remedy})


def _gpu(before: GpuState | None, after: GpuState) -> Iterator[LogLine]:
    if _fault(before) == _fault(after):
        return
    words = {"gpu": after.index, "uuid": after.uuid, "pci_bus_id": after.bus_id}
    if after.fault is None:
        yield LogLine(logging.WARNING, "the GPU answers again", words)
    else:
        yield LogLine(logging.ERROR, "the GPU does not answer", words | {"fault": after.fault, "detail": after.detail})


def _fault(state: GpuState | None) -> str | None:
    # a GPU that has not been read yet is normal at every start of the agent
    return None if state is None or state.detail == NOT_READ else state.fault


_REMOVED = {
    Removal.GIVEN: "the GPU has another driver now and is no longer expected",
    Removal.EXCLUDED: "the GPU is excluded by the configuration and is no longer expected",
    Removal.REPLACED: "the GPU was replaced by another one and is no longer expected",
    Removal.ACCEPTED: "the GPU is gone, as the operator accepted, and is no longer expected",
}


def _nvlinks(before: GpuState | None, after: GpuState) -> Iterator[LogLine]:
    if before is None or before.links is after.links:
        return
    words: dict[str, object] = {"gpu": after.index, "uuid": after.uuid}
    changed: dict[float, list[str]] = {0.0: [], 1.0: []}
    for link, link_state in after.links.items():
        was = before.links.get(link)
        if was is not None and None not in (was.up, link_state.up) and was.up != link_state.up:
            changed[float(bool(link_state.up))].append(link)
    if changed[0.0]:
        yield LogLine(logging.WARNING, "NVLinks are down", words | {"links": ",".join(changed[0.0])})
    if changed[1.0]:
        yield LogLine(logging.INFO, "NVLinks are up again", words | {"links": ",".join(changed[1.0])})
