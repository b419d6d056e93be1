"""Whether the ranks of a run have left their GPUs, as NVML tells: one that has ended may still be listed there."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from gpumon.clock import boot_clock
from gpumon.model.gpu_state import GpuState
from gpumon.model.release import Holder
from gpumon.probe.core.preflight import idle_bytes
from gpumon.state.report import Report
from gpumon.supervisor.loop import Loop

PATIENCE = 5.0
"""Seconds after the end of the last rank in which NVML must have been read, and show it no more."""
LOOK_INTERVAL = 0.1

Left = tuple[Holder, ...] | None
"""What is still there; None: nobody has looked yet."""
OnLeft = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Behind:
    """What runs may have left, as nobody has seen yet that they have not."""

    gpus: frozenset[str] = frozenset()
    """UUIDs."""
    pids: frozenset[int] = frozenset()

    def after(self, gpus: Collection[str], pids: frozenset[int]) -> Behind:
        """These ranks have ended on these GPUs too."""
        return Behind(self.gpus | frozenset(gpus), self.pids | pids)

    def without(self, gpus: Collection[str]) -> Behind:
        """On these GPUs nothing is left."""
        rest = self.gpus - frozenset(gpus)
        return Behind(rest, self.pids) if rest else Behind()


def left_on(report: Report, gpus: Collection[str], pids: frozenset[int], ended: float) -> Left:
    """As NVML said after the end of the ranks, on the boot clock: nobody used the GPUs before them."""
    if not is_told_since(report, gpus, ended):
        return None
    return tuple(holder for state in report.gpus if state.uuid in gpus for holder in _on_gpu(state, pids))


def is_told_since(report: Report, gpus: Collection[str], moment: float) -> bool:
    """Whether NVML was asked after this moment of the boot clock for the processes of each of these GPUs, and told."""
    told = {state.uuid: state.pids_at for state in report.gpus if state.pids is not None}
    return all((told.get(uuid) or 0.0) > moment for uuid in gpus)


def _on_gpu(state: GpuState, pids: frozenset[int]) -> Iterator[Holder]:
    """Memory can only be of the run where nobody else is."""
    for pid in sorted(pids.intersection(state.pids or ())):
        yield Holder(pid=pid, words=f"rank {pid} of the probe, which NVML still lists on GPU {state.index}")
    used = state.gpu.memory_used_bytes or 0.0
    if used > idle_bytes(exact=state.gpu.memory_reserved_bytes is not None) and not state.pids:
        yield Holder(pid=0, words=f"GPU {state.index}, which has {used / (1 << 30):.1f} GiB in use")


class Departure:
    """Waits for it, not for ever. `on_left` is told what remains to be said about it, most often nothing."""

    def __init__(self, loop: Loop, look: Callable[[], Left], on_left: OnLeft) -> None:
        self._loop = loop
        self._look = look
        self._on_left = on_left
        self._give_up_at = boot_clock() + PATIENCE
        self._wait()

    def _wait(self) -> None:
        left = self._look()
        if left == ():
            self._on_left("")
        elif boot_clock() < self._give_up_at:
            self._loop.call_after(LOOK_INTERVAL, self._wait)
        elif left is None:
            self._on_left(
                f"NVML was not read within {PATIENCE:g} s, so whether the ranks have left the GPUs is not known."
            )
        else:
            self._on_left(f"Still there {PATIENCE:g} s after the last rank: {'; '.join(one.words for one in left)}.")
