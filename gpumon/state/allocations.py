"""Allocations of GPUs: from the claims of the sources to one set of owners for each GPU, and their time. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from gpumon.model.allocation import (
    IDLE_LEVELS,
    KUBELET,
    MAPPING,
    MAX_HELD,
    PROCESS,
    Allocation,
    AllocationUse,
    Claim,
    HolderProcess,
    Key,
    Owner,
    OwnerReadings,
)
from gpumon.model.gpu import Gpu
from gpumon.model.gpu_state import GpuState
from gpumon.model.instant import Instant, Now
from gpumon.model.job import Job, JobProcess, Pace
from gpumon.model.reading import KEY_SEPARATOR
from gpumon.state.device_names import Place, resolve

MAX_OWNERS, MAX_ALLOCATIONS = 4, 64
"""Maximum numbers of owners of a GPU, and of allocations in all, that are exported as metrics."""
MAX_ENDED = 64
"""Maximum number of ended allocations that the Report keeps, beside those that ended last."""
ALWAYS_SHOWN = frozenset({"slurm_sluid", "pod_uid", "container_id"})
"""Names of an owner that identify no person and no project."""


class _Mark(NamedTuple):
    """Counters of a GPU when its time was last distributed over its owners."""

    observed: float
    busy: float
    energy: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """Who holds the GPUs."""

    allocations: tuple[Allocation, ...] = ()
    """Allocations in force, sorted by GPU, those of a GPU by their beginning."""
    suspended: Mapping[Key, Allocation] = field(default_factory=dict)
    """Allocations whose source is unknown at present, as after a restart of the agent. They are neither in force nor
    ended: the next answer of the source decides.
    """
    ended: tuple[Allocation, ...] = ()
    """The last allocations that have ended, the newest last."""
    known: Mapping[str, bool] = field(default_factory=dict)
    """Whether all owners of a GPU are known, by uuid: if so, a GPU without an allocation is free."""
    conflicts: Mapping[str, str] = field(default_factory=dict)
    """How another source, or the processes on a GPU, contradict its allocations, by uuid."""
    uses: Mapping[str, AllocationUse] = field(default_factory=dict)
    paces: Mapping[Key, Pace] = field(default_factory=dict)
    """How the GPU of each allocation moves."""
    ticked_at: Now | None = None
    """Time of the tick at which that was last determined."""
    jobs: tuple[Job, ...] = ()
    """The jobs at that time that share none of their GPUs, and have no MIG instance."""
    processes: Mapping[str, JobProcess] = field(default_factory=dict)
    """Processes on the GPUs by id, as decimal text."""
    marks: Mapping[str, _Mark] = field(default_factory=dict)
    silent: bool = False
    """Whether a source is there that does not answer, or that may not be read."""
    unresolved: tuple[str, ...] = ()
    """Names of devices in claims that are no GPU of this node."""
    names: frozenset[str] = frozenset()
    """Names of an owner, as attributes of Owner, that every reader may know."""
    dropped: int = 0
    """Number of allocations that are left out, because there are more than MAX_HELD."""

    @property
    def every(self) -> tuple[Allocation, ...]:
        """Return the allocations in force, those whose source is unknown at present, and the last that have ended."""
        return (*self.ended, *self.suspended.values(), *self.allocations)

    def holders(self, uuid: str, wall: float, stored: Iterable[Allocation] = ()) -> tuple[Owner, ...]:
        """Return the owners of a GPU at a time (Unix time), with the names that every reader may know.

        `stored`: allocations from the store, which has older ones too.
        """
        owners = {
            each.owner.key: self.public(each.owner)
            for each in (*stored, *self.every)
            if each.uuid == uuid and each.was_held(wall)
        }
        return tuple(owners.values())

    def named_holders(self, wall: float) -> Mapping[str, str]:
        """Return the owners of each GPU now as text, with the names that every reader may know, by uuid."""
        held: dict[str, list[str]] = {}
        just_ended = (each for each in (*self.ended, *self.suspended.values()) if each.was_held(wall))
        for each in (*self.allocations, *just_ended):
            held.setdefault(each.uuid, []).append(self.job_id(each.owner) or "a user")
        return {uuid: _few(list(dict.fromkeys(keys))) for uuid, keys in held.items()}

    def public(self, owner: Owner) -> Owner:
        """Return an owner with only the names that every reader may know."""
        return replace(owner, **dict.fromkeys(owner.names.keys() - self.names - ALWAYS_SHOWN))

    def job_id(self, owner: Owner) -> str | None:
        """Return the id of an owner for labels; None if its name is one that not every reader may know."""
        key = self.public(owner).key
        return None if key.endswith("/") else key.replace(KEY_SEPARATOR, "_")

    @property
    def exported(self) -> tuple[Allocation, ...]:
        """Return the allocations that are exported as metrics: of each GPU, those held longest."""
        counts, kept = Counter[str](), list[Allocation]()
        for each in self.allocations:
            counts[each.uuid] += 1
            if counts[each.uuid] <= MAX_OWNERS:
                kept.append(each)
        return tuple(kept[:MAX_ALLOCATIONS])

    def of_gpu(self, uuid: str) -> tuple[Allocation, ...]:
        """Return the allocations of a GPU and of its MIG instances, with those whose source is unknown at present."""
        return tuple(each for each in (*self.allocations, *self.suspended.values()) if each.uuid == uuid)


def _few(names: Sequence[str]) -> str:
    """Return at most MAX_OWNERS names as text: it becomes a label, and a row of the store."""
    more = len(names) - MAX_OWNERS
    return ", ".join((*names[:MAX_OWNERS], *([f"{more} more"] if more > 0 else [])))


Others = Mapping[str, Collection[str]]
"""Owners whom a GPU was given to by a source that does not count, because another one names its owners; by uuid."""
Claimed = Mapping[Place, tuple[str, Sequence[Claim]]]
"""The source, and the claims of this source, by GPU or MIG instance."""


def assign(jobs: JobState, readings: OwnerReadings | None, gpus: Sequence[GpuState], now: Instant) -> JobState:
    """Return the state with the owners that the sources report now. `readings`: None if the reader does not answer."""
    readings = readings or OwnerReadings()
    claimed, others, unresolved = _claimed(readings, gpus)
    before = {each.key: each for each in jobs.allocations} | dict(jobs.suspended)
    found: dict[Key, Allocation] = {}
    for place, (source, claims) in claimed.items():
        for claim in claims:
            key = (place.uuid, place.mig_uuid, claim.owner.key)
            found.setdefault(key, _allocation(before.get(key), place, source, claim, now))
    indexes = {gpu.uuid: gpu.index for gpu in gpus}
    held = sorted(found.values(), key=lambda each: (indexes[each.uuid], each.began.wall, each.key))
    certain = not readings.silent and not unresolved
    known = {gpu.uuid: certain and _is_known(gpu, readings) for gpu in gpus}
    gone = {key: each for key, each in before.items() if key not in found}
    suspended = {key: each for key, each in gone.items() if not _is_answered(each, readings, gpus)}
    ended = tuple(replace(each, ended=True) for key, each in gone.items() if key not in suspended)
    return replace(
        jobs,
        allocations=tuple(held[:MAX_HELD]),
        suspended=suspended,
        ended=(*jobs.ended, *ended)[-max(MAX_ENDED, len(ended)) :] if ended else jobs.ended,
        known=known,
        conflicts=dict(_conflicts(claimed, others, readings, gpus)),
        silent=readings.silent,
        unresolved=unresolved,
        dropped=len(held[MAX_HELD:]),
    )


def _claimed(readings: OwnerReadings, gpus: Sequence[GpuState]) -> tuple[Claimed, Others, tuple[str, ...]]:
    """Return the claims of the first source that names each GPU or MIG instance, the others, and names of neither."""
    claimed: dict[Place, tuple[str, list[Claim]]] = {}
    others: dict[str, dict[str, None]] = {}
    unresolved: dict[str, None] = {}
    for source, claims in ((MAPPING, readings.mapped), (KUBELET, readings.pods)):
        for claim in claims or ():
            for name in claim.devices:
                place = resolve(name, gpus)
                if place is None:
                    unresolved[name] = None
                elif not _add(claimed, place, source, claim):
                    others.setdefault(place.uuid, {})[f"{claim.owner.key} ({source})"] = None
    held = {place.uuid for place in claimed}
    for gpu in gpus:
        if gpu.uuid not in held:
            for process in _processes(gpu, readings):
                _add(claimed, Place(gpu.uuid), PROCESS, Claim(owner=process.owner, devices=()))
    return claimed, others, tuple(unresolved)


def _add(claimed: dict[Place, tuple[str, list[Claim]]], place: Place, source: str, claim: Claim) -> bool:
    """Add a claim, unless another source has named other owners of this place. Return False if one has."""
    first, claims = claimed.setdefault(place, (source, []))
    if any(each.owner.key == claim.owner.key for each in claims):
        return True
    if first == source:
        claims.append(claim)
    return first == source


def _processes(gpu: GpuState, readings: OwnerReadings) -> Iterator[HolderProcess]:
    """Yield the processes on a GPU that can be read, and that have a name of an owner."""
    for pid in gpu.pids or ():
        process = readings.processes.get(str(pid))
        if process is not None and process.owner.names:
            yield process


def _allocation(before: Allocation | None, place: Place, source: str, claim: Claim, now: Instant) -> Allocation:
    if before is not None:
        return replace(before, source=source, owner=claim.owner, last_wall=now.wall)
    since = now.wall if claim.since is None else min(claim.since, now.wall)
    began = Instant(now.boot_id, max(0.0, now.at - (now.wall - since)), since)
    return Allocation(
        uuid=place.uuid, mig_uuid=place.mig_uuid, source=source, owner=claim.owner, began=began, last_wall=now.wall
    )


def _is_known(gpu: GpuState, readings: OwnerReadings) -> bool:
    """Return True if a source answers that would name every owner of this GPU."""
    if readings.mapped is not None or readings.pods is not None:
        return True
    return gpu.pids is not None and all(str(pid) in readings.processes for pid in gpu.pids)


def _is_answered(allocation: Allocation, readings: OwnerReadings, gpus: Sequence[GpuState]) -> bool:
    """Return True if the source of an allocation answers, so that an owner that it does not name has none any more."""
    gpu = next((each for each in gpus if each.uuid == allocation.uuid), None)
    if gpu is None or gpu.read_at is None:  # after a start of the agent, its names may not be known yet
        return False
    if allocation.source != PROCESS:
        return (readings.mapped if allocation.source == MAPPING else readings.pods) is not None
    return gpu.pids is not None and all(str(pid) in readings.processes for pid in gpu.pids)


def _conflicts(
    claimed: Claimed, others: Others, readings: OwnerReadings, gpus: Sequence[GpuState]
) -> Iterator[tuple[str, str]]:
    """Yield (uuid, text) for each GPU that two sources give to different owners, or that a stranger's process uses."""
    for gpu in gpus:
        given = [
            (source, claim.owner)
            for place, (source, claims) in claimed.items()
            for claim in claims
            if place.uuid == gpu.uuid and source != PROCESS
        ]
        strangers = {
            _stranger(process.owner)
            for process in _processes(gpu, readings)
            if given and not _is_service(process.owner)
            if not any(_agree(source, owner, process.owner) for source, owner in given)
        }
        names = ", ".join(sorted({f"{owner.key} ({source})" for source, owner in given}))
        also = [f"also to {', '.join(others[gpu.uuid])}"] if gpu.uuid in others else []
        used = [f"used by {', '.join(sorted(strangers)[:MAX_OWNERS])}"] if strangers else []
        if also or used:
            yield gpu.uuid, f"given to {names}, but {' and '.join((*also, *used))}"


