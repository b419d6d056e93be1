"""Probe runs of the agent: one at a time, by schedule or on request; each result is made durable."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import replace

from gpumon.clock import boot_clock
from gpumon.model.request_result import DeviceHolder
from gpumon.probe.core.baseline import Floors
from gpumon.probe.core.evidence import Observations
from gpumon.probe.core.frames import Progress
from gpumon.probe.core.plan import Run, make_plans, memory_needed
from gpumon.probe.core.preflight import Skip, algorithms, interruption, may_run, usable_gpus
from gpumon.probe.core.preflight_facts import PreflightFacts
from gpumon.probe.core.probes import ALL_REDUCE, PROBES, Probe
from gpumon.probe.core.result import ProbeRequest, ProbeResult
from gpumon.probe.core.settings import ProbeSettings
from gpumon.probe.runner.assessment import make_judge
from gpumon.probe.runner.gpu_visibility import GpuVisibility, ReadClosely, Remaining
from gpumon.probe.runner.nccl_conf import read_nccl_conf
from gpumon.probe.runner.preflight_facts import OwnProcesses, free_memory, gather_facts
from gpumon.probe.runner.ranks import Ranks
from gpumon.probe.runner.run import Prepared, ProbeRun, Surroundings
from gpumon.probe.runner.run_record import RunRecord
from gpumon.probe.runner.scheduler_gate import OnAnswer, Question
from gpumon.probe.runner.shared_memory import sweep
from gpumon.probe.runner.telemetry import TelemetryRecorder
from gpumon.state.messages import ProbeProgressed, ProbeStarted
from gpumon.state.report import Report
from gpumon.supervisor.loop import Loop

log = logging.getLogger("gpumon.probe")

WATCH_SECONDS = 0.25
"""How often a run checks for jobs that have come; polls show them."""
SCHEDULE, REQUEST = "schedule", "request"
"""Triggers of a run."""
_STOPPING = Skip(reason="disabled", hint="The agent is stopping.")
_STOPPED = Skip(reason="interrupted", hint="The agent was stopped or restarted during the run. Run again.")


class ProbeRuns:
    """Runs `probe` by schedule and all probes on request. Use from the loop's thread, except `request`."""

    def __init__(
        self,
        loop: Loop,
        probe: Probe,
        settings: ProbeSettings,
        *,
        latest: Callable[[], Report],
        tell: Callable[[ProbeStarted | ProbeProgressed], None],
        keep: Callable[[ProbeResult], None],
        watch: ReadClosely,
        record: RunRecord,
    ) -> None:
        self.probe = probe
        self.settings = settings
        self.stopping = False
        self.latest = latest
        self._loop = loop
        self._tell = tell
        self._keep = keep
        self._record = record
        self._ranks = Ranks(loop)
        self._visibility = GpuVisibility(loop, latest, watch)
        self._recorder = TelemetryRecorder(latest, ())
        self._current: ProbeRun | None = None

    # State

    @property
    def running(self) -> bool:
        """Whether a run is in progress."""
        return self._current is not None

    @property
    def running_probe(self) -> Probe | None:
        """The probe of the run in progress."""
        return None if self._current is None else self._current.probe

    @property
    def gpus(self) -> tuple[str, ...]:
        """UUIDs of the GPUs on which something of a run is, or may be; empty on the CPU."""
        return self._visibility.gpus

    @property
    def pids(self) -> frozenset[int]:
        """Pids of ranks, including those that have ended but may still be listed by NVML."""
        return self._own_pids() | self._visibility.remains.pids

    @property
    def unkillable(self) -> tuple[int, ...]:
        """Pids of ranks that SIGKILL does not end."""
        return self._ranks.unkillable

    def holders(self) -> tuple[DeviceHolder, ...]:
        """Return the ranks that have GPUs open, or may have, and what they have started."""
        stuck = self._ranks.unkillable
        return tuple(
            DeviceHolder(pid=pid, description=f"process {pid} of the probe", stuck=pid in stuck)
            for pid in self._ranks.pids
        )

    def left_on(self, gpus: Collection[str], pids: frozenset[int], ended: float) -> Remaining:
        """Return what is still on these GPUs of ranks that ended at this moment of the boot clock."""
        return self._visibility.remaining_on(gpus, pids, ended)

    def look(self) -> None:
        """Read for a while at every poll who holds the GPUs."""
        self._visibility.read_closely()

    # Life

    def start(self) -> None:
        """Record the run during which an earlier agent was killed, and delete its shared memory."""
        result = self._record.interrupted_run()
        if result is not None:
            swept = ", ".join(sweep(since=result.started))
            log.warning("the previous agent ended during a run", extra={"id": result.id, "deleted": swept})
            self._keep(result)

    def apply(self, settings: ProbeSettings) -> None:
        """Use these settings from the next run on."""
        self.settings = settings

    def stop(self) -> None:
        """Kill the run in progress, and begin no other."""
        self.stopping = True
        self._visibility.stop()
        self._abort(_STOPPED)

    def give_way(self) -> None:
        """Kill the run in progress if it must not go on."""
        if self._current is None:
            return
        skip = interruption(self.facts(self._current.probe), self._visibility.watched or None)
        if skip is not None:
            self._abort(skip)

    def _abort(self, skip: Skip) -> None:
        if self._current is not None:
            self._current.abort(skip)

    # Begin

    def request(self, name: str = ALL_REDUCE) -> Future[ProbeRequest]:
        """Run this probe now, or answer why not; from any thread. Raises KeyError for an unknown probe."""
        probe = self.probe if name == self.probe.name else PROBES[name]
        future: Future[ProbeRequest] = Future()
        self._loop.post(lambda: future.set_result(self._answer(probe)))
        return future

    def _answer(self, probe: Probe) -> ProbeRequest:
        if self.stopping:
            return ProbeRequest(id="", accepted=False, reason=_STOPPING.reason, hint=_STOPPING.hint)
        if self._current is not None:
            return _join(self._current, probe)
        run, skip = self.begin(probe, REQUEST)
        return ProbeRequest(
            id=run.id, accepted=skip is None, reason=skip.reason if skip else "", hint=skip.hint if skip else ""
        )

    def begin(self, probe: Probe, trigger: str) -> tuple[Run, Skip | None]:
        """Begin a run while none is in progress. Return it, and the skip if preflight refuses it."""
        run = Run(id=uuid.uuid4().hex[:12], trigger=trigger, started=time.time())
        surroundings = Surroundings(
            preflight=lambda: may_run(self.facts(probe, trigger)),
            ask_gate=lambda on_answer: self._ask_gate(run, probe, on_answer),
            prepare=lambda: self._prepare(run, probe),
            observed=self._observed,
            await_departure=self._visibility.await_departure,
            on_progress=self._report_progress,
            on_result=self._end,
        )
        self._current = ProbeRun(self._ranks, run, probe, surroundings, simulated=self._is_simulated())
        return run, self._current.start()

    def _ask_gate(self, run: Run, probe: Probe, on_answer: OnAnswer) -> Question | None:
        if not self.settings.gate:
            return None
        if self._current is None or self._current.left_at is None:
            self._visibility.begin_run()
            self._report_start(run, probe)
        gpus = self._visibility.watched or usable_gpus(self.facts(probe, run.trigger))
        environment = {
            "GPUMON_PROBE_RUN": run.id,
            "GPUMON_PROBE_TRIGGER": run.trigger,
            "GPUMON_PROBE_GPUS": ",".join(gpus),
        }
        return Question(self._loop, self.settings.gate, self.settings.gate_seconds, environment, on_answer)

    def _prepare(self, run: Run, probe: Probe) -> Prepared:
        report, facts, settings = self.latest(), self.facts(probe, run.trigger), self.settings
        gpus = usable_gpus(facts)
        plans = make_plans(
            probe,
            gpus,
            python=settings.python,
            simulated=self._is_simulated(),
            dtypes=settings.dtypes,
            free=free_memory(report, gpus),
            environment=settings.environment,
            algorithms=algorithms(facts, settings.algorithms),
            nccl_conf=read_nccl_conf(settings.nccl_conf),
            deadline=settings.deadline,
            fault=settings.fault,
        )
        log.info("probe begins", extra={"id": run.id, "probe": probe.name, "ranks": plans[0].ranks})
        self._visibility.use(plans[0].gpus, gpus)
        self._recorder = TelemetryRecorder(self.latest, plans[0].gpus)
        self._visibility.begin_run()
        self._report_start(run, probe, plans[0].gpus)
        self._loop.call_after(WATCH_SECONDS, lambda: self._watch(run))
        floors = settings.floors.get(plans[0].setting.backend, Floors())
        return Prepared(plans, make_judge(probe, plans[0], report, floors))

    def _observed(self) -> Observations:
        return self._recorder.record()

    def _report_start(self, run: Run, probe: Probe, gpus: tuple[str, ...] = ()) -> None:
        self._record.begin(run, probe, simulated=self._is_simulated())
        self._tell(ProbeStarted(id=run.id, probe=probe.name, gpus=gpus))

    def _report_progress(self, progress: Progress) -> None:
        self._tell(ProbeProgressed(progress=progress))

    # While it runs, and its end

    def _watch(self, run: Run) -> None:
        """Give way to a job that has come since the run began."""
        if self._current is None or self._current.run is not run:
            return
        self._loop.call_after(WATCH_SECONDS, lambda: self._watch(run))
        self._recorder.record()
        self._visibility.observe()
        self.give_way()

    def _end(self, result: ProbeResult) -> None:
        self._current = None
        self._visibility.end_run()
        fields = {"id": result.id, "outcome": result.outcome, "reason": result.reason, "hint": result.hint}
        level = logging.INFO if result.outcome in {"ok", "skipped"} else logging.ERROR
        log.log(level, "probe ended", extra={name: value for name, value in fields.items() if value})
        self._keep(result)
        self._record.end()

    # Facts

    def facts(self, probe: Probe, trigger: str = "") -> PreflightFacts:
        """Return what preflight checks, for a run that would begin so or for the one in progress."""
        settings = self.settings
        return replace(
            gather_facts(self.latest(), boot_clock(), self._own_processes()),
            enabled=settings.enabled,
            partial=settings.partial,
            scheduled=trigger == SCHEDULE,
            idle_seconds=settings.idle_seconds if trigger == SCHEDULE else 0.0,
            gated=bool(settings.gate),
            unkillable=self._ranks.unkillable,
            memory_needed=memory_needed(max(probe.gpu.sizes)),
            alone=probe.alone,
            unobserved=self._visibility.unobserved_seconds,
        )

    def _own_processes(self) -> OwnProcesses:
        left_at = None if self._current is None else self._current.left_at
        return self._visibility.own_processes(self._own_pids(), arrived=self._ranks.arrived, left_at=left_at)

    def _own_pids(self) -> frozenset[int]:
        return self._ranks.pids if self._current is None else self._current.pids

    def _is_simulated(self) -> bool:
        return self.latest().simulated is not None


def _join(current: ProbeRun, probe: Probe) -> ProbeRequest:
    """Answer a request during a run. A run of another probe is not joined, and nothing is recorded."""
    if probe.name == current.probe.name:
        return ProbeRequest(id=current.run.id, accepted=False)
    hint = f"Run {current.run.id} of {current.probe.name} is in progress. Try again when it has ended."
    return ProbeRequest(id="", accepted=False, reason="busy", hint=hint)
