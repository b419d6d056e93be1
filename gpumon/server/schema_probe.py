"""The shapes of the probes: /probe/NAME and /api/v1/probes."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from gpumon.model.time_window import ASKERS
from gpumon.probe.core.result import OUTCOMES
from gpumon.probe.core.result import AllReduce as AllReduceTable
from gpumon.server.shape import Shape, from_table, moment

AllReduceMetrics = from_table("AllReduceMetrics", Shape, AllReduceTable)


class Measurement(Shape):
    """One size of the ladder."""

    collective: str
    algorithm: str = Field(description="default: what NCCL chooses; ring: without NVLink SHARP.")
    dtype: str
    bytes: int
    iterations: int
    algbw_bytes_per_second: float
    busbw_bytes_per_second: float = Field(description="As nccl-tests define it.")
    latency_seconds: dict[str, float] = Field(description="By percentile: p50, p95, p99.")
    min_seconds: float | None
    variation_ratio: float | None = Field(description="Standard deviation over mean.")
    wrong_elements: int


class Conditions(Shape):
    """On what a run ran; only runs under the same conditions are compared."""

    model: str
    gpus: list[str] = Field(description="UUIDs in the order of the ranks; empty on the CPU.")
    indexes: list[int] = Field(description="Their numbers when it ran; empty on the CPU.")
    driver: str
    host_gpus: int = Field(description="GPUs that the host should have: more than took part in a partial run.")
    accepted: str = Field(description="When somebody last acknowledged that it is slow: the median begins anew there.")


class Comparison(Shape):
    """One measurement beside what was to be expected, in bytes a second."""

    collective: str
    algorithm: str
    dtype: str
    bytes: int
    busbw: float
    baseline: float | None = Field(description="Median of this host's own runs under the same conditions.")
    spread: float | None
    runs: int = Field(description="How many those are.")
    best: float | None = Field(description="The highest median of 30 runs that there has been under these conditions.")
    best_date: str = Field(description="Day of the newest of those runs, in UTC; empty while there is none.")
    runs_needed: int = Field(
        description="For a baseline; it begins anew with another driver, NCCL, setting, torch or GPU."
    )
    expected: float | None = Field(description="The shipped figure for this hardware.")
    source: str
    low: str = Field(description="Which of them it falls short of: baseline, drift (best), expected, or nothing.")


class Pair(Shape):
    """What two ranks exchanged with each other alone."""

    ranks: list[int]
    bandwidth: float = Field(description="Bytes a second, each way.")
    wrong: list[int] = Field(description="Wrong elements from the first, and from the second.")
    spoilt: list[int] = Field(description="Elements that each of them held wrong itself, of what it gave.")
    direct: bool | None = Field(description="Whether each reaches the other's memory; null on the CPU.")


class Location(Shape):
    """Where the trouble is, as far as it can be said."""

    sentence: str
    ranks: list[int]
    gpus: list[str]
    pairs: list[Pair]
    evidence: list[str]


class ProbeResult(Shape):
    """One run, however it ended."""

    id: str
    probe: str
    outcome: Literal[OUTCOMES]  # type: ignore[valid-type]
    reason: str
    hint: str
    trigger: str
    started: str = moment("When it started.")
    duration_seconds: float
    backend: str
    ranks: int
    versions: dict[str, str]
    conditions: Conditions
    measurements: list[Measurement]
    comparisons: list[Comparison] = Field(description="Of each size that saturates the links.")
    location: Location | None = Field(description="Where a confirmed drop or wrong data comes from.")
    wrong_elements: int | None
    settings: dict[str, str] = Field(description="NCCL's variables and the lines of /etc/nccl.conf.")
    simulated: bool


class ProbeResultWithLog(ProbeResult):
    """One run with what its ranks printed, for who has the token."""

    log: str | None = Field(default=None, description="Only with the token: it names processes.")


class Progress(Shape):
    """Where the slowest rank of a run is."""

    rank: int
    stage: str
    algorithm: str
    bytes: int | None
    ratio: float = Field(description="Share of the measuring that is done.")
    words: str = Field(description="The same for people.")


class Holder(Shape):
    """Who keeps probes away."""

    owner: str = Field(description="For whom, such as the number of a job; empty for nobody in particular.")
    reason: str
    by: Literal[ASKERS] = Field(description="Who asked.")  # type: ignore[valid-type]
    since: str = moment("When it began.")
    until: str = moment("When it ends by itself.")


class Hold(Shape):
    """A while in which no probe runs."""

    until: str = moment("When the last of them ends by itself.")
    holders: list[Holder] = Field(description="In the order in which they began.")


class HoldState(Shape):
    """Whether probes are kept away."""

    hold: Hold | None = Field(description="Null when nobody keeps them away.")


class HoldChanged(HoldState):
    """What became of the request."""

    stored: bool = Field(description="False: the store is out of order, and is told when it can be written again.")


class Standing(Shape):
    """The run that tells how a probe stands: the newest that was not skipped, or one that it does not answer."""

    id: str
    outcome: Literal[OUTCOMES]  # type: ignore[valid-type]
    reason: str
    age_seconds: float = Field(description="Since it ended.")
    unanswered: str = Field(description="A later run left out GPUs of this one, which did not end ok; else empty.")


class Probe(Shape):
    """A probe as it stands."""

    probe: str
    running: str | None = Field(description="Id of the run in progress.")
    progress: Progress | None
    next_run: str | None = moment("When the next run is due.")
    hold: Hold | None = Field(description="Who keeps probes away now; null when nobody does.")
    age_seconds: float | None = Field(description="Since the last run ended.")
    last: ProbeResult | None
    standing: Standing | None = Field(description="What assert=ok asks; null before any run.")
    metrics: AllReduceMetrics | None = Field(description="Of the all-reduce; null for the others.")  # type: ignore[valid-type]


class ProbeStarted(Shape):
    """A run that was started, or joined."""

    id: str
    accepted: bool = Field(description="False: a run was in progress, and this is its id.")


class ProbeRunning(Shape):
    """A run in progress."""

    id: str
    probe: str
    running: Literal[True]
    progress: Progress | None


class Probes(Shape):
    probes: list[ProbeResult] = Field(description="Newest first.")
    complete: bool = Field(description="False: the store did not answer, and older runs may be missing.")
