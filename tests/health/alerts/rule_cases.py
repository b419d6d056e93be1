"""TABLE: a case for each rule. What one series of the recorded scrape does over time, and what the rule makes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from recorded_scrape import TARGET, recorded

from gpumon.health.alerting import VERDICT, WARNING, rules
from gpumon.health.check import Check
from gpumon.health.table import CHECKS
from gpumon.health.terms import FAIL, UNKNOWN, WARN, Level
from gpumon.model.reading import Labels, Sample

PLAIN = next(rule for rule in rules({}) if rule.name == "GpuIdle")
"""A row to put other expressions in: it is evaluated, and for information, so that nothing mutes it."""

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
    added: tuple[Sample, ...] = ()
    """Series that the recorded node, being well, has not."""


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


_LATENCY = Sample(
    "gpumon_probe_allreduce_latency_seconds",
    (("backend", "nccl"), ("algorithm", "ring"), ("bytes", "1024"), ("percentile", "p50"), *TARGET),
    4e-5,
)
"""The recorded node has no NCCL."""

READINGS: tuple[Case, ...] = (
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
        rule="AllReduceBandwidthLow",
        changes=(Change("gpumon_probe_allreduce_busbw_bytes_per_second", {"backend": "gloo"}, during(10, 20, 0.5)),),
        firing=10,
        recovered=21,
        carries=("backend", "algorithm"),
        thresholds={"allreduce_gloo_busbw_bytes_per_second": 1.0},
        summary="The all-reduce is slower than it should be.",
    ),
    Case(
        rule="AllReduceLatencyHigh",
        changes=(Change(_LATENCY.name, {"backend": "nccl"}, during(10, 20, 0.004)),),
        firing=10,
        recovered=21,
        carries=("backend", "algorithm", "bytes", "percentile"),
        summary="Small all-reduces take long.",
        added=(_LATENCY,),
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


_UUID = next(dict(one.labels)["uuid"] for one in recorded() if dict(one.labels).get("gpu") == "3")


_PORT = (("device", "mlx5_3"), ("port", "1"))


def verdict(check: Check) -> Sample:
    """The series of a verdict of this check, where there is one: of the node, a GPU or a port."""
    of = (("gpu", "3"), ("uuid", _UUID)) if check.gpu is not None else _PORT if check.port is not None else ()
    return Sample(VERDICT, (("check", check.name), *of, *TARGET), 0.0)


def judged(check: Check, level: Level, rule: str, *, after: int = 0) -> Case:
    """A verdict of another level, then of this one, then none. `after`: minutes it must last."""

    def course(_: float, minute: float) -> float | None:
        other = WARN if level is FAIL else FAIL
        return float(other) if 5 <= minute < 10 else float(level) if 10 <= minute < 30 else None

    words = check.help.rstrip(".")
    device = "GPU 3: " if check.gpu is not None else "mlx5_3/1: " if check.port is not None else ""
    named = f"{device}{words}."
    return Case(
        rule=rule,
        changes=(Change(VERDICT, {"check": check.name}, course),),
        firing=10 + after,
        recovered=31,
        carries=(
            "check",
            *(name for name, _ in dict.fromkeys(verdict(check).labels) if name in {"gpu", "uuid", "device", "port"}),
        ),
        summary=f"The check {check.name} cannot tell." if level is UNKNOWN else named,
        added=(verdict(check),),
    )


VERDICTS: tuple[Case, ...] = (
    judged(CHECKS[-1], UNKNOWN, "GpumonCheckUnknown", after=10),
    *(
        judged(check, level, check.alert + (WARNING if level is not max(check.levels) else ""))
        for check in CHECKS
        for level in check.levels
    ),
)
CASES = READINGS + VERDICTS


def labels_of(case: Case, recording: list[Sample]) -> Labels:
    """What the alert of a case must carry, sorted; alertname and severity aside."""
    shown = (*recording, *case.added)
    changed = dict(next(sample.labels for sample in shown if case.changes[0].applies(sample)))
    return tuple(sorted((name, changed[name]) for name in (*case.carries, "instance", "job")))
