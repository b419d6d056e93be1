"""Decides whether a probe run may begin or continue, and on which GPUs. A Skip is a refusal. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from gpumon.probe.core.wording import join_words

GIB = 1 << 30
IDLE_BYTES = GIB
"""Max bytes in use on an idle GPU if NVML's figure includes the memory that the driver reserves."""
IDLE_BYTES_EXACT = GIB >> 2
"""Max bytes in use on an idle GPU if NVML's figure excludes reserved memory: less than one CUDA context."""
IDLE_TRAFFIC = 100e6
"""Max bytes per second that an idle GPU moves over NVLink and PCIe. Reading the GPU causes traffic."""
IDLE_UTILIZATION = 0.05
"""Max utilization of an idle GPU. It is above 0 because polling a GPU may wake it."""
MIN_PARTIAL = 2
"""Min number of GPUs of a partial run, which leaves out GPUs that are in use."""
RING = ("ring",)
"""NCCL algorithms of a partial run, which shares the node with jobs: the ring uses no NVLink SHARP resources."""
MAX_LISTED = 4
"""Max number of GPUs that a hint names."""
UNSEEN_SECONDS = 5.0
"""A run ends if processes were not read for this long plus a poll: a restart of the sampler child, or a slow GPU."""
POLL_SECONDS = 5.0
"""Max seconds by which a slow poll extends UNSEEN_SECONDS."""
EXCLUSIVE = {2: "no process may use", 3: "one process alone may use"}
"""NVML's compute modes that permit no process (2) or only one process (3) on a GPU, with words for the hint."""
REFUSED = "The scheduler refused the node"
"""First words of the hint if the scheduler refused a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUse:
    """How much one GPU is used, and by how many processes."""

    index: int
    uuid: str
    processes: float | None
    """Number of processes on the GPU; None if unknown. It is read less often than the rest between runs."""
    holders: Sequence[str] = ()
    """Names and pids of up to two of these processes; empty if they cannot be read."""
    foreign: float | None = None
    """Number of processes on the GPU that do not belong to the agent; None if unknown."""
    utilization: float | None = None
    """Utilization of the GPU, 0 to 1; None if unknown."""
    memory_used: float | None = None
    memory_free: float | None = None
    memory_exact: bool = False
    """Whether `memory_used` excludes the memory that the driver reserves."""
    traffic: float | None = None
    """Traffic over NVLink and PCIe in both directions together, in bytes per second; None if unknown."""
    idle_seconds: float | None = None
    """Seconds without process, load or memory in use on the GPU; None while it is in use, or if unknown."""
    mig: bool = False
    compute_mode: int | None = None
    fault: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightFacts:
    """Everything that preflight checks: the state of the node and its GPUs, the configuration, and the kind of run."""

    gpus: Sequence[GpuUse] = ()
    expected: int = 0
    """Number of GPUs that the host should have. An expected GPU that is missing may be in use."""
    simulated: bool = False
    enabled: bool = True
    unkillable: Sequence[int] = ()
    """Pids of ranks of earlier runs that SIGKILL did not end."""
    released: bool = False
    """Whether a release of one GPU or of all GPUs is active."""
    maintained: bool = False
    held: str = ""
    """Description of the active holds; empty if there is none."""
    store_read: bool = True
    """Whether the store has been read. Until then, holds from before the agent's start are not in `held`."""
    store_error: str = ""
    """The error of the store and its remedy; empty without an error."""
    scheduled: bool = False
    """Whether the schedule started the run, as opposed to a request."""
    schedulers: Collection[str] | None = ()
    """Names of the schedulers on this host; None if this is not determined yet."""
    gated: bool = False
    min_idle_seconds: float = 0.0
    """Seconds for which the GPUs must have been idle before the run; 0 for a run on request."""
    memory_needed: float = 0.0
    """Bytes of free memory that a run needs on each GPU."""
    alone: bool = False
    """Whether each rank works by itself, so that one GPU is enough."""
    partial: bool = False
    """Whether a run may leave out GPUs that are in use."""
    unobserved: Mapping[str, float] = field(default_factory=dict)
    """Seconds since processes on each GPU of the run in progress were last read, by UUID."""
    poll_seconds: float = 0.0
    """Seconds that the last polls of the fast and slow readings took together. The load of a run makes polls slower."""
    clique: bool = False
    """Whether the GPUs belong to an NVLink fabric that spans several nodes."""


def idle_bytes(*, exact: bool) -> int:
    """Return the max bytes in use on an idle GPU. `exact`: whether the figure excludes what the driver reserves."""
    return IDLE_BYTES_EXACT if exact else IDLE_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Skip:
    """The reason why a run does not begin or was ended, and what to do about it."""

    reason: str
    """One of SKIP_REASONS."""
    hint: str
    wait: float | None = None
    """Seconds until the reason will no longer apply; None if unknown."""


# Node


