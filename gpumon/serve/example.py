"""A made-up node, from which the reference page takes its examples: one of each thing."""

from __future__ import annotations

from dataclasses import replace

from gpumon.alerts.alert import FIRING, Alert
from gpumon.alerts.template import filled
from gpumon.health.alerting import names, rules
from gpumon.health.expectation import Expectation
from gpumon.health.standing import Health
from gpumon.health.table import BY_NAME
from gpumon.health.terms import Action, Level
from gpumon.health.verdict import Change, Ruling, Verdict
from gpumon.hold import Hold
from gpumon.maintenance import Maintenance
from gpumon.outputs.document import Stamp
from gpumon.probe.account import Progress
from gpumon.probe.result import AllReduce, Comparison, Conditions, Measurement, ProbeResult
from gpumon.probe.state import ProbeState
from gpumon.release import Release, Window
from gpumon.report import Report
from gpumon.snapshot.burst import XID, Board, Burst
from gpumon.snapshot.fabric import Fabric
from gpumon.snapshot.gpu import CLOCK_EVENTS, FAULTS, Gpu
from gpumon.snapshot.infiniband import InfinibandLink, InfinibandPort
from gpumon.snapshot.known_port import KnownPort
from gpumon.snapshot.mig import Mig
from gpumon.snapshot.node import Build, Driver, Node
from gpumon.snapshot.nvlink import Nvlink, NvlinkPeer
from gpumon.snapshot.snapshot import SeenMig, SeenPort
from gpumon.state import GpuState

WALL = 1763640000.0
STAMP = Stamp(host="gpu-17", wall=WALL, boot=864000.0)
BOOT_ID = "3c0e1f5e-6d0c-4a51-9d34-0d2f8f1f2b77"
GIB = 1 << 30
NVLINKS = 18
ECC = tuple(f"{severity},{location}" for severity in ("corrected", "uncorrected") for location in ("dram", "sram"))
LADDER = (1 << 20, 1 << 25, 1 << 30, 1 << 33)
HEAT = "thermal_margin_low"
HOT = names(BY_NAME[HEAT])[-1]
"""The alert: a warning."""


def bus_id(index: int) -> str:
    return f"00000000:{0x18 + 8 * index:02X}:00.0"


def uuid(index: int) -> str:
    return f"GPU-8a5cbb3e-91d2-4d5a-b7f0-{0xC0FFEE00 + index:012x}"


def gpu(index: int) -> GpuState:
    """A GPU at work."""
    return GpuState(
        bus_id=bus_id(index),
        uuid=uuid(index),
        index=index,
        nvml_index=index,
        gpu=_readings(index),
        ecc_volatile=dict.fromkeys(ECC, 0.0),
        links={str(link): nvlink() for link in range(NVLINKS)},
        peers={str(link): NvlinkPeer(peer_type="switch", peer=switch(link)) for link in range(NVLINKS)},
        fabric=Fabric(state=3.0, status=0.0, health={"degraded_bandwidth": 0.0}),
    )


def switch(link: int) -> str:
    """PCI address of the NVSwitch that a link goes to."""
    return f"00000000:{0x05 + link % 4:02X}:00.0"


def mig() -> SeenMig:
    """Half a GPU."""
    return SeenMig(
        uuid="MIG-c2e1f0a4-6d70-5b3c-9d53-0f5e6a2b7c11",
        gpu_instance_id=2,
        compute_instance_id=0,
        profile="3g.40gb",
        mig=Mig(
            info=1.0,
            memory_total_bytes=39.5 * GIB,
            memory_used_bytes=12.25 * GIB,
            sm_active_ratio=0.81,
            sm_occupancy_ratio=0.4,
            tensor_active_ratio=0.35,
            dram_active_ratio=0.52,
            graphics_active_ratio=0.83,
        ),
    )


def port(number: int = 0) -> SeenPort:
    """A port of 400 Gb/s."""
    return SeenPort(
        device=f"mlx5_{number}",
        port="1",
        link_layer="InfiniBand",
        link=InfinibandLink(port_up=1.0, port_speed_bytes_per_second=50e9),
        counts=InfinibandPort(
            receive_bytes_total=8.1e15,
            transmit_bytes_total=8.4e15,
            errors_total={"symbol_error": 0.0, "port_rcv_errors": 0.0},
            link_downs_total=0.0,
        ),
    )


def nvlink() -> Nvlink:
    return Nvlink(up=1.0, errors_total={"replay": 0.0, "recovery": 0.0, "crc": 0.0})


