"""Derives the settings of each component from the configuration, so that no component needs the whole of it."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from gpumon import __version__
from gpumon.config.model import Configuration
from gpumon.health.catalogue import SHIPPED, Catalogue
from gpumon.health.checks.probe_limits import BUSBW
from gpumon.health.policy import Policy
from gpumon.model.infiniband import PortPatterns
from gpumon.model.instant import Instant
from gpumon.model.node import Build
from gpumon.model.orders import HostOrders, SamplerOrders, Simulation
from gpumon.model.records import AgentRun
from gpumon.model.time_window import WindowKind
from gpumon.probe.core.probe_metrics import INITIAL, with_counters
from gpumon.probe.core.probes import ALL_REDUCE, NEVER, PROBES
from gpumon.probe.core.settings import ProbeSettings, Timetable, parse_schedule
from gpumon.probe.core.state import ProbeState
from gpumon.state.report import AgentState, Report
from gpumon.state.section import ReducerSettings
from gpumon.version import revision

GRACE = "health.boot_grace_seconds"

TRACE = "GPUMON_SIMULATION_TRACE"
"""Environment variable for benchmarks and tests: path of a file in which the simulated NVML counts its calls."""
PROBE_FAULT = "GPUMON_PROBE_FAULT"
"""Environment variable for tests: the fault that one rank of a probe has on a simulated node."""


def initial_report(configuration: Configuration, boot: str = "", began_at: float = 0.0) -> Report:
    """Return the Report before the first message. `boot`: boot id. `began_at`: start in seconds of CLOCK_BOOTTIME."""
    started = time.time()
    return Report(
        started=started,
        boot_id=boot,
        agent=AgentState(runs=(AgentRun(version=__version__, began=Instant(boot, began_at, started), last=started),)),
        simulated=profile_name(configuration),
        detailed=configuration.metrics.detailed,
        build=Build(version=__version__, python=platform.python_version(), revision=revision()),
        probe=ProbeState(metrics=with_counters(INITIAL, timetables(configuration)), began_at=began_at),
    )


def profile_name(configuration: Configuration) -> str | None:
    """Return the name of the simulated profile, or the file name of a recording; None without a simulation."""
    profile = configuration.simulate.profile
    return None if profile is None else Path(profile).name


def xid_catalogue(configuration: Configuration) -> Catalogue:
    """Return the shipped Xid table, overridden and extended by the operator's rows of xids.file."""
    return SHIPPED.with_rows(configuration.xid_rows)


def kernel_log_path(configuration: Configuration) -> Path | None:
    """Return the path of the kernel log to read; None on a simulated node, unless the path is configured."""
    named = configuration.origin("kernel_log.path") != "default"
    return configuration.kernel_log.path if named or configuration.simulate.profile is None else None


def reducer_settings(configuration: Configuration) -> ReducerSettings:
    """Return the settings of `state.reduce`. A simulated node has no boot grace unless it is configured."""
    health = configuration.health
    graceless = configuration.simulate.profile and configuration.origin(GRACE) == "default"
    return ReducerSettings(
        interval=configuration.poll.interval_seconds,
        expected=configuration.gpus.expected_count,
        probe_intervals={name: each.max_interval for name, each in timetables(configuration).items()},
        probe_gated=bool(configuration.probe.scheduler_gate),
        catalogue=xid_catalogue(configuration),
        policy=Policy(
            thresholds=health.thresholds,
            disabled=frozenset(health.disabled_checks),
            boot_grace=0.0 if graceless else health.boot_grace_seconds,
            versions=health.versions,
        ),
        owner_names=frozenset(configuration.jobs.labels),
        ports=PortPatterns(exclude=configuration.links.exclude, fabric=configuration.links.fabric),
    )