def _node_refusals(facts: PreflightFacts) -> Iterator[Skip]:
    """Yield a Skip for each state of the node that refuses a run, in the order of their precedence."""
    if not facts.enabled:
        yield Skip(reason="disabled", hint="Set probe.enabled to true to let probes run.")
    yield from _operator_requests(facts)
    if not facts.store_read:
        remedy = facts.store_error or "Try again in a moment; `gpumon status` shows problems of the store"
        hint = f"The store has not been read, so it is unknown whether a hold is active. {remedy}."
        yield Skip(reason="held", hint=hint)
    if max(len(facts.gpus), facts.expected) == 1 and not facts.simulated and not facts.alone:
        hint = (
            "This probe needs two GPUs; nothing is wrong. "
            "`gpumon probe copy` measures copies between this GPU and the host."
        )
        yield Skip(reason="single_gpu", hint=hint)
    if facts.unkillable:
        pids = ", ".join(map(str, facts.unkillable))
        hint = f"A rank of an earlier run cannot be killed (pid {pids}): drain and reboot the node."
        yield Skip(reason="busy", hint=hint)
    if facts.scheduled and not facts.simulated and not facts.gated and facts.schedulers != ():  # None: not determined
        schedulers = ", ".join(facts.schedulers or ()) or "A scheduler may exist that"
        hint = (
            f"{schedulers} schedules jobs on the GPUs of this host: set probe.scheduler_gate to a command that "
            "asks it whether the node is free. A run on request needs no gate."
        )
        yield Skip(reason="no_scheduler_gate", hint=hint)


def _operator_requests(facts: PreflightFacts) -> Iterator[Skip]:
    """Yield a Skip for each request of an operator that keeps the probe off the GPUs, before and during a run."""
    if facts.released:
        yield Skip(reason="released", hint="GPUs are released: run again when the release has ended.")
    if facts.maintained:
        hint = "The node is in maintenance: run again when it has ended, or end it with `gpumon maintenance end`."
        yield Skip(reason="maintenance", hint=hint)
    if facts.held:
        yield Skip(reason="held", hint=facts.held)


def _check_missing_gpus(facts: PreflightFacts) -> Skip | None:
    missing = facts.expected - len(facts.gpus)
    if missing <= 0:
        return None
    hint = f"{missing} of {facts.expected} GPUs are missing, so it is unknown whether they are in use."
    return Skip(reason="busy", hint=hint)


# GPUs


class Gate(NamedTuple):
    """A check of each GPU before a run. `skip` returns a Skip that lists the GPUs that fail; None if none fails."""

    reason: str
    sign: Callable[[GpuUse, PreflightFacts], str]
    """Callable that returns a phrase about a GPU that fails the check, and "" for another GPU."""
    hint: str
    """Hint of the Skip. `{gpus}` is replaced by the phrases of `sign`."""

    def skip(self, facts: PreflightFacts, gpus: Iterable[GpuUse]) -> Skip | None:
        words = [sign for gpu in gpus if (sign := self.sign(gpu, facts))]
        some = [*words[:MAX_LISTED], f"{len(words) - MAX_LISTED} more"] if len(words) > MAX_LISTED + 1 else words
        return Skip(reason=self.reason, hint=self.hint.format(gpus=join_words(some))) if words else None


def _name(gpu: GpuUse) -> str:
    return f"GPU {gpu.index}" + (f" ({gpu.fault})" if gpu.fault else "")


def _process_sign(gpu: GpuUse, _: PreflightFacts) -> str:
    number = f"{gpu.processes or 0:.0f} process{'' if gpu.processes == 1 else 'es'}"
    holders = f" ({'; '.join(gpu.holders)})" if gpu.holders else ""
    return f"GPU {gpu.index} has {number}{holders}" if gpu.processes else ""


def _load_sign(gpu: GpuUse, _: PreflightFacts) -> str:
    """Return a phrase if utilization, memory or traffic shows use, also by processes that NVML does not list."""
    signs = []
    if (gpu.utilization or 0.0) > IDLE_UTILIZATION:
        signs.append(f"is {gpu.utilization or 0.0:.0%} utilized")
    if (gpu.memory_used or 0.0) > idle_bytes(exact=gpu.memory_exact):
        signs.append(f"has {(gpu.memory_used or 0.0) / GIB:.1f} GiB in use")
    if (gpu.traffic or 0.0) > IDLE_TRAFFIC:
        signs.append(f"moves {(gpu.traffic or 0.0) / 1e9:.1f} GB/s over its links")
    return f"GPU {gpu.index} {join_words(signs)}" if signs else ""


def _memory_sign(gpu: GpuUse, facts: PreflightFacts) -> str:
    if gpu.memory_free is None or gpu.memory_free >= facts.memory_needed or facts.simulated:
        return ""
    return f"GPU {gpu.index} has {gpu.memory_free / GIB:.1f} GiB free of the {facts.memory_needed / GIB:.1f}"


