"""Decide whether a probe may run now, and on which GPUs. Each check returns a skip or None. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gpumon.probe.core.preflight_facts import GpuUse, PreflightFacts
from gpumon.probe.core.wording import enumerated

GIB = 1 << 30
IDLE_BYTES = GIB
"""Max memory in use on an idle GPU if the driver includes what it reserves."""
IDLE_BYTES_EXACT = GIB >> 2
"""The same if the driver excludes it: less than one CUDA context."""
IDLE_TRAFFIC = 100e6
"""Max bytes a second over NVLink or PCIe of an idle GPU: reading it is traffic too."""
LEAST_PARTIAL = 2
"""Min number of GPUs of a partial run."""
RING = ("ring",)
"""Algorithm that takes no NVLink SHARP resources of the NVSwitches."""
MOST_TOLD = 4
"""Max number of GPUs that a hint names."""
UNSEEN_SECONDS = 5.0
"""Max seconds, besides the duration of a poll, for which a run goes on while processes on its GPUs are not read.
GPUs are polled every second; a restarted sampler or a slow GPU has been read within this time.
"""
POLL_SECONDS = 5.0
"""Max allowance for the duration of a poll."""
EXCLUSIVE = {2: "no process may use", 3: "one process alone may use"}
"""NVML's compute modes in which ranks and jobs block each other."""


REFUSED = "The scheduler refused the node"
"""Begins the hint of a run that the scheduler refused."""


def idle_bytes(*, exact: bool) -> int:
    """Return the max memory in use on an idle GPU. `exact`: without what the driver reserves."""
    return IDLE_BYTES_EXACT if exact else IDLE_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Skip:
    """Why a run does not begin or was ended, and what to do."""

    reason: str
    """One of SKIP_REASONS."""
    hint: str
    wait: float | None = None
    """Seconds after which the reason ends by itself; None: unknown."""


# Node


def disabled(situation: PreflightFacts) -> Skip | None:
    if situation.enabled:
        return None
    return Skip(reason="disabled", hint="Set probe.enabled to true to let probes run.")


def single_gpu(situation: PreflightFacts) -> Skip | None:
    if situation.simulated or situation.alone or max(len(situation.gpus), situation.expected) != 1:
        return None
    hint = (
        "An all-reduce needs two GPUs; nothing is wrong. "
        "`gpumon probe copy` measures copies between this GPU and the host."
    )
    return Skip(reason="single_gpu", hint=hint)


def released(situation: PreflightFacts) -> Skip | None:
    if not situation.released:
        return None
    return Skip(reason="released", hint="GPUs are released: run again when the release has ended.")


def maintained(situation: PreflightFacts) -> Skip | None:
    if not situation.maintained:
        return None
    hint = "The node is in maintenance: run again when it has ended, or end it with `gpumon maintenance end`."
    return Skip(reason="maintenance", hint=hint)


def held(situation: PreflightFacts) -> Skip | None:
    return Skip(reason="held", hint=situation.held) if situation.held else None


def unrecalled(situation: PreflightFacts) -> Skip | None:
    """Refuse until the store is read: it may hold a hold from before the start."""
    if situation.recalled:
        return None
    remedy = situation.store or "Try again in a moment; `gpumon status` shows problems of the store"
    hint = f"The store has not been read, so it is unknown whether a hold is active. {remedy}."
    return Skip(reason="held", hint=hint)


def unkillable(situation: PreflightFacts) -> Skip | None:
    if not situation.unkillable:
        return None
    pids = ", ".join(map(str, situation.unkillable))
    return Skip(reason="busy", hint=f"A rank of an earlier run cannot be killed (pid {pids}): reboot the node.")


def no_scheduler_gate(situation: PreflightFacts) -> Skip | None:
    """Refuse scheduled runs if a scheduler may start a job at any moment: idle GPUs do not rule that out."""
    if not situation.scheduled or situation.simulated or situation.gated or situation.schedulers == ():
        return None
    found = ", ".join(situation.schedulers or ()) or "A scheduler may exist that"
    hint = (
        f"{found} schedules jobs on the GPUs of this host: set probe.scheduler_gate to a command that "
        "asks it whether the node is free. A run on request needs no gate."
    )
    return Skip(reason="no_scheduler_gate", hint=hint)


