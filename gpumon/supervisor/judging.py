"""Who judges a run: what is normal on this host, under the conditions of now. Pure."""

from __future__ import annotations

from gpumon.probe.baseline import Figure, Floors, Judge, chosen
from gpumon.probe.figures import figure
from gpumon.probe.fleet import FleetFigures
from gpumon.probe.plan import Plan
from gpumon.probe.probes import Probe
from gpumon.probe.result import Conditions, Measurement
from gpumon.report import Report


def make_judge(probe: Probe, plan: Plan, report: Report, floors: Floors, fleet: FleetFigures) -> Judge:
    """Figures from elsewhere are of GPUs: nothing is known of what ranks on a CPU come to."""
    conditions = _conditions(plan, report)

    def expected(measurement: Measurement) -> Figure | None:
        return figure(conditions.model, plan.ranks, measurement) if plan.gpus else None

    def of_fleet(measurement: Measurement) -> float | None:
        return fleet.figure(conditions.model, plan.ranks, measurement) if plan.gpus else None

    return Judge(
        probe=probe.name,
        backend=plan.setting.backend,
        conditions=conditions,
        settings=chosen(plan.settings, plan.algorithm),
        history=report.probe.good,
        expected=expected,
        fleet=of_fleet,
        floors=floors,
    )


def _conditions(plan: Plan, report: Report) -> Conditions:
    used = [state for state in report.gpus if not plan.gpus or state.uuid in plan.gpus]
    models = {state.gpu.name for state in used if state.gpu.name}
    status = report.memory.status
    return Conditions(
        model=", ".join(sorted(models)),
        gpus=plan.gpus,
        driver=(status.driver or "") if status is not None else "",
        host_gpus=len(report.gpus),
    )
