"""Responses about the health of the node: verdicts, their changes, requests to clear them, and alerts."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from typing_extensions import Self

from gpumon.health.alert import FIRING, PENDING, RESOLVED
from gpumon.health.alert_texts import SEVERITIES
from gpumon.health.check_row import Paging
from gpumon.health.clear_request import ClearResult
from gpumon.health.remediation import action_text, performed_repair
from gpumon.health.verdict import CLEARANCE_TEXTS, Action, Clearance, Level, Verdict, VerdictTransition
from gpumon.model.gpu_state import GpuState
from gpumon.outputs.formatting import rfc3339
from gpumon.outputs.problems import current_reason, is_unobserved, title
from gpumon.outputs.responses.base import ResponseModel, Timestamp, timestamp
from gpumon.outputs.responses.windows import MaintenanceResponse
from gpumon.state.report import Report

LevelName = Literal["ok", "unknown", "warn", "fail"]
MAX_TRANSITIONS = 100


class VerdictResponse(ResponseModel):
    """A verdict on a GPU, a port or the node, and what to do about it."""

    check: str
    level: LevelName
    title: str = Field(description="What is wrong if this check fails.")
    device: str | None = Field(description="uuid of a GPU, `device/port` of a port; null for the node.")
    gpu: int | None
    reason: str = Field(description="What was observed, with the relevant numbers.")
    action: str = Field(
        description="none, restart, reset, reboot, fix, inspect or replace. none while a repair is being verified."
    )
    action_text: str
    repair: str | None = Field(
        description="reboot or reset: the repair that was made since the fault was last observed and is being "
        "verified. Else null."
    )
    repaired_at: str | None = timestamp("When the repair was made.")
    evidence: dict[str, float | str]
    active: bool = Field(description="The fault is present now. False: it was, and is latched until it is cleared.")
    since: str = timestamp("When the verdict was raised.")
    last_seen: str = timestamp("When the fault was last observed.")

    @classmethod
    def recorded(cls, verdict: Verdict, report: Report, **current: Any) -> Self:
        """Return the response with the values that a transition recorded, except for those in `current`."""
        state = report.gpu(verdict.device) if verdict.device else None
        values = {"action": verdict.action.value, "repair": None, "repaired_at": None} | current
        return cls.copied(
            verdict,
            level=verdict.level.word,
            title=title(verdict),
            device=verdict.device or None,
            gpu=None if state is None else state.index,
            evidence=dict(verdict.evidence),
            since=rfc3339(verdict.raised.wall),
            last_seen=rfc3339(verdict.last_active.wall),
            **values,
        )

    @classmethod
    def from_verdict(cls, verdict: Verdict, report: Report, **more: Any) -> Self:
        """Return the current response, extended by the values in `more`.

        While a repair is being verified, the action is none, so that automation does not repair in a loop.
        """
        health, repair, repaired_at = report.health, performed_repair(verdict, report.boot_id), None
        if repair is not None and health.evaluated is not None:
            booted = health.evaluated.wall - health.evaluated.at
            after = verdict.reset_at or 0.0 if repair is Clearance.RESET else 0.0
            repaired_at = rfc3339(round(booted + after))
        return cls.recorded(
            verdict,
            report,
            reason=current_reason(verdict, report),
            action=(verdict.action if repair is None else Action.NONE).value,
            action_text=action_text(verdict, health, report.boot_id),
            repair=None if repair is None else repair.value,
            repaired_at=repaired_at,
            **more,
        )


class PrimaryVerdictResponse(VerdictResponse):
    """A verdict that is not inhibited, with the verdicts that it inhibits as its consequences."""

    consequences: list[VerdictResponse] = Field(description="Verdicts that this one inhibits.")

    @classmethod
    def from_verdict(cls, verdict: Verdict, report: Report, **more: Any) -> Self:
        inhibited = [VerdictResponse.from_verdict(other, report) for other in report.health.consequences(verdict)]
        return super().from_verdict(verdict, report, consequences=inhibited, **more)


class RefusedVerdictResponse(VerdictResponse):
    """A verdict that a request could not clear."""

    message: str = Field(description="Why the verdict cannot be cleared.")


class GpuHealthResponse(ResponseModel):
    """The health of one GPU."""

    gpu: int = Field(description="NVML index under which the GPU was first read since boot.")
    nvml_index: int | None = Field(
        description="Current NVML index. It differs from `gpu` if the driver was initialised again without a GPU of a "
        "lower index. null if the driver does not list the GPU."
    )
    uuid: str
    minor: str | None = Field(
        description="Number of its device node; the NVIDIA DRA driver publishes the GPU as gpu-<minor>."
    )
    pci_bus_id: str
    migs: list[str] = Field(description="uuids of the GPU's MIG instances.")
    gpu_instance_ids: list[int] = Field(description="GPU instance ids of `migs`, in the same order.")
    level: LevelName
    fault: str | None
    released: bool = Field(description="Monitoring of this GPU is suspended by a release.")

    @classmethod
    def from_state(cls, state: GpuState) -> GpuHealthResponse:
        return cls.copied(
            state,
            gpu=state.index,
            minor=state.gpu.minor,
            pci_bus_id=state.bus_id,
            migs=[instance.uuid for instance in state.migs],
            gpu_instance_ids=[instance.gpu_instance_id for instance in state.migs],
            level=_level_name(state.gpu.health),
        )


class TransitionResponse(ResponseModel):
    """One change of a verdict: it was raised, changed or cleared."""

    time: str = timestamp("When the verdict changed.")
    change: Literal["raised", "changed", "cleared"]
    cleared_by: str | None = Field(description="What cleared the verdict.")
    cleared_by_text: str
    note: str = Field(description="Note of the operator who cleared the verdict.")
    in_maintenance: bool = Field(description="Whether the node was in maintenance at that time.")
    verdict: VerdictResponse

    @classmethod
    def from_transition(cls, transition: VerdictTransition, report: Report) -> TransitionResponse:
        return cls(
            time=rfc3339(transition.time.wall),
            change=transition.change.value,
            cleared_by=None if transition.cleared_by is None else transition.cleared_by.value,
            cleared_by_text="" if transition.cleared_by is None else CLEARANCE_TEXTS[transition.cleared_by],
            note=transition.note,
            in_maintenance=transition.muted,
            verdict=VerdictResponse.recorded(transition.verdict, report),
        )


class CurrentHealthResponse(ResponseModel):
    """The current verdicts of the node and the health of its GPUs. The health file has these fields too."""

    level: LevelName
    score: float | None = Field(description="0 to 100 over the last 30 days; 100: no verdict in that time.")
    verdicts: list[PrimaryVerdictResponse] = Field(description="Verdicts that are not inhibited, the worst first.")
    gpus: list[GpuHealthResponse]
    gpus_missing: int = Field(description="Expected GPUs that the driver does not count.")

    @classmethod
    def current(cls, report: Report) -> CurrentHealthResponse:
        ranked = sorted(report.health.primary, key=lambda verdict: (-verdict.level, is_unobserved(verdict, report)))
        expected, visible = report.node.gpus_expected, report.node.gpus_visible
        missing = 0 if expected is None or visible is None else max(0, int(expected - visible))
        return CurrentHealthResponse(
            level=_level_name(report.health_metrics().node_health),
            score=report.health.score,
            verdicts=[PrimaryVerdictResponse.from_verdict(verdict, report) for verdict in ranked],
            gpus=[GpuHealthResponse.from_state(state) for state in report.gpus],
            gpus_missing=missing,
        )


class HealthResponse(CurrentHealthResponse):
    """The current health of the node, and the latest changes of verdicts."""

    evaluated: str | None = timestamp("When the checks last ran, which is every 5 s; null before the first time.")
    evaluation_age_seconds: float | None = Field(
        description="Time since then by the boot clock. More than a minute: the agent hangs."
    )
    maintenance: MaintenanceResponse | None = Field(
        description="Maintenance in force, in which no alert pages; null without."
    )
    transitions: list[TransitionResponse] = Field(description="Changes of verdicts, the newest first.")

    @classmethod
    def from_report(cls, report: Report, boot: float) -> HealthResponse:
        """Return the response at the time `boot`, in seconds of CLOCK_BOOTTIME."""
        health, evaluated = report.health, report.health.evaluated
        recent = reversed(health.history[-MAX_TRANSITIONS:])
        return cls(
            **dict(CurrentHealthResponse.current(report)),
            evaluated=rfc3339(evaluated.wall) if evaluated else None,
            evaluation_age_seconds=round(boot - evaluated.at, 3) if evaluated else None,
            maintenance=MaintenanceResponse.from_report(report),
            transitions=[TransitionResponse.from_transition(transition, report) for transition in recent],
        )


class ClearResponse(ResponseModel):
    """The verdicts that a request cleared, and those that it could not clear."""

    cleared: list[VerdictResponse]
    refused: list[RefusedVerdictResponse] = Field(description="Verdicts that cannot be cleared.")
    stored: bool = Field(description="False: the store failed; the change is written when the store recovers.")

    @classmethod
    def from_answer(cls, answer: ClearResult, report: Report) -> ClearResponse:
        return cls(
            cleared=[VerdictResponse.from_verdict(verdict, report) for verdict in answer.cleared],
            refused=refused_verdicts(answer, report),
            stored=answer.stored,
        )


def refused_verdicts(answer: ClearResult, report: Report) -> list[RefusedVerdictResponse]:
    return [
        RefusedVerdictResponse.from_verdict(verdict, report, message=message) for verdict, message in answer.refused
    ]


def _level_name(value: float | None) -> LevelName:
    name: Any = Level(int(value or 0)).word
    return name  # type: ignore[no-any-return]


class AlertResponse(ResponseModel):
    """One alert of this node: its rule, labels, state and texts."""

    rule: str
    severity: Literal[SEVERITIES]  # type: ignore[valid-type]
    page: Paging = Field(description="When the alert reaches a person.")
    state: Literal[PENDING, FIRING, RESOLVED]  # type: ignore[valid-type]
    labels: Annotated[dict[str, str], BeforeValidator(dict)]
    summary: str
    description: str
    action: str
    runbook_url: str
    since: Timestamp = timestamp("When the check became active.")
    firing_since: Timestamp | None = timestamp("When it began to fire.")
    resolved_at: Timestamp | None = timestamp("When it was resolved.")


class AlertsResponse(ResponseModel):
    """Alerts that are pending or firing, or were resolved recently."""

    alerts: list[AlertResponse] = Field(description="Firing and pending alerts first.")
