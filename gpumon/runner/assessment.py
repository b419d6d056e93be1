"""Takes from the Report what a run is judged by: reference figures, and readings of its GPUs while it runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

from gpumon.health.checks.nvlink_errors import BROKEN, REPEATED
from gpumon.health.verdict import Clearance
from gpumon.model.durations import utc
from gpumon.model.gpu_state import GpuState
from gpumon.probe.core.baseline import Floors, Judge, SourcedFigure, own_settings
from gpumon.probe.core.evidence import HELD_DOWN, GpuSample, Observations, add_samples
from gpumon.probe.core.plan import Plan
from gpumon.probe.core.probes import ALL_REDUCE, Probe
from gpumon.probe.core.published_figures import figure, gain
from gpumon.probe.core.result import Conditions, Measurement
from gpumon.runner.gather_facts import expected_gpus
from gpumon.state.report import Report


def make_judge(probe: Probe, plan: Plan, report: Report, floors: Floors) -> Judge:
    """Return the Judge of a run, with the `floors` from which a result is worse. Published figures are for GPUs."""
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

    That accepts the result: baselines use only later runs. Results store it too, because old verdicts are deleted.
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


_PCIE_ERRORS = ("fatal", "non_fatal")
"""PCIe error counters that are recorded. Correctable errors are not, because they are normal."""


class TelemetryRecorder:
    """Records the readings of the GPUs of a run, from just before the run begins. `gpus`: UUIDs of these GPUs."""

    def __init__(self, latest: Callable[[], Report], gpus: Collection[str]) -> None:
        self._latest = latest
        self._gpus = gpus
        self._observations: Observations = {}
        self.record()

    def record(self) -> Observations:
        """Record the readings of the last poll, and return all observations until now."""
        report = self._latest()
        at = report.node.snapshot_timestamp_seconds
        if at is not None:
            gpus = [sample(gpu, at) for gpu in report.gpus if gpu.uuid in self._gpus]
            self._observations = add_samples(self._observations, gpus)
        return self._observations


def sample(state: GpuState, at: float) -> GpuSample:
    """Return the last readings of a GPU as a sample. `at`: wall time of the poll in seconds since the epoch."""
    gpu = state.gpu
    received, sent = gpu.nvlink_receive_bytes_total, gpu.nvlink_transmit_bytes_total
    replays = {} if gpu.pcie_replays_total is None else {"replay": gpu.pcie_replays_total}
    pcie_errors = gpu.pcie_errors_total or {}
    return GpuSample(
        index=state.index,
        uuid=state.uuid,
        at=at,
        fault=state.fault or "",
        xids=gpu.xid_errors_total or {},
        ecc_errors=_uncorrected_errors(gpu.ecc_errors_total),
        held_down=[reason for reason in HELD_DOWN if (gpu.clock_event_active or {}).get(reason)],
        held_seconds=gpu.clock_event_seconds_total or {},
        sm_clock=(gpu.clock_hertz or {}).get("sm"),
        links_down=[number for number, link in state.links.items() if link.up == 0],
        link_errors=dict(_link_errors(state)),
        link_speed=gpu.nvlink_speed_bytes_per_second,
        link_bytes=None if received is None or sent is None else received + sent,
        each_link_bytes=_bytes_by_peer(state),
        peer_access=state.peer_access,
        fabric=[check for check, value in (state.fabric.health or {}).items() if value] if state.fabric else (),
        pcie_generation=gpu.pcie_link_generation,
        pcie_generation_max=gpu.pcie_link_generation_max,
        pcie_width=gpu.pcie_link_width,
        pcie_width_max=gpu.pcie_link_width_max,
        pcie_errors=replays | {kind: count for kind, count in pcie_errors.items() if kind in _PCIE_ERRORS},
    )


def _bytes_by_peer(state: GpuState) -> dict[str, dict[str, float]]:
    """Return the total bytes of each NVLink by its peer, a PCI address or a type such as switch, and by link number."""
    by_end: dict[str, dict[str, float]] = {}
    for link, moved in state.link_bytes.items():
        peer = state.peers.get(link)
        end = None if peer is None else peer.peer if peer.peer_type == "gpu" else peer.peer_type
        if end is not None:
            by_end.setdefault(end, {})[link] = moved
    return by_end


def _uncorrected_errors(errors: Mapping[str, float] | None) -> float | None:
    counts = [count for key, count in (errors or {}).items() if key.startswith("uncorrected")]
    return sum(counts) if counts else None


def _link_errors(state: GpuState) -> Iterator[tuple[str, float]]:
    for number, link in state.links.items():
        for kind, count in (link.errors_total or {}).items():
            if kind in REPEATED | BROKEN:
                yield f"{number} had {kind.replace('_', ' ')} errors", count
        for result, count in (link.recoveries_total or {}).items():
            yield f"{number} was retrained ({result})", count
