"""Runs the rank processes of one pass: starts them, sends them their steps, kills and reaps them.

The end of a pass is reported exactly once.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from dataclasses import replace

from gpumon.clock import boot_clock
from gpumon.probe.core.frames import Progress
from gpumon.probe.core.passes import Ending, Pass
from gpumon.probe.core.plan import Plan, Step, encode
from gpumon.probe.core.preflight import Skip
from gpumon.runner.containment import make_containment, sweep
from gpumon.runner.rank_process import KilledRanks, RankProcess
from gpumon.supervisor import child_process
from gpumon.supervisor.child_process import ChildProcess
from gpumon.supervisor.loop import Loop

log = logging.getLogger("gpumon.probe")

TERM_PATIENCE = 2.5
"""Seconds between SIGTERM and SIGKILL. A rank ends between two operations; on an H100 that takes up to 1.6 s."""
KILL_PATIENCE = 30.0
"""Seconds after SIGKILL until a rank counts as unkillable: the kernel takes long to free tens of GiB of a GPU."""
LAST_WORDS = 1.0
"""Seconds between the first failure of a rank and SIGTERM, in which other ranks may fail and report why."""
POLL_INTERVAL = 0.02
"""Seconds between checks for processes that ended ranks have left running."""
NOT_ON_GPU = frozenset({"start", "import"})
"""Stages of a rank before it opens its GPU."""

OnProgress = Callable[[Progress], None]
OnEnd = Callable[[Pass], None]
Course = Callable[[Pass], Step | None]
"""Function that returns the next step for a pass; None if the pass is complete."""


class Ranks:
    """Runs the rank processes of one pass at a time. All callbacks are called in the loop's thread."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._current: _CurrentPass | None = None
        self._stuck: set[int] = set()
        self.killed = KilledRanks()

    @property
    def running(self) -> bool:
        """Return whether a pass is in progress."""
        return self._current is not None

    @property
    def pids(self) -> frozenset[int]:
        """Return the pids of running ranks, of processes that ended ranks left running, and of unkillable processes."""
        if self._current is None:
            return frozenset(self._stuck)
        ranks = (rank.child.pid for rank in self._current.ranks if not rank.child.ended)
        return frozenset(ranks) | self._current.others | self._stuck

    @property
    def started_pids(self) -> frozenset[int]:
        """Return the pids of all ranks of the pass in progress, including ended ranks, which NVML may still list."""
        return frozenset(rank.child.pid for rank in (() if self._current is None else self._current.ranks))

    @property
    def arrived(self) -> bool:
        """Return whether a rank may have opened its GPU. Until then, every process on the run's GPUs is foreign."""
        started = () if self._current is None else self._current.ranks
        return any(rank.account.progress.stage not in NOT_ON_GPU for rank in started)

    @property
    def unkillable(self) -> tuple[int, ...]:
        """Return the pids of existing processes, from this and earlier passes, that SIGKILL did not end."""
        return tuple(sorted(self._stuck))

    def start(
        self, plan: Plan, course: Course, on_progress: OnProgress, on_end: OnEnd, *, within: float | None = None
    ) -> None:
        """Begin a pass. Raise RuntimeError while another pass is in progress.

        `within`: seconds until the deadline; None for that of the plan. `on_progress` gets the progress of the slowest
        rank. `on_end` gets the ended pass, once, at the latest after deadline, TERM_PATIENCE and twice KILL_PATIENCE.
        """
        if self._current is not None:
            raise RuntimeError("a pass is in progress")

        def end_once(ended: Pass) -> None:
            self._current = None
            on_end(ended)

        self._current = _CurrentPass(
            self._loop,
            plan,
            course,
            plan.deadline if within is None else within,
            stuck=self._stuck,
            killed=self.killed,
            on_progress=on_progress,
            on_end=end_once,
        )
        self._current.start()

    def abort(self, skip: Skip) -> None:
        """Stop the ranks of the pass in progress, if any. The pass then ends with this Skip as its reason."""
        if self._current is not None:
            self._current.abort(skip)


