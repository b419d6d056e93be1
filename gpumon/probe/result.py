"""What a run of a probe said, and TABLE: the metrics of the last runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar

from gpumon.snapshot.reading import agent

OUTCOMES = ("ok", "degraded", "wrong", "failed", "timeout", "skipped")
SUCCESSES = ("ok", "degraded")
"""Outcomes whose bandwidths count."""
SKIP_REASONS = (
    *("busy", "held", "unarmed", "single_gpu", "mig", "no_torch"),
    *("exclusive_mode", "low_memory", "disabled", "maintenance"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One size of the ladder. Bandwidths as nccl-tests define them, from the median time of an operation."""

    bytes: int
    iterations: int
    algbw_bytes_per_second: float
    busbw_bytes_per_second: float
    latency_seconds: Mapping[str, float]
    """By percentile: p50, p95, p99. An operation lasts as long as it does on the rank where it lasts longest."""
    wrong_elements: int
    """After one operation at this size, all ranks together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """One run, however it ended. A skip is a result, with its reason and a hint."""

    id: str
    probe: str
    outcome: str
    reason: str = ""
    """For a skip one of SKIP_REASONS; for a failure setup or ranks; for a timeout the stage, or unkillable."""
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


def to_document(result: ProbeResult) -> dict[str, Any]:
    """The result as JSON holds it."""
    return asdict(result)


def from_document(document: Mapping[str, Any]) -> ProbeResult:
    """A stored result, leaving out what a later version added. Raises TypeError when an attribute is missing."""
    measurements = tuple(Measurement(**_known(Measurement, one)) for one in document.get("measurements", ()))
    return ProbeResult(**_known(ProbeResult, document) | {"measurements": measurements})


def _known(kind: type[Measurement | ProbeResult], document: Mapping[str, Any]) -> dict[str, Any]:
    return {one.name: document[one.name] for one in fields(kind) if one.name in document}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRequest:
    """What became of a request to run the probe now. Requests are single-flight: a second one joins the run."""

    id: str
    """Of the run that was started, else of the one in progress, else of the skip; empty if nothing was recorded."""
    accepted: bool
    """This request started the run."""
    reason: str = ""
    """One of SKIP_REASONS when the guard refused."""
    hint: str = ""
    """What to do about it."""


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
        "Wrong elements in the last run that checked its data; anything but 0 is silent corruption.", label="backend"
    )
    ranks: dict[str, float] | None = agent("Ranks of the last run that started any.", label="backend")
    runs_total: dict[str, float] | None = agent("Runs by outcome, counted over restarts.", label="outcome")
    skips_total: dict[str, float] | None = agent("Skipped runs by reason, counted over restarts.", label="reason")
    last_run_timestamp_seconds: float | None = agent("When a run last ended, however it ended; skips aside.")
    last_success_timestamp_seconds: float | None = agent("When a run last succeeded.")
    duration_seconds: float | None = agent("How long the last run took; skips aside.")
    running: float | None = agent("1 while a run is in progress.")
