"""Manages the probe runs of the agent: one at a time, by schedule or on request. Every result is stored."""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import asdict
from pathlib import Path

from gpumon import trusted_file
from gpumon.probe.core.conclusion import skipped_result
from gpumon.probe.core.frames import Progress
from gpumon.probe.core.plan import Run
from gpumon.probe.core.preflight import Skip, may_run, usable_gpus
from gpumon.probe.core.probes import ALL_REDUCE, PROBES, Probe
from gpumon.probe.core.result import ProbeRequest, ProbeResult
from gpumon.probe.core.settings import ProbeSettings
from gpumon.runner.containment import is_other_agent_alive, own_mark, sweep
from gpumon.runner.probe_host import REQUEST, ProbeHost
from gpumon.runner.run import Prepared, ProbeRun, Surroundings
from gpumon.runner.scheduler_gate import OnAnswer, Question
from gpumon.state.messages import ProbeStarted
from gpumon.supervisor.loop import Loop

log = logging.getLogger("gpumon.probe")

MAX_BYTES = 64 * 1024

_CUT_SHORT = Skip(
    reason="interrupted",
    hint="The agent was killed, or the host went down, during the run. "
    "`journalctl -u gpumon` and the kernel log show why. Run again.",
)


class RunRecord:
    """The file that names the run in progress. A failure to write or read it is logged as a warning."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def begin(self, run: Run, probe: Probe, *, simulated: bool) -> None:
        document = {"run": asdict(run), "probe": probe.name, "simulated": simulated, "agent": own_mark()}
        try:
            beside = self._path.with_suffix(".new")
            beside.unlink(missing_ok=True)
            with beside.open("x", encoding="ascii") as file:  # creates it, so that it follows no link
                file.write(json.dumps(document))
            beside.replace(self._path)
        except OSError as error:
            hint = "if the agent is killed now, this run is lost"
            log.warning("cannot record the run in progress", extra={"id": run.id, "error": str(error), "hint": hint})

    def end(self) -> None:
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("cannot delete the record of the run", extra={"path": str(self._path), "error": str(error)})

    def interrupted_run(self) -> ProbeResult | None:
        """Return the result of a run that an earlier agent left unfinished, if there is one, and delete the file.

        If the agent that wrote the file is still alive, return None and keep the file.
        """
        try:
            document = json.loads(trusted_file.read(self._path, MAX_BYTES))
            if is_other_agent_alive(document["agent"]):  # that agent owns the store and the run
                return None
            run, probe = Run(**document["run"]), PROBES[document["probe"]]
            result = skipped_result(probe, run, _CUT_SHORT, simulated=document["simulated"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            log.warning("cannot read the record of a run from before the start", extra={"error": str(error)})
            result = None
        self.end()
        return result


WATCH_SECONDS = 0.25
"""Seconds between checks whether a job has started on the GPUs of the run in progress."""
_STOPPING = Skip(reason="disabled", hint="The agent is stopping.")
_STOPPED = Skip(reason="interrupted", hint="The agent was stopped or restarted during the run. Run again.")


class ProbeRuns:
    """Starts and ends probe runs, by schedule or on request. Use from the loop's thread, except `request`."""

    def __init__(
        self,
        loop: Loop,
        probes: Mapping[str, Probe],
        host: ProbeHost,
        *,
        publish: Callable[[ProbeStarted | Progress], None],
        store: Callable[[ProbeResult], None],
        record: RunRecord,
    ) -> None:
        """Create the service. `publish` receives messages on the start and progress of runs, `store` every result."""
        self.probes = probes
        self.host = host
        self.stopping = False
        self._loop = loop
        self._publish = publish
        self._store = store
        self._record = record

    @property
    def running(self) -> bool:
        return self.host.current is not None

    def start(self) -> None:
        """Store a result for a run that a killed agent left unfinished, and delete the shared memory of that run."""
        result = self._record.interrupted_run()
        if result is not None:
            swept = ", ".join(sweep(since=result.started))
            log.warning("the previous agent ended during a run", extra={"id": result.id, "deleted": swept})
            self._store(result)

    def apply(self, settings: ProbeSettings) -> None:
        """Use these settings for runs that begin later. A run in progress takes those of the scheduler gate only."""
        self.host.settings = settings

    def stop(self) -> None:
        """Kill the run in progress, if any, and refuse further requests for runs."""
        self.stopping = True
        self.host.visibility.stop()
        if self.host.current is not None:
            self.host.current.abort(_STOPPED)

    def give_way(self) -> None:
        """Kill the run in progress if it must end (`preflight.interruption`)."""
        skip = self.host.interruption()
        if self.host.current is not None and skip is not None:
            self.host.current.abort(skip)

    def request(self, name: str = ALL_REDUCE) -> Future[ProbeRequest]:
        """Start a run of this probe, or join one in progress. Return a Future of the answer to the client.

        Callable from any thread. Raise KeyError for an unknown probe.
        """
        probe = self.probes[name]
        future: Future[ProbeRequest] = Future()
        self._loop.post(lambda: future.set_result(self._answer(probe)))
        return future

    def _answer(self, probe: Probe) -> ProbeRequest:
        if self.stopping:
            return ProbeRequest(id="", accepted=False, reason=_STOPPING.reason, hint=_STOPPING.hint)
        current = self.host.current
        if current is not None and current.probe.name == probe.name:
            return ProbeRequest(id=current.run.id, accepted=False)
        if current is not None:
            hint = f"Run {current.run.id} of {current.probe.name} is in progress. Try again when it has ended."
            return ProbeRequest(id="", accepted=False, reason="busy", hint=hint)
        run, skip = self.begin(probe, REQUEST)
        return ProbeRequest(
            id=run.id, accepted=skip is None, reason=skip.reason if skip else "", hint=skip.hint if skip else ""
        )

    def begin(self, probe: Probe, trigger: str) -> tuple[Run, Skip | None]:
        """Begin a run, if none is in progress. Return the run, and the Skip if preflight refuses it, else None."""
        run, host = Run(id=uuid.uuid4().hex[:12], trigger=trigger, started=time.time()), self.host
        surroundings = Surroundings(
            preflight=lambda: may_run(host.facts(probe, trigger)),
            ask_gate=lambda on_answer: self._ask_gate(run, probe, on_answer),
            prepare=lambda: self._prepare(run, probe),
            observed=host.observe,
            await_departure=host.visibility.await_departure,
            on_progress=self._publish,
            on_result=self._end,
        )
        host.current = ProbeRun(host.ranks, run, probe, surroundings, simulated=host.simulated)
        return run, host.current.start()

    def _ask_gate(self, run: Run, probe: Probe, on_answer: OnAnswer) -> Question | None:
        host, settings = self.host, self.host.settings
        if not settings.gate:
            return None
        if host.current is None or host.current.left_at is None:
            self._report_start(run, probe)
        gpus = host.visibility.watched or usable_gpus(host.facts(probe, run.trigger))
        environment = {
            "GPUMON_PROBE_RUN": run.id,
            "GPUMON_PROBE_TRIGGER": run.trigger,
            "GPUMON_PROBE_GPUS": ",".join(gpus),
        }
        return Question(self._loop, settings.gate, settings.gate_seconds, environment, on_answer)

    def _prepare(self, run: Run, probe: Probe) -> Prepared:
        prepared = self.host.prepare(run, probe)
        self._report_start(run, probe, prepared.plans[0].gpus)
        self._loop.call_after(WATCH_SECONDS, lambda: self._watch(run))
        return prepared

    def _report_start(self, run: Run, probe: Probe, gpus: tuple[str, ...] = ()) -> None:
        self.host.visibility.begin_run()
        self._record.begin(run, probe, simulated=self.host.simulated)
        self._publish(ProbeStarted(id=run.id, probe=probe.name, gpus=gpus))

    def _watch(self, run: Run) -> None:
        """Update the observations of the run's GPUs, and kill the run if it must end. Repeat every WATCH_SECONDS."""
        if self.host.current is not None and self.host.current.run is run:
            self._loop.call_after(WATCH_SECONDS, lambda: self._watch(run))
            self.host.observe()
            self.give_way()

    def _end(self, result: ProbeResult) -> None:
        self.host.current = None
        self.host.visibility.end_run()
        fields = {"id": result.id, "outcome": result.outcome, "reason": result.reason, "hint": result.hint}
        level = logging.INFO if result.outcome in {"ok", "skipped"} else logging.ERROR
        log.log(level, "probe ended", extra={name: value for name, value in fields.items() if value})
        self._store(result)
        self._record.end()
