"""Retries quarantined GPUs, one at a time. Each trial is a short-lived child process that reads one GPU."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from gpumon.model.frame import Frame
from gpumon.model.orders import SamplerOrders
from gpumon.model.snapshot import TrialResult
from gpumon.model.time_window import NODE
from gpumon.supervisor.gpu_quarantine import GpuQuarantine
from gpumon.supervisor.sampler_child import SamplerChild
from gpumon.supervisor.sampler_children import SamplerChildren

log = logging.getLogger("gpumon.supervisor")


class GpuTrials:
    """Starts and supervises trials of quarantined GPUs.

    A trial whose driver calls on the GPU return, even with errors, ends the GPU's quarantine and calls `on_readmitted`.
    `orders` gets the descriptor of a child's call page and returns the orders of a sampler.
    """

    def __init__(
        self,
        children: SamplerChildren,
        quarantine: GpuQuarantine,
        orders: Callable[[int], SamplerOrders],
        on_readmitted: Callable[[], None],
    ) -> None:
        self._children = children
        self._quarantine = quarantine
        self._orders = orders
        self._on_readmitted = on_readmitted
        self._child: SamplerChild | None = None

    @property
    def running(self) -> bool:
        """Return True if a trial is in progress."""
        return self._child is not None

    def inspect(self, released: frozenset[str]) -> None:
        """Kill the running trial if it hangs or is silent. If none is running, start the trial that is due, if any.

        No trial is started for the GPUs in `released` (bus ids). No trial at all is started while an abandoned child
        exists or `released` contains NODE.
        """
        child = self._child
        if child is None:
            if not self._children.abandoned and NODE not in released:
                self._start_due(released)
        elif child.killed_for is None and (child.is_late() or child.is_silent()):
            child.kill("deadline")

    def release(self, released: frozenset[str]) -> None:
        """Kill the running trial if it may have one of the GPUs in `released` (bus ids, or NODE for all) open."""
        if self._child is not None and self._child.may_hold(released):
            self._child.kill("release")

    def stop(self) -> None:
        """Kill the running trial, because the agent stops."""
        if self._child is not None:
            self._child.kill("stop")

    def _start_due(self, released: frozenset[str]) -> None:
        bus_id = self._quarantine.due(released)
        if bus_id is None:
            return
        self._child = self._children.start(
            lambda page: replace(self._orders(page), trial=bus_id),
            on_message=self._take_message,
            on_end=lambda child, _: self._conclude(child),
            on_abandoned=self._conclude,
        )
        if self._child is None:
            self._quarantine.postpone(bus_id)

    def _take_message(self, message: Frame) -> None:
        if isinstance(message, TrialResult) and message.bus_id in self._quarantine:
            log.info("GPU answers again; ending its quarantine", extra={"pci_bus_id": message.bus_id})
            self._quarantine.remove(message.bus_id)
            self._on_readmitted()

    def _conclude(self, child: SamplerChild) -> None:
        self._child = None
        self._quarantine.postpone(child.orders.trial or "")
