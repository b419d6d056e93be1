"""May a probe run now, and on which GPUs? Pure functions of what is known; each answers with a skip or None."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gpumon.probe.core.preflight_facts import GpuUse, PreflightFacts
from gpumon.probe.core.wording import enumerated

GIB = 1 << 30
IDLE_BYTES = GIB
"""Most memory in use on a GPU that nobody uses: some drivers count here what they keep for themselves."""
IDLE_BYTES_EXACT = GIB >> 2
"""The same where the driver tells the two apart: less than one CUDA context."""
IDLE_TRAFFIC = 100e6
"""Bytes a second over NVLink or PCIe that an idle GPU may show: reading it is traffic too."""
LEAST_PARTIAL = 2
"""GPUs of a partial run."""
RING = ("ring",)
"""The algorithm that takes nothing of the NVSwitches but their links."""
MOST_TOLD = 4
"""GPUs that a hint names one by one."""
UNSEEN_SECONDS = 5.0
"""Longest that a run goes on while nobody sees who holds its GPUs, beside what a poll takes. They are polled once a
second; a sampler that ends is there again, or a GPU that is slow has been read, within this."""
POLL_SECONDS = 5.0
"""Most that is waited for a poll that takes long."""
EXCLUSIVE = {2: "no process may use", 3: "one process alone may use"}
"""NVML's compute modes in which ranks and jobs are in each other's way."""


REFUSED = "The scheduler does not give the node"
"""Begins the hint of a run that it refused."""


def idle_bytes(*, exact: bool) -> int:
    """Most memory in use on a GPU that nobody uses. `exact`: without what the driver keeps for itself."""
    return IDLE_BYTES_EXACT if exact else IDLE_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Skip:
    """Why a run does not take place, and what to do about it."""

    reason: str
    """One of SKIP_REASONS."""
    hint: str
    wait: float | None = None
    """Seconds after which this is over if nothing else happens; None: nobody knows when."""


# The node


def disabled(situation: PreflightFacts) -> Skip | None:
    if situation.enabled:
        return None
    return Skip(reason="disabled", hint="Set probe.enabled to true to let probes run.")


def single_gpu(situation: PreflightFacts) -> Skip | None:
    if situation.simulated or situation.alone or max(len(situation.gpus), situation.expected) != 1:
        return None
    hint = (
        "One GPU has no other to exchange with: nothing is wrong. "
        "`gpumon probe copy` measures what it exchanges with the host."
    )
    return Skip(reason="single_gpu", hint=hint)


def released(situation: PreflightFacts) -> Skip | None:
    if not situation.released:
        return None
    return Skip(reason="maintenance", hint="GPUs are released for maintenance: run again when the release has ended.")


def maintained(situation: PreflightFacts) -> Skip | None:
    if not situation.maintained:
        return None
    hint = "The node is in maintenance: run again when it has ended, or end it with `gpumon maintenance end`."
    return Skip(reason="maintenance", hint=hint)


def held(situation: PreflightFacts) -> Skip | None:
    return Skip(reason="held", hint=situation.held) if situation.held else None


def unrecalled(situation: PreflightFacts) -> Skip | None:
    """To run all the same could break a hold, and harm whom it is for."""
    if situation.recalled:
        return None
    remedy = situation.store or "Try again in a moment; should it stay so, `gpumon status` tells why"
    hint = f"The store has not been read, so whether somebody holds the GPUs is not known. {remedy}."
    return Skip(reason="held", hint=hint)


def left_over(situation: PreflightFacts) -> Skip | None:
    if not situation.unkillable:
        return None
    pids = ", ".join(map(str, situation.unkillable))
    return Skip(reason="busy", hint=f"A rank of an earlier run cannot be killed (pid {pids}): reboot the node.")


def unarmed(situation: PreflightFacts) -> Skip | None:
    """Where a job may start at this instant, no look at the GPUs is proof enough."""
    if not situation.scheduled or situation.simulated or situation.gated or situation.schedulers == ():
        return None
    found = ", ".join(situation.schedulers or ()) or "Maybe something"
    hint = (
        f"{found} gives the GPUs of this host to jobs: set probe.scheduler_gate to a command that asks whether the "
        "node is free, and scheduled runs begin. A run by request needs no gate."
    )
    return Skip(reason="unarmed", hint=hint)


def unseen(situation: PreflightFacts) -> Skip | None:
    missing = situation.expected - len(situation.gpus)
    if missing <= 0:
        return None
    hint = f"{missing} of {situation.expected} GPUs are not seen, so whether they are in use is not known."
    return Skip(reason="busy", hint=hint)


GUARDS: tuple[Callable[[PreflightFacts], Skip | None], ...] = (
    *(disabled, released, maintained, held, unrecalled, single_gpu, left_over, unarmed),
)
"""What is in the way whichever GPUs are used, in the order of asking: what never changes first."""


# Each GPU


class Gate(NamedTuple):
    """What must not be so of any GPU that a run uses."""

    reason: str
    signs: Callable[[GpuUse, PreflightFacts], Iterator[str]]
    """What is seen of it, in words."""
    hint: str
    """With {gpus} for the words."""

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
    """A job may have come since the processes were last counted, or be one that they do not show."""
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


_UNTIL_IDLE = "Nobody has been seen to use {gpus}: too short a time for a run by schedule, see probe.min_idle_seconds."
GATES = (
    Gate("mig", _partitioned, "MIG is on on {gpus}: NCCL exchanges nothing between parts of GPUs. Nothing is wrong."),
    Gate("exclusive_mode", _exclusive, "By their compute mode {gpus}: `nvidia-smi -c DEFAULT` lets the probe run."),
    Gate("busy", _held, "Processes hold {gpus}. Run again when the GPUs are free."),
    Gate(
        "busy",
        _at_work,
        "{gpus}, though no process was seen when they were last counted. Run again when that is over.",
    ),
    Gate("busy", _unknown, "The processes of {gpus} cannot be read, so whether a job runs there is not known."),
    Gate("low_memory", _short_of_memory, "{gpus} that a run takes. Run again when there is more."),
)
"""In the order of asking: what never changes first, what is certain before what is not known."""
_IDLENESS = Gate("busy", _restless, _UNTIL_IDLE)


def may_run(situation: PreflightFacts) -> Skip | None:
    """The first objection, or None when a run on the `usable` GPUs harms nobody as far as can be seen."""
    skip = next(filter(None, (guard(situation) for guard in GUARDS)), None)
    if skip is not None or is_partial(situation):
        return skip
    return _of_gpus(situation) or unseen(situation) or _not_idle_yet(situation)


def usable(situation: PreflightFacts) -> tuple[str, ...]:
    """UUIDs of the GPUs that a run may use: all of the host, or in a partial run the idle ones."""
    return tuple(gpu.uuid for gpu in (_free(situation) if is_partial(situation) else situation.gpus))


def is_partial(situation: PreflightFacts) -> bool:
    """Whether a run leaves GPUs out that are in use, or may be. For those that are not idle for long it can wait."""
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
    """Those of NCCL that a run measures; empty for the probe's own. `chosen`: by the configuration.

    NVLink SHARP takes slots of the NVSwitches, and a job that finds none left dies: beside jobs the ring alone is safe.
    In a fabric of several nodes the jobs may be on another one.
    """
    if situation.alone:
        return ()
    if is_partial(situation):
        return RING
    return tuple(chosen) or (RING if situation.clique else ())


# While it runs


def intruders(situation: PreflightFacts, used: Collection[str] | None = None) -> Skip | None:
    """Why a run in progress must give way. `used`: UUIDs of the GPUs that it uses, None for all.

    Its own load shows on real GPUs, and not on those of a simulated node.
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
    """Nobody would see a job that comes."""
    patience = UNSEEN_SECONDS + min(situation.poll_seconds, POLL_SECONDS)
    late = {uuid: seconds for uuid, seconds in situation.unobserved.items() if seconds > patience}
    if not late:
        return None
    known = {gpu.uuid: f"GPU {gpu.index}" + (f" ({gpu.fault})" if gpu.fault else "") for gpu in situation.gpus}
    gpus = enumerated([known.get(one, one) for one in late])
    hint = (
        f"For {max(late.values()):.0f} s nobody has seen who holds {gpus}: a job may have come. "
        "Run again when the agent can read its GPUs; `gpumon status` tells why it cannot."
    )
    return Skip(reason="busy", hint=hint)