def _readings(index: int) -> Gpu:
    load = (0.97, 0.88, 0.0, 0.62)[index % 4]
    used = (3 + 68 * load) * GIB
    return Gpu(
        name="NVIDIA H100 80GB HBM3",
        serial=f"16542230{index:05d}",
        vbios="96.00.89.00.01",
        inforom="G520.0280.02.02",
        gsp="580.95.05",
        pci_bus_id=bus_id(index),
        architecture="Hopper",
        compute_capability="9.0",
        minor=str(index),
        up=1.0,
        fault=dict.fromkeys(FAULTS, 0.0),
        observed_seconds_total=7200.0,
        recovery_action=0.0,
        utilization_ratio=load,
        sm_active_ratio=round(load * 0.91, 3),
        sm_occupancy_ratio=round(load * 0.44, 3),
        tensor_active_ratio=round(load * 0.38, 3),
        dram_active_ratio=round(load * 0.52, 3),
        graphics_active_ratio=round(load * 0.97, 3),
        memory_utilization_ratio=round(load * 0.6, 2),
        busy_seconds_total=7200 * load,
        memory_total_bytes=79.6 * GIB,
        memory_used_bytes=used,
        memory_free_bytes=79 * GIB - used,
        memory_reserved_bytes=0.6 * GIB,
        temperature_celsius=round(34 + 30 * load),
        memory_temperature_celsius=round(45 + 40 * load),
        thermal_margin_celsius=round(53 - 30 * load),
        temperature_slowdown_celsius=87.0,
        temperature_shutdown_celsius=92.0,
        memory_temperature_max_celsius=95.0,
        power_watts=round(72 + 600 * load, 3),
        power_limit_watts=700.0,
        energy_joules_total=round(4.1e9 + 600 * load * 7200, 3),
        clock_hertz={"graphics": 1.98e9, "sm": 1.98e9, "memory": 2.619e9, "video": 1.545e9},
        clock_event_active=dict.fromkeys(CLOCK_EVENTS, 0.0) | {"idle": float(load == 0)},
        clock_event_seconds_total=dict.fromkeys(CLOCK_EVENTS, 0.0),
        performance_state=0.0,
        ecc_errors_total=dict.fromkeys(ECC, 0.0),
        rows_remapped_total={"correctable": 0.0, "uncorrectable": 0.0},
        row_remap_pending=0.0,
        row_remap_failed=0.0,
        xid_errors_total={"79": 0.0},
        pcie_link_generation=5.0,
        pcie_link_generation_max=5.0,
        pcie_link_width=16.0,
        pcie_link_width_max=16.0,
        pcie_replays_total=0.0,
        processes=float(load > 0),
        nvlinks=float(NVLINKS),
        nvlinks_active=float(NVLINKS),
    )


def event() -> Burst:
    return Burst(
        id="5b1f0c7a92d3",
        kind=XID,
        code=79,
        bus_id=bus_id(0),
        uuid=uuid(0),
        boot_id=BOOT_ID,
        first_at=STAMP.boot - 600,
        last_at=STAMP.boot - 600,
        first_wall=WALL - 600,
        last_wall=WALL - 600,
        nvml=1,
        kmsg=1,
        texts=("GPU has fallen off the bus.",),
        text="GPU has fallen off the bus.",
    )


def alert() -> Alert:
    [rule] = (one for one in rules({}) if one.name == HOT)
    labels, value = (("check", HEAT), ("gpu", "0"), ("uuid", uuid(0))), float(Level.WARN)
    return Alert(
        rule=rule.name,
        severity=rule.severity,
        state=FIRING,
        labels=labels,
        summary=filled(rule.summary, labels, value),
        description=filled(rule.description, labels, value),
        runbook_url=rule.runbook_url,
        value=value,
        active_at=STAMP.boot - 400,
        since=WALL - 400,
        firing_since=WALL - 280,
    )


def run(number: int = 0, *, peak: float = 478e9, outcome: str = "ok") -> ProbeResult:
    """A run of the all-reduce probe, `number` hours before now."""
    ring = 0.766 * peak
    measurements = *(_measured(size, peak) for size in LADDER), *(_measured(size, ring, "ring") for size in LADDER)
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
            driver="580.95.05",
            host_gpus=8,
        ),
        measurements=measurements,
        comparisons=tuple(_compared(one) for one in measurements if one.bytes == LADDER[-1]),
        wrong_elements=0,
    )


def _compared(one: Measurement) -> Comparison:
    usual, source = {"default": (474e9, 480e9), "ring": (363e9, 370e9)}[one.algorithm]
    return Comparison(
        collective=one.collective,
        algorithm=one.algorithm,
        dtype=one.dtype,
        bytes=one.bytes,
        busbw=one.busbw_bytes_per_second,
        baseline=usual,
        spread=2.5e9,
        runs=30,
        runs_needed=5,
        expected=source,
        source="NVIDIA/nccl#2140",
    )


