"""An example node with one of each thing, from which the reference page takes its examples."""

from __future__ import annotations

from dataclasses import replace

from changed_report import new_report
from example_parts import GIB, bus_id, gpu, mig, port, uuid

from gpumon.health.node_health import Health
from gpumon.health.verdict import Action, Level, Verdict, VerdictChange, VerdictTransition
from gpumon.model.error_event import XID, ErrorEvent
from gpumon.model.instant import Instant, Now
from gpumon.model.node import Build, Driver, Node
from gpumon.model.time_window import COMMAND, WindowKind, WindowRequest, new_window
from gpumon.outputs.responses.base import HostTime
from gpumon.probe.core.frames import Progress
from gpumon.probe.core.probe_metrics import METRICS
from gpumon.probe.core.result import Comparison, Conditions, Measurement, ProbeResult
from gpumon.probe.core.state import ProbeState
from gpumon.state.report import Report

WALL = 1763640000.0
STAMP = HostTime(host="gpu-17", wall=WALL, boot=864000.0)
BOOT_ID = "3c0e1f5e-6d0c-4a51-9d34-0d2f8f1f2b77"
LADDER = (1 << 20, 1 << 25, 1 << 30, 1 << 33)
"""Return a warning alert."""


def event() -> ErrorEvent:
    return ErrorEvent(
        id="5b1f0c7a92d3",
        kind=XID,
        code=79,
        bus_id=bus_id(0),
        uuid=uuid(0),
        first=Instant(BOOT_ID, STAMP.boot - 600, WALL - 600),
        last=Instant(BOOT_ID, STAMP.boot - 600, WALL - 600),
        nvml=1,
        kmsg=1,
        texts=("GPU has fallen off the bus.",),
        text="GPU has fallen off the bus.",
    )


def run(number: int = 0, *, peak: float = 478e9, outcome: str = "ok") -> ProbeResult:
    """Return a run of the all-reduce probe, `number` hours ago."""
    ring = 0.766 * peak
    measurements = (
        *(_measurement(size, peak) for size in LADDER),
        *(_measurement(size, ring, "ring") for size in LADDER),
    )
    return ProbeResult(
        id=f"allreduce-{1763640000 - 3600 * number}",
        probe="allreduce",
        outcome=outcome,
        started=WALL - 3600.0 * number - 900,
        duration_seconds=11.4,
        backend="nccl",
        ranks=8,
        versions={"torch": "2.13.0", "nccl": "2.30.7"},
        conditions=Conditions(
            model="NVIDIA H100 80GB HBM3",
            gpus=tuple(uuid(index) for index in range(8)),
            indexes=tuple(range(8)),
            driver="580.95.05",
            host_gpus=8,
        ),
        measurements=measurements,
        comparisons=tuple(_comparison(each) for each in measurements if each.size == LADDER[-1]),
        wrong_elements=0,
    )


def part(number: int, *indexes: int, outcome: str = "ok") -> ProbeResult:
    """Return a run on these GPUs only, because jobs use the others."""
    whole = run(number, outcome=outcome)
    some = replace(whole.conditions, gpus=tuple(map(uuid, indexes)), indexes=indexes)
    return replace(whole, ranks=len(indexes), conditions=some)


def _comparison(one: Measurement) -> Comparison:
    usual, source = {"default": (474e9, 480e9), "ring": (363e9, 370e9)}[one.algorithm]
    return Comparison(
        operation=one.operation,
        algorithm=one.algorithm,
        dtype=one.dtype,
        size=one.size,
        value=one.value,
        baseline=usual,
        spread=2.5e9,
        runs=30,
        runs_needed=5,
        expected=source,
        source="NVIDIA/nccl#2140",
    )


def _measurement(size: int, peak: float, algorithm: str = "default") -> Measurement:
    busbw = peak * size / (size + (1 << 26))
    seconds = size * 1.75 / busbw
    return Measurement(
        algorithm=algorithm,
        size=size,
        iterations=20,
        raw_value=round(busbw / 1.75),
        value=round(busbw),
        latency_seconds={"p50": seconds, "p95": seconds * 1.03, "p99": seconds * 1.1},
        min_seconds=seconds * 0.98,
        variation_ratio=0.012,
        wrong_elements=0,
    )


