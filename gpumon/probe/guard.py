"""May a probe run now? Pure functions of what is known; each guard answers with a skip or None."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

IDLE_BYTES = 1 << 30
"""Most memory in use on a GPU that nobody uses: some drivers count here what they keep for themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Skip:
    """Why a run does not take place, and what to do about it."""

    reason: str
    """One of SKIP_REASONS."""
    hint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUse:
    """Who uses one GPU."""

    index: int
    uuid: str
    processes: float | None
    """None: not known. Read seldom: what follows is read at every poll."""
    utilization: float | None = None
    """0 to 1."""
    memory_used: float | None = None
    """Bytes."""
    fault: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What the guards look at."""

    gpus: Sequence[GpuUse] = ()
    expected: int = 0
    """GPUs that should be here: one that is not seen may be in use."""
    simulated: bool = False
    enabled: bool = True
    unkillable: Sequence[int] = ()
    """Pids of ranks of earlier runs that SIGKILL did not end."""
    released: bool = False
    """The agent was asked to keep off one GPU or all."""
    maintained: bool = False
    """The node is in maintenance: somebody works on it."""


def disabled(situation: Situation) -> Skip | None:
    if situation.enabled:
        return None
    return Skip(reason="disabled", hint="Set probe.enabled to true to let probes run.")


def single_gpu(situation: Situation) -> Skip | None:
    if situation.simulated or max(len(situation.gpus), situation.expected) != 1:
        return None
    return Skip(reason="single_gpu", hint="One GPU has no other to exchange with: nothing is wrong.")


def released(situation: Situation) -> Skip | None:
    if not situation.released:
        return None
    return Skip(reason="maintenance", hint="GPUs are released for maintenance: run again when the release has ended.")


def maintained(situation: Situation) -> Skip | None:
    if not situation.maintained:
        return None
    hint = "The node is in maintenance: run again when it has ended, or end it with `gpumon maintenance end`."
    return Skip(reason="maintenance", hint=hint)


def left_over(situation: Situation) -> Skip | None:
    if not situation.unkillable:
        return None
    pids = ", ".join(map(str, situation.unkillable))
    return Skip(reason="busy", hint=f"A rank of an earlier run cannot be killed (pid {pids}): reboot the node.")


def unseen(situation: Situation) -> Skip | None:
    missing = situation.expected - len(situation.gpus)
    if missing <= 0:
        return None
    hint = f"{missing} of {situation.expected} GPUs are not seen, so whether they are in use is not known."
    return Skip(reason="busy", hint=hint)


def busy(situation: Situation) -> Skip | None:
    held = [f"GPU {gpu.index} ({gpu.processes:.0f})" for gpu in situation.gpus if gpu.processes]
    if not held:
        return None
    return Skip(reason="busy", hint=f"Processes hold {', '.join(held)}. Run again when the GPUs are free.")


def at_work(situation: Situation) -> Skip | None:
    """A job may have come since the processes were last counted, or be one that they do not show."""
    signs = [sign for gpu in situation.gpus for sign in _signs(gpu)]
    if not signs:
        return None
    hint = f"{', '.join(signs)}, though no process was seen when they were last counted. Run again when that is over."
    return Skip(reason="busy", hint=hint)


def _signs(gpu: GpuUse) -> Iterator[str]:
    if gpu.utilization:
        yield f"GPU {gpu.index} is {gpu.utilization:.0%} utilized"
    if gpu.memory_used is not None and gpu.memory_used > IDLE_BYTES:
        yield f"GPU {gpu.index} has {gpu.memory_used / (1 << 30):.1f} GiB in use"


def unknown(situation: Situation) -> Skip | None:
    silent = [
        f"GPU {gpu.index}" + (f" ({gpu.fault})" if gpu.fault else "") for gpu in situation.gpus if gpu.processes is None
    ]
    if not silent:
        return None
    hint = f"The processes of {', '.join(silent)} cannot be read, so whether a job runs there is not known."
    return Skip(reason="busy", hint=hint)


GUARDS: tuple[Callable[[Situation], Skip | None], ...] = (
    *(disabled, released, maintained, single_gpu, left_over),
    *(busy, at_work, unseen, unknown),
)
"""In the order of asking: what never changes first, what is certain before what is not known."""


def may_run(situation: Situation) -> Skip | None:
    """The first objection, or None when a run harms nobody as far as can be seen."""
    return next(filter(None, (guard(situation) for guard in GUARDS)), None)


def intruders(situation: Situation) -> Skip | None:
    """Why a run in progress must give way. Of its own it has one process a GPU, and on a simulated node none."""
    if situation.released or situation.maintained:
        return released(situation) or maintained(situation)
    if situation.simulated:
        return busy(situation) or at_work(situation)
    held = [f"GPU {gpu.index}" for gpu in situation.gpus if (gpu.processes or 0) > 1]
    if not held:
        return None
    return Skip(reason="busy", hint=f"Another process came to {', '.join(held)}. Run again when the GPUs are free.")