def sampler_orders(configuration: Configuration, epoch: float) -> SamplerOrders:
    """Return the orders of a sampler child. `epoch`: boot clock in seconds at which a simulated scenario began."""
    return SamplerOrders(
        interval=configuration.poll.interval_seconds,
        exclude=configuration.gpus.exclude,
        gpm=configuration.poll.gpm,
        detailed=configuration.metrics.detailed,
        largest_processes=configuration.processes.max_per_gpu,
        sysfs=str(configuration.pci.sysfs),
        simulation=_simulation(configuration, epoch),
        log_level=configuration.log.level,
        log_format=configuration.log.format,
    )


def host_orders(configuration: Configuration, epoch: float) -> HostOrders:
    """Return the orders of the host child. `epoch` is that of `sampler_orders`."""
    return HostOrders(
        exclude=configuration.links.exclude,
        fabric=configuration.links.fabric,
        sysfs=str(configuration.links.sysfs or configuration.pci.sysfs),
        root=str(configuration.links.root),
        mapping_directory=str(configuration.jobs.mapping_directory),
        kubelet_socket=str(configuration.jobs.kubelet_socket),
        simulation=_simulation(configuration, epoch),
        log_level=configuration.log.level,
        log_format=configuration.log.format,
    )


def _simulation(configuration: Configuration, epoch: float) -> Simulation | None:
    simulate = configuration.simulate
    if simulate.profile is None:
        return None
    return Simulation(
        profile=simulate.profile,
        epoch=epoch,
        scenario=str(simulate.scenario) if simulate.scenario else None,
        trace=os.environ.get(TRACE) or None,
    )


def probe_settings(configuration: Configuration) -> ProbeSettings:
    probe, simulated = configuration.probe, configuration.simulate.profile is not None
    return ProbeSettings(
        python=str(probe.python or sys.executable),
        enabled=probe.enabled,
        deadline=probe.deadline_seconds,
        dtypes=probe.dtypes,
        environment=probe.nccl_environment,
        min_baseline_ratio=probe.min_baseline_ratio,
        min_baseline_spreads=probe.min_baseline_spreads,
        min_expected_ratio=probe.min_expected_ratio,
        limits={backend: configuration.health.thresholds.get(limit.name) for backend, limit in BUSBW.items()},
        min_idle_seconds=0.0 if probe.min_idle_seconds is None and simulated else probe.min_idle_seconds,
        partial=probe.allow_partial,
        algorithms=tuple(dict.fromkeys(probe.algorithms)),
        gate=probe.scheduler_gate,
        gate_seconds=probe.scheduler_gate_timeout_seconds,
        fault=os.environ.get(PROBE_FAULT, "") if simulated else "",
    )


def max_window_seconds(configuration: Configuration) -> Mapping[WindowKind, float]:
    return {
        WindowKind.RELEASE: configuration.release.max_seconds,
        WindowKind.HOLD: configuration.probe.max_hold_seconds,
        WindowKind.MAINTENANCE: configuration.maintenance.max_seconds,
    }


def timetables(configuration: Configuration) -> Mapping[str, Timetable]:
    """Return the timetable of each probe that runs by schedule. A setting that is not set has the probe's default."""
    section, simulated = configuration.probe, configuration.simulate.profile is not None
    texts = {probe.name: section.schedules.get(probe.name, probe.schedule) for probe in PROBES.values()}
    schedules = {name: parse_schedule(text) for name, text in texts.items() if text != NEVER}
    if ALL_REDUCE not in section.schedules and section.interval_seconds is not None:
        schedules[ALL_REDUCE] = Timetable(interval=section.interval_seconds)
    for name, schedule in schedules.items():
        probe = PROBES[name]
        jitter, delay = section.jitter_seconds, section.initial_delay_seconds
        default_delay = probe.initial_delay_simulated if simulated else probe.initial_delay
        schedules[name] = replace(
            schedule,
            jitter=min(schedule.max_interval, probe.jitter if jitter is None else jitter),
            initial_delay=default_delay if delay is None else delay,
        )
    return schedules