class _CurrentPass:
    def __init__(
        self,
        loop: Loop,
        plan: Plan,
        course: Course,
        within: float,
        *,
        stuck: set[int],
        killed: KilledRanks,
        on_progress: OnProgress,
        on_end: OnEnd,
    ) -> None:
        self.ranks: list[RankProcess] = []
        self._course = course
        self._steps: list[Step] = []
        self._over = False
        self._loop = loop
        self._plan = plan
        self._stuck = stuck
        self._killed = killed
        self._on_progress = on_progress
        self._on_end = on_end
        self._begun = boot_clock()
        self._begun_wall = time.time()
        self._ending = Ending()
        self._reported: Progress | None = None
        self._blamed: RankProcess | None = None
        self._stopping = False
        self._leaving = False
        self.others = frozenset[int]()
        """Pids of processes that ended ranks have left running and that are being killed."""
        self._containment = make_containment()
        self._timers = [loop.call_after(within, self._time_out)]

    def start(self) -> None:
        try:
            with os.fdopen(os.memfd_create("gpumon-rendezvous"), "rb") as rendezvous:
                for number in range(self._plan.ranks):
                    rank = RankProcess(
                        self._loop,
                        self._plan,
                        number,
                        self._steps,
                        rendezvous.fileno(),
                        grace=TERM_PATIENCE,
                        patience=KILL_PATIENCE,
                        on_started=self._containment.add,
                        on_frame=self._take_frame,
                        on_end=self._take_end,
                        on_abandoned=self._take_abandonment,
                    )
                    self.ranks.append(rank)
            self._order()
        except (OSError, ValueError) as error:  # or text that cannot be passed to a process
            self._ending = replace(self._ending, not_started=str(error))
            self._end_ranks(ChildProcess.kill)
            self._timers.append(self._loop.call_after(0, self._conclude_if_settled))

    def abort(self, skip: Skip) -> None:
        self._ending = replace(self._ending, aborted=skip)
        self._stop()

    def _order(self) -> None:
        """Send the next step to all ranks. This method is called when all ranks have finished the same steps."""
        step = self._course(self._current_pass())
        self._over = step is None
        line = encode(len(self._steps), step)
        if step is not None:
            self._steps.append(step)
        for rank in self.ranks:
            rank.child.write(line)

    def _current_pass(self) -> Pass:
        accounts = tuple(rank.account for rank in self.ranks)
        return Pass(plan=self._plan, steps=tuple(self._steps), accounts=accounts, ending=self._ending)

    def _take_frame(self, rank: RankProcess) -> None:
        if rank.account.error:
            self._take_failure(rank)
        if not self._over and all(each.account.stepped == len(self._steps) for each in self.ranks):
            self._order()
        behind = min((each.account.progress for each in self.ranks), key=lambda progress: progress.ratio)
        if behind != self._reported and not rank.settled:
            self._reported = behind
            self._on_progress(behind)

    def _take_failure(self, rank: RankProcess) -> None:
        """Stop all ranks LAST_WORDS seconds after the first failure, because they cannot continue and may not end.

        The result blames the rank that failed first, but rather the first that died without an error message.
        """
        if self._blamed is None:
            self._timers.append(self._loop.call_after(LAST_WORDS, self._stop))
        if self._stopping or rank.settled:
            return
        if self._blamed is None or (self._blamed.account.error and not rank.account.error):
            self._blamed = rank

    def _time_out(self) -> None:
        self._ending = replace(self._ending, timed_out=True)
        self._stop()

    def _stop(self) -> None:
        if not self._stopping:
            self._stopping = True
            self._end_ranks(ChildProcess.stop)

    def _end_ranks(self, end: Callable[[ChildProcess], None]) -> None:
        for rank in self.ranks:
            if not rank.child.ended:
                self._killed.add(rank.child.pid, rank.gpu)
                end(rank.child)

    def _take_end(self, rank: RankProcess, status: int) -> None:
        self._stuck.discard(rank.child.pid)
        if rank.settled:
            return
        rank.account = replace(rank.account, status=status)
        if status != 0 or not rank.account.done:
            self._take_failure(rank)
        rank.settled = True
        self._conclude_if_settled()

    def _take_abandonment(self, rank: RankProcess) -> None:
        rank.settled = True
        self._stuck.add(rank.child.pid)
        self._ending = replace(self._ending, abandoned=(*self._ending.abandoned, rank.child.pid))
        self._conclude_if_settled()

    def _conclude_if_settled(self) -> None:
        if not self._leaving and all(rank.settled for rank in self.ranks):
            self._leaving = True
            self._end_others(boot_clock() + KILL_PATIENCE)

    def _end_others(self, give_up_at: float) -> None:
        """Kill the processes that ended ranks have left running, then report the end of the pass.

        Those that still exist at `give_up_at` (boot clock) count as unkillable.
        """
        self.others = others = self._containment.pids() - self._stuck
        if others and boot_clock() < give_up_at:
            self._containment.kill()
            self._loop.call_after(POLL_INTERVAL, lambda: self._end_others(give_up_at))
            return
        if others:
            self._stuck |= others
            self._ending = replace(self._ending, abandoned=(*self._ending.abandoned, *sorted(others)))
        self._release_containment(others)
        for timer in self._timers:
            timer.cancel()
        swept = sweep(since=self._begun_wall)
        if swept:
            log.info("deleted shared memory of ranks", extra={"files": ", ".join(swept)})
        if self._stopping:
            log.info("stopped the ranks", extra={"statuses": [rank.account.status for rank in self.ranks]})
        failed = None if self._blamed is None else self._blamed.account.rank
        duration = boot_clock() - self._begun
        self._ending = replace(self._ending, duration=duration, first_failed=failed)
        self._on_end(self._current_pass())

    def _release_containment(self, others: frozenset[int]) -> None:
        """Remove the containment once no process is in it. Those of `others` that have ended are not unkillable."""
        there = self._containment.pids()
        self._stuck -= others - there
        if there:
            self._loop.call_after(child_process.REAP_INTERVAL, lambda: self._release_containment(others))
        else:
            self._containment.remove()
