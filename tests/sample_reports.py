"""Sample reports of a node of eight GPUs, healthy and unhealthy, for tests of what is served and printed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import example_node as example
import example_parts
from changed_report import changed, new_report, with_transitions

from gpumon.health import table
from gpumon.health.node_health import Health, Pending
from gpumon.health.sample_windows import SampleHistory
from gpumon.health.verdict import Action, Level, Verdict
from gpumon.model.error_event import OVERRUN, SXID, ErrorEvent
from gpumon.model.gpu import FAULTS, Gpu
from gpumon.model.gpu_state import GpuState
from gpumon.model.instant import Instant, Now
from gpumon.model.node import Driver, Node
from gpumon.model.nvlink import CHECKS, C2cLink, Fabric, Nvlink, Platform
from gpumon.model.snapshot import MigReading
from gpumon.outputs.responses.base import Document, HostTime
from gpumon.outputs.responses.devices import GpuResponse
from gpumon.outputs.responses.probes import RunResponse
from gpumon.outputs.responses.report import ReportResponse
from gpumon.probe.core.result import ProbeResult
from gpumon.probe.core.state import ProbeState
from gpumon.state import health_section as judging
from gpumon.state.report import Report
from gpumon.state.section import ReducerSettings
from gpumon.state.sections import samples

STAMP: HostTime = example.STAMP
EVALUATED = Now(at=STAMP.boot, wall=STAMP.wall, uptime=0.0)
MINUTE, HOUR = 60.0, 3600.0
RUNS = 24


def report_document(report: Report, now: HostTime = STAMP) -> Document:
    """Return the response of /api/v1/report as JSON values."""
    return ReportResponse.from_report(report, now).document()


def run_document(result: ProbeResult) -> Document:
    return RunResponse.model_validate(result).document()


def gpu_document(state: GpuState) -> Document:
    return GpuResponse.from_state(state).document()


def healthy(count: int = 8) -> Report:
    """Return a node whose GPUs all answer, without problems, with an hourly probe run for a day."""
    base = example.report()
    history = tuple(example.run(hours, peak=478e9 - 3e9 * (hours % 4)) for hours in reversed(range(RUNS)))
    return changed(
        base,
        node=replace(base.node, gpus_expected=float(count), gpus_visible=float(count), alerts={}),
        gpus=tuple(example_parts.gpu(index) for index in range(count)),
        ports=tuple(example_parts.port(number) for number in range(count)),
        events=(),
        health=Health(evaluated=EVALUATED),
        probe=replace(base.probe, history=history),
    )


def simulated_report() -> Report:
    report = healthy()
    return changed(report, simulated="h100x8", node=replace(report.node, simulated=1.0))


def lost(index: int = 3) -> Report:
    """Return a node with one GPU that fell off the bus ten minutes ago; its alert fires."""
    report = with_fault(healthy(), index, "lost", "NVML: GPU is lost")
    event = replace(example.event(), bus_id=example_parts.bus_id(index), uuid=example_parts.uuid(index))
    return with_verdicts(changed(report, events=(event,)))


def idle(index: int) -> Report:
    """Return a node with a verdict for information."""
    report = healthy()
    verdict = Verdict(
        check="gpu_idle",
        device=example_parts.uuid(index),
        level=Level.WARN,
        reason="Processes held it for an hour in which it was busy 2% of the time.",
        action=Action.NONE,
        raised=Instant("", 0.0, STAMP.wall - 10 * MINUTE),
        last_active=Instant(report.boot_id, STAMP.boot, STAMP.wall),
    )
    return replace(report, health=replace(report.health, open={verdict.key: verdict}))


def stuck(index: int = 5) -> Report:
    """Return a node with a driver call on one GPU that does not return."""
    return with_verdicts(with_fault(healthy(), index, "stuck", "nvmlDeviceGetFieldValues has not returned"))


def with_verdicts(report: Report) -> Report:
    """Return the same with the verdicts after ten minutes."""
    history = SampleHistory(windows=table.recorded_windows())
    report = changed(report, restored=True, samples=history)
    for ago in (20 * MINUTE, 10 * MINUTE, 0.0):
        now = Now(STAMP.boot - ago, STAMP.wall - ago, STAMP.boot - ago)
        past = report.samples.add(samples(report), now.at)
        report = replace(report, samples=past)
        report = judging.evaluate(report, now, ReducerSettings())
        report = with_transitions(report, report.health.due)
    return report


def troubled_node() -> Report:
    """Return a node with a lost, a stuck and a hot GPU, failed NVLinks, a probe with wrong elements, and no store."""
    report = with_fault(lost(), 5, "stuck", "nvmlDeviceGetFieldValues has not returned")
    hot = replace(
        report.gpus[1].gpu,
        temperature_celsius=86.0,
        thermal_margin_celsius=1.0,
        nvlinks_active=16.0,
        clock_event_active={"idle": 0.0, "hw_thermal": 1.0},
        xid_errors_total={"79": 0.0, "13": 2.0},
        pcie_link_width=8.0,
    )
    links = dict(report.gpus[1].links) | {
        "4": Nvlink(up=0.0, errors_total={"replay": 0.0, "recovery": 3.0, "crc": 0.0}),
        "5": Nvlink(up=0.0),
        "6": Nvlink(up=1.0, errors_total={"replay": 12.0, "recovery": 0.0, "crc": 0.0}),
        "7": Nvlink(),
    }
    gpus = tuple(replace(gpu, gpu=hot, links=links) if gpu.index == 1 else gpu for gpu in report.gpus)
    outcomes = {3: "skipped", 7: "failed", 12: "degraded", 0: "wrong"}
    history = tuple(
        example.run(hours, outcome=outcomes.get(hours, "ok"), peak=300e9 if hours == 12 else 478e9)
        for hours in reversed(range(RUNS))
    )
    history = tuple(
        replace(each, measurements=(), reason="busy" if each.outcome == "skipped" else "ranks")
        if each.outcome in ("skipped", "failed")
        else each
        for each in history
    )
    last = replace(history[-1], wrong_elements=128, hint="Find the GPU that corrupts: run the probe on pairs.")
    troubled = changed(
        report,
        gpus=gpus,
        events=(*some_events(), *report.events),
        probe=replace(report.probe, history=(*history[:-1], last)),
        notices={"store": "no space left on /var/lib/gpumon: free some, events are kept in memory until then"},
    )
    return with_pending(with_verdicts(troubled), "gpu_idle", 2, Level.WARN)


def with_pending(report: Report, check: str, index: int, level: Level) -> Report:
    """Return the report with a finding on one GPU that has lasted a minute, which is too short for a verdict."""
    pending = Pending(Level.OK, {level: MINUTE}, STAMP.boot, HOUR)
    by_key = {**report.health.pending, (check, example_parts.uuid(index)): pending}
    return replace(report, health=replace(report.health, pending=by_key))


def partitioned_node() -> Report:
    """Return a node with MIG on two of four GPUs: seven instances and two. The state of their links is unknown."""
    report = healthy(4)
    layouts = {0: ("1g.10gb",) * 7, 1: ("3g.40gb", "1c.3g.40gb")}
    gpus = tuple(
        replace(
            gpu,
            gpu=replace(gpu.gpu, utilization_ratio=None, memory_utilization_ratio=None, mig_mode=1.0),
            links=dict.fromkeys(gpu.links, Nvlink()),
            migs=tuple(_mig(gpu.index, number, profile) for number, profile in enumerate(layouts[gpu.index], 1)),
        )
        if gpu.index in layouts
        else gpu
        for gpu in report.gpus
    )
    return changed(report, gpus=gpus)


def _mig(gpu: int, number: int, profile: str) -> MigReading:
    return replace(example_parts.mig(), uuid=f"MIG-{gpu}{number}", gpu_instance_id=number, profile=profile)


def grace() -> Report:
    """Return a tray of a rack-wide fabric: no PCI bus of its own, chip-to-chip links, RoCE."""
    report = healthy(4)
    fabric = Fabric(
        cluster_uuid="5f0c8f0e-71b2-4d0e-9d3c-5d5d0a6f3a11",
        clique_id="32766",
        state=3.0,
        status=0.0,
        health=dict.fromkeys(CHECKS, 0.0),
    )
    gpus = tuple(
        replace(
            gpu,
            gpu=replace(gpu.gpu, name="NVIDIA GB200", module_power_watts=1100.0),
            fabric=fabric,
            platform=Platform(chassis="1821325191344", slot="3", tray="12"),
            c2c_links={str(link): C2cLink(up=1.0) for link in range(10)},
        )
        for gpu in report.gpus
    )
    return changed(report, gpus=gpus, ports=tuple(replace(port, link_layer="Ethernet") for port in report.ports))


def disconnected_node() -> Report:
    """Return a node with fabric registration pending on one GPU and failed on another, and with a port down."""
    report = healthy()
    fabrics = {
        2: Fabric(state=2.0),
        4: Fabric(state=3.0, status=999.0),
        6: Fabric(state=3.0, status=0.0, health={"route_unhealthy": 1.0}),
    }
    gpus = tuple(replace(gpu, fabric=fabrics.get(gpu.index, gpu.fabric)) for gpu in report.gpus)
    down = replace(report.ports[3], link=replace(report.ports[3].link, port_up=0.0))
    return changed(report, gpus=gpus, ports=(*report.ports[:3], down, *report.ports[4:]))


def some_events() -> tuple[ErrorEvent, ...]:
    """Return a node with an ended storm of Xids, an NVSwitch error, a historical error and lost kernel log records."""
    base = replace(example.event(), bus_id=example_parts.bus_id(1), uuid=example_parts.uuid(1))
    hours = STAMP.wall - 3 * 3600
    return (
        replace(
            base,
            id="1",
            code=163,
            nvml=0,
            kmsg=1,
            last=base.last._replace(wall=hours),
            cancelled_wall=hours + 5,
            text="",
            texts=(),
        ),
        replace(
            base,
            id="2",
            kind=SXID,
            code=20034,
            bus_id="00000000:05:00.0",
            uuid=None,
            last=base.last._replace(wall=hours + 60),
            text="",
        ),
        replace(base, id="3", code=48, historical=True, last=base.last._replace(wall=hours + 120), text="", texts=()),
        replace(
            base,
            id="4",
            code=31,
            nvml=812,
            kmsg=9000,
            gpu_instance_id=2,
            last=base.last._replace(wall=hours + 600),
            text="",
        ),
        replace(
            base,
            id="5",
            kind=OVERRUN,
            code=0,
            bus_id="",
            uuid=None,
            last=base.last._replace(wall=hours + 900),
            text="",
            texts=(),
        ),
    )


def excluding(index: int) -> Report:
    """Return a node with one of eight GPUs excluded by the configuration: NVML counts it, and it is not opened."""
    report = healthy()
    gpus = tuple(gpu for gpu in report.gpus if gpu.index != index)
    return changed(report, gpus=gpus, excluded=(example_parts.bus_id(index),))


def without_driver() -> Report:
    """Return a host whose driver does not load: no GPU is known, and the agent reports what is missing."""
    return new_report(
        started=STAMP.wall - 30,
        build=example.report().build,
        node=Node(simulated=0.0, nvml_up=0.0, gpus_expected=8.0, gpus_on_pci_bus={"none": 8.0}),
        notices={"driver": "LibraryNotFound: libnvidia-ml.so.1 is not installed; install the NVIDIA driver"},
    )


def without_gpus() -> Report:
    """Return a healthy host that has no NVIDIA GPU and expects none."""
    return new_report(
        started=STAMP.wall - 30,
        build=example.report().build,
        driver=Driver(),
        node=Node(simulated=0.0),
        health=Health(evaluated=EVALUATED),
    )


def before_any_run(report: Report) -> Report:
    return replace(report, probe=ProbeState(next_runs={"allreduce": STAMP.wall + 7}))


def with_fault(report: Report, index: int, fault: str, detail: str) -> Report:
    """Return the report with one GPU that does not answer: identity, up, fault and Xid counters remain."""
    gpus = tuple(_state_with_fault(gpu, fault, detail) if gpu.index == index else gpu for gpu in report.gpus)
    return changed(report, gpus=gpus)


def _state_with_fault(state: GpuState, fault: str, detail: str) -> GpuState:
    shown: Mapping[str, float] = dict.fromkeys(FAULTS, 0.0) | {fault: 1.0}
    gpu = Gpu(
        name=state.gpu.name,
        serial=state.gpu.serial,
        pci_bus_id=state.gpu.pci_bus_id,
        up=0.0,
        fault=dict(shown),
        xid_errors_total={"79": 1.0},
    )
    since = STAMP.wall - 10 * MINUTE
    return replace(state, gpu=gpu, fault=fault, detail=detail, since=since, links={}, fabric=None)
