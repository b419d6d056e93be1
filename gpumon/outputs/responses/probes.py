"""Responses about probes and their runs."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import AliasChoices, ConfigDict, Field, ValidationInfo, field_validator

from gpumon.outputs.formatting import rfc3339, stage
from gpumon.outputs.probe_text import partial_run_note
from gpumon.outputs.responses.base import HostTime, Number, ResponseModel, Timestamp, row_values, timestamp
from gpumon.outputs.responses.windows import HoldResponse
from gpumon.probe.core.probes import ALL_REDUCE, PROBES
from gpumon.probe.core.result import OUTCOMES, Conditions, Location, ProbeResult, current_result
from gpumon.probe.core.state import ProbeState
from gpumon.state.report import Report


def _old_name(name: str, attribute: str) -> Any:
    """Return a field for the value of `attribute` under the name that it had when every probe measured bandwidth."""
    return Field(description=f"As `{attribute}`.", validation_alias=AliasChoices(name, attribute))


class _Measured(ResponseModel):
    """What was measured, and the unit. Names that contain a unit are null if the value has another unit."""

    operation: str
    algorithm: str = Field(description="default: chosen by NCCL; ring: without NVLink SHARP.")
    dtype: str
    quantity: str = Field(description="What was measured, such as busbw.")
    unit: str = Field(description="Base unit of the values, such as bytes_per_second.")
    size: int
    size_unit: str = Field(description="What `size` counts, such as bytes.")
    value: Number = Field(description="Bandwidths are defined as in nccl-tests.")
    collective: str = _old_name("collective", "operation")
    bytes: int | None = _old_name("bytes", "size")
    busbw_bytes_per_second: Number | None = _old_name("busbw_bytes_per_second", "value")

    @field_validator("*")
    @classmethod
    def _in_this_unit(cls, value: Any, info: ValidationInfo) -> Any:
        name = str(info.field_name)
        if name == "bytes":
            return value if info.data["size_unit"] == name else None
        return None if name.endswith("_bytes_per_second") and not name.endswith(info.data["unit"]) else value


class MeasurementResponse(_Measured):
    """The value that was measured with one operation, algorithm, data type and size."""

    raw_value: Number | None = Field(description="Algorithm bandwidth; null if the probe measures no bandwidth.")
    iterations: int
    latency_seconds: dict[str, Number] = Field(description="Time of one operation by percentile: p50, p95, p99.")
    min_seconds: Number | None
    variation_ratio: Number | None = Field(description="Standard deviation of the times, divided by their mean.")
    wrong_elements: int
    algbw_bytes_per_second: Number | None = _old_name("algbw_bytes_per_second", "raw_value")


class ComparisonResponse(_Measured):
    """One measurement and its reference values, all in `unit`."""

    baseline: Number | None = Field(description="Median of this host's runs under the same conditions.")
    spread: Number | None = Field(description="Spread of those runs: 1.48 times the median absolute deviation.")
    runs: int = Field(description="Number of earlier runs that the median is of.")
    best: Number | None = Field(description="Best median of 30 runs under these conditions.")
    best_date: str = Field(description="UTC date of the newest of those runs; empty if there are too few.")
    runs_needed: int = Field(
        description="Runs that a baseline needs. Another driver, NCCL, setting, torch or GPU starts a new baseline."
    )
    expected: Number | None = Field(description="Published figure for this hardware.")
    source: str = Field(description="Source of the published figure.")
    below_reference: str = Field(
        description="Reference that it falls short of: baseline, drift (the best median), expected, or empty."
    )
    baseline_bytes_per_second: Number | None = _old_name("baseline_bytes_per_second", "baseline")
    spread_bytes_per_second: Number | None = _old_name("spread_bytes_per_second", "spread")
    best_bytes_per_second: Number | None = _old_name("best_bytes_per_second", "best")
    expected_bytes_per_second: Number | None = _old_name("expected_bytes_per_second", "expected")


class RunResponse(ResponseModel):
    """One run of a probe, successful or not."""

    model_config = ConfigDict(use_attribute_docstrings=True)  # describes Conditions and Location by their docstrings

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
    conditions: Conditions
    measurements: list[MeasurementResponse]
    comparisons: list[ComparisonResponse] = Field(description="For each message size that saturates the links.")
    location: Location | None = Field(description="Where a confirmed slowdown or wrong data comes from.")
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
    bytes: int | None = Field(description="Size that is measured, if it is a number of bytes.")
    size: int | None = Field(description="Size that is measured.")
    ratio: Number = Field(description="Share of the measurements that is done.")
    message: str = Field(description="Progress as text.")

    @classmethod
    def from_state(cls, state: ProbeState) -> ProgressResponse | None:
        progress, unit = state.progress, PROBES[state.running_probe].size_unit
        if progress is None:
            return None
        message = stage(progress.stage, progress.size, unit, progress.algorithm)
        return cls.copied(progress, bytes=progress.size if unit == "bytes" else None, message=message)


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
        age = round(max(0.0, wall - run.ended), 3)
        return cls.copied(run, age_seconds=age, partial_run_note=partial_run_note(state, probe))


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
    metrics: dict[str, Any] | None = Field(
        description="Metrics by name, without the prefix `gpumon_probe_NAME_`; null before the first run on request."
    )

    @classmethod
    def from_report(cls, report: Report, now: HostTime, probe: str = ALL_REDUCE) -> ProbeResponse:
        state, metrics = report.probe, report.probe.metrics.get(probe)
        runs = state.running is not None and state.running_probe == probe
        last = state.last(probe)
        return cls(
            probe=probe,
            running=state.running if runs else None,
            progress=ProgressResponse.from_state(state) if runs else None,
            next_run=rfc3339(state.next_runs.get(probe)),
            hold=HoldResponse.from_report(report),
            age_seconds=None if last is None else round(age_seconds(last, now), 3),
            last=None if last is None else RunResponse.model_validate(last),
            current_result=CurrentResultResponse.from_state(state, probe, now.wall),
            metrics=None if metrics is None else row_values(metrics),
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
        return cls(id=run, probe=state.running_probe, running=True, progress=ProgressResponse.from_state(state))


class RunsResponse(ResponseModel):
    """Stored runs of probes that match the request."""

    probes: list[RunResponse] = Field(description="Runs, the newest first.")
    complete: bool = Field(description="False: the store did not answer, and older runs may be missing.")


def age_seconds(result: ProbeResult, now: HostTime) -> float:
    return max(0.0, now.wall - result.ended)
