"""Runs a probe once.

The phases are preflight, scheduler gate, one pass for each algorithm, and a wait until NVML no longer lists the ranks.
A run has exactly one result.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from gpumon.clock import boot_clock
from gpumon.probe.core.baseline import Judge
from gpumon.probe.core.conclusion import conclude, skipped_result, unjudged_result
from gpumon.probe.core.evidence import NO_OBSERVATIONS, Observations
from gpumon.probe.core.frames import Progress
from gpumon.probe.core.next_step import next_step
from gpumon.probe.core.passes import Pass
from gpumon.probe.core.plan import Plan, Run, Step
from gpumon.probe.core.preflight import Skip
from gpumon.probe.core.probes import Probe
from gpumon.probe.core.result import SUCCESSES, ProbeResult
from gpumon.runner.ranks import Ranks
from gpumon.runner.scheduler_gate import OnAnswer, Question

log = logging.getLogger("gpumon.probe")


class Phase(enum.Enum):
    """Phases of a run. The scheduler gate is asked before each pass."""

    PREFLIGHT = "preflight"
    GATE = "gate"
    RANKS = "ranks"
    DEPARTURE = "departure"
    """All ranks have ended. The run waits until NVML no longer lists them."""
    CONCLUDED = "concluded"


class Prepared(NamedTuple):
    """The plans and the reference bandwidths of a run, which are chosen before its first pass."""

    plans: Sequence[Plan]
    """One plan for each pass."""
    judge: Judge


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Callbacks through which a run uses the GPUs, the scheduler gate and the Report. The loop's thread calls them."""

    prepare: Callable[[], Prepared]
    preflight: Callable[[], Skip | None] = lambda: None
    ask_gate: Callable[[OnAnswer], Question | None] = lambda _: None
    """Function that starts the scheduler gate, given a callback for its answer. It returns None if there is no gate."""
    observed: Callable[[], Observations] = lambda: NO_OBSERVATIONS
    """Function that returns the readings of the run's GPUs, from just before the run's start until now."""
    await_departure: Callable[[tuple[str, ...], frozenset[int], Callable[[str], None]], None] = (
        lambda _gpus, _pids, on_departed: on_departed("")
    )
    on_progress: Callable[[Progress], None] = lambda _: None
    on_result: Callable[[ProbeResult], None]
    """Callback that receives the result of the run. It is called exactly once."""


