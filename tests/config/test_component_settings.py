"""What the components are given of the configuration, and the page that documents it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from each_case import each_case

from gpumon import clock
from gpumon.config.component_settings import (
    PROBE_FAULT,
    initial_report,
    kernel_log_path,
    probe_settings,
    reducer_settings,
    timetables,
)
from gpumon.config.load import load
from gpumon.config.settings_table import settings
from gpumon.probe.core.baseline import Floors
from gpumon.probe.core.probes import PROBES
from gpumon.probe.core.settings import Timetable, parse_schedule
from scripts.docs.configuration_page import reference, sample


@each_case(
    ("given", "read"),
    [
        ({}, Path("/dev/kmsg")),
        ({"GPUMON_KERNEL_LOG__PATH": "/tmp/kmsg"}, Path("/tmp/kmsg")),
        ({"GPUMON_SIMULATE__PROFILE": "h100x8"}, None),
        ({"GPUMON_SIMULATE__PROFILE": "h100x8", "GPUMON_KERNEL_LOG__PATH": "/tmp/kmsg"}, Path("/tmp/kmsg")),
        ({"GPUMON_SIMULATE__PROFILE": "h100x8", "GPUMON_KERNEL_LOG__PATH": "/dev/kmsg"}, Path("/dev/kmsg")),
    ],
)
def test_a_simulated_node_does_not_read_the_kernel_log(
    tmp_path: Path, given: dict[str, str], read: Path | None
) -> None:
    """A simulated node reads the kernel log only if its path is configured."""
    assert kernel_log_path(load(None, {}, {"STATE_DIRECTORY": str(tmp_path)} | given)) == read


def test_thresholds_of_the_configuration_reach_the_checks() -> None:
    configuration = load(None, {}, {"GPUMON_HEALTH__THRESHOLDS": "{min_busy_ratio: 0.05}"})
    assert reducer_settings(configuration).policy.thresholds == {"min_busy_ratio": 0.05}


def floors(environment: dict[str, str]) -> tuple[Floors, Floors]:
    """Return the limits of the all-reduce on GPUs and on CPUs."""
    settings, probe = probe_settings(load(None, {}, environment)), PROBES["allreduce"]
    return settings.floors(probe, probe.gpu), settings.floors(probe, probe.cpu)


def test_slow_thresholds_exist_for_every_backend() -> None:
    """The default thresholds for ranks on a CPU are lower, because other processes share the CPU."""
    assert [each.baseline for each in floors({})] == [0.9, 0.5]
    assert [each.baseline for each in floors({"GPUMON_PROBE__MIN_BASELINE_RATIO": "0.8"})] == [0.8, 0.8]


def test_a_configured_minimum_bandwidth_holds_for_its_backend() -> None:
    """The probe gets the limit of the check: one setting decides both."""
    limits = {"GPUMON_HEALTH__THRESHOLDS": "{min_allreduce_nccl_busbw_bytes_per_second: 3e11}"}
    assert [each.limit for each in floors(limits)] == [3e11, None]


def test_a_new_agent_on_a_long_running_host_has_missed_no_probe(tmp_path: Path) -> None:
    """The time without a probe is measured from the agent's start, not from the boot."""
    configuration = load(None, {}, {"STATE_DIRECTORY": str(tmp_path)})
    assert initial_report(configuration, began_at=1e6).probe.began_at == 1e6


@pytest.mark.parametrize(("simulated", "fault"), [({}, ""), ({"--simulate": "t4x1"}, "corrupt:1")])
def test_switches_for_tests_do_nothing_on_a_real_host(
    monkeypatch: pytest.MonkeyPatch, simulated: dict[str, str], fault: str
) -> None:
    """A fault of the probe and another boot id exist on a simulated node only."""
    monkeypatch.setenv(PROBE_FAULT, "corrupt:1")
    monkeypatch.setenv(clock.BOOT_ID, "another boot")
    assert probe_settings(load(None, simulated, {})).fault == fault
    assert clock.boot_id() != "another boot"


def test_each_probe_has_the_timetable_of_its_setting() -> None:
    """By default only the all-reduce runs by schedule; the jitter is no longer than the interval.

    Counters of each probe with a schedule exist before its first run.
    """
    assert timetables(load(None, {}, {})) == {"allreduce": Timetable(interval=21600, jitter=600, initial_delay=60)}
    chosen = {"GPUMON_PROBE__SCHEDULES": "{allreduce: never, copy: 0 3 * * sun, alltoall: 5m}"}
    weekly = Timetable(cron="0 3 * * sun", jitter=600, initial_delay=60)
    often = Timetable(interval=300, jitter=300, initial_delay=60)
    configuration = load(None, {}, chosen)
    assert timetables(configuration) == {"copy": weekly, "alltoall": often}
    intervals = reducer_settings(configuration).probe_intervals
    assert intervals == {"copy": pytest.approx(7 * 86400, abs=3600), "alltoall": 300}
    metrics = initial_report(configuration).probe.metrics
    counts = {name: set((table.runs_total or {}).values()) for name, table in metrics.items()}
    assert counts == {"allreduce": {0.0}, "copy": {0.0}, "alltoall": {0.0}}


ROOT = Path(__file__).parents[2]


def test_generated_files_are_fresh() -> None:
    """docs/configuration.md and deploy/gpumon.yml match the table of settings."""
    assert (ROOT / "docs/configuration.md").read_text(encoding="utf-8") == reference()
    assert (ROOT / "deploy/gpumon.yml").read_text(encoding="utf-8") == sample()


def test_every_example_is_valid(tmp_path: Path) -> None:
    as_it_is, filled = tmp_path / "as_it_is.yml", tmp_path / "filled.yml"
    as_it_is.write_text(sample(), encoding="utf-8")
    xids = tmp_path / "xids.yml"
    xids.touch()
    text = re.sub(r"(?m)^  # (\w+: )", r"  \1", sample()).replace("/etc/gpumon/xids.yml", str(xids))
    filled.write_text(text, encoding="utf-8")

    plain, full = (load(path, {}, {"STATE_DIRECTORY": "/s"}) for path in (as_it_is, filled))

    assert plain == load(None, {}, {"STATE_DIRECTORY": "/s"}).with_origins(plain._origins)
    assert {name for name in settings() if full.origin(name) != "default"} == set(settings())


def test_documented_defaults_of_the_probe_are_correct() -> None:
    probe = PROBES["allreduce"]
    words = {row.key: row.default_in_words for row in settings().values() if row.section == "probe"}

    assert words["interval_seconds"] == f"{parse_schedule(probe.schedule).interval:g}"
    assert words["jitter_seconds"] == f"{probe.jitter:g}"
    assert words["initial_delay_seconds"] == (
        f"{probe.initial_delay:g}, on a simulated node {probe.initial_delay_simulated:g}"
    )
    assert words["min_idle_seconds"] == f"{probe.min_idle:g}, on a simulated node 0"
    assert words["deadline_seconds"] == f"{probe.gpu.deadline:g}, on CPU {probe.cpu.deadline:g}"
