"""NVLinks by generation, what is at their other end, chip-to-chip links."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pynvml
import pytest
from each_case import each_case
from simulated import answer, simulated

from gpumon.sim.field_values import packed

ALL_LINKS = 0xFFFFFFFF
UP_TO_HOPPER = (138, 139, 140, 141, 161, 162, 163)
FROM_BLACKWELL = (*range(201, 205), *range(206, 216), 219, 220, 221, 222)


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    return tmp_path / "scenario.yml"


def values(handle: Any, *fields: Any) -> list[Any]:
    members = {1: "uiVal", 3: "ullVal"}
    batch = pynvml.nvmlDeviceGetFieldValues(handle, list(fields))
    return [f"code {f.nvmlReturn}" if f.nvmlReturn else getattr(f.value, members[f.valueType]) for f in batch]


@pytest.mark.parametrize(
    ("profile", "has", "lacks"),
    [("h200x8", UP_TO_HOPPER, FROM_BLACKWELL), ("b200x8", FROM_BLACKWELL, UP_TO_HOPPER)],
)
def test_each_generation_has_counters_of_its_own(profile: str, has: tuple[int, ...], lacks: tuple[int, ...]) -> None:
    """What Hopper counts, Blackwell does not support, and the other way round."""
    with simulated(profile, now=100.0) as simulation:
        handle = simulation.handles()[0]
        assert all(isinstance(value, int) for value in values(handle, *((field, 3) for field in has)))
        assert values(handle, *((field, 3) for field in lacks)) == ["code 3"] * len(lacks)


def test_sums_over_all_links_are_sums(scenario: Path) -> None:
    """Traffic and errors of NVLink 5 at the scope of all links; packets and bytes agree."""
    text = (
        "gpus: {0: {nvlinks: {2: {receive: 3, recovery_failed: 1}, 7: {receive: 4, recovered: 2}, 9: {state: down}}}}"
    )
    with simulated("b200x8", scenario, text=text, now=100.0) as simulation:
        handle = simulation.handles()[0]
        assert values(handle, (208, ALL_LINKS), (213, ALL_LINKS), (214, 2), (215, ALL_LINKS)) == [7, 2, 1, 3]
        everything, one, down = values(handle, (204, ALL_LINKS), (204, 0), (204, 9))
        assert everything == pytest.approx(17 * one)
        assert down == 0
        sent, packets = values(handle, (202, 0), (201, 0))
        assert sent == pytest.approx(256 * packets, rel=1e-6)


@each_case(
    ("ratio", "number"),
    [(0, 0xFFF), (1e-12, 10 << 8 | 13), (3e-9, 3 << 8 | 9), (1.5e-8, 15 << 8 | 9), (1, 10 << 8 | 1), (1e-300, 0xFF)],
)
def test_error_rates_are_packed(ratio: float, number: int) -> None:
    """Mantissa in bits 8 to 11, negative power of ten in bits 0 to 7; none at all is 15e-255."""
    assert packed(ratio) == number


def test_an_error_rate_can_be_set(scenario: Path) -> None:
    """Of one link, and it has no sum."""
    text = "gpus: {0: {nvlinks: {4: {effective_ber: 2.0e-11}}}}"
    with simulated("b200x8", scenario, text=text) as simulation:
        handle = simulation.handles()[0]
        assert values(handle, (220, 4), (220, 5), (222, ALL_LINKS)) == [2 << 8 | 11, 0xFFF, "code 2"]


@pytest.mark.parametrize(
    ("profile", "links", "speed", "version"),
    [("a100x8", 12, 25000, 4), ("h100pciex2", 12, 26562, 6), ("h200x8", 18, 26562, 6), ("gb200x4", 18, 53125, 7)],
)
def test_links_have_the_speed_of_their_generation(profile: str, links: int, speed: int, version: int) -> None:
    """Their number, MB/s each way, and NVML's number for the version, which is no version."""
    with simulated(profile) as simulation:
        handle = simulation.handles()[0]
        assert values(handle, 91, (164, links - 1), (166, 0)) == [links, speed, version]
        assert pynvml.nvmlDeviceGetNvLinkVersion(handle, 0) == version


def peers(handle: Any) -> list[tuple[int, str]]:
    links = range(values(handle, 91)[0])
    return [
        (
            pynvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, n),
            pynvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, n).busId,
        )
        for n in links
    ]


