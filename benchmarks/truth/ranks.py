"""Generated results of the ranks of an all-reduce. Everything else of a run is the agent's own code.

No rank runs: real ranks need real GPUs and real time. Preflight, the steps of the run, its assessment, the location
of the fault, the store and the reducer are those of the daemon.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from benchmarks.truth.world import World
from gpumon.clock import boot_clock
from gpumon.config.component_settings import probe_settings
from gpumon.probe.core.baseline import ENOUGH_RUNS, Judge
from gpumon.probe.core.conclusion import conclude, skipped_result
from gpumon.probe.core.frames import Account, Progress, Sized
from gpumon.probe.core.next_step import next_step
from gpumon.probe.core.passes import Ending, Pass
from gpumon.probe.core.plan import Measure, Pairs, Plan, Run, Step, make_plans
from gpumon.probe.core.preflight import PreflightFacts, Skip, algorithms, may_run, usable_gpus
from gpumon.probe.core.probes import ALL_REDUCE, PROBES
from gpumon.probe.core.result import Measurement
from gpumon.runner.assessment import TelemetryRecorder, make_judge
from gpumon.runner.gather_facts import gather_facts
from gpumon.state.messages import ProbeStarted

RUN_SECONDS = 20.0
PERIOD = 6 * 3600.0
BLAMED = 1
"""The rank on the faulty GPU."""
PID = 4_000_000
"""Pid of the first rank, which may be one that cannot be killed; no process of this host has it."""
USUAL = 100e9
"""Bytes per second of hosts without published results."""
LATENCY = 20e-6
OPERATIONS = 20
WRONG_ELEMENTS = 1000
VERSIONS = {"torch": "2.13.0", "nccl": "2.30.7", "cuda": "13.0"}

PROBE = PROBES[ALL_REDUCE]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankBehaviour:
    """Results that the ranks return; the defaults are those of a healthy node."""

    share: float = 1.0
    """Share of the usual bandwidth."""
    latency: float = LATENCY
    """Seconds of an operation beyond the transfer of its bytes."""
    repeated: float | None = None
    """Share in a repeated measurement; None: unchanged."""
    algorithms: Sequence[str] = ("default", "ring")
    """Algorithms with this share."""
    slow: Callable[[int, int], bool] = field(default=lambda _a, _b: False)
    """Returns whether the path between two ranks is slow."""
    wrong: bool = False
    """True if sums are wrong."""
    faulty_sender: int | None = None
    """Rank that sends wrong data to all others; None: no single rank."""
    stage: str = "end"
    """Stage of the ranks when the run ends."""
    error: str = ""
    """Error of the rank that failed."""
    ending: Ending = Ending(duration=RUN_SECONDS)


HEALTHY = RankBehaviour()
LATE_SMALL = RankBehaviour(latency=0.003)


def run(behaviour: RankBehaviour = HEALTHY) -> Callable[[World], None]:
    """Return an action that starts a run, or records a skip if preflight refuses."""

    def act(world: World) -> None:
        this, now = _run(world.clock), _now(world)
        skip = may_run(now)
        if skip is not None:
            world.record_result(skipped_result(PROBE, this, skip))
            return
        plans, judge = _plan(world, now)
        recorder = TelemetryRecorder(lambda: world.report, plans[0].gpus)
        world.deliver(ProbeStarted(id=this.id, probe=PROBE.name, gpus=plans[0].gpus))
        passes = _passes(plans, judge, behaviour)

        def end() -> None:
            if behaviour.ending.aborted or behaviour.ending.timed_out:
                world.kill_ranks(plans[0].gpus, PID)
            world.leave_unkillable(behaviour.ending.abandoned)
            world.record_result(conclude(this, passes, judge, RUN_SECONDS, recorder.record()))

        world.after(RUN_SECONDS, end)

    return act


def record_good_runs(world: World) -> None:
    """Record enough good runs for a baseline; the last one a period ago."""
    plans, judge = _plan(world, _now(world))
    for number in range(ENOUGH_RUNS, 0, -1):
        passes = _passes(plans, judge, HEALTHY)
        world.record_result(conclude(_run(world.clock, -number * PERIOD), passes, judge, RUN_SECONDS))


def _run(clock: float, later: float = 0.0) -> Run:
    return Run(id=f"run-{clock + later:.0f}", trigger="schedule", started=time.time() + later)


def _now(world: World) -> PreflightFacts:
    """Return the facts as if the GPUs were real."""
    return replace(
        gather_facts(world.report, boot_clock()), simulated=False, unkillable=world.ranks.unkillable, scheduled=True
    )


def _plan(world: World, now: PreflightFacts) -> tuple[tuple[Plan, ...], Judge]:
    plans = make_plans(PROBE, usable_gpus(now), python="python3", algorithms=algorithms(now))
    asked = probe_settings(world.configuration()).floors(PROBE, plans[0].setting)
    return plans, make_judge(PROBE, plans[0], world.report, asked)


def _passes(plans: Sequence[Plan], judge: Judge, behaviour: RankBehaviour) -> list[Pass]:
    """Return the passes; after a failed pass no other algorithm is measured."""
    each_ranks = [_Ranks(plan, judge, behaviour) for plan in plans]
    return [ranks.full_pass() for ranks in each_ranks] if behaviour.stage == "end" else [each_ranks[0].broken()]


@dataclass(frozen=True, slots=True)
class _Ranks:
    """The ranks of one pass."""

    plan: Plan
    judge: Judge
    behaviour: RankBehaviour

    def broken(self) -> Pass:
        """Return a pass that ended before its first step."""
        stage, error = self.behaviour.stage, self.behaviour.error
        accounts = [Account(progress=Progress(rank=rank, stage=stage), status=-9) for rank in range(self.plan.ranks)]
        accounts[BLAMED] = replace(accounts[BLAMED], error=error, status=1 if error else -9)
        return Pass(plan=self.plan, steps=self.plan.measures[:1], accounts=accounts, ending=self.behaviour.ending)

    def full_pass(self) -> Pass:
        """Return a pass with all steps of a run."""
        ended = Account(progress=Progress(rank=0, stage="end", ratio=1.0), versions=VERSIONS, done=True, status=0)
        ranks = range(self.plan.ranks)
        accounts = [replace(ended, progress=replace(ended.progress, rank=rank)) for rank in ranks]
        attempt = Pass(plan=self.plan, accounts=accounts)
        while (step := next_step(attempt, self.judge)) is not None:
            accounts = [self._after_step(each, len(attempt.steps), step) for each in attempt.accounts]
            attempt = replace(attempt, steps=(*attempt.steps, step), accounts=accounts)
        return replace(attempt, ending=self.behaviour.ending)

    def _after_step(self, account: Account, number: int, step: Step) -> Account:
        if isinstance(step, Measure):
            sizes = {(number, size): self._measured_size(number, size) for size in step.sizes}
            return replace(account, sizes={**account.sizes, **sizes})
        if isinstance(step, Pairs):
            met = [rank for together in step.rounds for pair in together if account.rank in pair for rank in pair]
            peers = {
                (number, other): self._exchange(account.rank, other, step) for other in met if other != account.rank
            }
            return replace(account, pairs={**account.pairs, **peers})
        raise ValueError(f"unsupported step: {step}")

    def _measured_size(self, number: int, size: int) -> Sized:
        again = number >= len(self.plan.measures) and self.behaviour.repeated is not None
        low = self.behaviour.repeated if again else self.behaviour.share
        share = (low or 1.0) if self.plan.algorithm in self.behaviour.algorithms else 1.0
        seconds = self.behaviour.latency + PROBE.value(size, self.plan.ranks, 1.0) / (self._usual(size) * share)
        return Sized(seconds=(seconds,) * OPERATIONS, wrong=WRONG_ELEMENTS if self.behaviour.wrong else 0)

    def _usual(self, size: int) -> float:
        """Return the published bandwidth, if any."""
        asked = Measurement(
            algorithm=self.plan.algorithm,
            size=size,
            iterations=OPERATIONS,
            value=0.0,
            latency_seconds={},
            wrong_elements=0,
        )
        published = self.judge.expected(asked)
        return USUAL if published is None else published[0]

    def _exchange(self, rank: int, peer: int, step: Pairs) -> Sized:
        bandwidth = USUAL / 4 if self.behaviour.slow(rank, peer) else USUAL
        faulty_sender = self.behaviour.faulty_sender if self.behaviour.wrong else None
        return Sized(
            seconds=(step.bytes / bandwidth,) * step.operations,
            wrong=WRONG_ELEMENTS if peer == faulty_sender else 0,
            wrong_send_elements=WRONG_ELEMENTS if rank == faulty_sender else 0,
        )


SLOW_GPU = RankBehaviour(share=0.5, slow=lambda a, b: BLAMED in {a, b})
SLOW_PATH = RankBehaviour(share=0.5, slow=lambda a, b: {a, b} == {0, BLAMED})
SLOW = RankBehaviour(share=0.7)
LESS = RankBehaviour(share=0.88)
"""Less than this host's baseline, and not less than published results."""
WITHOUT_SHARP = RankBehaviour(share=0.7, algorithms=("default",))
UNCONFIRMED = RankBehaviour(share=0.5, repeated=1.0)
WRONG_GPU = RankBehaviour(wrong=True, faulty_sender=BLAMED)
WRONG = RankBehaviour(wrong=True)
BROKEN = RankBehaviour(
    stage="measure", error="NCCL error: unhandled system error", ending=Ending(duration=9, first_failed=1)
)
NOT_BEGUN = RankBehaviour(
    stage="join", error="the store of rank 0 cannot be reached", ending=Ending(duration=9, first_failed=1)
)
LATE = RankBehaviour(stage="measure", ending=Ending(duration=300, timed_out=True))
UNKILLABLE = RankBehaviour(stage="measure", ending=Ending(duration=305, timed_out=True, abandoned=(PID,)))
ABORTED = RankBehaviour(
    stage="measure", ending=Ending(duration=9, aborted=Skip(reason="busy", hint="Another process came to GPU 0."))
)
