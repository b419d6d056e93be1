"""PortReadings of the fabric are distinguished from management, storage, virtual and DPU ports."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from each_case import each_case
from gpumon_sim.infiniband import open_tree
from reader_turns import Turns, host_snapshot
from reduced_reports import reduce_all

from gpumon.collectors.host.infiniband import PortReader
from gpumon.model.infiniband import (
    APART,
    BOND,
    DPU,
    NUMA,
    OTHER,
    SWITCH,
    InfinibandLink,
    InfinibandPort,
    Placement,
    PortPatterns,
    matches,
)
from gpumon.model.snapshot import PortReading, PortReadings
from gpumon.state.report import Report
from gpumon.state.section import ReducerSettings


def simulated_ports(folder: Path, profile: str, nics: str) -> tuple[PortReading, ...]:
    """Return the ports of a simulated node with these adapters, as the host child reads them."""
    scenario = folder / "scenario.yml"
    scenario.write_text(f"nics: [{nics}]")
    tree = open_tree(profile, scenario=scenario, epoch=0.0)
    return Turns[PortReadings](PortReader(), tree).poll().ports


def report_of(*ports: PortReading, patterns: PortPatterns | None = None, report: Report | None = None) -> Report:
    settings = ReducerSettings(ports=patterns or PortPatterns())
    begin = report or Report(started=0.0, boot_id="b2")
    return reduce_all(host_snapshot(ports=ports), report=begin, terms=settings)


def others(report: Report) -> dict[str, str]:
    """Return the reason of each port that is not of the fabric, by device."""
    return {port.device: port.role_reason for port in report.ports if port.role == OTHER}


@each_case(
    ("profile", "nics", "expected"),
    [
        ("h100x8", "azure_vf", {"mlx5_an0": "its network interface belongs to a virtual machine's"}),
        ("h100x8", "bond", {"mlx5_bond_0": "its network interface belongs to a bond"}),
        ("h100x8", "storage", {"mlx5_21": "its speed is 200 Gb/s, that of the fabric 400"}),
        ("h100x8", "bluefield", {"mlx5_22": "it is a DPU"}),
        ("b200x8", "limited_pf", {"mlx5_20": "its counters may not be read (EINVAL)"}),
        ("h100x8", "efa", {}),
        ("l40sx4", "management", {"mlx5_23": "its speed is 25 Gb/s, that of the fabric 100"}),
        ("l40sx4", "", {}),
    ],
)
def test_ports_that_are_not_of_the_fabric_have_a_reason(
    profile: str, nics: str, expected: dict[str, str], tmp_path: Path
) -> None:
    """The ports of the profile are of the fabric; an added adapter is so only if it fits."""
    found = others(report_of(*simulated_ports(tmp_path, profile, nics)))

    assert found.keys() == expected.keys()
    assert all(found[device].startswith(reason) for device, reason in expected.items())


def port_at(
    device: str, *, layer: str = "Ethernet", position: str = NUMA, kind: str = "", gigabits: int = 400, up: float = 1.0
) -> PortReading:
    return PortReading(
        device=device,
        port="1",
        link_layer=layer,
        link=InfinibandLink(port_up=up, port_speed_bytes_per_second=gigabits * 1e9 / 8 if up else None),
        counts=InfinibandPort(),
        placement=Placement(position=position, kind=kind),
    )


RAILS = tuple(port_at(f"mlx5_{number}", layer="InfiniBand", position=SWITCH) for number in range(8))
ROCE = tuple(port_at(f"mlx5_{number}", position=SWITCH) for number in range(7))
ON_NUMA = tuple(port_at(f"mlx5_{number}") for number in range(8))
DPUS = tuple(port_at(f"mlx5_{number}", kind=DPU) for number in range(8))
HALF = tuple(port_at(f"mlx5_{number}", position=SWITCH, gigabits=200) for number in range(7))
SYNTHETIC = "its network interface belongs to a virtual machine's synthetic interface"


@each_case(
    ("ports", "expected"),
    [
        ((*RAILS, port_at("mlx5_8")), {"mlx5_8"}),
        ((*RAILS, port_at("mlx5_8", position=SWITCH)), set()),
        ((*ROCE, port_at("mlx5_7", position=SWITCH, gigabits=200)), set()),
        ((*ROCE, port_at("mlx5_7", position=SWITCH, gigabits=25)), {"mlx5_7"}),
        (tuple(port_at(f"mlx5_bond_{number}", kind=BOND, gigabits=200) for number in range(8)), set()),
        ((*ROCE, port_at("mlx5_bond_0", kind=BOND)), {"mlx5_bond_0"}),
        ((port_at("mlx5_an0", kind=SYNTHETIC),), {"mlx5_an0"}),
        ((*ON_NUMA, port_at("mlx5_8", layer="InfiniBand", up=0.0)), set()),
        ((*ON_NUMA, port_at("mlx5_8", layer="InfiniBand", position=APART, gigabits=200)), {"mlx5_8"}),
        ((*DPUS, port_at("mlx5_bond_0", kind=BOND, gigabits=100)), {"mlx5_bond_0"}),
        ((*HALF, port_at("mlx5_8", position=SWITCH)), set()),
    ],
)
def test_the_role_of_ethernet_depends_on_the_other_ports(ports: tuple[PortReading, ...], expected: set[str]) -> None:
    """Storage is other, also a slower one apart; rails may be slow, bonds or DPUs; an unused port decides nothing."""
    assert set(others(report_of(*ports))) == expected


def test_the_configuration_decides_which_ports_are_of_the_fabric(tmp_path: Path) -> None:
    """With links.fabric exactly the named adapters are of the fabric."""
    ports = simulated_ports(tmp_path, "h100x8", "storage")
    report = report_of(*ports, patterns=PortPatterns(fabric=("mlx5_[0-6]", "0002:30:00.0")))

    assert others(report) == {"mlx5_7": "not named by links.fabric"}


def test_a_slower_port_keeps_its_role() -> None:
    """The role depends on the highest speed that a port had, so that a degraded fabric port still fails."""
    ports = [ethernet(number, 50e9) for number in range(2)]
    report = report_of(*ports)
    slower = replace(ports[0], link=InfinibandLink(port_up=1.0, port_speed_bytes_per_second=12.5e9))

    assert not others(report_of(slower, ports[1], report=report))


def ethernet(number: int, speed: float) -> PortReading:
    return PortReading(
        device=f"mlx5_{number}",
        port="1",
        link_layer="Ethernet",
        link=InfinibandLink(port_up=1.0, port_speed_bytes_per_second=speed),
        counts=InfinibandPort(),
        bus_id=f"00000000:{number:02X}:00.0",
        guid=f"5c25:7303:00f0:{number:04x}",
    )


def test_an_excluded_port_is_not_missing() -> None:
    ports = [ethernet(number, 50e9) for number in range(2)]
    report = report_of(*ports)
    patterns = PortPatterns(exclude=("mlx5_1",))

    report = report_of(ports[0], report=report, patterns=patterns)
    assert report.gone_ports == ()
    assert [record.expected for record in report.host.inventory.records.values()] == [True, False]


def test_a_port_in_use_whose_counters_fail_keeps_its_role() -> None:
    """A failing adapter answers EINVAL too; a port that never had counters belongs to the fabric manager."""
    ports = [ethernet(number, 50e9) for number in range(2)]
    failing = [replace(port, restricted=True) for port in ports]
    report = report_of(ports[0], failing[1])
    assert set(others(report)) == {"mlx5_1"}

    report = report_of(failing[0], failing[1], report=report)
    assert set(others(report)) == {"mlx5_1"}
    assert [port.restricted for port in report.ports] == [False, True]
    report = report_of(failing[1], report=report)
    assert [gone.port.device for gone in report.gone_ports] == ["mlx5_0"]


def test_a_missing_port_keeps_its_role() -> None:
    ports = [ethernet(0, 50e9), ethernet(1, 3.125e9)]
    report = report_of(*ports)
    assert set(others(report)) == {"mlx5_1"}

    report = report_of(ports[0], report=report)
    assert [(gone.port.device, gone.port.role) for gone in report.gone_ports] == [("mlx5_1", OTHER)]
    assert report.gone_ports[0].port.role_reason


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("mlx5_an0", True),
        ("mlx5_an*", True),
        ("mlx5_a", False),
        ("0002:10:00.0", True),
        ("00000002:10:00.0", True),
        ("0002:10:*", True),
        ("MT_0000000838", True),
        ("mt_*838", True),
        ("10:00.0", False),
    ],
)
def test_a_pattern_matches_device_address_or_board(pattern: str, *, expected: bool) -> None:
    """Each form matches whole names, without regard to case; an address without a domain is of domain 0."""
    assert matches((pattern,), "mlx5_an0", "00000002:10:00.0", "MT_0000000838") is expected


def test_a_pattern_of_domain_0_matches_no_adapter_behind_vmd() -> None:
    """The kernel numbers the domains of VMD from 10000 on."""
    assert matches(("10000:01:*",), "mlx5_0", "00010000:01:00.0", "")
    assert not matches(("0000:01:*",), "mlx5_0", "00010000:01:00.0", "")