def test_a_link_can_be_slower(scenario: Path) -> None:
    """That one alone; one that is down has no speed."""
    text = "gpus: {0: {nvlinks: {2: {speed: 13281}, 3: {speed: 13281, state: down}}}}"
    with simulated("h100x8", scenario, text=text, now=100.0) as simulation:
        assert values(simulation.handles()[0], (164, 1), (164, 2), (164, 3)) == [26562, 13281, 0]


def test_links_lead_to_switches_to_a_bridge_or_to_what_is_hidden() -> None:
    """NVSwitches are PCI functions up to Hopper and have no address later; a bridge leads to the other GPU."""
    with simulated() as simulation:
        found = peers(simulation.handles()[0])
        assert {kind for kind, _ in found} == {2}
        assert sorted({address: 0 for _, address in found}) == [f"00000000:0{n}:00.0" for n in (5, 6, 7, 8)]
        assert [sum(one == address for _, one in found) for address in dict.fromkeys(a for _, a in found)] == [
            5,
            4,
            4,
            5,
        ]
    with simulated("b200x8") as simulation:
        assert set(peers(simulation.handles()[0])) == {(2, "fffffff:ffff:ff")}
    with simulated("h100pciex2") as simulation:
        first, second = simulation.handles()
        assert set(peers(first)) == {(0, pynvml.nvmlDeviceGetPciInfo(second).busId)}
        assert set(peers(second)) == {(0, pynvml.nvmlDeviceGetPciInfo(first).busId)}


def test_a_link_that_is_down_leads_nowhere(scenario: Path) -> None:
    """Its peer is not known, and its speed is 0."""
    with simulated(scenario=scenario, text="gpus: {0: {nvlinks: {3: {state: down}}}}") as simulation:
        handle = simulation.handles()[0]
        assert answer(pynvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, 3) == pynvml.NVML_ERROR_NOT_SUPPORTED
        assert answer(pynvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, 3) == pynvml.NVML_ERROR_NOT_SUPPORTED
        assert values(handle, (164, 3), (164, 2)) == [0, 26562]


def test_chip_to_chip_links_are_those_of_grace(scenario: Path) -> None:
    """Their number, state and speed by link; elsewhere they are not supported."""
    with simulated(
        "gb200x4", scenario, text='gpus: {1: {c2c_links: {2: down}}, 2: {c2c_links: {"*": down}}}'
    ) as simulation:
        well, one, none = simulation.handles()[:3]
        states = [(171, n) for n in range(5)]
        assert values(well, 170, (172, 4), (171, 5)) == [5, 44712, "code 2"]
        assert values(well, *states) == [1] * 5
        assert values(one, *states) == [1, 1, 0, 1, 1]
        assert values(one, (172, 2)) == [0]
        assert values(none, *states) == [0] * 5
    with simulated("b200x8") as simulation:
        assert values(simulation.handles()[0], 170, (171, 0)) == ["code 3", "code 3"]


def test_the_links_of_a_guest_are_all_down() -> None:
    """It has 18 of them; nobody can say whether any should be up."""
    with simulated("h100guestx2", now=100.0) as simulation:
        handles = simulation.handles()
        assert len(handles) == len(simulation.node.pci_functions()) == 2
        assert values(handles[0], 91, (165, 0), (165, 17), (138, ALL_LINKS), 83, 94, 169) == [
            *(18, 0, 0, 0),
            *["code 3"] * 3,
        ]
        assert pynvml.nvmlDeviceGetVirtualizationMode(handles[0]) == 1


def access(one: Any, other: Any, capability: int) -> int | str:
    try:
        return int(pynvml.nvmlDeviceGetP2PStatus(one, other, capability))
    except pynvml.NVMLError as error:
        return f"code {error.value}"


def test_each_two_gpus_tell_whether_they_reach_each_other(scenario: Path) -> None:
    """Over NVLink while both have one that is up, else over PCIe; from either end the same, and nobody itself."""
    text = 'gpus: {1: {nvlinks: {"*": {state: down}}}, 2: {peer_access: {0: {write: topology_not_supported}}}}'
    with simulated("h100x8", scenario, text=text, now=100.0) as simulation:
        handles = simulation.handles()
        assert [access(handles[0], handles[3], capability) for capability in range(6)] == [0, 0, 0, 0, 0, "code 2"]
        assert [access(handles[0], handles[1], capability) for capability in range(5)] == [0, 0, 5, 5, 0]
        assert [access(handles[a], handles[b], 1) for a, b in ((0, 2), (2, 0))] == [3, 3]
        assert access(handles[0], handles[0], 0) == "code 2"
        simulation.edit("gpus: {3: {lost: true}}")
        assert access(handles[0], handles[3], 0) == "code 15"
