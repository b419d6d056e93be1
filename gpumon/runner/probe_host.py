"""The host as probe runs use it: its GPUs, the ranks on it, and the facts that preflight checks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from gpumon.clock import boot_clock
from gpumon.model.request import DeviceHolder
from gpumon.probe.core.evidence import Observations
from gpumon.probe.core.plan import Run, make_plans, memory_needed
from gpumon.probe.core.preflight import PreflightFacts, Skip, algorithms, interruption, usable_gpus
from gpumon.probe.core.probes import Probe
from gpumon.probe.core.settings import ProbeSettings
from gpumon.runner.assessment import TelemetryRecorder, make_judge
from gpumon.runner.gather_facts import free_memory, gather_facts
from gpumon.runner.gpu_visibility import GpuVisibility, ReadClosely
from gpumon.runner.ranks import Ranks
from gpumon.runner.run import Prepared, ProbeRun
from gpumon.state.report import Report
from gpumon.supervisor.loop import Loop

log = logging.getLogger("gpumon.probe")

SCHEDULE, REQUEST = "schedule", "request"
"""Triggers of a run."""
NCCL_CONF_LIMIT = 16 * 1024


class ProbeHost:
    """The GPUs, ranks and probe settings of this host, as used by one run at a time."""

    def __init__(
        self, loop: Loop, settings: ProbeSettings, latest: Callable[[], Report], read_closely: ReadClosely
    ) -> None:
        self.settings = settings
        self.latest = latest
        self.ranks = Ranks(loop)
        self.visibility = GpuVisibility(loop, latest, read_closely)
        self.current: ProbeRun | None = None
        self._recorder = TelemetryRecorder(latest, ())

    @property
    def simulated(self) -> bool:
        return self.latest().simulated is not None

    @property
    def pids(self) -> frozenset[int]:
        """Return the pids of ranks, including those that have ended but may still be listed by NVML."""
        return self._run_pids() | self.visibility.remaining_pids

    def holders(self) -> tuple[DeviceHolder, ...]:
        """Return the probe's processes that may have a GPU open: running ranks, and what ended ranks left running."""
        stuck = self.ranks.unkillable
        return tuple(
            DeviceHolder(pid=pid, description=f"process {pid} of the probe", stuck=pid in stuck)
            for pid in self.ranks.pids
        )

    def facts(self, probe: Probe, trigger: str = "") -> PreflightFacts:
        """Return the facts that preflight checks. `trigger`: schedule or request; empty for the run in progress."""
        settings = self.settings
        min_idle = probe.min_idle if settings.min_idle_seconds is None else settings.min_idle_seconds
        left_at = None if self.current is None else self.current.left_at
        own = self.visibility.own_processes(self._run_pids(), arrived=self.ranks.arrived, left_at=left_at)
        return replace(
            gather_facts(self.latest(), boot_clock(), own),
            enabled=settings.enabled,
            partial=settings.partial,
            scheduled=trigger == SCHEDULE,
            min_idle_seconds=min_idle if trigger == SCHEDULE else 0.0,
            gated=bool(settings.gate),
            unkillable=self.ranks.unkillable,
            memory_needed=memory_needed(probe, max(probe.gpu.sizes)),
            alone=probe.alone,
            unobserved=self.visibility.unobserved_seconds,
        )

    def prepare(self, run: Run, probe: Probe) -> Prepared:
        """Return the plans and reference values of a run on the GPUs that are usable now. Begin to observe these."""
        report, facts, settings = self.latest(), self.facts(probe, run.trigger), self.settings
        gpus = usable_gpus(facts)
        plans = make_plans(
            probe,
            gpus,
            python=settings.python,
            simulated=self.simulated,
            dtypes=settings.dtypes,
            free=free_memory(report, gpus),
            environment=settings.environment,
            algorithms=algorithms(facts, settings.algorithms),
            nccl_conf=read_nccl_conf(settings.nccl_conf),
            deadline=settings.deadline,
            fault=settings.fault,
        )
        log.info("probe begins", extra={"id": run.id, "probe": probe.name, "ranks": plans[0].ranks})
        self.visibility.use(plans[0].gpus, gpus)
        self._recorder = TelemetryRecorder(self.latest, plans[0].gpus)
        floors = settings.floors(probe, plans[0].setting)
        return Prepared(plans, make_judge(probe, plans[0], report, floors))

    def observe(self) -> Observations:
        """Record the last poll of the run's GPUs, and return all observations since the run began."""
        self.visibility.observe()
        return self._recorder.record()

    def interruption(self) -> Skip | None:
        """Return the Skip with which the run in progress must end; None if it may continue, or if there is no run."""
        if self.current is None:
            return None
        return interruption(self.facts(self.current.probe), self.visibility.watched or None)

    def _run_pids(self) -> frozenset[int]:
        return self.ranks.pids if self.current is None else self.current.pids


def read_nccl_conf(path: Path) -> Mapping[str, str]:
    """Return the text of nccl.conf without comments, or a comment with the error, by path; {} if there is no file."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            lines = [line.strip() for line in file.read(NCCL_CONF_LIMIT).splitlines()]
    except FileNotFoundError:
        return {}
    except OSError as error:
        return {str(path): f"# not readable: {error.strerror}"}
    return {str(path): "\n".join(line for line in lines if line and not line.startswith("#"))}