GATES = (
    Gate(
        "mig",
        lambda gpu, facts: f"GPU {gpu.index}" if gpu.mig and not facts.simulated else "",
        "MIG is enabled on {gpus}: NCCL does not work between MIG instances. Nothing is wrong.",
    ),
    Gate(
        "exclusive_mode",
        lambda gpu, facts: (
            f"{EXCLUSIVE[gpu.compute_mode]} GPU {gpu.index}"
            if gpu.compute_mode in EXCLUSIVE and not facts.simulated
            else ""
        ),
        "By compute mode {gpus}: `nvidia-smi -c DEFAULT` lets the probe run.",
    ),
    Gate("busy", _process_sign, "{gpus}. Run again when the GPUs are free."),
    Gate("busy", _load_sign, "{gpus}, though no process was listed. Run again when the GPUs are idle."),
    Gate(
        "busy",
        lambda gpu, _: _name(gpu) if gpu.processes is None else "",
        "The processes of {gpus} cannot be read, so it is unknown whether a job runs there.",
    ),
    Gate("low_memory", _memory_sign, "{gpus} that a run takes. Run again when there is more."),
)
"""Checks of each GPU in the order of their precedence."""
_IDLENESS = Gate(
    "busy",
    lambda gpu, facts: (
        f"GPU {gpu.index} {gpu.idle_seconds or 0.0:.0f} s" if (gpu.idle_seconds or 0.0) < facts.min_idle_seconds else ""
    ),
    "Idle for too short a time for a scheduled run (probe.min_idle_seconds): {gpus}.",
)


def may_run(facts: PreflightFacts) -> Skip | None:
    """Return the Skip of the first check that fails; None if a run may begin on the GPUs that `usable_gpus` returns."""
    skip = next(_node_refusals(facts), None)
    if skip is not None or is_partial(facts):
        return skip
    skip = _check_gpus(facts) or _check_missing_gpus(facts)
    if skip is not None:
        return skip
    wait = max((facts.min_idle_seconds - (gpu.idle_seconds or 0.0) for gpu in facts.gpus), default=None)
    skip = _IDLENESS.skip(facts, facts.gpus)
    return None if skip is None else replace(skip, wait=wait)


def usable_gpus(facts: PreflightFacts) -> tuple[str, ...]:
    """Return the UUIDs of the GPUs for a run: all GPUs of the host, or the idle ones if the run is partial."""
    return tuple(gpu.uuid for gpu in (_idle_gpus(facts) if is_partial(facts) else facts.gpus))


def is_partial(facts: PreflightFacts) -> bool:
    """Return whether a run would leave out GPUs that fail a check: it may, and at least MIN_PARTIAL GPUs pass."""
    if not facts.partial or (_check_gpus(facts) is None and _check_missing_gpus(facts) is None):
        return False
    return len(_idle_gpus(facts)) >= MIN_PARTIAL


def _idle_gpus(facts: PreflightFacts) -> tuple[GpuUse, ...]:
    gates = (*GATES, _IDLENESS)
    return tuple(gpu for gpu in facts.gpus if not any(gate.skip(facts, (gpu,)) for gate in gates))


def _check_gpus(facts: PreflightFacts) -> Skip | None:
    return next(filter(None, (gate.skip(facts, facts.gpus) for gate in GATES)), None)


def algorithms(facts: PreflightFacts, chosen: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the NCCL algorithms to measure; () for those of the probe. `chosen`: those in the configuration.

    A job that finds no NVSwitch resources left for NVLink SHARP fails. Therefore a partial run measures only the ring,
    which is also the default in an NVLink fabric of several nodes, where the job may run on another node.
    """
    if facts.alone:
        return ()
    if is_partial(facts):
        return RING
    return tuple(chosen) or (RING if facts.clique else ())


# During a run


def interruption(facts: PreflightFacts, used: Collection[str] | None = None) -> Skip | None:
    """Return the Skip with which a run in progress must end; None if it may continue.

    `used`: UUIDs of its GPUs; None for all. Their load counts only on a simulated node: on a real one the run causes
    it.
    """
    requested = next(_operator_requests(facts), None)
    if requested is not None:
        return requested
    gpus = [gpu for gpu in facts.gpus if used is None or gpu.uuid in used]
    came = [f"GPU {gpu.index}" for gpu in gpus if gpu.foreign]
    if came:
        hint = f"Another process came to {', '.join(came)}. Run again when the GPUs are free."
        return Skip(reason="busy", hint=hint)
    signs = [sign for gpu in gpus if facts.simulated and (sign := _load_sign(gpu, facts))]
    if signs:
        return Skip(reason="busy", hint=f"{', '.join(signs)}. Run again when that is over.")
    patience = UNSEEN_SECONDS + min(facts.poll_seconds, POLL_SECONDS)
    late = {uuid: seconds for uuid, seconds in facts.unobserved.items() if seconds > patience}
    if not late:
        return None
    names = {gpu.uuid: _name(gpu) for gpu in facts.gpus}
    unread = join_words([names.get(uuid, uuid) for uuid in late])
    hint = (
        f"For {max(late.values()):.0f} s the processes on {unread} were not read: a job may have started. "
        "Run again when the agent can read its GPUs; `gpumon status` shows why it cannot."
    )
    return Skip(reason="busy", hint=hint)