def _measured(size: int, peak: float, algorithm: str = "default") -> Measurement:
    busbw = peak * size / (size + (1 << 26))
    seconds = size * 1.75 / busbw
    return Measurement(
        algorithm=algorithm,
        bytes=size,
        iterations=20,
        algbw_bytes_per_second=round(busbw / 1.75),
        busbw_bytes_per_second=round(busbw),
        latency_seconds={"p50": seconds, "p95": seconds * 1.03, "p99": seconds * 1.1},
        min_seconds=seconds * 0.98,
        variation_ratio=0.012,
        wrong_elements=0,
    )


def report() -> Report:
    last = run()
    ladder = {f"{last.backend},{one.algorithm},{one.bytes}": one for one in last.measurements}
    return Report(
        started=WALL - 7200,
        boot_id=BOOT_ID,
        build=Build(version="0.1.0", python="3.11.2", revision=""),
        driver=Driver(driver="580.95.05", nvml="13.580.95.05", cuda="13.0"),
        node=_node(),
        gpus=(replace(gpu(0), migs=(mig(),)),),
        ports=(port(),),
        events=(event(),),
        health=health(),
        alerts=(alert(),),
        probe=ProbeState(
            metrics=AllReduce(
                busbw_bytes_per_second={key: one.busbw_bytes_per_second for key, one in ladder.items()},
                wrong_elements={"nccl": 0.0},
                ranks={"nccl": 8.0},
                runs_total={"ok": 1.0},
                last_run_timestamp_seconds=last.started + last.duration_seconds,
                last_success_timestamp_seconds=last.started + last.duration_seconds,
                duration_seconds=last.duration_seconds,
                running=0.0,
            ),
            last=last,
            history=(last,),
            ran=(last,),
            good=(last,),
            next_run=WALL + 2700,
        ),
    )


def measuring() -> ProbeState:
    """While a run is in progress."""
    return ProbeState(
        running=run().id, progress=Progress(rank=3, stage="warm_up", algorithm="ring", bytes=GIB, ratio=0.42)
    )


def health() -> Health:
    """One GPU had a row that could not be replaced, yesterday."""
    verdict = Verdict(
        check="row_remap_failed",
        device=uuid(0),
        level=Level.FAIL,
        reason="A bad memory row could not be replaced: no spare is left.",
        action=Action.REPLACE,
        since=WALL - 86400,
        seen=WALL - 86400,
        seen_at=STAMP.boot - 86400,
        boot_id=BOOT_ID,
        active=False,
        evidence={"row_remap_failed": 1.0},
    )
    raised = Ruling(verdict=verdict, change=Change.RAISED, wall=WALL - 86400)
    return Health(
        open={verdict.key: verdict}, history=(raised,), judged=True, judged_wall=WALL, judged_at=STAMP.boot - 2.5
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
        alerts={f"{HOT},warning,firing": 1.0},
    )


def maintained() -> Report:
    """The same node in maintenance."""
    one = Maintenance(
        began=WALL - 600,
        began_at=STAMP.boot - 600,
        until=WALL + 6600,
        deadline=STAMP.boot + 6600,
        boot_id="",
        reason="new power supply",
        by="command",
    )
    return replace(report(), maintenances=(one,))


def held() -> Report:
    """The same node while a job keeps probes away."""
    one = Hold(
        began=WALL - 60,
        began_at=STAMP.boot - 60,
        until=WALL + 840,
        deadline=STAMP.boot + 840,
        boot_id="",
        reason="prolog",
        by="command",
        owner="4711",
    )
    return replace(report(), holds=(one,))


def released() -> Report:
    """The same node while its GPU is released."""
    one = Window(bus_id=bus_id(0), by="command", since=WALL - 60, until=WALL + 240, deadline=STAMP.boot + 240)
    return replace(report(), release=Release(windows=(one,)))


def inventoried() -> Report:
    """The same node with what its store knows of the GPU and the port."""
    node = report()
    one = node.gpus[0]
    board = Board(
        uuid=one.uuid,
        bus_id=one.bus_id,
        serial=one.gpu.serial or "",
        name=one.gpu.name or "",
        first_wall=WALL - 90 * 86400,
        last_wall=WALL - 0.4,
        gpu=0,
        nvlinks=NVLINKS,
    )
    rail = KnownPort(
        identity="5c25:7303:00f0:0000/1",
        device="mlx5_0",
        port="1",
        bus_id=node.ports[0].bus_id,
        guid="5c25:7303:00f0:0000",
        link_layer="InfiniBand",
        board="MT_0000000838",
        firmware="28.43.1014",
        first_wall=WALL - 90 * 86400,
        last_wall=WALL - 0.4,
        first_up=WALL - 90 * 86400,
        last_up=WALL - 0.4,
        speed=50e9,
        expected=True,
    )
    links = replace(node.memory.links, records={rail.identity: rail}, here={("mlx5_0", "1"): rail.identity})
    return replace(
        node,
        gpus=(replace(one, board=board),),
        expectation=Expectation(count=1),
        memory=replace(node.memory, links=links),
    )
