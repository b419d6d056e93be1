"""When a probe is due or asked for: guard it, run it, make its result durable, tell."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import replace
from typing import Protocol

from gpumon.clock import boot_clock
from gpumon.model.release import Holder
from gpumon.probe.core.baseline import Floors
from gpumon.probe.core.conclusion import skipped
from gpumon.probe.core.conditions import Situation
from gpumon.probe.core.plan import Run, make_plans, memory_needed
from gpumon.probe.core.preflight import Skip, algorithms, intruders, may_run, usable
from gpumon.probe.core.probes import ALL_REDUCE, PROBES, Probe
from gpumon.probe.core.result import ProbeRequest, ProbeResult
from gpumon.probe.runner.assessment import make_judge
from gpumon.probe.runner.departure import Left, is_told_since, left_on
from gpumon.probe.runner.due import IDLE_LOOK_SECONDS, is_due_early, pause
from gpumon.probe.runner.gather_conditions import Own, free_memory, situation
from gpumon.probe.runner.nccl_conf import lines_of
from gpumon.probe.runner.run import Runs, at_once
from gpumon.probe.runner.run_record import RunRecord
from gpumon.probe.runner.scheduler_gate import Question
from gpumon.probe.runner.settings import Choices
from gpumon.probe.runner.shared_memory import sweep
from gpumon.probe.runner.telemetry import Witness
from gpumon.probe.runner.unobserved_time import Unseen
from gpumon.state.messages import ProbeProgressed, ProbeStarted
from gpumon.state.report import Report
from gpumon.supervisor.loop import Loop, Timer

log = logging.getLogger("gpumon.probe.core")

WATCH_SECONDS = 0.25
"""How often a run looks for jobs that have come; it sees them when they are polled."""
SCHEDULE, REQUEST = "schedule", "request"
"""What makes a run."""
AFTER_SECONDS = 5.0
"""How long after a run the processes are read at every poll: what its ranks left must not look like a job's."""
_STOPPING = Skip(reason="disabled", hint="The agent is stopping.")
_STOPPED = Skip(
    reason="interrupted", hint="The agent was stopped or restarted while it ran, so it says nothing: run again."
)


class Watch(Protocol):
    """SamplerOrders that who holds the GPUs, and what else is read slowly, is read at every poll, or no longer."""

    def __call__(self, *, closely: bool) -> None: ...


