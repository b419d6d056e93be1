"""A sampler or trial child, with its orders and the deadlines of its driver calls."""

from __future__ import annotations

from collections.abc import Callable

from gpumon.model.call_progress import CallInProgress
from gpumon.model.frame import Frame
from gpumon.model.orders import SamplerOrders
from gpumon.model.time_window import NODE
from gpumon.supervisor.deadlines import SamplerDeadlines
from gpumon.supervisor.framed_child import ChildProgram, FramedChild
from gpumon.supervisor.loop import Loop

OPENING_CALLS = frozenset({"nvmlInit", "nvmlDeviceGetHandleByPciBusId", "nvmlDeviceGetHandleByIndex"})
"""Driver calls with a longer deadline, because they initialise NVML or open a GPU. A lookup that is repeated after a
fault has the usual deadline: its name ends in AGAIN and therefore is not in this set.
"""


def call_deadline(call: CallInProgress, deadlines: SamplerDeadlines) -> float:
    """Return the seconds after which a driver call is late: `opening` for OPENING_CALLS, `call` for all others."""
    return deadlines.opening if call.call in OPENING_CALLS else deadlines.call


class SamplerChild(FramedChild):
    """A sampler or trial child process. The constructor starts the process.

    `orders` gets the descriptor of the child's call page and returns its orders, which are those of a trial if `trial`
    in them is set. `on_end` gets the child and the exit status, see FramedChild.
    """

    def __init__(
        self,
        loop: Loop,
        orders: Callable[[int], SamplerOrders],
        deadlines: SamplerDeadlines,
        *,
        on_message: Callable[[Frame], None],
        on_end: Callable[[SamplerChild, int], None],
        on_abandoned: Callable[[SamplerChild], None],
    ) -> None:
        self.orders: SamplerOrders

        def launch(page: int) -> ChildProgram:
            self.orders = orders(page)
            return ChildProgram(
                name="trial" if self.orders.trial else "sampler",
                module="gpumon.collectors.sampler",
                orders=self.orders.encode(),
                deadline=lambda call: call_deadline(call, deadlines),
                deadlines=deadlines,
            )

        super().__init__(
            loop,
            launch,
            on_message=on_message,
            on_end=lambda code: on_end(self, code),
            on_abandoned=lambda: on_abandoned(self),
        )

    def may_hold(self, released: frozenset[str]) -> bool:
        """Return True if the child may have one of the GPUs in `released` (bus ids, or NODE for all) open.

        A sampler may open every GPU that is not in `do_not_open` of its orders. A trial opens one GPU only.
        """
        if NODE in released:
            return True
        trial = self.orders.trial
        return trial in released if trial is not None else bool(released.difference(self.orders.do_not_open))

    @property
    def name(self) -> str:
        return f"{super().name} on {self.call.bus_id or 'no GPU'}"