def _is_service(owner: Owner) -> bool:
    """Return True for a process of a service of root, such as the server of MPS, which works for the owner."""
    return owner.systemd_unit is not None and owner.user == "root"


def _stranger(owner: Owner) -> str:
    return owner.key if owner.key.partition("/")[0] != "user" else "a process of a user"


def _agree(source: str, owner: Owner, process: Owner) -> bool:
    """Return True if a process may belong to an owner. The kubelet does not report the uid of a pod."""
    if source == KUBELET:
        return process.pod_uid is not None
    pairs = ((owner.slurm_job_id, process.slurm_job_id), (owner.slurm_sluid, process.slurm_sluid))
    return any(None not in pair and pair[0] == pair[1] for pair in pairs)


# Time


def account(jobs: JobState, gpus: Sequence[GpuState], is_cold: Mapping[str, bool | None]) -> JobState:
    """Return the state with the time and energy since the last call added to the GPUs and to their owners.

    `is_cold`: by uuid, whether a busy GPU draws little power and hardly accesses its memory; None if unknown.
    """
    marks, uses = dict(jobs.marks), dict(jobs.uses)
    allocations = {each.key: each for each in jobs.allocations}
    for gpu in gpus:
        gains, marks[gpu.uuid] = _gains(gpu, jobs.marks.get(gpu.uuid))
        holders = [each for each in jobs.allocations if each.uuid == gpu.uuid]
        level = _level(gpu.gpu, gains, is_cold=is_cold.get(gpu.uuid)) if gains.observed else None
        uses[gpu.uuid] = _with_time(uses.get(gpu.uuid), gains.observed if holders else 0.0, level)
        for each in holders if gains.observed else ():
            allocations[each.key] = _with_share(each, gains, level, _share(each, holders, gpu))
    return replace(jobs, allocations=tuple(allocations.values()), uses=uses, marks=marks)


