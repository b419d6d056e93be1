"""One sampler or trial child: its orders, and the driver call it is in."""

from __future__ import annotations

from collections.abc import Callable

from gpumon.model.orders import SamplerOrders
from gpumon.model.snapshot import ChildMessage
from gpumon.supervisor.framed_child import ChildProgram, FramedChild
from gpumon.supervisor.loop import Loop

SILENCE_SECONDS = 90.0
"""Longest that a child may say nothing while in no driver call: three times its longest pause of its own."""


class SamplerChild(FramedChild):
    """Started on construction."""

    def __init__(
        self,
        loop: Loop,
        orders: Callable[[int], SamplerOrders],
        *,
        on_message: Callable[[ChildMessage], None],
        on_end: Callable[[SamplerChild, int], None],
        on_abandoned: Callable[[SamplerChild], None],
    ) -> None:
        self.orders: SamplerOrders

        def launch(page: int) -> ChildProgram:
            self.orders = orders(page)
            name = "trial" if self.orders.trial else "sampler"
            return ChildProgram(
                name=name, module="gpumon.collectors.sampler", orders=self.orders.encode(), silence=SILENCE_SECONDS
            )

        super().__init__(
            loop,
            launch,
            on_message=on_message,
            on_end=lambda code: on_end(self, code),
            on_abandoned=lambda: on_abandoned(self),
        )

    @property
    def name(self) -> str:
        return f"{super().name} on {self.call.bus_id or 'no GPU'}"
