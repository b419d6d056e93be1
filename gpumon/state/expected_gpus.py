"""Which GPUs belong here, over restarts and reboots: remembered, given away, replaced, accepted as gone. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from gpumon.health.expectation import Basis, Expectation, expectation
from gpumon.health.products import whole
from gpumon.model.bus_id import parsed
from gpumon.model.release import Answer
from gpumon.model.snapshot import CONTAINER, PciBus, Snapshot
from gpumon.model.stored_gpu import StoredGpu
from gpumon.state import gpu_inventory, port_inventory
from gpumon.state.gpu_inventory import TAKEN, Bus
from gpumon.state.gpu_record import GpuRecord
from gpumon.state.messages import Acceptance, StoredState
from gpumon.state.report import InternalState, Removal, RemovedGpu, Report


def ours(bus: Bus) -> int:
    """GPUs on the bus that no virtual machine has."""
    return len(bus) - gpu_inventory.given_away(bus)


def recalled(memory: InternalState, remembered: StoredState, boot_id: str) -> InternalState:
    """What the store knew: each board that is expected is in the inventory again, wherever it may be."""
    boards = {board.bus_id: board for board in remembered.boards}
    known = gpu_inventory.recall(memory.inventory, boards)
    known = gpu_inventory.remember(known, remembered.boards, boot_id)
    unexpected = gone(remembered.boards, accepted=remembered.accepted)
    counted = sum(board.expected for board in remembered.boards)
    memory = replace(
        memory,
        boards=boards,
        links=port_inventory.recalled(memory.links, remembered.ports),
        inventory=known,
        accepted=memory.accepted or remembered.accepted,
        gone={**unexpected, **memory.gone},
        learned=max(memory.learned, counted),
    )
    return _ours(memory)


def gone(boards: Collection[StoredGpu], *, accepted: bool) -> dict[str, RemovedGpu]:
    """Those that the store expects no more, by uuid.

    It does not keep why: where nobody has ever accepted anything, and where another is in its place, one was replaced.
    """
    places = {one.bus_id for one in boards if one.expected}
    return {
        one.uuid: RemovedGpu(
            Removal.ACCEPTED if accepted and one.bus_id not in places else Removal.REPLACED, one.bus_id
        )
        for one in boards
        if not one.expected
    }


def on_bus(memory: InternalState, seen: PciBus) -> InternalState:
    """Somebody looked at the PCI bus."""
    memory = replace(memory, bus=seen.functions, excluded=seen.excluded, place=seen.place, ports_above=seen.ports)
    return _ours(_learned(memory, None))


def polled(memory: InternalState, snapshot: Snapshot) -> InternalState:
    """After a poll, or a part of one. Once all GPUs are known, who is absent has been replaced, or is missing."""
    memory = _ours(_learned(memory, snapshot.visible))
    if not (snapshot.complete and memory.recalled):
        return memory
    return _leave(memory, gpu_inventory.replaced(memory.inventory, _places(memory)), Removal.REPLACED)


def accepted(memory: InternalState, told: Acceptance) -> InternalState:
    """What is here is what is expected from now on."""
    left = [gpu for gpu in memory.inventory.values() if gpu.uuid in told.gone]
    memory = _leave(memory, left, Removal.ACCEPTED)
    memory = replace(memory, links=port_inventory.accepted(memory.links, told.ports, told.slow))
    if told.count is None:
        return memory
    return replace(memory, accepted=True, learned=told.count + gpu_inventory.given_away(_bus(memory)))


def acceptance(report: Report, parts: Collection[str] = ()) -> Acceptance:
    """What a person accepts who accepts what is here now, or no more than that these parts are gone."""
    missing, dead, slow = dict(_missing(report)), dict(_dead(report)), dict(_slow(report))
    visible = int(report.node.gpus_visible or 0)
    if not parts:
        speeds = {identity: speed for identity, (speed, _) in slow.items()}
        return Acceptance(count=visible, gone=tuple(missing), ports=tuple(dead), slow=speeds)
    gone = tuple(uuid for uuid, names in missing.items() if _named(parts) & names)
    down = tuple(identity for identity, names in dead.items() if _named(parts) & names)
    speeds = {identity: speed for identity, (speed, names) in slow.items() if _named(parts) & names}
    count = _without(gone, visible + len(missing), report) if gone else None
    return Acceptance(count=count, gone=gone, ports=down, slow=speeds)


def _without(gone: Collection[str], known: int, report: Report) -> int:
    """How many should be here but for these; what the configuration says is not what a person accepts."""
    wanted = report.expectation
    return max(known, 0 if wanted.basis is Basis.CONFIGURED else wanted.count) - len(gone)


def _named(parts: Collection[str]) -> set[str]:
    return {name for part in parts for name in (part, parsed(part) or part)}


def _missing(report: Report) -> Iterator[tuple[str, frozenset[str]]]:
    """GPUs, each with what it may be called."""
    for state in report.gpus:
        if state.fault == "missing":
            yield state.uuid, frozenset({state.uuid, state.bus_id, *([state.board.bus_id] if state.board else [])})


def _dead(report: Report) -> Iterator[tuple[str, frozenset[str]]]:
    """Ports that are down or gone: of those that nobody can read now nothing is accepted."""
    for gone in report.gone_ports:
        yield gone.identity, frozenset({gone.identity, f"{gone.port.device}/{gone.port.port}"})
    known = port_inventory.by_name(report.internal.links)
    for one in report.ports:
        name = f"{one.device}/{one.port}"
        record = known.get(name)
        if one.link.port_up == 0 and record is not None and record.expected:
            yield record.identity, frozenset({record.identity, name})


def _slow(report: Report) -> Iterator[tuple[str, tuple[float, frozenset[str]]]]:
    """Ports that run slower than they did, each with its speed and its names."""
    known = port_inventory.by_name(report.internal.links)
    for one in report.ports:
        name, speed = f"{one.device}/{one.port}", one.link.port_speed_bytes_per_second
        record = known.get(name)
        if record is not None and one.link.port_up and speed and speed < (record.speed or 0.0):
            yield record.identity, (speed, frozenset({record.identity, name}))


def unacceptable(report: Report, parts: Collection[str] = ()) -> Answer | None:
    """Why nobody can tell what is here now, or which of these parts is not missed."""
    if not report.internal.recalled:
        return Answer(refused="The store has not been read yet.", remedy="Ask again in a while.")
    if report.node.gpus_visible is None:
        why = report.notices.get("driver", "they are released, or have not been read yet").rstrip(".")
        return Answer(refused=f"Nobody can count the GPUs now: {why}.", remedy="Ask again when they are read.")
    missed = [names for _, names in (*_missing(report), *_dead(report))]
    missed += [names for _, (_, names) in _slow(report)]
    known = frozenset[str]().union(*missed)
    strange = [part for part in parts if not _named([part]) & known]
    if not strange:
        return None
    refused = f"{', '.join(strange)}: no GPU and no port of that name is missing, down or slower than before."
    return Answer(refused=refused, remedy=f"Name of these: {', '.join(sorted(known))}." if known else "Nothing is.")


def expected(memory: InternalState, configured: int | None) -> Expectation:
    bus = _bus(memory)
    away = gpu_inventory.given_away(bus) + _excluded_and_off(memory)
    own = max(0, memory.learned - away)
    return expectation(
        configured=configured,
        accepted=memory.accepted,
        learned=own,
        product=None if away else _by_product(memory.inventory.values(), own),
        on_bus=ours(memory.bus or {}),
        place=memory.place,
        unlisted=_unlisted(memory),
    )


def _bus(memory: InternalState) -> Bus:
    """What there is for us: in a container it is the whole host's, and says nothing."""
    return {} if memory.place == CONTAINER else memory.bus or {}


