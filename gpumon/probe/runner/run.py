"""One run of a probe: a pass for each algorithm, one after the other, and one result at the end."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from gpumon.clock import boot_clock
from gpumon.probe.core.account import Progress
from gpumon.probe.core.baseline import Judge
from gpumon.probe.core.conclusion import conclude, mistaken
from gpumon.probe.core.course import next_step
from gpumon.probe.core.evidence import NOTHING_SEEN, AllSeen
from gpumon.probe.core.passes import Pass
from gpumon.probe.core.plan import Plan, Run
from gpumon.probe.core.preflight import Skip
from gpumon.probe.core.result import ProbeResult
from gpumon.probe.core.steps import Step
from gpumon.probe.runner.departure import Behind, Departure, Left
from gpumon.probe.runner.ranks import OnProgress, Ranks
from gpumon.supervisor.loop import Loop

log = logging.getLogger(__name__)

OnResult = Callable[[ProbeResult], None]
Clear = Callable[[Callable[[Skip | None], None]], None]
"""Asks whether one more set of ranks may start; is answered at once or later, by a skip or None."""
Look = Callable[[], AllSeen]
"""What the GPUs of the run have told since before it began."""
LeftOn = Callable[[Collection[str], frozenset[int], float], Left]
"""What is still there of these ranks on these GPUs, after they ended at this moment of the boot clock."""


def at_once(on_answer: Callable[[Skip | None], None]) -> None:
    """Where nobody has to be asked."""
    on_answer(None)


def nothing_seen() -> AllSeen:
    """Where the GPUs tell nothing."""
    return NOTHING_SEEN


def nobody(_gpus: Collection[str], _pids: frozenset[int], _ended: float) -> Left:
    """Where the GPUs are not read."""
    return ()


class Runs:
    """One run at a time. All callbacks come from the loop, and `on_result` comes once, whatever happens."""

    def __init__(self, loop: Loop, left_on: LeftOn = nobody) -> None:
        self._loop = loop
        self._left_on = left_on
        self.ranks = Ranks(loop)
        self._current: _Current | None = None
        self.behind = Behind()

    @property
    def running(self) -> str | None:
        """Id of the run in progress."""
        return None if self._current is None else self._current.run.id

    @property
    def pids(self) -> frozenset[int]:
        """Of its ranks, those of earlier passes among them: who holds a GPU is told as it was at the last poll."""
        return self.ranks.pids | self.ranks.begun | _pids(() if self._current is None else self._current.passes)

    @property
    def arrived(self) -> bool:
        """Whether a rank may be on its GPU by now."""
        return self.ranks.arrived

    @property
    def left_at(self) -> float | None:
        """When the last pass of the run in progress that has ended did so, on the boot clock."""
        return None if self._current is None else self._current.left_at

    def start(
        self,
        plans: Sequence[Plan],
        run: Run,
        judge: Judge,
        on_progress: OnProgress,
        on_result: OnResult,
        *,
        clear: Clear = at_once,
        look: Look = nothing_seen,
    ) -> None:
        """Begin a run, which has been cleared. Raises RuntimeError while another is in progress: look at `running`."""
        if self._current is not None:
            raise RuntimeError(f"run {self._current.run.id} is in progress")

        def conclude_once(result: ProbeResult) -> None:
            self._current = None
            on_result(result)

        def leave(result: ProbeResult, ranks: Sequence[Pass]) -> None:
            ended, gpus, pids = boot_clock(), ranks[-1].plan.gpus, _pids(ranks)
            if pids and gpus:
                self.behind = self.behind.after(gpus, pids)
            Departure(
                self._loop,
                lambda: self._left_on(gpus, pids, ended) if pids and gpus else (),
                lambda left: conclude_once(replace(result, hint=f"{result.hint} {left}".strip())),
            )

        self._current = _Current(
            self.ranks, plans, run, judge, on_progress=on_progress, on_end=leave, clear=clear, look=look
        )
        self._current.next_pass()

    def abort(self, skip: Skip) -> None:
        """Kill the run in progress, if any; its result is this skip."""
        if self._current is not None:
            self._current.abort(skip)


def _pids(passes: Sequence[Pass]) -> frozenset[int]:
    """Of the ranks that have ended."""
    stuck = {pid for one in passes if one.ending is not None for pid in one.ending.abandoned}
    return frozenset(account.pid for one in passes for account in one.accounts if account.pid is not None) - stuck


class _Current:
    def __init__(
        self,
        ranks: Ranks,
        plans: Sequence[Plan],
        run: Run,
        judge: Judge,
        *,
        on_progress: OnProgress,
        on_end: Callable[[ProbeResult, Sequence[Pass]], None],
        clear: Clear,
        look: Look,
    ) -> None:
        self.run = run
        self._ranks = ranks
        self._plans = plans
        self._judge = judge
        self._on_progress = on_progress
        self._on_end = on_end
        self._over = False
        self._clear = clear
        self._look = look
        self.passes: list[Pass] = []
        self.left_at: float | None = None
        """When the last of them ended, on the boot clock."""
        self._begun = boot_clock()
        self._failure: ProbeResult | None = None
        """Of the agent's own making."""

    def next_pass(self) -> None:
        plan = self._plans[len(self.passes)]
        left = max(0.0, plan.deadline - self._elapsed()) if self.passes else plan.deadline
        self._ranks.start(plan, self._next_step, self._progressed, self._ended, within=left)

    def _next_step(self, one: Pass) -> Step | None:
        """None, the end of the pass, where it cannot be told: that must cost the run, and not the agent."""
        try:
            return next_step(one, self._judge)
        except Exception as error:  # noqa: BLE001 - what ranks tell is judged by much code
            self._mistaken(error)
            return None

    def _mistaken(self, error: Exception) -> ProbeResult:
        log.error("cannot judge a run of a probe: report this", extra={"id": self.run.id}, exc_info=error)
        self._failure = mistaken(self.run, self._plans[0], error, self._elapsed())
        return self._failure

    def abort(self, skip: Skip) -> None:
        """Between two passes there are no ranks to kill."""
        if self._ranks.running:
            self._ranks.abort(skip)
        elif not self._over:
            last = self.passes[-1]
            self.passes[-1] = replace(last, ending=last.ending and replace(last.ending, aborted=skip))
            self._end()

    def _cleared(self, skip: Skip | None) -> None:
        if skip is None:
            self.next_pass()
        else:
            self.abort(skip)

    def _progressed(self, progress: Progress) -> None:
        """Over all passes. What a drop asks for comes after all that was planned."""
        plan = self._plans[len(self.passes)]
        step, planned = progress.step, len(plan.measures)
        share = progress.ratio if step is None else min(1.0, (step + progress.ratio) / planned)
        again = step is not None and step >= planned and progress.bytes is not None
        ratio = (len(self.passes) + share) / len(self._plans)
        stage = "repeat" if again else progress.stage
        self._on_progress(replace(progress, stage=stage, algorithm=plan.algorithm, ratio=ratio))

    def _ended(self, one: Pass) -> None:
        """What did not end well is not measured in another way."""
        self.passes.append(one)
        self.left_at = boot_clock()
        if self._concluded().outcome in {"ok", "degraded"} and len(self.passes) < len(self._plans):
            self._clear(self._cleared)
        else:
            self._end()

    def _end(self) -> None:
        self._over = True
        self._on_end(self._concluded(self._look()), self.passes)

    def _concluded(self, seen: AllSeen = NOTHING_SEEN) -> ProbeResult:
        if self._failure is not None:
            return self._failure
        try:
            return conclude(self.run, self.passes, self._judge, self._elapsed(), seen)
        except Exception as error:  # noqa: BLE001 - as above
            return self._mistaken(error)

    def _elapsed(self) -> float:
        return boot_clock() - self._begun
