"""TABLE: a case for each rule. What one series of the recorded scrape does over time, and what the rule makes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gpumon.snapshot.reading import Labels, Sample

Course = Callable[[float, float], float | None]
"""Value of a series, from the recorded value and the minute; None while it is absent."""


@dataclass(frozen=True, slots=True)
class Change:
    """The recorded series of this name that carry these labels take this course."""

    name: str
    labels: Mapping[str, str]
    course: Course

    def applies(self, sample: Sample) -> bool:
        return sample.name == self.name and self.labels.items() <= dict(sample.labels).items()


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A rule is quiet, then fires for one set of labels, then recovers. Times in minutes."""

    rule: str
    changes: tuple[Change, ...]
    quiet: int = 9
    firing: int
    recovered: int
    summary: str
    carries: tuple[str, ...] = ("gpu", "uuid")
    """Labels that the alert takes from the first changed series, beside those of the target."""
    thresholds: Mapping[str, float | None] = field(default_factory=dict)


def during(start: float, end: float, value: float | None) -> Course:
    """This value from minute `start` until before `end`, else the recorded one."""
    return lambda recorded, minute: value if start <= minute < end else recorded


def from_minute(start: float, added: float) -> Course:
    """So much more than recorded from this minute on."""
    return lambda recorded, minute: recorded + (added if minute >= start else 0.0)


def growing(slope: float) -> Course:
    """So much more every second."""
    return lambda recorded, minute: recorded + slope * minute * 60


def held(start: float, slow: float, fast: float) -> Course:
    """Seconds of work that grow slowly for 70 minutes from `start` on, else fast; `slow` and `fast` as shares."""

    def course(recorded: float, minute: float) -> float:
        idle = min(max(minute - start, 0.0), 70.0)
        return recorded + 60 * (fast * (minute - idle) + slow * idle)

    return course


def gpu(index: int, **labels: str) -> dict[str, str]:
    return {"gpu": str(index), **labels}


