"""PCIe and InfiniBand."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from gpumon_sim.nic_kinds import NIC_KINDS
from gpumon_sim.sim_fault import PORT, growing, has_ports

from benchmarks.truth.fault import SILENT, FaultRow, ScenarioStep, counting, flaps, on_port, once
from benchmarks.truth.world import World
from gpumon.health.check_row import MINUTE
from gpumon.health.verdict import Action

ADA = 8
"""NVML's number; boards from it on count errors of PCIe by their kind."""

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
        name="half of its PCIe lanes are gone",
        check="pcie_width_degraded",
        steps=once(set={"pcie_width": 8}),
        within=15 * MINUTE,
    )
    yield FaultRow(
        name="PCIe of the first generation under load",
        check="pcie_generation_degraded",
        steps=once(set={"pcie_generation": 1}),
        within=15 * MINUTE,
    )
    yield FaultRow(
        name="100 PCIe replays a second",
        check="pcie_replays",
        steps=once(set={"pcie_replays": growing(100)}),
        on=lambda profile: not profile.guest,
        within=10 * MINUTE,
    )
    yield FaultRow(
        name="a fatal error of the PCIe link",
        check="pcie_errors",
        steps=once(pcie_errors={"fatal": 1}),
        on=lambda profile: profile.board.architecture > ADA and not profile.guest,  # Hopper and later count them
        within=10 * MINUTE,
    )
    yield FaultRow(
        name="the kernel reports a fatal PCIe error",
        check="pcie_fatal_error",
        action=Action.REBOOT,
        steps=(
            ScenarioStep(log=("pcieport 0000:00:01.0: AER: Uncorrectable (Fatal) error message received from {bus}",)),
        ),
    )
    yield FaultRow(
        name="a PCIe port disables the link of the GPU after an error",
        check="pcie_fatal_error",
        action=Action.REBOOT,
        steps=(
            ScenarioStep(
                log=(
                    "pcieport 0000:00:01.0: DPC: containment event, status:0x1f05, ERR_NONFATAL received from {bus}",
                    "pcieport 0000:00:01.0: AER: subordinate device reset failed",
                )
            ),
        ),
    )
    yield FaultRow(
        name="a non-fatal PCIe error, which the firmware of the host reports too",
        check="pcie_errors",
        steps=(ScenarioStep(gpu={"pcie_errors": {"non_fatal": 1}}, log=FIRMWARE_REPORT),),
        on=lambda profile: profile.board.architecture > ADA and not profile.guest,
        within=10 * MINUTE,
    )
    port = partial(FaultRow, where=PORT, on=has_ports)
    yield port(name="a port is down", check="ib_port_down", steps=on_port(state="down"), within=6 * MINUTE)
    yield port(
        name="a port has a link and no subnet manager",
        check="ib_port_down",
        steps=on_port(state="init"),
        within=6 * MINUTE,
    )
    yield port(
        name="a port runs at a fraction of its speed",
        check="ib_rate_low",
        steps=on_port(rate=50),
        within=10 * MINUTE,
    )
    yield port(
        name="an adapter is gone",
        check="ib_device_missing",
        action=Action.REBOOT,
        steps=on_port(absent=True),
        within=9 * MINUTE,
    )
    yield port(
        name="a port does not come back after a reboot",
        check="ib_port_down",
        steps=(ScenarioStep(node={"ports": {PORT: SILENT}}, act=World.reboot),),
        within=12 * MINUTE,  # of which the boot and its grace take seven
    )
    yield port(
        name="an adapter does not come back after a reboot",
        check="ib_device_missing",
        steps=(ScenarioStep(node={"ports": {PORT: {"absent": True}}}, act=World.reboot),),
        within=15 * MINUTE,
    )
    yield port(
        name="a port goes down again and again",
        check="ib_port_flapping",
        steps=flaps(4, 3 * MINUTE, node={"ports": {PORT: {"state": "down"}}}),
        within=6 * MINUTE,
    )
    yield port(
        name="a port was down briefly",
        check="ib_port_flapping",
        steps=counting(link_downed=growing(0.02)),
        within=10 * MINUTE,
    )
    yield port(
        name="a port overran its buffers",
        check="ib_fatal_counter",
        steps=counting(excessive_buffer_overrun_errors=1),
        within=6 * MINUTE,
    )
    yield port(
        name="a port counts symbol errors: 20 a second",
        check="ib_symbol_errors",
        steps=counting(symbol_error=growing(20)),
        within=10 * MINUTE,
    )
    yield port(
        name="a port counts receive errors: 50 a second",
        check="ib_error_rates",
        steps=counting(port_rcv_errors=growing(50)),
        within=10 * MINUTE,
    )
    yield port(
        name="the firmware of a network adapter does not answer",
        check="nic_driver_fatal",
        action=Action.REBOOT,
        steps=(ScenarioStep(log=("mlx5_core 0001:11:00.0: poll_health:955:(pid 0): device's health compromised",)),),
    )
    yield port(
        name="a network adapter reports an unrecoverable hardware error",
        check="nic_driver_fatal",
        action=Action.REBOOT,
        steps=(
            ScenarioStep(
                log=("mlx5_core 0001:11:00.0: print_health_info:432:(pid 0): synd 0x8: unrecoverable hardware error",)
            ),
        ),
    )
    yield port(
        name="a port discards 500 packets a second",
        check="roce_stress",
        steps=counting(port_xmit_discards=growing(500)),
        within=15 * MINUTE,
    )
    yield from _efa()
    yield FaultRow(
        name="reading the files of a port fails",
        check="gpumon_links_unread",
        action=Action.INSPECT,
        steps=on_port(unreadable=["state", "rate"]),
        where="node",
        on=has_ports,
        within=10 * MINUTE,
    )
    yield FaultRow(
        name="reading the files of a port does not return",
        check="gpumon_links_unread",
        action=Action.INSPECT,
        steps=on_port(hang=True),
        where="node",
        on=has_ports,
        within=10 * MINUTE,
    )


def _efa() -> Iterator[FaultRow]:
    """Yield the faults of EFA, whose ports always report an active link."""
    interface, silent = NIC_KINDS["efa_netdev"].device, NIC_KINDS["efa"]
    nics = {"busy": True, "nics": ["efa_netdev", "efa"]}
    yield FaultRow(
        name="the network interface of an EFA port is down",
        check="ib_port_down",
        where=interface,
        before=nics,
        steps=(ScenarioStep(node={"ports": {interface: {"state": "down"}}}),),
        on=has_ports,
        within=6 * MINUTE,
    )
    yield FaultRow(
        name="the admin queue of an EFA device is closed",
        check="nic_driver_fatal",
        where=silent.device,
        action=Action.REBOOT,
        before=nics,
        steps=(ScenarioStep(log=(f"efa {silent.address} {silent.device}: Admin queue is closed",)),),
        on=has_ports,
    )
    yield FaultRow(
        name="an EFA device does not answer admin commands",
        check="ib_fatal_counter",
        where=silent.device,
        before=nics,
        steps=(ScenarioStep(node={"ports": {silent.device: {"counters": {"no_completion_cmds": 1}}}}),),
        on=has_ports,
        within=6 * MINUTE,
    )