def _gains(gpu: GpuState, before: _Mark | None) -> tuple[_Mark, _Mark]:
    """Return the increase of the counters since `before` (0 without it), and the counters as they are now."""
    table = gpu.gpu
    kept = before or _Mark(table.observed_seconds_total or 0.0, table.busy_seconds_total or 0.0, 0.0)
    now = _Mark(
        table.observed_seconds_total or kept.observed,
        table.busy_seconds_total or kept.busy,
        table.energy_joules_total or kept.energy,
    )
    gains = _Mark(*(max(0.0, after - earlier) for after, earlier in zip(now, kept, strict=True)))
    return (gains if kept.energy else gains._replace(energy=0.0)), now


def _level(gpu: Gpu, gains: _Mark, *, is_cold: bool | None) -> str | None:
    """Return the level at which the GPU was idle, one of IDLE_LEVELS; None if it worked, or if that is unknown."""
    if gpu.processes == 0:
        return "no_process"
    if gpu.busy_seconds_total is None:
        return None
    if not gains.busy:
        return "no_kernel"
    return "cold" if is_cold else None


def _with_time(use: AllocationUse | None, seconds: float, level: str | None) -> AllocationUse:
    before = use or AllocationUse(allocated_seconds_total=0.0, idle_seconds_total=dict.fromkeys(IDLE_LEVELS, 0.0))
    if not seconds:
        return before
    idle = dict(before.idle_seconds_total or {})
    if level is not None:
        idle[level] += seconds
    return AllocationUse(
        allocated_seconds_total=(before.allocated_seconds_total or 0.0) + seconds, idle_seconds_total=idle
    )


def _with_share(each: Allocation, gains: _Mark, level: str | None, share: float) -> Allocation:
    seconds = gains.observed * share
    idle = {f"{level}_seconds": getattr(each, f"{level}_seconds") + seconds} if level else {}
    return replace(
        each,
        held_seconds=each.held_seconds + seconds,
        busy_seconds=each.busy_seconds + min(gains.busy, gains.observed) * share,
        energy_joules=each.energy_joules + gains.energy * share,
        **idle,
    )


def _share(allocation: Allocation, holders: Sequence[Allocation], gpu: GpuState) -> float:
    """Return the share of a GPU that an owner holds: that of its MIG instance, divided by the number of its owners."""
    owners = sum(each.mig_uuid == allocation.mig_uuid for each in holders)
    mig = next((each.mig for each in gpu.migs if each.uuid == allocation.mig_uuid), None)
    if mig is None or not mig.memory_total_bytes or not gpu.gpu.memory_total_bytes:
        return 1 / len(holders)
    return min(1.0, mig.memory_total_bytes / gpu.gpu.memory_total_bytes) / owners
