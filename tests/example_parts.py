"""The GPUs of the example, their instances and links, and its ports."""

from __future__ import annotations

from gpumon.model.gpu import CLOCK_EVENTS, FAULTS, Gpu
from gpumon.model.gpu_state import GpuState
from gpumon.model.infiniband import InfinibandLink, InfinibandPort
from gpumon.model.mig import Mig
from gpumon.model.nvlink import Fabric, Nvlink, NvlinkPeer
from gpumon.model.snapshot import MigReading, PortReading

GIB = 1 << 30
NVLINKS = 18
ECC = tuple(f"{severity},{location}" for severity in ("corrected", "uncorrected") for location in ("dram", "sram"))


def bus_id(index: int) -> str:
    return f"00000000:{0x18 + 8 * index:02X}:00.0"


def uuid(index: int) -> str:
    return f"GPU-8a5cbb3e-91d2-4d5a-b7f0-{0xC0FFEE00 + index:012x}"


def gpu(index: int) -> GpuState:
    """Return a busy GPU."""
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
    """Return the PCI address of the NVSwitch at the other end of a link."""
    return f"00000000:{0x05 + link % 4:02X}:00.0"


def mig() -> MigReading:
    """Return a MIG instance with half of the GPU."""
    return MigReading(
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


def port(number: int = 0) -> PortReading:
    """Return a port of 400 Gb/s."""
    return PortReading(
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
        thermal_margin_slowdown_celsius=-2.0,
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
