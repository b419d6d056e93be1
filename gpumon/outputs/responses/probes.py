"""Responses about probes and their runs."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from gpumon.outputs.formatting import rfc3339, stage
from gpumon.outputs.partial_runs import partial_run_note
from gpumon.outputs.responses.base import HostTime, Number, ResponseModel, Timestamp, metric_rows, row_values, timestamp
from gpumon.outputs.responses.windows import HoldResponse
from gpumon.probe.core.current_result import current_result, newest_result
from gpumon.probe.core.frames import Progress
from gpumon.probe.core.probe_metrics import AllReduce
from gpumon.probe.core.probes import ALL_REDUCE
from gpumon.probe.core.result import OUTCOMES, ProbeResult
from gpumon.probe.core.state import ProbeState
from gpumon.state.report import Report


class MeasurementResponse(ResponseModel):
    """The measurement of one collective, algorithm, data type and message size."""

    collective: str
    algorithm: str = Field(description="default: chosen by NCCL; ring: without NVLink SHARP.")
    dtype: str
    bytes: int
    iterations: int
    algbw_bytes_per_second: Number
    busbw_bytes_per_second: Number = Field(description="Bus bandwidth as nccl-tests define it.")
    latency_seconds: dict[str, Number] = Field(description="Time of one operation by percentile: p50, p95, p99.")
    min_seconds: Number | None
    variation_ratio: Number | None = Field(description="Standard deviation of the times, divided by their mean.")
    wrong_elements: int


class ConditionsResponse(ResponseModel):
    """Hardware and driver of a run: a part of the conditions that must be equal in runs that are compared."""

    model: str
    gpus: list[str] = Field(description="UUIDs in the order of the ranks; empty on the CPU.")
    indexes: list[int] = Field(description="GPU indexes at the time of the run; empty on the CPU.")
    driver: str
    host_gpus: int = Field(description="GPUs that the host should have; a partial run has fewer ranks.")
    accepted: str = Field(
        description="When an operator last cleared the verdict of a slow run; the baseline restarts there."
    )


class ComparisonResponse(ResponseModel):
    """One measurement and its reference values."""

    collective: str
    algorithm: str
    dtype: str
    bytes: int
    busbw_bytes_per_second: Number
    baseline_bytes_per_second: Number | None = Field(
        description="Median of this host's runs under the same conditions."
    )
    spread_bytes_per_second: Number | None = Field(
        description="Spread of those runs: 1.48 times the median absolute deviation."
    )
    runs: int = Field(description="Number of earlier runs that the median is of.")
    best_bytes_per_second: Number | None = Field(description="Highest median of 30 runs under these conditions.")
    best_date: str = Field(description="UTC date of the newest of those runs; empty if there are too few.")
    runs_needed: int = Field(
        description="Runs that a baseline needs. Another driver, NCCL, setting, torch or GPU starts a new baseline."
    )
    expected_bytes_per_second: Number | None = Field(description="Published figure for this hardware.")
    source: str = Field(description="Source of the published figure.")
    below_reference: str = Field(
        description="Reference that it falls short of: baseline, drift (the best median), expected, or empty."
    )


class PairResponse(ResponseModel):
    """The result of sending data between two ranks while no other rank sends."""

    ranks: list[int]
    bandwidth_bytes_per_second: Number = Field(description="Bandwidth of the pair in each direction.")
    wrong_elements: list[int] = Field(description="Wrong elements received from the first and from the second rank.")
    wrong_send_elements: list[int] = Field(
        description="Wrong elements in the send buffer of the first and of the second rank."
    )
    direct: bool | None = Field(description="Whether each rank can access the other's memory; null on the CPU.")
    peer_access: dict[str, str] | None = Field(description="Peer access by capability, as NVML reports it.")


class LocationResponse(ResponseModel):
    """The suspected location of a fault, with the evidence."""

    message: str
    ranks: list[int]
    gpus: list[str]
    pairs: list[PairResponse]
    evidence: list[str]


class RunResponse(ResponseModel):
    """One run of a probe, successful or not."""

    id: str
    probe: str
    outcome: Literal[OUTCOMES]  # type: ignore[valid-type]
    reason: str
    hint: str = Field(description="What to do about the outcome.")
    trigger: str = Field(description="What started the run: schedule or request.")
    started: Timestamp = timestamp("When the run started.")
    duration_seconds: Number
    backend: str
    ranks: int
    versions: dict[str, str]
    conditions: ConditionsResponse
    measurements: list[MeasurementResponse]
    comparisons: list[ComparisonResponse] = Field(description="For each message size that saturates the links.")
    location: LocationResponse | None = Field(description="Where a confirmed slowdown or wrong data comes from.")
    wrong_elements: int | None
    settings: dict[str, str] = Field(description="NCCL variables, and the lines of /etc/nccl.conf.")
    simulated: bool


class RunWithLogResponse(RunResponse):
    """One run of a probe, with the output of its ranks."""

    log: str | None = Field(default=None, description="Only with the token, because it names processes.")


class ProgressResponse(ResponseModel):
    """Progress of the slowest rank of a run."""

    rank: int
    stage: str
    algorithm: str
    bytes: int | None
    ratio: Number = Field(description="Share of the measurements that is done.")
    message: str = Field(description="Progress as text.")

    @classmethod
    def from_progress(cls, progress: Progress) -> ProgressResponse:
        return cls(
            rank=progress.rank,
            stage=progress.stage,
            algorithm=progress.algorithm,
            bytes=progress.bytes,
            ratio=progress.ratio,
            message=stage(progress.stage, progress.bytes, progress.algorithm),
        )


class CurrentResultResponse(ResponseModel):
    """The run that determines the outcome: the newest, or an older one with a fault that no later success covers."""

    id: str
    outcome: Literal[OUTCOMES]  # type: ignore[valid-type]
    reason: str
    age_seconds: Number = Field(description="Time since the run ended.")
    partial_run_note: str = Field(description="Set if a newer run left out GPUs of this one; else empty.")

    @classmethod
    def from_state(cls, state: ProbeState, probe: str, wall: float) -> CurrentResultResponse | None:
        run = current_result(state.ran, probe)
        if run is None:
            return None
        return cls(
            id=run.id,
            outcome=run.outcome,
            reason=run.reason,
            age_seconds=round(max(0.0, wall - run.ended), 3),
            partial_run_note=partial_run_note(state, probe),
        )


@metric_rows(AllReduce)
class AllReduceMetricsResponse(ResponseModel):
    """Metrics of the all-reduce probe."""


class ProbeResponse(ResponseModel):
    """The state of one probe."""

    probe: str
    running: str | None = Field(description="Id of the run in progress.")
    progress: ProgressResponse | None
    next_run: str | None = timestamp("When the next run is due.")
    hold: HoldResponse | None = Field(description="The holds that are active; null if there are none.")
    age_seconds: Number | None = Field(description="Time since the last run ended.")
    last: RunResponse | None
    current_result: CurrentResultResponse | None = Field(
        description="The run that determines the outcome, for assert=ok too; null before any run."
    )
    metrics: AllReduceMetricsResponse | None = Field(description="Metrics of the all-reduce; null for other probes.")

    @classmethod
    def from_report(cls, report: Report, now: HostTime, probe: str = ALL_REDUCE) -> ProbeResponse:
        """Return the state of a probe. Only the all-reduce is scheduled and has metrics."""
        state, scheduled = report.probe, probe == ALL_REDUCE
        runs = state.running is not None and state.running_probe == probe
        last = state.last if scheduled else newest_result(state.history, probe)
        return cls(
            probe=probe,
            running=state.running if runs else None,
            progress=ProgressResponse.from_progress(state.progress) if runs and state.progress else None,
            next_run=rfc3339(state.next_run) if scheduled else None,
            hold=HoldResponse.from_report(report),
            age_seconds=None if last is None else round(age_seconds(last, now), 3),
            last=None if last is None else RunResponse.model_validate(last),
            current_result=CurrentResultResponse.from_state(state, probe, now.wall),
            metrics=AllReduceMetricsResponse(**row_values(state.metrics)) if scheduled else None,
        )


class ProbeRequestResponse(ResponseModel):
    """The run of a probe that a request started or joined."""

    id: str
    accepted: bool = Field(description="False: a run was already in progress, and this is its id.")


class RunningResponse(ResponseModel):
    """A run of a probe that is in progress."""

    id: str
    probe: str
    running: Literal[True]
    progress: ProgressResponse | None

    @classmethod
    def from_state(cls, state: ProbeState, run: str) -> RunningResponse:
        progress = None if state.progress is None else ProgressResponse.from_progress(state.progress)
        return cls(id=run, probe=state.running_probe, running=True, progress=progress)


class RunsResponse(ResponseModel):
    """Stored runs of probes that match the request."""

    probes: list[RunResponse] = Field(description="Runs, the newest first.")
    complete: bool = Field(description="False: the store did not answer, and older runs may be missing.")


def age_seconds(result: ProbeResult, now: HostTime) -> float:
    """Return the seconds since a run ended."""
    return max(0.0, now.wall - result.ended)
