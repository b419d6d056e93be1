"""The result of a probe run, its conversion to and from a JSON object, and the result that is current."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from gpumon.model.durations import LATEST
from gpumon.probe.core.probes import DTYPE, PROBES
from gpumon.probe.core.wording import leaves_out

OUTCOMES = ("ok", "degraded", "wrong", "failed", "timeout", "skipped")
SUCCESSES = ("ok", "degraded")
"""Outcomes of runs whose values are exported as metrics. Baselines are computed from ok runs only."""
DECISIVE = (*SUCCESSES, "wrong")
"""Outcomes of runs that checked their data. After the outcome wrong some sizes may not have been measured."""
LIMIT = "limit"
"""Reason of a degraded run that only the configured limit shows to be slow."""
SKIP_REASONS = (
    *("busy", "held", "released", "maintenance", "no_scheduler_gate", "scheduler_gate_failed"),
    *("single_gpu", "mig", "exclusive_mode", "low_memory", "no_torch", "disabled", "interrupted"),
)

MAX_NUMBER = 10**21
"""Max number in a result. A larger number in the store shows that the stored result is damaged."""
Figure = Annotated[float, Field(ge=0, le=MAX_NUMBER, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, le=MAX_NUMBER)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The value of a quantity that was measured with one operation at one size, in `unit`."""

    operation: str = "all_reduce"
    algorithm: str = "default"
    """default: NCCL chooses the algorithm. ring: ring without NVLink SHARP."""
    dtype: str = DTYPE
    quantity: str = "busbw"
    unit: str = "bytes_per_second"
    size: Count
    size_unit: str = "bytes"
    value: Figure
    """Bandwidths are defined as in nccl-tests."""

    @property
    def subject(self) -> tuple[str, str, str]:
        """Return operation, algorithm and data type."""
        return (self.operation, self.algorithm, self.dtype)

    @property
    def key(self) -> tuple[tuple[str, str, str], str, int]:
        """Return subject, quantity and size. Measurements with equal keys in two runs are compared."""
        return (self.subject, self.quantity, self.size)

    def variant(self, probe: str) -> str:
        """Return the algorithm as text, with the element type unless it is the only one that the probe always measures.

        `probe`: name of the probe, which may no longer exist.
        """
        own = PROBES[probe].dtypes if probe in PROBES else (DTYPE,)
        return self.algorithm if own == (self.dtype,) else f"{self.algorithm}, {self.dtype}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement(Measured):
    """A measured value, from the median time of the operation, with the times and the check of the data."""

    raw_value: Figure | None = None
    """The value without the factor for the number of ranks (algorithm bandwidth); None without such a factor."""
    iterations: Count
    latency_seconds: Mapping[str, Figure]
    """Seconds by percentile: p50, p95, p99. The time of one operation is that of its slowest rank."""
    min_seconds: Figure | None = None
    variation_ratio: Figure | None = None
    """Coefficient of variation of the operation times: standard deviation divided by mean."""
    wrong_elements: Count
    """Total of wrong elements on all ranks, in all checked operations at this size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """Hardware and driver of a run. Baselines are computed only from runs under the same conditions."""

    model: str = ""
    """GPU model; empty on the CPU."""
    gpus: tuple[str, ...] = ()
    """UUIDs of the GPUs in the order of the ranks; empty on the CPU."""
    indexes: tuple[Count, ...] = ()
    """Indexes of the GPUs during the run, in the order of `gpus`; empty on the CPU or if unknown."""
    driver: str = ""
    host_gpus: Count = 0
    """Number of GPUs that the host should have. A run that used fewer is partial."""
    accepted: str = ""
    """Time at which an operator last cleared the verdict of a slow run, in RFC 3339; empty if never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison(Measured):
    """A measured value and the reference values for it, all in `unit`."""

    baseline: Figure | None = None
    """Median of this host's earlier runs under the same conditions; None if there are too few."""
    spread: Figure | None = None
    """Spread of the runs in the baseline: 1.48 times their median absolute deviation; None without a baseline."""
    runs: Count = 0
    """Number of earlier runs under the same conditions, from which the baseline is computed."""
    best: Figure | None = None
    """Best median of 30 successive runs of this host under the same conditions; None if there were fewer runs."""
    best_date: str = ""
    """UTC date of the newest of the runs from which the best median is computed; empty if that is None."""
    runs_needed: Count = 0
    """Number of earlier runs that are necessary for a baseline."""
    expected: Figure | None = None
    """Published figure for this hardware; None if there is none."""
    source: str = ""
    below_reference: str = ""
    """Reference that the measurement falls short of: baseline, expected, or drift (the best median); empty if none."""

    @property
    def usual(self) -> float | None:
        """Return the reference figure that `below_reference` names; None if it names none."""
        figures = {"baseline": self.baseline, "drift": self.best, "expected": self.expected}
        return figures.get(self.below_reference)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The measured exchange of data between two ranks, during which neither exchanges data with another rank."""

    ranks: tuple[Count, Count]
    bandwidth_bytes_per_second: Figure
    """Bytes per second in each direction, in the fastest exchange of the pair."""
    wrong_elements: tuple[Count, Count] = (0, 0)
    """Number of wrong elements in the data that the second rank received from the first, and in the opposite direction.
    """
    wrong_send_elements: tuple[Count, Count] = (0, 0)
    """Number of wrong elements in the send buffers of the first and of the second rank."""
    direct: bool | None = None
    """Whether both GPUs can access each other's memory according to CUDA; None on the CPU."""
    peer_access: Mapping[str, str] | None = None
    """NVML's peer access status between the two GPUs, by capability; None on the CPU, or if it was not read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """The location of a fault: one or more ranks, a path between two ranks, or neither if it cannot be located."""

    message: str
    ranks: tuple[Count, ...] = ()
    """Ranks to blame. Two ranks may also denote the path between them. Empty if the fault cannot be located."""
    gpus: tuple[str, ...] = ()
    """UUIDs of the GPUs of `ranks`; empty on the CPU."""
    pairs: tuple[Pair, ...] = ()
    evidence: tuple[str, ...] = ()
    """Findings about the GPUs during the run, as sentences, such as link errors, low clocks or missing peer access."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """The result of one run of a probe, whatever its outcome. A skipped run has a result with a reason and a hint."""

    id: str
    probe: str
    outcome: str
    reason: str = ""
    """One of SKIP_REASONS; setup or ranks; a stage or unkillable; or the reference that a degraded run is below."""
    hint: str = ""
    """Explanation of the outcome and what the operator should do; empty if there is none."""
    trigger: str = "schedule"
    started: Figure
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
    """NCCL environment variables of the ranks, and the text of /etc/nccl.conf by its path."""
    log: str = ""
    """The last output of the ranks of the last pass, one section a rank; empty if the run was ok or skipped."""
    simulated: bool = False

    @property
    def ended(self) -> float:
        return self.started + self.duration_seconds

    @property
    def is_whole(self) -> bool:
        """Return whether the run used all GPUs of the host; True if `conditions` has no GPUs, as on the CPU."""
        return not leaves_out(self.conditions.gpus, self.ranks, self.conditions.host_gpus)


def to_document(result: ProbeResult) -> dict[str, Any]:
    return asdict(result)


def from_document(document: Mapping[str, Any]) -> ProbeResult:
    """Return the result from a dict of `to_document`; ignore unknown members. Raise ValueError if it is invalid."""
    result = _decoder().validate_python(document)
    if result.ended > LATEST:
        raise ValueError(f"{result.started:.0f} is no time")
    return result


@cache
def _decoder() -> TypeAdapter[ProbeResult]:
    return TypeAdapter(ProbeResult)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeCounters:
    """Numbers of runs of one probe by outcome, since the store was created."""

    outcomes: Mapping[str, int] = field(default_factory=dict)
    reasons: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRequest:
    """The answer to a client that requested a run. A run of this probe that is in progress is not repeated."""

    id: str
    """Id of the run that was started, is in progress, or was skipped; empty if there is no result."""
    accepted: bool
    """Whether this request started the run."""
    reason: str = ""
    """One of SKIP_REASONS if the run was refused; empty otherwise."""
    hint: str = ""
    """What the client should do if the run was refused; empty otherwise."""


def current_result(runs: Sequence[ProbeResult], probe: str) -> ProbeResult | None:
    """Return the run that determines the current state of a probe; None if the probe has no run.

    It is the newest, unless an earlier run had a fault that no later success covers, with all GPUs of the host or of
    that run. `runs`: newest last, without skips.
    """
    current: ProbeResult | None = None
    later: list[ProbeResult] = []
    for run in reversed([run for run in runs if run.probe == probe]):
        covered = any(set(success.conditions.gpus) >= set(run.conditions.gpus) for success in later)
        if current is None or (run.outcome != "ok" and not covered):
            current = run
        if current.outcome not in SUCCESSES or (run.is_whole and run.outcome in DECISIVE):
            break
        if run.outcome in SUCCESSES:
            later.append(run)
    return current


def checked_result(runs: Iterable[ProbeResult], probe: str) -> ProbeResult | None:
    """Return `current_result` for only the runs that checked their data (see DECISIVE); None if there are none."""
    return current_result([run for run in runs if run.outcome in DECISIVE], probe)


def newest_result(runs: Sequence[ProbeResult], probe: str) -> ProbeResult | None:
    """Return the newest run of a probe, whatever its outcome; None if there is none."""
    return next((run for run in reversed(runs) if run.probe == probe), None)
