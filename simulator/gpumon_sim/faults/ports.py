"""PCIe and InfiniBand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from gpumon.health.verdict import Action
from gpumon_sim.faults.conditions import counts_pcie_errors, has_ports
from gpumon_sim.faults.row import BUSY, MINUTE, PORT, Act, FaultRow, ScenarioStep, flaps, kernel_log, of_node
from gpumon_sim.nic_kinds import NIC_KINDS
from gpumon_sim.port_counters import TRAFFIC

SILENT: Mapping[str, Any] = {"state": "down", "counters": dict.fromkeys(TRAFFIC, 0)}
"""Scenario of a port that is down and has counted nothing since boot."""
FIRMWARE_REPORT = tuple(
    f"{{1}}[Hardware Error]: {text}"
    for text in (
        "Hardware error from APEI Generic Hardware Error Source: 1",
        "event severity: recoverable",
        " Error 0, type: recoverable",
        "  section_type: PCIe error",
        "  port_type: 0, PCIe end point",
        "  device_id: {bus}.0",
    )
)
"""A report of a PCIe error by ACPI APEI, as Linux logs it (drivers/firmware/efi/cper.c)."""


def rows() -> Iterator[FaultRow]:
    yield FaultRow(
        name="the kernel reports a fatal PCIe error",
        check="pcie_fatal_error",
        action=Action.REBOOT,
        steps=kernel_log("pcieport 0000:00:01.0: AER: Uncorrectable (Fatal) error message received from {bus}"),
    )
    yield FaultRow(
        name="a PCIe port disables the link of the GPU after an error",
        check="pcie_fatal_error",
        action=Action.REBOOT,
        steps=kernel_log(
            "pcieport 0000:00:01.0: DPC: containment event, status:0x1f05, ERR_NONFATAL received from {bus}",
            "pcieport 0000:00:01.0: AER: subordinate device reset failed",
        ),
    )
    yield FaultRow(
        name="a non-fatal PCIe error, which the firmware of the host reports too",
        check="pcie_errors",
        steps=(ScenarioStep(gpu={"pcie_errors": {"non_fatal": 1}}, log=FIRMWARE_REPORT),),
        on=counts_pcie_errors,
        within=10 * MINUTE,
    )
    port = partial(FaultRow, where=PORT, on=has_ports)
    yield port(
        name="a port does not come back after a reboot",
        check="ib_port_down",
        steps=(ScenarioStep(node={"ports": {PORT: SILENT}}, act=Act.REBOOT),),
        within=12 * MINUTE,  # of which the boot and its grace take seven
    )
    yield port(
        name="an adapter does not come back after a reboot",
        check="ib_device_missing",
        steps=(ScenarioStep(node={"ports": {PORT: {"absent": True}}}, act=Act.REBOOT),),
        within=15 * MINUTE,
    )
    yield port(
        name="a port goes down again and again",
        check="ib_port_flapping",
        steps=flaps(4, 3 * MINUTE, node={"ports": {PORT: {"state": "down"}}}),
        within=6 * MINUTE,
    )
    yield port(
        name="the firmware of a network adapter does not answer",
        check="nic_driver_fatal",
        action=Action.REBOOT,
        steps=kernel_log("mlx5_core 0001:11:00.0: poll_health:955:(pid 0): device's health compromised"),
    )
    yield port(
        name="a network adapter reports an unrecoverable hardware error",
        check="nic_driver_fatal",
        action=Action.REBOOT,
        steps=kernel_log(
            "mlx5_core 0001:11:00.0: print_health_info:432:(pid 0): synd 0x8: unrecoverable hardware error"
        ),
    )
    yield from _efa()


def _efa() -> Iterator[FaultRow]:
    """Yield the faults of EFA, whose ports always report an active link."""
    interface, silent = NIC_KINDS["efa_netdev"].device, NIC_KINDS["efa"]
    efa = partial(FaultRow, before={**BUSY, "nics": ["efa_netdev", "efa"]}, on=has_ports)
    yield efa(
        name="the network interface of an EFA port is down",
        check="ib_port_down",
        where=interface,
        steps=of_node(ports={interface: {"state": "down"}}),
        within=6 * MINUTE,
    )
    yield efa(
        name="the admin queue of an EFA device is closed",
        check="nic_driver_fatal",
        where=silent.device,
        action=Action.REBOOT,
        steps=kernel_log(f"efa {silent.address} {silent.device}: Admin queue is closed"),
    )
    yield efa(
        name="an EFA device does not answer admin commands",
        check="ib_fatal_counter",
        where=silent.device,
        steps=of_node(ports={silent.device: {"counters": {"no_completion_cmds": 1}}}),
        within=6 * MINUTE,
    )
