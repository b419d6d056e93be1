"""Run the sampler child: initialise NVML, poll the GPUs, and send the results. Any driver call may block for ever."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from gpumon.clock import boot_clock
from gpumon.collectors.lifecycle import DaemonRequests, SendMessages, run
from gpumon.collectors.nvml.gpu_list import DriverList
from gpumon.collectors.nvml.gpu_reader import SLOW_SECONDS, Extent
from gpumon.collectors.nvml.library import (
    DRIVER_NOT_LOADED,
    LIBRARY_NOT_FOUND,
    NO_PERMISSION,
    VERSION_MISMATCH,
    Library,
    NvmlError,
)
from gpumon.collectors.nvml.poll import NodePoll, start
from gpumon.collectors.nvml.table_reader import ProcessNames
from gpumon.collectors.sampler.node_reader import HostContext, await_surroundings, excluded_gpus
from gpumon.model.call_progress import Writer
from gpumon.model.orders import EXIT_MISMATCH, INDEX_PREFIX, SamplerOrders
from gpumon.model.snapshot import SANDBOX, DriverStatus, PciBus, TrialResult

_log = logging.getLogger("gpumon.collectors.sampler")

BACK_OFF = (1.0, 30.0)
"""Min and max seconds between attempts to initialise NVML. The driver may be installed later."""
WATCH_SECONDS = 1.0
"""Max seconds between two polls while the daemon wants new processes reported at once."""
BUS_SECONDS = 5.0
BLIND_SECONDS = (6.0, 600.0)
"""Seconds since `NodePoll.blind_since` after which NVML is initialised again: the number for the first time, and the
maximum. The number doubles each time.
"""

REMEDIES = {
    LIBRARY_NOT_FOUND: "libnvidia-ml.so.1 is not installed: install the NVIDIA driver",
    DRIVER_NOT_LOADED: "the nvidia kernel module is not loaded: modprobe nvidia, then see dmesg",
    VERSION_MISMATCH: "the driver was upgraded under its kernel module: reload the module or reboot",
    NO_PERMISSION: "this user may not open /dev/nvidiactl: add it to the group that owns the device nodes",
}


class Sampler:
    """The main loop of the sampler child: initialises NVML, polls, and sends the results to the daemon."""

    def __init__(
        self, orders: SamplerOrders, send: SendMessages, around: HostContext, requests: DaemonRequests
    ) -> None:
        self._requests = requests
        self._orders = orders
        self._send = send
        self._around = around
        self._library = Library(Writer(orders.page))
        self._driver_list = DriverList(self._library, (*orders.first, *orders.quarantined))
        self._polling: NodePoll | None = None
        self._bus: Mapping[str, str] = {}
        self._bus_at = 0.0
        self._unmatched: tuple[str, ...] = ()
        self._uuids: Mapping[str, str] = {}
        self._excluded = self._list_excluded()
        self._blind_seconds = BLIND_SECONDS[0]
        self._delay = BACK_OFF[0]

    def run(self) -> int:
        """Initialise NVML and poll until the daemon requests the end. Return the exit code.

        If the orders request a trial of one GPU, do that instead of polling. Initialise NVML again after an NVML error;
        but return EXIT_MISMATCH if libnvidia-ml and the kernel module differ in version.
        """
        while not self._requests.end.is_set():
            self._read_bus()
            try:
                status = start(self._library)
                self._excluded = self._list_excluded()  # the kernel module may list more UUIDs now
                self._send(status)
                if self._orders.trial is not None:
                    return self._trial(status, self._orders.trial)
                self._poll(status)
                self._release()
            except NvmlError as error:
                self._send(failure_status(error))
                if error.code == VERSION_MISMATCH:
                    return EXIT_MISMATCH
                self._release()
            self._requests.end.wait(self._delay)
            self._delay = min(2 * self._delay, BACK_OFF[1])
        return 0

    def _poll(self, status: DriverStatus) -> None:
        """Poll until the daemon requests the end, or no GPU has answered for long. Raise NvmlError if NVML fails."""
        self._polling = poll = self._node_poll(status, self._list_gpus)
        due = boot_clock()
        while not self._requests.end.is_set():
            poll.watching = self._requests.watch
            self._send_events(poll)
            self._send(poll.poll())
            self._delay = BACK_OFF[0]
            if self._has_been_blind(poll.blind_since):
                _log.warning("no GPU answers: initialising the driver again")
                break
            self._read_bus()
            due = max(due + self._interval, boot_clock() - self._interval)
            self._pause(due)
        self._send_events(poll)

    @property
    def _interval(self) -> float:
        return min(self._orders.interval, WATCH_SECONDS) if self._requests.watch else self._orders.interval

    def _pause(self, until: float) -> None:
        """Wait until this time of the boot clock, or until the daemon requests the end or changes `watch`."""
        watched = self._requests.watch
        while (left := until - boot_clock()) > 0 and self._requests.watch is watched:
            if self._requests.end.wait(min(left, WATCH_SECONDS)):
                return

    def _has_been_blind(self, since: float | None) -> bool:
        """Return True if all GPUs have failed without a known cause for so long that a new NVML start may help."""
        if since is None:
            self._blind_seconds = BLIND_SECONDS[0]
        elif boot_clock() - since > self._blind_seconds:
            self._blind_seconds = min(2 * self._blind_seconds, BLIND_SECONDS[1])
            return True
        return False

    def _send_events(self, poll: NodePoll) -> None:
        self._send(*(poll.events.take() if self._orders.events else ()))

    def _release(self) -> None:
        """Close all GPUs and shut NVML down: otherwise the next start would only increment NVML's reference count."""
        if self._polling is not None:
            self._polling.close()
            self._polling = None
        with contextlib.suppress(NvmlError):
            self._library.call("nvmlShutdown")

    def _trial(self, status: DriverStatus, bus_id: str) -> int:
        """Read one quarantined GPU, or only look it up if `bus_id` is "index N", then send a TrialResult. Return 0.

        Any answer, even an error, shows that driver calls on this GPU return again. Raise NvmlError if NVML fails.
        """
        if bus_id.startswith(INDEX_PREFIX):
            self._driver_list.look_up(int(bus_id.removeprefix(INDEX_PREFIX)))
        else:
            only = {bus_id: self._list_gpus().get(bus_id, "")}
            self._node_poll(status, lambda: only, patience=float("inf")).poll()
        self._send(TrialResult(subject=bus_id))
        return 0

    def _node_poll(
        self, status: DriverStatus, bus: Callable[[], Mapping[str, str]], patience: float = SLOW_SECONDS
    ) -> NodePoll:
        return NodePoll(
            self._library,
            status.driver or "",
            bus=bus,
            do_not_open=self._excluded | set(self._orders.quarantined),
            unwanted=self._orders.exclude,
            first=self._orders.first,
            partial=self._send,
            interval=self._orders.interval,
            patience=patience,
            extent=Extent(
                gpm=self._orders.gpm,
                detailed=self._orders.detailed,
                processes=ProcessNames(self._orders.largest_processes, Path(self._orders.procfs)),
            ),
        )

    def _list_gpus(self) -> Mapping[str, str]:
        """Return the kernel driver of each GPU by bus id, from sysfs or, if that shows no NVIDIA GPU, from NVML.

        A trial of one GPU does not query NVML, because the lookup of another GPU may hang. If sysfs shows no GPU, the
        trial gets only its own GPU, with the driver "nvidia".
        """
        trial = self._orders.trial
        return self._around.bus() or (self._driver_list.read() if trial is None else {trial: "nvidia"})

    def _list_excluded(self) -> frozenset[str]:
        self._uuids = self._around.uuids()
        found = excluded_gpus(self._orders.exclude, self._list_gpus(), self._uuids)
        hint = "an excluded uuid is known only after its GPU was opened; exclude it by its bus id"
        for name in (name for name, bus_id in found.items() if bus_id is None):
            _log.warning(hint, extra={"uuid": name})
        return frozenset(filter(None, found.values()))

    def _list_unmatched(self, bus: Mapping[str, str]) -> tuple[str, ...]:
        """Return the excluded names that no GPU on the bus has."""
        uuids = {**self._uuids, **({} if self._polling is None else self._polling.uuids)}
        found = excluded_gpus(self._orders.exclude, bus, uuids)
        return tuple(name for name, bus_id in found.items() if bus_id is not None and bus_id not in bus)

    def _read_bus(self) -> None:
        if boot_clock() < self._bus_at:
            return
        self._bus_at = boot_clock() + BUS_SECONDS
        bus = dict(self._list_gpus())
        unmatched = self._list_unmatched(bus)
        if bus != self._bus or unmatched != self._unmatched or not self._bus:
            if self._polling is not None:
                self._polling.bus_changed |= bus != self._bus or not bus
            self._bus, self._unmatched = bus, unmatched
            excluded, around = tuple(sorted(self._excluded)), self._around
            place = SANDBOX if bus and not around.bus() else around.place
            self._send(
                PciBus(
                    functions=bus,
                    excluded=excluded,
                    unmatched=unmatched,
                    place=place,
                    ports=dict(around.ports()),
                    slot_lanes=dict(around.slot_lanes()),
                    nvswitches=around.nvswitches(),
                )
            )


def failure_status(error: NvmlError) -> DriverStatus:
    return DriverStatus(up=False, error=error.name, remedy=REMEDIES.get(error.code, "see dmesg"))


def poll_node(orders: SamplerOrders, send: SendMessages, requests: DaemonRequests) -> int:
    return Sampler(orders, send, await_surroundings(orders, send), requests).run()


if __name__ == "__main__":
    # Skip the interpreter's clean-up: a driver's destructors may not return.
    os._exit(run(SamplerOrders, poll_node))