def unseen(situation: PreflightFacts) -> Skip | None:
    missing = situation.expected - len(situation.gpus)
    if missing <= 0:
        return None
    hint = f"{missing} of {situation.expected} GPUs are missing, so it is unknown whether they are in use."
    return Skip(reason="busy", hint=hint)


GUARDS: tuple[Callable[[PreflightFacts], Skip | None], ...] = (
    *(disabled, released, maintained, held, unrecalled, single_gpu, unkillable, no_scheduler_gate),
)
"""Checks of the node, in order: what never changes first."""


# GPUs


class Gate(NamedTuple):
    """A condition that no GPU of a run may meet."""

    reason: str
    signs: Callable[[GpuUse, PreflightFacts], Iterator[str]]
    """Yields what was found, in words."""
    hint: str
    """Contains {gpus} for the words."""

    def skip(self, situation: PreflightFacts, gpus: Iterable[GpuUse]) -> Skip | None:
        words = [sign for gpu in gpus for sign in self.signs(gpu, situation)]
        some = [*words[:MOST_TOLD], f"{len(words) - MOST_TOLD} more"] if len(words) > MOST_TOLD + 1 else words
        return Skip(reason=self.reason, hint=self.hint.format(gpus=enumerated(some))) if words else None


def _partitioned(gpu: GpuUse, situation: PreflightFacts) -> Iterator[str]:
    if gpu.mig and not situation.simulated:
        yield f"GPU {gpu.index}"


def _exclusive(gpu: GpuUse, situation: PreflightFacts) -> Iterator[str]:
    if gpu.compute_mode in EXCLUSIVE and not situation.simulated:
        yield f"{EXCLUSIVE[gpu.compute_mode]} GPU {gpu.index}"


def _held(gpu: GpuUse, _: PreflightFacts) -> Iterator[str]:
    if gpu.processes:
        yield f"GPU {gpu.index} ({gpu.processes:.0f})"


def _at_work(gpu: GpuUse, _: PreflightFacts) -> Iterator[str]:
    """Yield signs of a job that the process list does not show yet, or at all."""
    signs = []
    if gpu.utilization:
        signs.append(f"is {gpu.utilization:.0%} utilized")
    if (gpu.memory_used or 0.0) > idle_bytes(exact=gpu.memory_exact):
        signs.append(f"has {(gpu.memory_used or 0.0) / GIB:.1f} GiB in use")
    if (gpu.traffic or 0.0) > IDLE_TRAFFIC:
        signs.append(f"moves {(gpu.traffic or 0.0) / 1e9:.1f} GB/s over its links")
    if signs:
        yield f"GPU {gpu.index} {enumerated(signs)}"


def _unknown(gpu: GpuUse, _: PreflightFacts) -> Iterator[str]:
    if gpu.processes is None:
        yield f"GPU {gpu.index}" + (f" ({gpu.fault})" if gpu.fault else "")


def _short_of_memory(gpu: GpuUse, situation: PreflightFacts) -> Iterator[str]:
    if gpu.memory_free is not None and gpu.memory_free < situation.memory_needed and not situation.simulated:
        yield f"GPU {gpu.index} has {gpu.memory_free / GIB:.1f} GiB free of the {situation.memory_needed / GIB:.1f}"


def _restless(gpu: GpuUse, situation: PreflightFacts) -> Iterator[str]:
    if (gpu.idle_seconds or 0.0) < situation.idle_seconds:
        yield f"GPU {gpu.index} {gpu.idle_seconds or 0.0:.0f} s"


_UNTIL_IDLE = "Idle for too short a time for a scheduled run (probe.min_idle_seconds): {gpus}."
GATES = (
    Gate("mig", _partitioned, "MIG is enabled on {gpus}: NCCL does not work between MIG instances. Nothing is wrong."),
    Gate("exclusive_mode", _exclusive, "By compute mode {gpus}: `nvidia-smi -c DEFAULT` lets the probe run."),
    Gate("busy", _held, "Processes hold {gpus}. Run again when the GPUs are free."),
    Gate(
        "busy",
        _at_work,
        "{gpus}, though no process was listed. Run again when the GPUs are idle.",
    ),
    Gate("busy", _unknown, "The processes of {gpus} cannot be read, so it is unknown whether a job runs there."),
    Gate("low_memory", _short_of_memory, "{gpus} that a run takes. Run again when there is more."),
)
"""Checks of each GPU, in order: what never changes first, then what is certain."""
_IDLENESS = Gate("busy", _restless, _UNTIL_IDLE)


