"""`python -m gpumon.collectors.sampler`: initialise, poll, report, repeat. Any driver call in here may not return."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import pynvml

from gpumon import __version__, log
from gpumon.clock import boot_clock
from gpumon.collectors.lifecycle import Told, first_line, frames_only, tie_to
from gpumon.collectors.nvml.gpu import Extent
from gpumon.collectors.nvml.library import (
    DRIVER_NOT_LOADED,
    LIBRARY_NOT_FOUND,
    NO_PERMISSION,
    VERSION_MISMATCH,
    Library,
    NvmlError,
)
from gpumon.collectors.nvml.poll import NodePoll, start
from gpumon.collectors.nvml.table import Processes
from gpumon.collectors.nvml.turns import SLOW_SECONDS
from gpumon.collectors.sampler.node import Surroundings, await_surroundings, excluded
from gpumon.model import frame
from gpumon.model.call_progress import Writer
from gpumon.model.orders import EXIT_MISMATCH, SamplerOrders
from gpumon.model.snapshot import ChildMessage, DriverStatus, Hello, Logged, PciBus, TrialResult

_log = logging.getLogger("gpumon.collectors.sampler")

BACK_OFF = (1.0, 30.0)
"""Seconds between attempts to initialise: drivers get installed later."""
WATCH_SECONDS = 1.0
"""Longest between two polls while somebody wants to know at once who comes to a GPU."""
BUS_SECONDS = 5.0
BLIND_SECONDS = (6.0, 600.0)
"""How long no GPU may answer until the driver is initialised anew, doubling from the first to the second."""

REMEDIES = {
    LIBRARY_NOT_FOUND: "libnvidia-ml.so.1 is not installed: install the NVIDIA driver",
    DRIVER_NOT_LOADED: "the nvidia kernel module is not loaded: modprobe nvidia, then see dmesg",
    VERSION_MISMATCH: "the driver was upgraded under its kernel module: reload the module or reboot",
    NO_PERMISSION: "this user may not open /dev/nvidiactl: add it to the group that owns the device nodes",
}


class Say(Protocol):
    """Tells messages, all in one piece: the daemon may end this child as soon as it has the first."""

    def __call__(self, *messages: ChildMessage) -> None: ...


class Sampler:
    """One life of a child."""

    def __init__(self, orders: SamplerOrders, say: Say, around: Surroundings, told: Told) -> None:
        self._told = told
        self._orders = orders
        self._say = say
        self._around = around
        self._library = Library(Writer(orders.page))
        self._polling: NodePoll | None = None
        self._bus: Mapping[str, str] = {}
        self._bus_at = 0.0
        self._excluded = excluded(orders, around)
        self._blind_seconds = BLIND_SECONDS[0]
        self._delay = BACK_OFF[0]

    def run(self) -> int:
        """Returns the exit code: when it was asked to end, or when this process can do no more."""
        while not self._told.end.is_set():
            self._look_at_bus()
            try:
                status = start(self._library)
                self._excluded = excluded(self._orders, self._around)  # now the kernel module may know more of them
                self._say(status)
                if self._orders.survey:
                    return self._survey(status)
                if self._orders.trial is not None:
                    return self._trial(status, self._orders.trial)
                self._poll(status)
                self._let_go()
            except NvmlError as error:
                self._say(DriverStatus(up=False, error=error.name, remedy=REMEDIES.get(error.code, "see dmesg")))
                if error.code == VERSION_MISMATCH:
                    return EXIT_MISMATCH
                self._let_go()
            self._told.end.wait(self._delay)
            self._delay = min(2 * self._delay, BACK_OFF[1])
        return 0

    def _poll(self, status: DriverStatus) -> None:
        """Until asked to end, or until a new initialisation is worth a try."""
        self._polling = poll = self._node_poll(status, self._around.bus)
        due = boot_clock()
        while not self._told.end.is_set():
            poll.watching = self._told.watch
            self._tell_events(poll)
            self._say(poll.poll())
            self._delay = BACK_OFF[0]
            if self._is_blind(poll.blind_since):
                _log.warning("no GPU answers; initialising the driver anew")
                break
            self._look_at_bus()
            due = max(due + self._interval, boot_clock() - self._interval)
            self._pause(due)
        self._tell_events(poll)

    @property
    def _interval(self) -> float:
        return min(self._orders.interval, WATCH_SECONDS) if self._told.watch else self._orders.interval

    def _pause(self, until: float) -> None:
        """Until then, or until it is told to watch."""
        watched = self._told.watch
        while (left := until - boot_clock()) > 0 and self._told.watch is watched:
            if self._told.end.wait(min(left, WATCH_SECONDS)):
                return

    def _is_blind(self, since: float | None) -> bool:
        """Whether no GPU has answered for so long that the fault may lie in what was opened."""
        if since is None:
            self._blind_seconds = BLIND_SECONDS[0]
        elif boot_clock() - since > self._blind_seconds:
            self._blind_seconds = min(2 * self._blind_seconds, BLIND_SECONDS[1])
            return True
        return False

    def _tell_events(self, poll: NodePoll) -> None:
        self._say(*(poll.events.take() if self._orders.events else ()))

    def _let_go(self) -> None:
        """Of a driver that went away as well: without it the next initialisation would only count one more user."""
        if self._polling is not None:
            self._polling.close()
            self._polling = None
        with contextlib.suppress(NvmlError):
            self._library.call("nvmlShutdown")

    def _trial(self, status: DriverStatus, bus_id: str) -> int:
        """Whatever it answers, it answers: it is no longer stuck."""
        only = {bus_id: self._around.bus().get(bus_id, "")}
        self._node_poll(status, lambda: only, patience=float("inf")).poll()
        self._say(TrialResult(bus_id=bus_id))
        return 0

    def _survey(self, status: DriverStatus) -> int:
        from gpumon.collectors.sampler.survey import survey  # noqa: PLC0415 - only a recorder asks so much

        bound = sorted(bus_id for bus_id, driver in self._around.bus().items() if driver == "nvidia")
        survey(self._library, pynvml.nvmlLib, status.driver or "", [one for one in bound if one not in self._excluded])
        return 0

    def _node_poll(
        self, status: DriverStatus, bus: Callable[[], Mapping[str, str]], patience: float = SLOW_SECONDS
    ) -> NodePoll:
        return NodePoll(
            self._library,
            status.driver or "",
            bus=bus,
            leave_aside=self._excluded | set(self._orders.leave_aside),
            unwanted=self._orders.exclude,
            first=self._orders.first,
            partial=self._say,
            interval=self._orders.interval,
            patience=patience,
            extent=Extent(
                gpm=self._orders.gpm,
                processes=Processes(self._orders.largest_processes, Path(self._orders.procfs)),
            ),
        )

    def _look_at_bus(self) -> None:
        if boot_clock() < self._bus_at:
            return
        self._bus_at = boot_clock() + BUS_SECONDS
        bus = dict(self._around.bus())
        if bus != self._bus or not self._bus:
            self._bus = bus
            if self._polling is not None:
                self._polling.bus_changed = True
            excluded, around = tuple(sorted(self._excluded)), self._around
            self._say(PciBus(functions=bus, excluded=excluded, place=around.place, ports=dict(around.ports())))


def main() -> int:
    """Read the orders, then sample until asked to end, or until the input closes."""
    orders = SamplerOrders.decode(first_line())
    write = frames_only()
    told = Told(watch=orders.watch)
    tie_to(orders.parent, told)
    log.configure(level=orders.log_level, format=orders.log_format)

    def say(*messages: ChildMessage) -> None:
        logged = log.take()
        write(b"".join(map(frame.encode, (*messages, Logged(messages=logged)) if logged else messages)))

    say(Hello(version=__version__, schema=frame.SCHEMA, pid=os.getpid()))
    try:
        return Sampler(orders, say, await_surroundings(orders, say), told).run()
    except BrokenPipeError:
        _log.info("the daemon is gone")
        return 0


if __name__ == "__main__":
    # Without the interpreter's clean-up: a driver's destructors have no business here, and may not return.
    os._exit(main())