def report() -> Report:
    last = run()
    ladder = {f"{last.backend},{one.algorithm},{one.size}": one for one in last.measurements}
    return new_report(
        started=WALL - 7200,
        boot_id=BOOT_ID,
        build=Build(version="0.1.0", python="3.11.2", revision=""),
        driver=Driver(driver="580.95.05", nvml="13.580.95.05", cuda="13.0"),
        node=_node(),
        gpus=(replace(gpu(0), migs=(mig(),)),),
        ports=(port(),),
        events=(event(),),
        health=health(),
        probe=ProbeState(
            metrics={
                "allreduce": replace(
                    METRICS["allreduce"](),
                    busbw_bytes_per_second={key: one.value for key, one in ladder.items()},
                    wrong_elements={"nccl": 0.0},
                    ranks={"nccl": 8.0},
                    runs_total={"ok": 1.0},
                    last_run_timestamp_seconds=last.ended,
                    last_success_timestamp_seconds=last.ended,
                    duration_seconds=last.duration_seconds,
                    running=0.0,
                )
            },
            history=(last,),
            ran=(last,),
            good=(last,),
            next_runs={"allreduce": WALL + 2700},
        ),
    )


def measuring() -> ProbeState:
    """Return the node during a probe run."""
    return ProbeState(
        running=run().id, progress=Progress(rank=3, stage="warm_up", algorithm="ring", size=GIB, ratio=0.42)
    )


def health() -> Health:
    """Return the node with a GPU on which a row could not be remapped yesterday."""
    verdict = Verdict(
        check="gpu_row_remap_failed",
        device=uuid(0),
        level=Level.FAIL,
        reason="A bad memory row could not be replaced: no spare is left.",
        action=Action.REPLACE,
        raised=Instant("", 0.0, WALL - 86400),
        last_active=Instant(BOOT_ID, STAMP.boot - 86400, WALL - 86400),
        active=False,
        evidence={"row_remap_failed": 1.0},
    )
    raised = VerdictTransition(verdict=verdict, change=VerdictChange.RAISED, time=Instant("", 0.0, WALL - 86400))
    return Health(
        open={verdict.key: verdict},
        history=(raised,),
        evaluated=Now(at=STAMP.boot - 2.5, wall=WALL, uptime=0.0),
    )


def _node() -> Node:
    return Node(
        simulated=0.0,
        nvml_up=1.0,
        nvml_stuck_seconds=0.0,
        gpus_expected=1.0,
        gpus_visible=1.0,
        gpus_on_pci_bus={"nvidia": 1.0},
        kernel_log_up=1.0,
        snapshot_timestamp_seconds=WALL - 0.4,
        poll_duration_seconds={"fast": 0.011, "slow": 0.034, "rare": 0.051},
        poll_success={"fast": 1.0, "slow": 1.0, "rare": 1.0},
        polls_total={"fast": 7200.0, "slow": 480.0, "rare": 24.0},
        abandoned_children=0.0,
        driver_calls_total=410000.0,
        store_up=1.0,
        alerts={"GpuRowRemapFailed,critical,firing": 1.0},
    )


def node_in_maintenance() -> Report:
    """Return the node in maintenance."""
    request = WindowRequest(kind=WindowKind.MAINTENANCE, seconds=7200, by=COMMAND, reason="new power supply")
    return _with_window(request, age=600)


def held() -> Report:
    """Return the node while a job holds it."""
    request = WindowRequest(kind=WindowKind.HOLD, seconds=900, by=COMMAND, reason="prolog", owner="4711")
    return _with_window(request, age=60)


def _with_window(request: WindowRequest, age: float) -> Report:
    window = new_window(request, Instant("", STAMP.boot - age, WALL - age))
    return replace(report(), windows=(replace(window, id="8f1c0e5a9b27"),))
