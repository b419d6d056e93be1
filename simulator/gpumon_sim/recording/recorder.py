"""Runs two sampler child processes that record the driver's answers: the first makes a survey, the second polls.

The survey makes calls that polls do not make, but other clients of NVML do. Only these children load the driver.
"""

from __future__ import annotations

import os
from dataclasses import replace

from gpumon.model.frame import Frame
from gpumon.model.orders import SamplerOrders
from gpumon.model.snapshot import DriverStatus, Snapshot
from gpumon.supervisor.child import Child
from gpumon.supervisor.child_process import LineSplitter
from gpumon.supervisor.loop import Loop
from gpumon.supervisor.sampler_supervisor import SAMPLER
from gpumon_sim.recording.builder import Builder
from gpumon_sim.recording.orders import RecordingOrders

SURVEY_SECONDS = 120.0
"""Maximum seconds for the survey, which makes some hundred driver calls for each GPU."""
OPENING_SECONDS = 75.0
"""Maximum seconds from the start of the second child until its first poll has ended."""
POLL_SECONDS = 0.25
LINE_LIMIT = 16 * 1024 * 1024


class Recording:
    """Makes one recording of the answers that NVML gives on this host. Call `run` once.

    `orders`: configuration of a sampler child. `seconds`: time to record after the first poll.
    """

    def __init__(self, builder: Builder, orders: SamplerOrders, *, seconds: float) -> None:
        self.up = False
        """True if NVML could be initialised."""
        self.remarks: list[str] = []
        """Sentences that state what went wrong; empty if the recording is complete."""
        self._polled = False
        self._builder = builder
        self._orders = orders
        self._wanted = seconds
        self._loop = Loop()
        self._child: Child | None = None
        self._survey = True
        self._over = False

    def run(self) -> None:
        """Record until the duration is over, the second child fails, or KeyboardInterrupt.

        If the driver cannot be used or a child cannot be killed, end at once.
        """
        self._loop.every(POLL_SECONDS, self._check_calls)
        self._start(survey=True)
        try:
            self._loop.run()
        except KeyboardInterrupt:
            self._over = True
            self.remarks.append("ended by the operator")
            self._stop("stopped")
            self._loop.run()

    def _start(self, *, survey: bool) -> None:
        self._survey = survey
        reader, writer = os.pipe2(os.O_CLOEXEC)
        lines = LineSplitter(LINE_LIMIT, self._builder.take, lambda: self._fail("a recorded answer is too long"))
        program = replace(
            SAMPLER,
            name="survey" if survey else "sampler",
            module="gpumon_sim.recording.child",
            descriptors=(writer,),
        )
        self._loop.watch(reader, lambda: lines.feed(os.read(reader, 1 << 20)))
        self._child = Child(
            self._loop,
            program,
            RecordingOrders.of(self._orders, record=writer, survey=survey),
            on_message=(self._take,),
            on_end=lambda child, code: self._end(child, code, reader, lines),
            on_abandoned=lambda child: self._abandon(child, reader),
        )
        os.close(writer)
        limit = SURVEY_SECONDS if survey else OPENING_SECONDS
        self._deadline = self._loop.call_after(limit, lambda: self._fail(f"no answer of the driver within {limit:g} s"))

    def _take(self, message: Frame) -> None:
        if isinstance(message, DriverStatus):
            self.up |= message.up
            if not message.up:
                self._over = True
                self._fail(f"{message.error}: {message.remedy}")
        elif isinstance(message, Snapshot) and message.complete and not self._polled:
            self._polled = True
            self._deadline.cancel()
            self._deadline = self._loop.call_after(self._wanted, lambda: self._stop("done"))

    def _check_calls(self) -> None:
        child = self._child
        if child is not None and child.killed_for is None and child.is_late():
            gpu = f" of {child.call.bus_id}" if child.call.bus_id else ""
            self._fail(f"{child.call.call}{gpu} has not returned for {child.waiting_seconds:.0f} s")

    def _fail(self, remark: str) -> None:
        self.remarks.append(remark)
        self._stop("late")

    def _stop(self, reason: str) -> None:
        if self._child is not None:
            self._child.kill(reason)

    def _end(self, child: Child, code: int, reader: int, lines: LineSplitter) -> None:
        self._deadline.cancel()
        while piece := os.read(reader, 1 << 20):
            lines.feed(piece)
        self._close(reader)
        hung = child.killed_for == "late" and child.call.running
        self._builder.child_ended(child.call.since if hung else None)
        if child.killed_for is None and code:
            self.remarks.append(f"{child.name} crashed (code {code})")
        if self._survey and not self._over:
            self._start(survey=False)
        else:
            self._loop.stop()

    def _abandon(self, child: Child, reader: int) -> None:
        """End the recording although SIGKILL does not end the child, because the driver blocks it in the kernel."""
        self.remarks.append(f"{child.name} cannot be killed: the driver blocks it in the kernel")
        self._close(reader)
        self._builder.child_ended(child.call.since)
        self._loop.stop()

    def _close(self, reader: int) -> None:
        self._loop.unwatch(reader)
        os.close(reader)
