"""Chooses the reference figures of a run: this host's earlier runs, and published figures for its hardware. Pure."""

from __future__ import annotations

from gpumon.health.verdict import Clearance
from gpumon.model.durations import utc
from gpumon.probe.core.baseline import Floors, Judge, SourcedFigure, own_settings
from gpumon.probe.core.plan import Plan
from gpumon.probe.core.probes import ALL_REDUCE, Probe
from gpumon.probe.core.published_figures import figure, gain
from gpumon.probe.core.result import Conditions, Measurement
from gpumon.runner.gather_facts import expected_gpus
from gpumon.state.report import Report


def make_judge(probe: Probe, plan: Plan, report: Report, floors: Floors) -> Judge:
    """Return the Judge of a run: its reference values, and the `floors` from which a result is worse.

    Published figures are used only for ranks on GPUs.
    """
    conditions, sharp = _conditions(probe, plan, report), plan.uses_sharp

    def published_figure(measurement: Measurement) -> SourcedFigure | None:
        return figure(conditions.model, plan.ranks, measurement, sharp=sharp) if plan.gpus else None

    def sharp_gain(size: int) -> float | None:
        return gain(conditions.model, plan.ranks, size) if plan.gpus and sharp and probe.name == ALL_REDUCE else None

    return Judge(
        probe=probe.name,
        higher_is_better=probe.higher_is_better,
        backend=plan.setting.backend,
        conditions=conditions,
        settings=own_settings(plan.settings, plan.algorithm),
        history=report.probe.good,
        expected=published_figure,
        gain=sharp_gain,
        floors=floors,
    )


def _conditions(probe: Probe, plan: Plan, report: Report) -> Conditions:
    used = [state for state in report.gpus if not plan.gpus or state.uuid in plan.gpus]
    index = {state.uuid: state.index for state in report.gpus}
    models = {state.gpu.name for state in used if state.gpu.name}
    status = report.inventory.status
    return Conditions(
        model=", ".join(sorted(models)),
        gpus=plan.gpus,
        indexes=tuple(index[uuid] for uuid in plan.gpus) if index.keys() >= set(plan.gpus) else (),
        driver=(status.driver or "") if status is not None else "",
        host_gpus=max(len(report.gpus), expected_gpus(report)),
        accepted=_last_accepted(report, probe),
    )


def _last_accepted(report: Report, probe: Probe) -> str:
    """Return the time (RFC 3339) at which an operator last cleared a verdict on a slow run; empty if never.

    Clearing the verdict accepts the result: baselines use only later runs. Inhibited verdicts do not count. Each run
    stores this time in its result, because old verdicts are deleted.
    """
    transitions = (*report.health.history, *report.health.cleared.values())
    accepted = (
        utc(transition.time.wall).strftime("%Y-%m-%dT%H:%M:%SZ")
        for transition in transitions
        if transition.cleared_by is Clearance.OPERATOR
        and transition.verdict.check in {f"{probe.name}_slow", f"gpu_{probe.name}_slow"}
        and transition.verdict.inhibited_by is None
    )
    earlier = (run.conditions.accepted for run in report.probe.results if run.probe == probe.name)
    return max((*accepted, *earlier), default="")
