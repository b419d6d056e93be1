"""The result of a probe run, and its JSON document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from gpumon.model.durations import LATEST
from gpumon.probe.core.wording import leaves_out

OUTCOMES = ("ok", "degraded", "wrong", "failed", "timeout", "skipped")
SUCCESSES = ("ok", "degraded")
"""Outcomes whose bandwidths count."""
DECISIVE = (*SUCCESSES, "wrong")
"""Of runs that have measured to their end."""
SKIP_REASONS = (
    *("busy", "held", "unarmed", "single_gpu", "mig", "no_torch"),
    *("exclusive_mode", "low_memory", "disabled", "maintenance", "interrupted"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One size of the ladder. Bandwidths as nccl-tests define them, from the median time of an operation."""

    collective: str = "all_reduce"
    algorithm: str = "default"
    """default: what NCCL chooses; ring: without NVLink SHARP."""
    dtype: str = "float32"
    bytes: int
    iterations: int
    algbw_bytes_per_second: float
    busbw_bytes_per_second: float
    latency_seconds: Mapping[str, float]
    """By percentile: p50, p95, p99. An operation lasts as long as it does on the rank where it lasts longest."""
    min_seconds: float | None = None
    variation_ratio: float | None = None
    """Coefficient of variation: standard deviation over mean."""
    wrong_elements: int
    """After one operation at this size, all ranks together."""

    @property
    def key(self) -> tuple[str, str, str, int]:
        """What was measured: the same key in two runs can be compared."""
        return (self.collective, self.algorithm, self.dtype, self.bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """On what a run ran: results under other conditions say nothing about this one."""

    model: str = ""
    """Of the GPUs; empty on the CPU."""
    gpus: tuple[str, ...] = ()
    """UUIDs in the order of the ranks; empty on the CPU."""
    indexes: tuple[int, ...] = ()
    """Their numbers when it ran, in the same order; empty on the CPU."""
    driver: str = ""
    host_gpus: int = 0
    """GPUs that the host should have: more than took part in a partial run."""
    accepted: str = ""
    """When a person last said that what the host comes to is as it should be, in RFC 3339; empty: never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One measurement beside what was to be expected. Bytes a second."""

    collective: str
    algorithm: str
    dtype: str
    bytes: int
    busbw: float
    baseline: float | None = None
    """Median of this host's own runs under the same conditions; None while there are too few."""
    spread: float | None = None
    """Of those runs: 1.48 times the median distance from their median."""
    runs: int = 0
    """How many those are."""
    best: float | None = None
    """Highest median that as many runs as are remembered have had there, before there were so many None."""
    best_date: str = ""
    """Day of the newest of those runs, in UTC."""
    runs_needed: int = 0
    """For a median."""
    expected: float | None = None
    """The shipped figure for this hardware."""
    source: str = ""
    """Of that figure."""
    low: str = ""
    """Which of them it falls short of: baseline or expected; drift: of the best median."""

    @property
    def key(self) -> tuple[str, str, str, int]:
        """Of its measurement."""
        return (self.collective, self.algorithm, self.dtype, self.bytes)

    @property
    def usual(self) -> float | None:
        """What it falls short of."""
        known = {"baseline": self.baseline, "drift": self.best, "expected": self.expected}
        return known.get(self.low)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """What two ranks exchanged with each other alone."""

    ranks: tuple[int, int]
    bandwidth: float
    """Bytes a second, each way, in their fastest exchange."""
    wrong: tuple[int, int] = (0, 0)
    """Wrong elements that came from the first, and from the second."""
    spoilt: tuple[int, int] = (0, 0)
    """Elements that each of them held wrong itself, of what it gave."""
    direct: bool | None = None
    """Whether each reaches the other's memory, as CUDA says; None on the CPU."""
    peer_access: Mapping[str, str] | None = None
    """The same as NVML says, by capability; None on the CPU, and where it was not asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """Where the trouble is, as far as it can be said."""

    sentence: str
    ranks: tuple[int, ...] = ()
    """That are to blame; two of them for the path between them; empty when nobody can tell."""
    gpus: tuple[str, ...] = ()
    """Their UUIDs; empty on the CPU."""
    pairs: tuple[Pair, ...] = ()
    evidence: tuple[str, ...] = ()
    """What else was seen during the run: link errors, clocks, a path that is not what it was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """One run, however it ended. A skip is a result, with its reason and a hint."""

    id: str
    probe: str
    outcome: str
    reason: str = ""
    """For a skip one of SKIP_REASONS; for a failure setup or ranks; for a timeout the stage, or unkillable; for a
    degraded run what it falls short of."""
    hint: str = ""
    """What to do about it."""
    trigger: str = "schedule"
    """schedule or request."""
    started: float
    """Seconds since the epoch."""
    duration_seconds: float = 0.0
    backend: str = ""
    ranks: int = 0
    versions: Mapping[str, str] = field(default_factory=dict)
    conditions: Conditions = Conditions()
    measurements: tuple[Measurement, ...] = ()
    comparisons: tuple[Comparison, ...] = ()
    location: Location | None = None
    wrong_elements: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    """Variables of NCCL that the ranks were given, and under its path the lines of /etc/nccl.conf."""
    log: str = ""
    """Tail of what the ranks printed; kept when the run did not end well."""
    simulated: bool = False

    @property
    def ended(self) -> float:
        """Seconds since the epoch."""
        return self.started + self.duration_seconds

    @property
    def is_whole(self) -> bool:
        """It left out no GPU of the host; on the CPU none takes part."""
        return not leaves_out(self.conditions.gpus, self.ranks, self.conditions.host_gpus)


def to_document(result: ProbeResult) -> dict[str, Any]:
    """The result as JSON holds it."""
    return asdict(result)


def from_document(document: Mapping[str, Any]) -> ProbeResult:
    """A result as JSON holds it, leaving out what a later version added. Raises TypeError and ValueError."""
    result: ProbeResult = decoded(ProbeResult, document)
    if result.ended > LATEST:
        raise ValueError(f"{result.started:.0f} is no time")
    return result


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


MOST = 1e21
"""No figure of a run comes near it, and none is less than 0; infinity and what is not a number are not between."""


def decoded(kind: Any, value: Any) -> Any:
    """`value` as this kind. An object may have more members. Raises TypeError and ValueError."""
    if attributes := _attributes(kind):
        known = _object(value)
        return kind(**{name: decoded(one, known[name]) for name, one in attributes.items() if name in known})
    parts = get_args(kind)
    match get_origin(kind):
        case None:
            return _plain(kind, value)
        case origin if origin is UnionType:  # with None, and no other
            return None if value is None else decoded(parts[0], value)
        case origin if origin is tuple:
            kinds = parts[:1] * len(_list(value)) if parts[-1] is Ellipsis else parts
            return tuple(decoded(part, one) for part, one in zip(kinds, _list(value), strict=True))
        case _:
            return {decoded(parts[0], key): decoded(parts[1], one) for key, one in _object(value).items()}


@cache
def _attributes(kind: Any) -> Mapping[str, Any]:
    """By name, how each is declared; of a dataclass alone."""
    return get_type_hints(kind) if is_dataclass(kind) else {}


def _object(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{value!r:.100} is no object")
    return value


def _list(value: Any) -> list[Any] | tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise TypeError(f"{value!r:.100} is no list")
    return value


def _plain(kind: Any, value: Any) -> Any:
    if kind is str and type(value) is str:
        return value.encode(errors="replace").decode()  # half a character cannot be told to anybody
    if type(value) is not kind and (kind, type(value)) != (float, int):
        raise TypeError(f"{value!r:.100} is no {kind.__name__}")
    if kind is not bool and not 0 <= value <= MOST:
        raise ValueError(f"{value!r:.100} is no figure")
    return kind(value)
