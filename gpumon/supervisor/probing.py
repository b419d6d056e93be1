"""When a probe is due or asked for: guard it, run it, make its result durable, tell."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field

from gpumon.arrival import ProbeProgressed, ProbeStarted
from gpumon.probe.conclude import skipped
from gpumon.probe.guard import GpuUse, Situation, Skip, may_run
from gpumon.probe.plan import Run, make_plan
from gpumon.probe.probes import Probe
from gpumon.probe.result import ProbeRequest, ProbeResult
from gpumon.report import Report
from gpumon.supervisor.loop import Loop
from gpumon.supervisor.ranks import Ranks

log = logging.getLogger("gpumon.probe")


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What the configuration says about probing."""

    python: str
    enabled: bool = True
    deadline: float | None = None
    """Seconds; None: the probe's own."""
    environment: Mapping[str, str] = field(default_factory=dict)
    fault: str = ""
    """For tests: what one rank does wrong."""


class Probing:
    """One probe. Use from the loop's thread, but for `request`."""

    def __init__(
        self,
        loop: Loop,
        probe: Probe,
        choices: Choices,
        *,
        latest: Callable[[], Report],
        tell: Callable[[ProbeStarted | ProbeProgressed], None],
        keep: Callable[[ProbeResult], None],
    ) -> None:
        self._loop = loop
        self._probe = probe
        self.choices = choices
        self._latest = latest
        self._tell = tell
        self._keep = keep
        self._ranks = Ranks(loop)

    @property
    def running(self) -> bool:
        return self._ranks.running is not None

    def request(self) -> Future[ProbeRequest]:
        """From any thread: run now, or say why not."""
        future: Future[ProbeRequest] = Future()
        self._loop.post(lambda: future.set_result(self._requested()))
        return future

    def scheduled(self) -> None:
        """From any thread: a run is due."""
        self._loop.post(self._scheduled)

    def stop(self) -> None:
        """Kill the run in progress."""
        self._ranks.abort(Skip(reason="disabled", hint="The agent is stopping."))

    def _scheduled(self) -> None:
        if not self.running:
            self._begin("schedule", enabled=self.choices.enabled)

    def _requested(self) -> ProbeRequest:
        if self._ranks.running is not None:
            return ProbeRequest(id=self._ranks.running, accepted=False)
        run, skip = self._begin("request", enabled=True)
        return ProbeRequest(
            id=run.id, accepted=skip is None, reason=skip.reason if skip else "", hint=skip.hint if skip else ""
        )

    def _begin(self, trigger: str, *, enabled: bool) -> tuple[Run, Skip | None]:
        report = self._latest()
        run = Run(id=uuid.uuid4().hex[:12], trigger=trigger, started=time.time())
        simulated = report.simulated is not None
        skip = may_run(self._situation(report, enabled=enabled))
        if skip is not None:
            self._ended(skipped(self._probe, run, skip, simulated=simulated))
        else:
            self._run(run, [state.uuid for state in report.gpus], simulated=simulated)
        return run, skip

    def _run(self, run: Run, gpus: list[str], *, simulated: bool) -> None:
        plan = make_plan(
            self._probe,
            gpus,
            python=self.choices.python,
            simulated=simulated,
            environment=self.choices.environment,
            deadline=self.choices.deadline,
            fault=self.choices.fault,
        )
        log.info("probe begins", extra={"id": run.id, "probe": self._probe.name, "ranks": plan.ranks})
        self._tell(ProbeStarted(id=run.id))
        self._ranks.start(plan, run, lambda progress: self._tell(ProbeProgressed(progress=progress)), self._ended)

    def _ended(self, result: ProbeResult) -> None:
        words = {"id": result.id, "outcome": result.outcome, "reason": result.reason, "hint": result.hint}
        level = logging.INFO if result.outcome in {"ok", "skipped"} else logging.ERROR
        log.log(level, "probe ended", extra={name: word for name, word in words.items() if word})
        self._keep(result)

    def _situation(self, report: Report, *, enabled: bool) -> Situation:
        return Situation(
            gpus=tuple(
                GpuUse(index=state.index, uuid=state.uuid, processes=state.gpu.processes, fault=state.fault)
                for state in report.gpus
            ),
            expected=int(report.node.gpus_expected or 0),
            simulated=report.simulated is not None,
            enabled=enabled,
            unkillable=self._ranks.unkillable,
        )
