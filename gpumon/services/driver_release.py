"""Makes the sampler processes close the GPUs whose release was requested by a client or by the marker file.

While the marker file exists and is not too old, the GPU that it names, or the whole node, is released.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

from gpumon.clock import boot_clock
from gpumon.model.bus_id import parse_bus_id
from gpumon.model.instant import Instant
from gpumon.model.request import DeviceHolder, RequestResult
from gpumon.model.time_window import (
    DEADLINE,
    MARKER,
    NODE,
    TimeWindow,
    WindowKind,
    WindowsEnded,
    in_force,
    released_scopes,
)
from gpumon.runner.runs import ProbeRuns
from gpumon.services.release_marker import MarkerWatch
from gpumon.services.time_windows import Completion
from gpumon.state.messages import ReleaseHolders
from gpumon.state.report import Report
from gpumon.supervisor.loop import Loop
from gpumon.supervisor.process_tree import children, open_files
from gpumon.supervisor.sampler_supervisor import SamplerSupervisor

log = logging.getLogger("gpumon.release")

FOLLOW_SECONDS = 0.5
"""Interval in seconds at which `DriverRelease.follow` reads the marker file and applies the releases in force."""
HOLDER_SECONDS = 0.1
"""Interval in seconds at which a waiting release request checks which processes still have a GPU open."""
RECALL_SECONDS = 5.0
"""Maximum seconds to delay the start of the first sampler until the stored releases have been read. A hung disk must
not prevent monitoring.
"""
RECALL_POLL_SECONDS = 0.02
DEVICE_NODES = "/dev/nvidia"
"""Prefix of the paths of the NVIDIA driver's device nodes. In the path of a GPU's node, its minor number follows."""


class DriverRelease:
    """Service that makes the sampler processes close released GPUs. Use from the loop's thread."""

    answer_seconds = 15.0
    """Maximum seconds until a release request is answered. By then, a child process has ended or is reported as stuck
    (Deadlines.grace and Deadlines.kill).
    """

    def __init__(
        self,
        loop: Loop,
        marker: MarkerWatch,
        *,
        samplers: SamplerSupervisor,
        probing: ProbeRuns,
        latest: Callable[[], Report],
        publish: Callable[[TimeWindow | WindowsEnded | ReleaseHolders], None],
        store_failed: Callable[[], bool],
    ) -> None:
        """Create the service. `store_failed` returns True if the stored windows cannot be read now."""
        self._loop = loop
        self._marker = marker
        self._samplers = samplers
        self._probing = probing
        self._latest = latest
        self._publish = publish
        self._store_failed = store_failed
        self._scopes: frozenset[str] = frozenset()
        """Bus ids of the released GPUs, as last passed to the samplers; NODE stands for all GPUs."""
        self._closed = False
        """True once no process of the agent had a released GPU open; valid until the released GPUs (`_scopes`) change.
        """
        self._reported: frozenset[int] = frozenset()
        """Ids of the processes that wrongly have a released GPU open, about which an error was logged."""
        self._stopping = False

    def start(self) -> None:
        """Start the first sampler when the marker file and the stored releases are read (see RECALL_SECONDS)."""
        self._start_samplers(boot_clock() + RECALL_SECONDS)

    def apply(self, max_seconds: float) -> None:
        self._marker.max_seconds = max_seconds

    def stop(self) -> None:
        """Make `follow` do nothing from now on, because the agent is stopping."""
        self._stopping = True

    @property
    def notice(self) -> str | None:
        """Return which processes prevent a release, else why the marker file cannot be used; None without a problem."""
        held = [
            holder.description for holder in self._latest().inventory.release_holders if holder.pid in self._reported
        ]
        return f"released, but still open in {'; '.join(held)}" if held else self._marker.problem or None

    def follow(self) -> None:
        """Apply the marker file and the releases in force: close the released GPUs, and reopen the others.

        Publish which processes of the agent still have a released GPU open.
        """
        if self._stopping:
            return
        self._follow_marker()
        # `state.reduce` does the same, but only when a message arrives, and few arrive while no sampler runs.
        releases, now = in_force(self._latest().windows, WindowKind.RELEASE), boot_clock()
        self._end(frozenset(window.id for window in releases if window.deadline.at <= now), DEADLINE)
        windows = self._latest().windows
        scopes = released_scopes(windows)
        self._samplers.release(scopes)
        holders = self._holders(scopes)
        self._closed = not holders or (self._closed and scopes == self._scopes)
        self._scopes = scopes
        wrong = {holder.pid: holder.description for holder in holders if holder.stuck or self._closed}
        for pid in wrong.keys() - self._reported:
            log.error("a released GPU is still open", extra={"holder": wrong[pid]})
        self._reported = frozenset(wrong)
        if holders != self._latest().inventory.release_holders:
            self._publish(ReleaseHolders(holders=holders))
        marked = any(window.by == MARKER for window in in_force(windows, WindowKind.RELEASE))
        self._marker.report_done(done=marked and not holders)

    def completion(self, window: TimeWindow, /) -> Completion:
        scope, result, poll_at = frozenset({window.bus_id}), None, 0.0

        def poll(late: bool) -> RequestResult | None:  # noqa: FBT001 - the signature of Completion
            nonlocal result, poll_at
            if late or boot_clock() >= poll_at:
                poll_at = boot_clock() + HOLDER_SECONDS
                self.follow()
                holders = self._holders(scope)
                complete = late or all(holder.stuck for holder in holders)
                result = RequestResult(holders=holders) if complete else None
            return result

        return poll

    def _start_samplers(self, start_by: float) -> None:
        if self._stopping:
            return
        if self._latest().agent.restored or self._store_failed() or boot_clock() >= start_by:
            self.follow()
            self._samplers.start()
            self._loop.every(FOLLOW_SECONDS, self.follow)
        else:
            self._loop.call_after(RECALL_POLL_SECONDS, lambda: self._start_samplers(start_by))

    def _follow_marker(self) -> None:
        wanted = self._marker.read(self._latest().boot_id, self._bus_id)
        marked = [window for window in in_force(self._latest().windows, WindowKind.RELEASE) if window.by == MARKER]
        stale = frozenset(window.id for window in marked if wanted is None or window.bus_id != wanted.bus_id)
        if (
            wanted is not None
            and wanted.deadline.at > boot_clock()
            and wanted.id not in {window.id for window in marked}
        ):
            self._publish(wanted)  # replaces the window of the same scope
        self._end(stale, MARKER)

    def _end(self, ids: frozenset[str], by: str) -> None:
        if ids:
            self._publish(WindowsEnded(ids=ids, by=by, time=Instant.now(self._latest().boot_id)))

    def _bus_id(self, name: str) -> str | None:
        """Return the bus id of the GPU with this uuid, index or PCI address; None if the node has no such GPU.

        Before the GPUs have been read, return any PCI address as the bus id, and None for a uuid or index.
        """
        report = self._latest()
        gpu = report.gpu(name)
        if gpu is not None:
            return gpu.bus_id
        return None if report.gpus else parse_bus_id(name)

    def _holders(self, scopes: frozenset[str]) -> tuple[DeviceHolder, ...]:
        """Return the samplers, ranks and other processes of the agent that have one of these GPUs open."""
        if not scopes:
            return ()
        holders = [*self._samplers.holders(scopes), *self._probing.host.holders()]
        listed = {holder.pid for holder in holders}
        states = (self._latest().gpu(bus_id) for bus_id in scopes if bus_id != NODE)
        minors = [state.gpu.minor for state in states if state is not None]
        nodes = {f"{DEVICE_NODES}{minor}" for minor in minors if minor is not None}
        for pid in sorted({os.getpid(), *children(os.getpid())} - listed):
            opened = {path for path in open_files(pid) if path.startswith(DEVICE_NODES)}
            held = ", ".join(sorted(opened if NODE in scopes else opened & nodes))
            if held:
                holders.append(DeviceHolder(pid=pid, description=f"process {pid} of the agent, which has {held} open"))
        return tuple(holders)
