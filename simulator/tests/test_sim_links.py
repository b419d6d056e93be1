"""NVLinks by generation, their remote devices, and C2C links."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pynvml
import pytest
from each_case import each_case
from gpumon_sim.field_values import pack_bit_error_rate
from simulated import answer, simulated_node

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
def test_each_generation_has_its_own_counters(profile: str, has: tuple[int, ...], lacks: tuple[int, ...]) -> None:
    """Hopper and Blackwell each do not support the counters of the other."""
    with simulated_node(profile, now=100.0) as simulation:
        handle = simulation.handles()[0]
        assert all(isinstance(value, int) for value in values(handle, *((field, 3) for field in has)))
        assert values(handle, *((field, 3) for field in lacks)) == ["code 3"] * len(lacks)


def test_sums_over_all_links_match_the_links(scenario: Path) -> None:
    """Traffic and errors of NVLink 5 have a sum over all links; packets and bytes agree."""
    text = (
        "gpus: {0: {nvlinks: {2: {receive: 3, recovery_failed: 1}, 7: {receive: 4, recovered: 2}, 9: {state: down}}}}"
    )
    with simulated_node("b200x8", scenario, text=text, now=100.0) as simulation:
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
    """A rate has its mantissa in bits 8 to 11 and its negative exponent in bits 0 to 7; 0 is 15e-255."""
    assert pack_bit_error_rate(ratio) == number


def test_an_error_rate_can_be_set(scenario: Path) -> None:
    text = "gpus: {0: {nvlinks: {4: {effective_ber: 2.0e-11}}}}"
    with simulated_node("b200x8", scenario, text=text) as simulation:
        handle = simulation.handles()[0]
        assert values(handle, (220, 4), (220, 5), (222, ALL_LINKS)) == [2 << 8 | 11, 0xFFF, "code 2"]


@pytest.mark.parametrize(
    ("profile", "links", "speed", "version"),
    [("a100x8", 12, 25000, 4), ("h100pciex2", 12, 26562, 6), ("h200x8", 18, 26562, 6), ("gb200x4", 18, 53125, 7)],
)
def test_links_have_the_speed_of_their_generation(profile: str, links: int, speed: int, version: int) -> None:
    """Each generation has its number of links, its speed in MB/s per direction, and NVML's version number."""
    with simulated_node(profile) as simulation:
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
    """One link can be slower; a link that is down has speed 0."""
    text = "gpus: {0: {nvlinks: {2: {speed: 13281}, 3: {speed: 13281, state: down}}}}"
    with simulated_node("h100x8", scenario, text=text, now=100.0) as simulation:
        assert values(simulation.handles()[0], (164, 1), (164, 2), (164, 3)) == [26562, 13281, 0]


def test_remote_devices_of_links_depend_on_the_generation() -> None:
    """NVSwitches have a PCI address up to Hopper only; a bridge leads to the other GPU."""
    with simulated_node() as simulation:
        remote = peers(simulation.handles()[0])
        assert {kind for kind, _ in remote} == {2}
        assert sorted({address: 0 for _, address in remote}) == [f"00000000:0{n}:00.0" for n in (5, 6, 7, 8)]
        assert [sum(one == address for _, one in remote) for address in dict.fromkeys(a for _, a in remote)] == [
            5,
            4,
            4,
            5,
        ]
    with simulated_node("b200x8") as simulation:
        assert set(peers(simulation.handles()[0])) == {(2, "fffffff:ffff:ff")}
    with simulated_node("gb200x4") as simulation:
        assert set(peers(simulation.handles()[0])) == {(2, "FFFFFFFF:FF:FF.0")}
    with simulated_node("h100pciex2") as simulation:
        first, second = simulation.handles()
        assert set(peers(first)) == {(0, pynvml.nvmlDeviceGetPciInfo(second).busId)}
        assert set(peers(second)) == {(0, pynvml.nvmlDeviceGetPciInfo(first).busId)}


def test_a_link_that_is_down_has_no_remote_device(scenario: Path) -> None:
    with simulated_node(scenario=scenario, text="gpus: {0: {nvlinks: {3: {state: down}}}}") as simulation:
        handle = simulation.handles()[0]
        assert answer(pynvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, 3) == pynvml.NVML_ERROR_NOT_SUPPORTED
        assert answer(pynvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, 3) == pynvml.NVML_ERROR_NOT_SUPPORTED
        assert values(handle, (164, 3), (164, 2)) == [0, 26562]


def test_only_grace_has_c2c_links(scenario: Path) -> None:
    """Grace has C2C links with number, state and speed; other products do not support them."""
    with simulated_node(
        "gb200x4", scenario, text='gpus: {1: {c2c_links: {2: down}}, 2: {c2c_links: {"*": down}}}'
    ) as simulation:
        healthy, one, none = simulation.handles()[:3]
        states = [(171, n) for n in range(5)]
        assert values(healthy, 170, (172, 4), (171, 5)) == [5, 44712, "code 2"]
        assert values(healthy, *states) == [1] * 5
        assert values(one, *states) == [1, 1, 0, 1, 1]
        assert values(one, (172, 2)) == [0]
        assert values(none, *states) == [0] * 5
    with simulated_node("b200x8") as simulation:
        assert values(simulation.handles()[0], 170, (171, 0)) == ["code 3", "code 3"]


def test_the_links_of_a_guest_are_all_down() -> None:
    with simulated_node("h100guestx2", now=100.0) as simulation:
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


def test_peer_access_of_each_pair_of_gpus(scenario: Path) -> None:
    """Peer access is over NVLink if both GPUs have an active link, else over PCIe, and symmetric."""
    text = 'gpus: {1: {nvlinks: {"*": {state: down}}}, 2: {peer_access: {0: {write: topology_not_supported}}}}'
    with simulated_node("h100x8", scenario, text=text, now=100.0) as simulation:
        handles = simulation.handles()
        assert [access(handles[0], handles[3], capability) for capability in range(6)] == [0, 0, 0, 0, 0, "code 2"]
        assert [access(handles[0], handles[1], capability) for capability in range(5)] == [0, 0, 5, 5, 0]
        assert [access(handles[a], handles[b], 1) for a, b in ((0, 2), (2, 0))] == [3, 3]
        assert access(handles[0], handles[0], 0) == "code 2"
        simulation.edit("gpus: {3: {lost: true}}")
        assert access(handles[0], handles[3], 0) == "code 15"
