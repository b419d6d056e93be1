"""The child processes of the sampler supervisor that have not ended."""

from __future__ import annotations

import logging
from collections.abc import Callable

from gpumon.model.frame import Frame
from gpumon.model.orders import SamplerOrders
from gpumon.model.request_result import DeviceHolder
from gpumon.supervisor.deadlines import SamplerDeadlines
from gpumon.supervisor.loop import Loop
from gpumon.supervisor.sampler_child import SamplerChild

log = logging.getLogger("gpumon.supervisor")


class SamplerChildren:
    """Starts sampler children, and lists those that have not ended: the sampler, the trial and abandoned ones.

    Also counts the driver calls of all children that it has started.
    """

    def __init__(self, loop: Loop, deadlines: SamplerDeadlines, on_abandoned_end: Callable[[], None]) -> None:
        """Create an empty collection. `on_abandoned_end` is called when an abandoned child has ended after all."""
        self._loop = loop
        self._deadlines = deadlines
        self._on_abandoned_end = on_abandoned_end
        self._living: list[SamplerChild] = []
        self._past_calls = 0
        """Number of driver calls of the children that have ended."""

    def start(
        self,
        orders: Callable[[int], SamplerOrders],
        *,
        on_message: Callable[[Frame], None],
        on_end: Callable[[SamplerChild, int], None],
        on_abandoned: Callable[[SamplerChild], None],
    ) -> SamplerChild | None:
        """Start a child and return it; log an error and return None if that fails.

        The arguments are those of SamplerChild, but after `on_abandoned`, the end of the child calls
        `on_abandoned_end` of this class instead of `on_end`.
        """
        try:
            child = SamplerChild(
                self._loop,
                orders,
                self._deadlines,
                on_message=on_message,
                on_end=lambda child, code: self._take_end(child, code, on_end),
                on_abandoned=lambda child: self._take_abandonment(child, on_abandoned),
            )
        except OSError as error:  # no process, memory or interpreter, which may be temporary
            log.error("cannot start a child; retrying", extra={"error": str(error)})  # noqa: TRY400
            return None
        self._living.append(child)
        return child

    @property
    def abandoned(self) -> tuple[SamplerChild, ...]:
        """Return the children that SIGKILL did not end in time and that still have not ended."""
        return tuple(child for child in self._living if child.abandoned)

    @property
    def driver_calls(self) -> int:
        """Return the number of driver calls that all children have made, including those that have ended."""
        return self._past_calls + sum(child.call.calls for child in self._living)

    def holders(self, released: frozenset[str]) -> tuple[DeviceHolder, ...]:
        """Return the children that may have one of the GPUs in `released` (bus ids, or NODE for all) open."""
        return tuple(
            DeviceHolder(pid=child.pid, description=child.name, stuck=child.abandoned)
            for child in self._living
            if child.may_hold(released)
        )

    def _take_end(self, child: SamplerChild, code: int, on_end: Callable[[SamplerChild, int], None]) -> None:
        self._past_calls += child.call.calls
        self._living.remove(child)
        if child.abandoned:
            log.info("an abandoned child has ended", extra={"child": child.name})
            self._on_abandoned_end()
        else:
            on_end(child, code)

    def _take_abandonment(self, child: SamplerChild, on_abandoned: Callable[[SamplerChild], None]) -> None:
        log.error("SIGKILL does not end this child: it is blocked in the driver", extra={"child": child.name})
        on_abandoned(child)
