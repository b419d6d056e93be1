"""The result of a probe run, and its JSON document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from gpumon.model.durations import LATEST
from gpumon.probe.core.wording import leaves_out

OUTCOMES = ("ok", "degraded", "wrong", "failed", "timeout", "skipped")
SUCCESSES = ("ok", "degraded")
"""Outcomes whose bandwidths count."""
DECISIVE = (*SUCCESSES, "wrong")
"""Outcomes of runs that have measured everything."""
SKIP_REASONS = (
    *("busy", "held", "released", "maintenance", "no_scheduler_gate", "scheduler_gate_failed"),
    *("single_gpu", "mig", "exclusive_mode", "low_memory", "no_torch", "disabled", "interrupted"),
)

MAX_NUMBER = 10**21
"""Upper limit of valid figures."""
Figure = Annotated[float, Field(ge=0, le=MAX_NUMBER, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, le=MAX_NUMBER)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The measurement of one size. Bandwidths are as in nccl-tests, from the median time of an operation."""

    collective: str = "all_reduce"
    algorithm: str = "default"
    """default: NCCL chooses; ring: without NVLink SHARP."""
    dtype: str = "float32"
    bytes: Count
    iterations: Count
    algbw_bytes_per_second: Figure
    busbw_bytes_per_second: Figure
    latency_seconds: Mapping[str, Figure]
    """By percentile: p50, p95, p99. The slowest rank determines the time of an operation."""
    min_seconds: Figure | None = None
    variation_ratio: Figure | None = None
    """Coefficient of variation: standard deviation over mean."""
    wrong_elements: Count
    """After one operation at this size, on all ranks together."""

    @property
    def key(self) -> tuple[str, str, str, int]:
        """Identity of what was measured: equal keys in two runs can be compared."""
        return (self.collective, self.algorithm, self.dtype, self.bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """Conditions of a run: only runs under the same conditions are compared."""

    model: str = ""
    """GPU model; empty on the CPU."""
    gpus: tuple[str, ...] = ()
    """UUIDs in the order of the ranks; empty on the CPU."""
    indexes: tuple[Count, ...] = ()
    """Indexes of the GPUs during the run, in the same order; empty on the CPU."""
    driver: str = ""
    host_gpus: Count = 0
    """Number of GPUs that the host should have. A partial run used fewer."""
    accepted: str = ""
    """When an operator last cleared the verdict of a slow run, in RFC 3339; empty: never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A measurement and the figures it is compared with, in bytes a second."""

    collective: str
    algorithm: str
    dtype: str
    bytes: Count
    busbw: Figure
    baseline: Figure | None = None
    """Median of this host's own runs under the same conditions; None if there are too few."""
    spread: Figure | None = None
    """Spread of those runs: 1.48 times the median distance from their median."""
    runs: Count = 0
    """Number of those runs."""
    best: Figure | None = None
    """Highest median of a full window of runs; None if no window was full yet."""
    best_date: str = ""
    """Date of the newest of those runs, in UTC."""
    runs_needed: Count = 0
    """Min number of runs for a median."""
    expected: Figure | None = None
    """Published figure for this hardware."""
    source: str = ""
    """Source of that figure."""
    low: str = ""
    """Which figure it is below: baseline, expected, or drift (the best median); empty if it is not low."""

    @property
    def key(self) -> tuple[str, str, str, int]:
        """Key of the measurement."""
        return (self.collective, self.algorithm, self.dtype, self.bytes)

    @property
    def usual(self) -> float | None:
        """The figure that it is below."""
        figures = {"baseline": self.baseline, "drift": self.best, "expected": self.expected}
        return figures.get(self.low)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The exchange of two ranks with each other alone."""

    ranks: tuple[Count, Count]
    bandwidth: Figure
    """Bytes a second in each direction, in their fastest exchange."""
    wrong: tuple[Count, Count] = (0, 0)
    """Wrong elements that came from the first rank, and from the second."""
    spoilt: tuple[Count, Count] = (0, 0)
    """Wrong elements in what each rank sent."""
    direct: bool | None = None
    """Whether each can access the other's memory, by CUDA; None on the CPU."""
    peer_access: Mapping[str, str] | None = None
    """Whether each can access the other's memory, by NVML and capability; None on the CPU, and if it was not read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """Where the fault is, as far as it can be located."""

    sentence: str
    ranks: tuple[Count, ...] = ()
    """Ranks to blame; two for the path between them; empty if none can be named."""
    gpus: tuple[str, ...] = ()
    """Their UUIDs; empty on the CPU."""
    pairs: tuple[Pair, ...] = ()
    evidence: tuple[str, ...] = ()
    """Other findings of the run: link errors, clocks, missing peer access."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """One run, whatever its outcome. A skip is a result, with its reason and a hint."""

    id: str
    probe: str
    outcome: str
    reason: str = ""
    """For a skip one of SKIP_REASONS; for a failure setup or ranks; for a timeout the stage, or unkillable; for a
    degraded run the figure that it is below.
    """
    hint: str = ""
    """What to do."""
    trigger: str = "schedule"
    """schedule or request."""
    started: Figure
    """Seconds since the epoch."""
    duration_seconds: Figure = 0.0
    backend: str = ""
    ranks: Count = 0
    versions: Mapping[str, str] = field(default_factory=dict)
    conditions: Conditions = Conditions()
    measurements: tuple[Measurement, ...] = ()
    comparisons: tuple[Comparison, ...] = ()
    location: Location | None = None
    wrong_elements: Count | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    """NCCL variables of the ranks, and the lines of /etc/nccl.conf by its path."""
    log: str = ""
    """End of what the ranks printed, if the run did not end well."""
    simulated: bool = False

    @property
    def ended(self) -> float:
        """Seconds since the epoch."""
        return self.started + self.duration_seconds

    @property
    def is_whole(self) -> bool:
        """Whether it used all GPUs of the host; on the CPU no GPU takes part."""
        return not leaves_out(self.conditions.gpus, self.ranks, self.conditions.host_gpus)


def to_document(result: ProbeResult) -> dict[str, Any]:
    """Return the result as a JSON document."""
    return asdict(result)


def from_document(document: Mapping[str, Any]) -> ProbeResult:
    """Return the result of a JSON document; unknown members are ignored. Raises ValueError."""
    result = _decoder().validate_python(document)
    if result.ended > LATEST:
        raise ValueError(f"{result.started:.0f} is no time")
    return result


@cache
def _decoder() -> TypeAdapter[ProbeResult]:
    return TypeAdapter(ProbeResult)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRequest:
    """The answer to a request for a run. A second request during a run joins it."""

    id: str
    """Id of the run that was started, of the one in progress, or of the skip; empty if nothing was recorded."""
    accepted: bool
    """Whether this request started the run."""
    reason: str = ""
    """One of SKIP_REASONS if preflight refused."""
    hint: str = ""
    """What to do."""