CASES: tuple[Case, ...] = (
    Case(
        rule="GpumonNvmlDown",
        changes=(Change("gpumon_nvml_up", {}, during(10, 20, 0)),),
        firing=12,
        recovered=21,
        carries=(),
        summary="The NVIDIA driver does not answer.",
    ),
    Case(
        rule="GpumonDown",
        changes=(Change("up", {}, during(10, 20, 0)),),
        firing=14,
        recovered=21,
        carries=(),
        summary="gpumon cannot be scraped.",
    ),
    Case(
        rule="GpumonStale",
        # promtool's clock begins at 0, and so does that of the polls here: they stop from minute 10 to 20.
        changes=(
            Change(
                "gpumon_snapshot_timestamp_seconds",
                {},
                lambda _, minute: 60 * (10 if 10 <= minute < 20 else minute),
            ),
        ),
        firing=14,
        recovered=21,
        carries=(),
        summary="gpumon answers, but its readings are old.",
    ),
    Case(
        rule="GpuLost",
        changes=(Change("gpumon_gpu_fault", gpu(3, fault="lost"), during(10, 20, 1)),),
        firing=10,
        recovered=21,
        summary="GPU 3 is lost.",
    ),
    Case(
        rule="GpuLost",
        changes=(Change("gpumon_gpu_fault", gpu(2, fault="unknown"), during(10, 20, 1)),),
        firing=12,
        recovered=21,
        summary="GPU 2 is lost.",
    ),
    Case(
        rule="GpuStuck",
        changes=(Change("gpumon_gpu_fault", gpu(5, fault="stuck"), during(10, 20, 1)),),
        firing=10,
        recovered=21,
        carries=("gpu", "uuid", "fault"),
        summary="A driver call for GPU 5 does not return.",
    ),
    Case(
        rule="GpuCountMismatch",
        changes=(Change("gpumon_gpus_visible", {}, during(10, 20, 7)),),
        firing=12,
        recovered=36,
        carries=(),
        summary="The driver sees 7 GPUs, which is not the number expected.",
    ),
    Case(
        rule="GpuXidCritical",
        changes=(Change("gpumon_gpu_xid_errors_total", gpu(1, xid="79"), from_minute(10, 1)),),
        firing=10,
        recovered=71,
        carries=("gpu", "uuid", "xid"),
        summary="Critical Xid 79 on GPU 1.",
    ),
    Case(
        rule="GpuTemperatureHigh",
        changes=(Change("gpumon_gpu_thermal_margin_celsius", gpu(4), during(10, 20, 5)),),
        firing=16,
        recovered=36,
        summary="GPU 4 is about to slow down from heat.",
    ),
    Case(
        rule="GpuTemperatureHigh",
        changes=(
            Change("gpumon_gpu_temperature_celsius", gpu(4), during(10, 20, 91)),
            Change("gpumon_gpu_thermal_margin_celsius", gpu(4), lambda _recorded, _minute: None),
        ),
        firing=16,
        recovered=36,
        summary="GPU 4 is about to slow down from heat.",
    ),
    Case(
        rule="GpuEccUncorrectable",
        changes=(
            Change("gpumon_gpu_ecc_errors_total", gpu(6, severity="uncorrected", location="dram"), from_minute(10, 2)),
        ),
        firing=10,
        recovered=71,
        carries=("gpu", "uuid", "location"),
        summary="Uncorrectable memory errors on GPU 6.",
    ),
    Case(
        rule="GpuRowRemapFailed",
        changes=(Change("gpumon_gpu_row_remap_failed", gpu(6), during(10, 20, 1)),),
        firing=10,
        recovered=36,
        summary="GPU 6 has no spare memory row left.",
    ),
    Case(
        rule="GpuThermalSlowdown",
        changes=(Change("gpumon_gpu_clock_event_active", gpu(0, reason="hw_thermal"), during(10, 30, 1)),),
        firing=22,
        recovered=55,
        carries=("gpu", "uuid", "reason"),
        summary="GPU 0 is slowed down (hw_thermal).",
    ),
    Case(
        rule="NvlinkDown",
        changes=(Change("gpumon_nvlink_up", gpu(7, link="11"), during(10, 20, 0)),),
        firing=13,
        recovered=36,
        carries=("gpu", "uuid", "link"),
        summary="NVLink 11 of GPU 7 is down.",
    ),
    Case(
        rule="NvlinkDown",
        # No link of the node is up: a dead fabric manager, not a lack of bridges.
        changes=(
            Change("gpumon_nvlink_up", gpu(7, link="11"), during(10, 20, 0)),
            Change("gpumon_nvlink_up", {}, lambda _recorded, _minute: None),
        ),
        firing=13,
        recovered=36,
        carries=("gpu", "uuid", "link"),
        summary="NVLink 11 of GPU 7 is down.",
    ),
    Case(
        rule="AllReduceBandwidthLow",
        changes=(Change("gpumon_probe_allreduce_busbw_bytes_per_second", {"backend": "gloo"}, during(10, 20, 0.5)),),
        firing=10,
        recovered=21,
        carries=("backend", "algorithm"),
        thresholds={"allreduce_gloo_busbw_bytes_per_second": 1.0},
        summary="The all-reduce is slower than it should be.",
    ),
    Case(
        rule="GpuIdle",
        changes=(
            Change("gpumon_gpu_busy_seconds_total", gpu(2), held(10, slow=0.01, fast=0.9)),
            Change("gpumon_gpu_observed_seconds_total", gpu(2), growing(1.0)),
            Change("gpumon_gpu_processes", gpu(2), lambda _recorded, _minute: 3),
        ),
        quiet=50,
        firing=70,
        recovered=120,
        summary="GPU 2 is held but hardly used.",
    ),
)


def labels_of(case: Case, recording: list[Sample]) -> Labels:
    """What the alert of a case must carry, sorted; alertname and severity aside."""
    changed = dict(next(sample.labels for sample in recording if case.changes[0].applies(sample)))
    return tuple(sorted((name, changed[name]) for name in (*case.carries, "instance", "job")))
