"""Messages of a node with three GPUs, and the Report after `reduce`."""

from __future__ import annotations

from dataclasses import replace

from gpumon.health.catalogue import Catalogue
from gpumon.health.verdict import Action, Level, Verdict
from gpumon.health.xids import XIDS
from gpumon.model.gpu import Gpu
from gpumon.model.gpu_state import GpuState
from gpumon.model.instant import Instant, Now
from gpumon.model.nvlink import Nvlink
from gpumon.model.snapshot import DriverStatus, GpuReading, PciBus, Snapshot
from gpumon.state.messages import Message
from gpumon.state.reduce import reduce
from gpumon.state.report import Report
from gpumon.state.section import ReducerSettings
from gpumon.state.sections import changes

TERMS = ReducerSettings(interval=1.0, catalogue=Catalogue({79: XIDS[79]}))
BUS = tuple(f"00000000:{n:02X}:00.0" for n in (0x1B, 0x43, 0x52))
UP = DriverStatus(up=True, driver="580.82.07", nvml="13.580.82.07", cuda="13.0")


def gpu_reading(index: int, **values: object) -> GpuReading:
    """Return a reading of healthy GPU `index`."""
    gpu = Gpu(name="NVIDIA H100", temperature_celsius=40.0 + index, utilization_ratio=0.5, energy_joules_total=100.0)
    whole = GpuReading(
        bus_id=BUS[index],
        uuid=f"GPU-{index}",
        index=index,
        gpu=gpu,
        links={"0": Nvlink(up=1.0, errors_total={"crc": 0.0})},
        watched=1.0,
        increments={"busy_seconds_total": 0.5},
    )
    return replace(whole, **values)  # type: ignore[arg-type]


def lost_reading(index: int, **values: object) -> GpuReading:
    return gpu_reading(
        index, gpu=None, links={}, fault="lost", error="GPU is lost", watched=0.0, increments={}, **values
    )


def snapshot(*gpus: GpuReading, at: float = 100.0) -> Snapshot:
    present = tuple(gpu.bus_id for gpu in gpus)
    return Snapshot(ended_at=at, wall=1e9 + at, durations={"fast": 0.01}, gpus=gpus, present=present, visible=len(gpus))


def reduce_all(
    *arrivals: Message, at: float = 100.0, report: Report | None = None, terms: ReducerSettings = TERMS
) -> Report:
    """Return the Report after these messages, all at the same time."""
    report = report or Report(started=0.0)
    for arrival in arrivals:
        report = reduce(report, arrival, Now(at, 1e9 + at, at), terms)
    return report


def healthy() -> Report:
    bus = PciBus(functions=dict.fromkeys(BUS, "nvidia"))
    return reduce_all(bus, UP, snapshot(gpu_reading(0), gpu_reading(1), gpu_reading(2)))


def xid79_verdict(uuid: str) -> Verdict:
    """Return a FAIL verdict for Xid 79 on this GPU."""
    return Verdict(
        check="gpu_xid_critical",
        device=uuid,
        level=Level.FAIL,
        reason="Xid 79: The GPU has fallen off the bus.",
        action=Action.REBOOT,
        raised=Instant("", 0.0, 1e9),
        last_active=Instant("", 0.0, 1e9),
    )


def gpu_state(report: Report, uuid: str) -> GpuState:
    return next(state for state in report.gpus if state.uuid == uuid)


def log_lines(before: Report, after: Report) -> list[tuple[int, str]]:
    """Return level and message of each log line."""
    return [(line.level, line.message) for line in changes(before, after)]