class Probing:
    """`probe` by schedule, all of them on request, one run at a time. Use from the loop's thread, but for `request`."""

    def __init__(
        self,
        loop: Loop,
        probe: Probe,
        choices: Choices,
        *,
        latest: Callable[[], Report],
        tell: Callable[[ProbeStarted | ProbeProgressed], None],
        keep: Callable[[ProbeResult], None],
        watch: Watch,
        record: RunRecord,
    ) -> None:
        self._loop = loop
        self._probe = probe
        self.choices = choices
        self._latest = latest
        self._tell = tell
        self._keep = keep
        self._watch_gpus = watch
        self._record = record
        self._runs = Runs(loop, self.left_on)
        self._watching: Timer | None = None
        self._waiting: Timer | None = None
        self._resting: Timer | None = None
        self._stopping = False
        self._measuring = probe
        """The probe of the run that was begun last."""
        self._asking: Run | None = None
        """The run that begins when the scheduler gives the node."""
        self._question: Question | None = None
        self._due = 0.0
        """Boot clock at which the run by schedule that waits was due."""
        self._witness = Witness(latest, ())
        self._unseen = Unseen()
        self._using: tuple[str, ...] = ()
        """UUIDs of the GPUs of the run in progress."""
        self._chosen: tuple[str, ...] = ()
        """The same, and on a simulated node those that its ranks would use."""

    @property
    def running(self) -> bool:
        return self._running_id is not None

    @property
    def _running_id(self) -> str | None:
        return self._asking.id if self._asking is not None else self._runs.running

    @property
    def gpus(self) -> tuple[str, ...]:
        """UUIDs of those on which something of a run is, or may be still; empty on the CPU."""
        behind = (one.uuid for one in self._latest().gpus if one.uuid in self._runs.behind.gpus)
        return tuple(dict.fromkeys((*self._using, *behind)))

    @property
    def pids(self) -> frozenset[int]:
        """Of the ranks of these runs, those that have ended among them."""
        return self._runs.pids | self._runs.behind.pids

    @property
    def unkillable(self) -> tuple[int, ...]:
        """Pids of ranks that SIGKILL does not end."""
        return tuple(sorted(self._runs.ranks.unkillable))

    def apply(self, choices: Choices) -> None:
        """Use these settings from the next run on."""
        self.choices = choices

    def start(self) -> None:
        """Keep what became of the run in which an earlier agent was killed, and clear up after it."""
        result = self._record.cut_short()
        if result is not None:
            swept = ", ".join(sweep(since=result.started))
            log.warning("the agent before this one ended in mid run", extra={"id": result.id, "deleted": swept})
            self._keep(result)

    def request(self, name: str = ALL_REDUCE) -> Future[ProbeRequest]:
        """From any thread: run this probe now, or say why not. Raises KeyError for one that there is not."""
        probe = self._probe if name == self._probe.name else PROBES[name]
        future: Future[ProbeRequest] = Future()
        self._loop.post(lambda: future.set_result(self._requested(probe)))
        return future

    def scheduled(self) -> None:
        """From any thread: a run is due."""
        self._loop.post(self._scheduled)

    def is_due_early(self) -> bool:
        """Whether the next run by schedule should come now, after a repair."""
        if self.running or self._stopping:
            return False
        self._measuring = self._probe
        return is_due_early(self._latest(), self._situation(SCHEDULE), wall=time.time(), at=boot_clock())

    def holders(self) -> tuple[Holder, ...]:
        """Ranks that have GPUs open, or may have, and what they have started."""
        stuck = self._runs.ranks.unkillable
        return tuple(
            Holder(pid=pid, words=f"process {pid} of the probe", stuck=pid in stuck) for pid in self._runs.ranks.pids
        )

    def give_way(self) -> None:
        """Kill the run in progress if it must not go on."""
        skip = intruders(self._situation(), self._chosen or None)
        if skip is not None:
            self._abort(skip)

    def left_on(self, gpus: Collection[str], pids: frozenset[int], ended: float) -> Left:
        """What is still there of these ranks, after they ended at this moment of the boot clock."""
        left = () if self._stopping else left_on(self._latest(), gpus, pids, ended)
        if left == ():
            self._runs.behind = self._runs.behind.without(gpus)
        return left

    def look(self) -> None:
        """For a while, read at every poll who holds the GPUs."""
        self._watch_gpus(closely=True)
        self._rest_later()

    def stop(self) -> None:
        """Kill the run in progress, and begin no other."""
        self._stopping = True
        self._abort(_STOPPED)

    def _abort(self, skip: Skip) -> None:
        """End the run in progress, if any, with this skip."""
        question, self._question = self._question, None
        if question is not None:
            question.withdraw()
        run, self._asking = self._asking, None
        if run is not None:
            self._skip(run, skip)
        else:
            self._runs.abort(skip)

    # When a run begins

    def _scheduled(self) -> None:
        self._due = boot_clock()
        self._when_due()

    def _when_due(self) -> None:
        """While another probe runs, too little is known, or the GPUs are not idle for long, it waits.

        A skip would last until the next.
        """
        if self._waiting is not None:
            self._waiting.cancel()
        if self._stopping or (self.running and self._measuring.name == self._probe.name):
            return
        if self.running:  # another probe; what is asked of the GPUs is asked when it has ended
            self._due = boot_clock()
            self._waiting = self._loop.call_after(IDLE_LOOK_SECONDS, self._when_due)
            return
        self._measuring = self._probe
        seconds = pause(self._latest(), self._situation(SCHEDULE), boot_clock() - self._due)
        if seconds is None:
            self._begin(self._probe, SCHEDULE)
        else:
            self._waiting = self._loop.call_after(seconds, self._when_due)

    def _requested(self, probe: Probe) -> ProbeRequest:
        if self._stopping:
            return ProbeRequest(id="", accepted=False, reason=_STOPPING.reason, hint=_STOPPING.hint)
        if self._running_id is not None:
            return self._joined(self._running_id, probe)
        run, skip = self._begin(probe, REQUEST)
        return ProbeRequest(
            id=run.id, accepted=skip is None, reason=skip.reason if skip else "", hint=skip.hint if skip else ""
        )

    def _joined(self, run: str, probe: Probe) -> ProbeRequest:
        """A run of another probe measures something else: then nothing is joined, and nothing recorded."""
        if probe.name == self._measuring.name:
            return ProbeRequest(id=run, accepted=False)
        hint = f"Run {run} of {self._measuring.name} is in progress. Ask again when it has ended."
        return ProbeRequest(id="", accepted=False, reason="busy", hint=hint)

    def _begin(self, probe: Probe, trigger: str) -> tuple[Run, Skip | None]:
        self._measuring = probe
        run = Run(id=uuid.uuid4().hex[:12], trigger=trigger, started=time.time())
        skip = may_run(self._situation(trigger))
        if skip is not None:
            self._skip(run, skip)
        elif self.choices.gate:
            self._asking = run
            self._watch_gpus(closely=True)
            self._started(run)
            self._ask(run, lambda refused: self._answered(run, refused))
        else:
            self._run(run)
        return run, skip

    def _ask(self, run: Run, on_answer: Callable[[Skip | None], None]) -> None:
        """Ask the scheduler for the node."""

        def answered(skip: Skip | None) -> None:
            self._question = None
            on_answer(skip)

        asked_for = {
            "RUN": run.id,
            "TRIGGER": run.trigger,
            "GPUS": ",".join(self._chosen or usable(self._situation(run.trigger))),
        }
        environment = {f"GPUMON_PROBE_{name}": value for name, value in asked_for.items()}
        self._question = Question(self._loop, self.choices.gate, self.choices.gate_seconds, environment, answered)

    def _answered(self, run: Run, refused: Skip | None) -> None:
        """Much may have happened while the scheduler was asked."""
        self._asking = None
        skip = refused or may_run(self._situation(run.trigger))
        if skip is not None:
            self._skip(run, skip)
        else:
            self._run(run)

    def _skip(self, run: Run, skip: Skip) -> None:
        self._ended(skipped(self._measuring, run, skip, simulated=self._latest().simulated is not None))

    def _run(self, run: Run) -> None:
        report, probe, now = self._latest(), self._measuring, self._situation(run.trigger)
        plans = make_plans(
            probe,
            usable(now),
            python=self.choices.python,
            simulated=report.simulated is not None,
            dtypes=self.choices.dtypes,
            free=free_memory(report, usable(now)),
            environment=self.choices.environment,
            algorithms=algorithms(now, self.choices.algorithms),
            nccl_conf=lines_of(self.choices.nccl_conf),
            deadline=self.choices.deadline,
            fault=self.choices.fault,
        )
        log.info("probe begins", extra={"id": run.id, "probe": probe.name, "ranks": plans[0].ranks})
        self._using, self._chosen = plans[0].gpus, usable(now)
        self._witness, self._unseen = Witness(self._latest, self._using), Unseen(self._chosen)
        self._watch_gpus(closely=True)
        self._started(run, self._using)
        floors = self.choices.floors.get(plans[0].setting.backend, Floors())
        judge = make_judge(probe, plans[0], report, floors)
        self._runs.start(
            plans,
            run,
            judge,
            lambda progress: self._tell(ProbeProgressed(progress=progress)),
            self._ended,
            look=self._witness.look,
            clear=lambda on_answer: self._ask(run, on_answer) if self.choices.gate else at_once(on_answer),
        )
        self._watching = self._loop.call_after(WATCH_SECONDS, self._watch)

    def _started(self, run: Run, gpus: tuple[str, ...] = ()) -> None:
        self._record.begin(run, self._measuring, simulated=self._latest().simulated is not None)
        self._tell(ProbeStarted(id=run.id, probe=self._measuring.name, gpus=gpus))

    def _watch(self) -> None:
        """Give way to a job that has come since the run began."""
        self._watching = self._loop.call_after(WATCH_SECONDS, self._watch)
        self._witness.look()
        self._unseen.look(self._latest())
        self.give_way()

    def _rest_later(self) -> None:
        if self._resting is not None:
            self._resting.cancel()
        self._resting = self._loop.call_after(AFTER_SECONDS, self._rest)

    def _rest(self) -> None:
        if not self.running:
            self._watch_gpus(closely=False)

    def _ended(self, result: ProbeResult) -> None:
        if self._watching is not None:
            self._watching.cancel()
        self._using = self._chosen = ()
        self._unseen = Unseen()
        self._rest_later()
        words = {"id": result.id, "outcome": result.outcome, "reason": result.reason, "hint": result.hint}
        level = logging.INFO if result.outcome in {"ok", "skipped"} else logging.ERROR
        log.log(level, "probe ended", extra={name: word for name, word in words.items() if word})
        self._keep(result)
        self._record.end()

    def _situation(self, trigger: str = "") -> Situation:
        """Now, for a run that would begin so or for the one in progress."""
        return replace(
            situation(self._latest(), boot_clock(), self._own()),
            enabled=self.choices.enabled,
            partial=self.choices.partial,
            scheduled=trigger == SCHEDULE,
            idle_seconds=self.choices.idle_seconds if trigger == SCHEDULE else 0.0,
            gated=bool(self.choices.gate),
            unkillable=self._runs.ranks.unkillable,
            memory_needed=memory_needed(max(self._measuring.gpu.sizes)),
            alone=self._measuring.alone,
            unseen=self._unseen.seconds,
        )

    def _own(self) -> Own:
        """Ranks that have ended are where they were until a poll has shown that they are not."""
        left = self._runs.left_at
        there = self._runs.arrived or (left is not None and not is_told_since(self._latest(), self._using, left))
        return Own(pids=self._runs.pids, gpus=self._using if there else ())