def may_run(situation: PreflightFacts) -> Skip | None:
    """Return the first objection; None if a run on the `usable` GPUs may begin."""
    skip = next(filter(None, (guard(situation) for guard in GUARDS)), None)
    if skip is not None or is_partial(situation):
        return skip
    return _of_gpus(situation) or unseen(situation) or _not_idle_yet(situation)


def usable(situation: PreflightFacts) -> tuple[str, ...]:
    """Return the UUIDs of the GPUs for a run: all of the host, or in a partial run the idle ones."""
    return tuple(gpu.uuid for gpu in (_free(situation) if is_partial(situation) else situation.gpus))


def is_partial(situation: PreflightFacts) -> bool:
    """Return whether a run leaves out GPUs that are, or may be, in use; it waits for GPUs to be idle."""
    if not situation.partial or (_of_gpus(situation) is None and unseen(situation) is None):
        return False
    return len(_free(situation)) >= LEAST_PARTIAL


def _free(situation: PreflightFacts) -> tuple[GpuUse, ...]:
    gates = (*GATES, _IDLENESS)
    return tuple(gpu for gpu in situation.gpus if not any(gate.skip(situation, (gpu,)) for gate in gates))


def _of_gpus(situation: PreflightFacts) -> Skip | None:
    return next(filter(None, (gate.skip(situation, situation.gpus) for gate in GATES)), None)


def _not_idle_yet(situation: PreflightFacts) -> Skip | None:
    skip = _IDLENESS.skip(situation, situation.gpus)
    if skip is None:
        return None
    wait = max(situation.idle_seconds - (gpu.idle_seconds or 0.0) for gpu in situation.gpus)
    return Skip(reason=skip.reason, hint=skip.hint, wait=wait)


def algorithms(situation: PreflightFacts, chosen: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the NCCL algorithms to measure; empty for the probe's own. `chosen`: by the configuration.

    NVLink SHARP takes slots of the NVSwitches, and a job that finds none left fails: beside jobs only the ring is safe.
    In a fabric of several nodes these jobs may be on another node.
    """
    if situation.alone:
        return ()
    if is_partial(situation):
        return RING
    return tuple(chosen) or (RING if situation.clique else ())


# During a run


def intruders(situation: PreflightFacts, used: Collection[str] | None = None) -> Skip | None:
    """Return why a run in progress must end. `used`: UUIDs of its GPUs, None for all.

    The load of the run shows on real GPUs, but not on those of a simulated node.
    """
    asked = released(situation) or maintained(situation) or held(situation)
    if asked is not None:
        return asked
    gpus = [gpu for gpu in situation.gpus if used is None or gpu.uuid in used]
    came = [f"GPU {gpu.index}" for gpu in gpus if gpu.foreign]
    if came:
        hint = f"Another process came to {', '.join(came)}. Run again when the GPUs are free."
        return Skip(reason="busy", hint=hint)
    signs = [sign for gpu in gpus for sign in _at_work(gpu, situation)] if situation.simulated else []
    if signs:
        return Skip(reason="busy", hint=f"{', '.join(signs)}. Run again when that is over.")
    return unwatched(situation)


def unwatched(situation: PreflightFacts) -> Skip | None:
    """End the run if a job that comes would not be noticed."""
    patience = UNSEEN_SECONDS + min(situation.poll_seconds, POLL_SECONDS)
    late = {uuid: seconds for uuid, seconds in situation.unobserved.items() if seconds > patience}
    if not late:
        return None
    known = {gpu.uuid: f"GPU {gpu.index}" + (f" ({gpu.fault})" if gpu.fault else "") for gpu in situation.gpus}
    gpus = enumerated([known.get(one, one) for one in late])
    hint = (
        f"For {max(late.values()):.0f} s the processes on {gpus} were not read: a job may have started. "
        "Run again when the agent can read its GPUs; `gpumon status` shows why it cannot."
    )
    return Skip(reason="busy", hint=hint)
