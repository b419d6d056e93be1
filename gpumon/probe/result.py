"""What a run of a probe said, and TABLE: the metrics of the last runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from gpumon.snapshot.reading import agent

OUTCOMES = ("ok", "degraded", "wrong", "failed", "timeout", "skipped")
SKIP_REASONS = (
    *("busy", "held", "unarmed", "single_gpu", "mig", "no_torch"),
    *("exclusive_mode", "low_memory", "disabled", "maintenance"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One size of the ladder. Bandwidths as nccl-tests define them, in bytes a second; latencies in seconds."""

    bytes: int
    iterations: int
    algbw_bytes_per_second: float
    busbw_bytes_per_second: float
    latency_seconds: Mapping[str, float]
    """By percentile: p50, p95, p99."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """One run, however it ended. A skip is a result, with its reason and a hint."""

    id: str
    probe: str
    outcome: str
    reason: str = ""
    """For a skip one of SKIP_REASONS; for a failure, what failed."""
    hint: str = ""
    """What to do about it."""
    trigger: str = "schedule"
    """schedule or request."""
    started: float
    """Seconds since the epoch."""
    duration_seconds: float = 0.0
    backend: str = ""
    algorithm: str = ""
    ranks: int = 0
    versions: Mapping[str, str] = field(default_factory=dict)
    measurements: tuple[Measurement, ...] = ()
    wrong_elements: int | None = None
    log: str = ""
    """Tail of what the ranks printed; kept when the run did not end well."""
    simulated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AllReduce:
    """The metrics of the all-reduce probe."""

    PREFIX: ClassVar[str] = "gpumon_probe_allreduce_"
    LABELS: ClassVar[tuple[str, ...]] = ()

    busbw_bytes_per_second: dict[str, float] | None = agent(
        "Bus bandwidth of the last run that succeeded.", label=("backend", "algorithm", "bytes")
    )
    algbw_bytes_per_second: dict[str, float] | None = agent(
        "Algorithm bandwidth of the last run that succeeded.", label=("backend", "algorithm", "bytes")
    )
    latency_seconds: dict[str, float] | None = agent(
        "Time of one operation.", label=("backend", "algorithm", "bytes", "percentile")
    )
    wrong_elements: dict[str, float] | None = agent(
        "Wrong elements in the last run; anything but 0 is silent corruption.", label="backend"
    )
    ranks: dict[str, float] | None = agent("Ranks of the last run.", label="backend")
    runs_total: dict[str, float] | None = agent("Runs by outcome, counted over restarts.", label="outcome")
    skips_total: dict[str, float] | None = agent("Skipped runs by reason, counted over restarts.", label="reason")
    last_run_timestamp_seconds: float | None = agent("When a run last ended, however it ended.")
    last_success_timestamp_seconds: float | None = agent("When a run last succeeded.")
    duration_seconds: float | None = agent("How long the last run took.")
    running: float | None = agent("1 while a run is in progress.")
