"""The effects that a hold and a maintenance have on the agent. The effect of a release is in driver_release.py."""

from __future__ import annotations

from collections.abc import Callable

from gpumon.clock import boot_clock
from gpumon.model.request import RequestResult
from gpumon.model.time_window import TimeWindow
from gpumon.runner.runs import ProbeRuns
from gpumon.services.time_windows import Completion

UNENDED = "The run has not ended, so whether its ranks have left a process on a GPU is unknown."
UNREAD = "NVML has not been read since the ranks ended, so whether they have left the GPUs is unknown."


class MaintenanceEffect:
    """Calls `record` at once when a maintenance begins or ends.

    It stores that in the running agent's row of the table agent_runs, so that a reboot during the maintenance does not
    count as a failure, and in the health file, for a `gpumon check` that comes right after the command.
    """

    answer_seconds = 7.0
    """Maximum seconds until the request is answered. In less time, the write to the store has succeeded or failed."""

    def __init__(self, record: Callable[[], None]) -> None:
        self.follow = record

    def completion(self, _: TimeWindow, /) -> Completion:
        return lambda _late: RequestResult()


class HoldEffect:
    """Ends the probe run in progress, and waits until none of its processes uses a GPU."""

    answer_seconds = 4.0
    """Maximum seconds until the request is answered. The answer names a rank that takes longer to close a GPU."""

    def __init__(self, probing: ProbeRuns) -> None:
        self._probing = probing

    def follow(self) -> None:
        """Do nothing: `completion` ends the run in progress, and each later run checks for holds before it begins."""

    def completion(self, _: TimeWindow, /) -> Completion:
        host, visibility = self._probing.host, self._probing.host.visibility
        gpus, pids, ended = visibility.gpus, host.pids, None
        self._probing.give_way()
        if gpus:
            visibility.read_closely()

        def poll(late: bool) -> RequestResult | None:  # noqa: FBT001 - the signature of Completion
            nonlocal ended
            holders = host.holders()
            if holders:
                stuck = all(holder.stuck for holder in holders)
                return RequestResult(holders=holders) if late or stuck else None
            ended = ended or boot_clock()
            left = visibility.remaining_on(gpus, pids, ended) if gpus else ()
            if not late and (self._probing.running or left != ()):
                return None
            unknown = UNREAD if left is None else UNENDED if self._probing.running and not left else ""
            return RequestResult(holders=left or (), not_readable=unknown)

        return poll