def _learned(memory: InternalState, visible: int | None) -> InternalState:
    bus = _bus(memory)
    seen = (visible or 0) + gpu_inventory.given_away(bus)
    if bus:  # the driver may have counted before a GPU was given away, and the bus was looked at after it
        seen = min(seen, len(bus))
    on_bus = 0 if memory.accepted else len(bus)
    return replace(memory, learned=max(memory.learned, seen, on_bus))


def _places(memory: InternalState) -> int:
    """How many GPUs should be in the inventory: it knows none that is given away or excluded."""
    excluded = sum(bus_id in (memory.bus or {}) for bus_id in memory.excluded)
    return memory.learned - gpu_inventory.given_away(_bus(memory)) - excluded - _excluded_and_off(memory)


def _excluded_and_off(memory: InternalState) -> int:
    """GPUs that the configuration excludes, and that are on the bus no more: nobody misses them."""
    known = (one for one in memory.gone.values() if one.why is Removal.EXCLUDED)
    return sum(one.bus_id in memory.excluded and one.bus_id not in (memory.bus or {}) for one in known)


def _ours(memory: InternalState) -> InternalState:
    """Without what another driver owns, or the configuration excludes. Who has been seen is gone no more."""
    known = memory.inventory
    bus = memory.bus or {}
    left = gpu_inventory.release(known, bus, memory.excluded)
    given = [gpu for bus_id, gpu in known.items() if bus_id not in left and bus_id not in memory.excluded]
    excluded = [gpu for bus_id, gpu in known.items() if bus_id not in left and bus_id in memory.excluded]
    memory = _leave(_leave(memory, given, Removal.GIVEN), excluded, Removal.EXCLUDED)
    back = {gpu.uuid for gpu in memory.inventory.values()} & memory.gone.keys()
    return (
        replace(memory, gone={uuid: one for uuid, one in memory.gone.items() if uuid not in back}) if back else memory
    )


def _leave(memory: InternalState, gpus: Iterable[GpuRecord], why: Removal) -> InternalState:
    """The inventory without these."""
    leaving = {gpu.uuid: gpu for gpu in gpus}
    if not leaving:
        return memory
    gone = {
        uuid: RemovedGpu(why, gpu.board.bus_id if gpu.bus_id.startswith(TAKEN) and gpu.board else gpu.bus_id)
        for uuid, gpu in leaving.items()
    }
    left = {bus_id: gpu for bus_id, gpu in memory.inventory.items() if gpu.uuid not in leaving}
    return replace(memory, inventory=left, gone={**memory.gone, **gone})


def _by_product(gpus: Iterable[GpuRecord], count: int) -> int | None:
    """How many GPUs a host like this one has; None for a mixture."""
    names = {gpu.identity.get("name") for gpu in gpus}
    return whole(names.pop(), count) if len(names) == 1 else None


def _unlisted(memory: InternalState) -> tuple[str, ...]:
    """On the bus, and neither known nor given away nor excluded."""
    bus: Mapping[str, str] = memory.bus or {}
    here = {gpu.bus_id for gpu in memory.inventory.values() if not gpu.absent}
    return tuple(
        bus_id
        for bus_id, driver in sorted(bus.items())
        if driver in gpu_inventory.OURS and bus_id not in here and bus_id not in memory.excluded
    )