class ProbeRun:
    """One run of a probe, as a state machine whose states are Phase. Use from the loop's thread."""

    def __init__(
        self, ranks: Ranks, run: Run, probe: Probe, surroundings: Surroundings, *, simulated: bool = False
    ) -> None:
        self.phase = Phase.PREFLIGHT
        self.run = run
        self.probe = probe
        self.left_at: float | None = None
        """Time on the boot clock at which the last pass ended; None before that."""
        self._simulated = simulated
        self._ranks = ranks
        self._surroundings = surroundings
        self._question: Question | None = None
        self._prepared: Prepared | None = None
        self._passes: list[Pass] = []
        self._begun = boot_clock()
        self._failure: ProbeResult | None = None
        """The result of the run if an error in the agent prevented judging it; None otherwise."""

    @property
    def pids(self) -> frozenset[int]:
        """Return the pids of this run, also of ended ranks, which NVML may still list, and of unkillable processes."""
        return self._ranks.pids | self._ranks.started_pids | _ended_pids(self._passes)

    def start(self) -> Skip | None:
        """Begin the run. Return the Skip if preflight refuses it, after the result was reported; None otherwise."""
        skip = self._surroundings.preflight()
        if skip is None:
            self._pass_gate()
        else:
            self._skip(skip)
        return skip

    def abort(self, skip: Skip) -> None:
        """End the run with this Skip if the scheduler gate or a pass is in progress. Otherwise do nothing."""
        match self.phase:
            case Phase.GATE:
                question, self._question = self._question, None
                if question is not None:
                    question.withdraw()
                self._refuse(skip)
            case Phase.RANKS:
                self._ranks.abort(skip)
            case _:
                pass

    # Gate

    def _pass_gate(self) -> None:
        self.phase = Phase.GATE
        self._question = self._surroundings.ask_gate(self._take_answer)
        if self._question is None:
            self._begin_pass()

    def _take_answer(self, refused: Skip | None) -> None:
        """Begin the pass unless the gate refused it. Preflight is repeated because the gate may have taken long."""
        self._question = None
        skip = refused or (self._surroundings.preflight() if self._prepared is None else None)
        if skip is None:
            self._begin_pass()
        else:
            self._refuse(skip)

    def _refuse(self, skip: Skip) -> None:
        """End the run with this Skip while no rank runs. The result keeps the measurements of ended passes."""
        if self._passes:
            last = self._passes[-1]
            self._passes[-1] = replace(last, ending=replace(last.ending, aborted=skip))
            self._depart()
        else:
            self._skip(skip)

    def _skip(self, skip: Skip) -> None:
        self._conclude(skipped_result(self.probe, self.run, skip, simulated=self._simulated))

    # Passes

    def _begin_pass(self) -> None:
        if self._prepared is None:
            self._prepared, self._begun = self._surroundings.prepare(), boot_clock()
        self.phase = Phase.RANKS
        plan = self._prepared.plans[len(self._passes)]
        left = max(0.0, plan.deadline - self._elapsed_seconds()) if self._passes else plan.deadline
        self._ranks.start(plan, self._next_step, self._report_progress, self._end_pass, within=left)

    def _next_step(self, current: Pass) -> Step | None:
        """Return the next step of the pass. An error in judging ends the pass, but not the agent."""
        assert self._prepared is not None  # noqa: S101 - a pass has begun
        try:
            return next_step(current, self._prepared.judge)
        except Exception as error:  # noqa: BLE001 - frames of ranks reach much code
            self._fail(error)
            return None

    def _report_progress(self, progress: Progress) -> None:
        """Report the progress of the whole run. During repeats and pair exchanges the pass counts as done."""
        assert self._prepared is not None  # noqa: S101 - a pass has begun
        plans = self._prepared.plans
        plan = plans[len(self._passes)]
        step, planned = progress.step, len(plan.measures)
        share = progress.ratio if step is None else min(1.0, (step + progress.ratio) / planned)
        repeated = step is not None and step >= planned and progress.size is not None
        ratio = (len(self._passes) + share) / len(plans)
        stage = "repeat" if repeated else progress.stage
        self._surroundings.on_progress(replace(progress, stage=stage, algorithm=plan.algorithm, ratio=ratio))

    def _end_pass(self, ended: Pass) -> None:
        """Ask the gate about the next algorithm if all passes have succeeded. Otherwise end the run."""
        assert self._prepared is not None  # noqa: S101 - a pass has begun
        self._passes.append(ended)
        self.left_at = boot_clock()
        more = len(self._passes) < len(self._prepared.plans)
        if more and self._judge(NO_OBSERVATIONS).outcome in SUCCESSES:
            self._pass_gate()
        else:
            self._depart()

    # End

    def _depart(self) -> None:
        self.phase = Phase.DEPARTURE
        result = self._judge(self._surroundings.observed())

        def conclude_with(remark: str) -> None:
            self._conclude(replace(result, hint=f"{result.hint} {remark}".strip()))

        self._surroundings.await_departure(self._passes[-1].plan.gpus, _ended_pids(self._passes), conclude_with)

    def _conclude(self, result: ProbeResult) -> None:
        self.phase = Phase.CONCLUDED
        self._surroundings.on_result(result)

    def _judge(self, observations: Observations) -> ProbeResult:
        assert self._prepared is not None  # noqa: S101 - a pass has begun
        if self._failure is not None:
            return self._failure
        try:
            return conclude(self.run, self._passes, self._prepared.judge, self._elapsed_seconds(), observations)
        except Exception as error:  # noqa: BLE001 - as above
            return self._fail(error)

    def _fail(self, error: Exception) -> ProbeResult:
        assert self._prepared is not None  # noqa: S101 - a pass has begun
        log.error("cannot judge a probe run: please report this", extra={"id": self.run.id}, exc_info=error)
        self._failure = unjudged_result(self.run, self._prepared.plans[0], error, self._elapsed_seconds())
        return self._failure

    def _elapsed_seconds(self) -> float:
        return boot_clock() - self._begun


def _ended_pids(passes: Sequence[Pass]) -> frozenset[int]:
    """Return the pids of the ranks of these passes, without those that SIGKILL did not end."""
    stuck = {pid for ended in passes for pid in ended.ending.abandoned}
    return frozenset(rank.pid for ended in passes for rank in ended.accounts if rank.pid is not None) - stuck
