"""Which NVLinks should be up: by product, board, MIG and what has been seen."""

from __future__ import annotations

import logging
import re
from dataclasses import replace

import pytest
from each_case import each_case
from reduced_reports import log_lines, reduce_all

from gpumon.health.products import PRODUCTS
from gpumon.model.gpu import Gpu
from gpumon.model.gpu_state import GpuState
from gpumon.model.nvlink import Nvlink, NvlinkPeer
from gpumon.model.snapshot import GpuReading, PciBus, Snapshot
from gpumon.state.report import Report

SXM, PCIE = "NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe"


def bus(count: int, *, given_away: int = 0) -> PciBus:
    drivers = ["nvidia"] * count + ["vfio-pci"] * given_away
    return PciBus(functions={f"00000000:{n:02X}:00.0": driver for n, driver in enumerate(drivers)})


def gpu(number: int, name: str, up: tuple[float, ...], *, mig: float = 0.0, guest: bool | None = None) -> GpuReading:
    return GpuReading(
        bus_id=f"00000000:{number:02X}:00.0",
        uuid=f"GPU-{number}",
        index=number,
        gpu=Gpu(name=name, nvlinks=float(len(up)), mig_mode=mig, temperature_celsius=30.0),
        guest=guest,
        links={str(link): Nvlink(up=one, errors_total={"crc": 0.0}) for link, one in enumerate(up)},
    )


BUS = {f"00000000:{n:02X}:00.0": "nvidia" for n in range(2)}
OTHER = "00000000:01:00.0"


def bridged_gpu(number: int, up: float = 1.0) -> GpuReading:
    """Eleven of twelve links lead to the other GPU of the pair."""
    peers = {str(link): NvlinkPeer(peer_type="gpu", peer=f"00000000:{1 - number:02X}:00.0") for link in range(11)}
    return replace(gpu(number, PCIE, (up,) * 12), peers=peers)


def poll(*gpus: GpuReading) -> Snapshot:
    present = tuple(each.bus_id for each in gpus)
    return Snapshot(ended_at=0.0, wall=0.0, durations={"fast": 0.01}, gpus=gpus, present=present)


def node(count: int, name: str, up: tuple[float, ...], *, given_away: int = 0, mig: float = 0.0) -> Report:
    gpus = poll(*(gpu(number, name, up, mig=mig) for number in range(count)))
    return reduce_all(bus(count, given_away=given_away), gpus, gpus)


def link_states(state: GpuState) -> set[float | None]:
    return {link.up for link in state.links.values()}


@each_case(
    ("name", "links", "count"),
    [
        (SXM, 18, 8),
        (SXM, 18, 4),
        ("NVIDIA H200", 18, 8),
        ("NVIDIA B200", 18, 8),
        ("NVIDIA GB200", 18, 4),
        ("NVIDIA A100-SXM4-80GB", 12, 8),
        ("NVIDIA A100-SXM4-40GB", 12, 16),
        ("Tesla V100-SXM2-32GB", 6, 8),
    ],
)
def test_on_a_whole_board_every_link_should_be_up(name: str, links: int, count: int) -> None:
    """All of them down, from the first look on, is a fault of every GPU."""
    report = node(count, name, (0.0,) * links)

    assert [link_states(state) for state in report.gpus] == [{0.0}] * count
    assert {state.gpu.nvlinks_active for state in report.gpus} == {0.0}


@each_case(
    ("name", "links", "count"),
    [
        (SXM, 18, 1),
        (SXM, 18, 2),
        (SXM, 16, 8),
        (PCIE, 18, 2),
        ("NVIDIA A100 80GB PCIe", 12, 2),
        ("NVIDIA L40S", 4, 4),
        ("NVIDIA GH200 480GB", 18, 1),
        ("GRID A100X-40C", 12, 8),
    ],
)
def test_elsewhere_links_that_never_came_up_are_not_known(name: str, links: int, count: int) -> None:
    """Cases: a guest with a part of the board, a board without a bridge, an unknown product."""
    report = node(count, name, (0.0,) * links)

    assert [link_states(state) for state in report.gpus] == [{None}] * count
    assert {state.gpu.nvlinks_active for state in report.gpus} == {None}
    assert {state.gpu.nvlinks for state in report.gpus} == {float(links)}


def test_a_board_of_which_virtual_machines_have_a_part_is_divided() -> None:
    """Four GPUs are left of eight, which looks like a board of four."""
    assert [link_states(state) for state in node(4, SXM, (0.0,) * 18, given_away=4).gpus] == [{None}] * 4


def test_a_guest_may_have_been_given_a_part_of_the_fabric() -> None:
    """Four GPUs of eight look like a board of four: what was never up is no fault there, what went down is."""
    dark = reduce_all(bus(4), poll(*(gpu(n, SXM, (0.0,) * 18, guest=True) for n in range(4))))
    assert [link_states(state) for state in dark.gpus] == [{None}] * 4

    lit = reduce_all(poll(*(gpu(n, SXM, (1.0,) * 18, guest=True) for n in range(4))), report=dark)
    one = reduce_all(poll(*(gpu(n, SXM, (0.0,) + (1.0,) * 17, guest=True) for n in range(4))), report=lit)
    assert [link_states(state) for state in one.gpus] == [{0.0, 1.0}] * 4


@pytest.mark.parametrize("down", [(3,), (3, 4)])
def test_a_bridge_that_carries_some_links_should_carry_all(down: tuple[int, ...]) -> None:
    """Though the agent, or its sampler, has never seen the others up: they were down when it started."""
    links = tuple(float(link not in down) for link in range(12))
    state = node(2, PCIE, links).gpus[0]
    assert [link for link, one in state.links.items() if one.up == 0.0] == [str(link) for link in down]


def test_a_bridge_to_a_gpu_of_a_virtual_machine_carries_nothing() -> None:
    """Before the other was given away its links were up; what leads elsewhere is missed all the same."""
    both = reduce_all(bus(2), poll(bridged_gpu(0), bridged_gpu(1)))
    assert link_states(both.gpus[0]) == {1.0}
    given = reduce_all(poll(bridged_gpu(0, up=0.0)), PciBus(functions={**BUS, OTHER: "vfio-pci"}), report=both)
    alone = reduce_all(poll(bridged_gpu(0, up=0.0)), report=given)
    assert {link: one.up for link, one in alone.gpus[0].links.items()} == {str(link): None for link in range(11)} | {
        "11": 0.0
    }


def test_with_mig_on_no_link_is_known_to_be_down() -> None:
    """Not even one that was up before; with MIG off again it counts."""
    report = node(8, SXM, (1.0,) * 18)
    on = reduce_all(poll(*(gpu(n, SXM, (0.0,) * 18, mig=1.0) for n in range(8))), report=report)
    off = reduce_all(poll(*(gpu(n, SXM, (0.0,) * 18) for n in range(8))), report=on)

    assert [link_states(state) for state in on.gpus] == [{None}] * 8
    assert [link_states(state) for state in off.gpus] == [{0.0}] * 8


def test_a_link_that_was_up_is_missed_on_any_board() -> None:
    """Twelve of the eighteen that NVML counts are wired by the bridges; one of them fails, six were never there."""
    wired = (1.0,) * 4 + (0.0,) * 2 + (1.0,) * 4 + (0.0,) * 2 + (1.0,) * 4 + (0.0,) * 2
    report = node(2, PCIE, wired)
    assert [link for link, one in report.gpus[0].links.items() if one.up is None] == ["4", "5", "10", "11", "16", "17"]
    assert report.gpus[0].gpu.nvlinks_active == 12.0

    broken = reduce_all(poll(gpu(0, PCIE, (0.0, *wired[1:])), gpu(1, PCIE, wired)), report=report)
    assert [link for link, one in broken.gpus[0].links.items() if one.up == 0.0] == ["0"]
    assert broken.gpus[0].gpu.nvlinks_active == 11.0


def test_a_bridge_that_is_half_up_is_half_down() -> None:
    """If NVML counts only links that bridges wire, one link that is up proves that there are bridges."""
    report = node(2, "NVIDIA A100 80GB PCIe", (1.0,) * 8 + (0.0,) * 4)

    assert [link.up for link in report.gpus[0].links.values()] == [1.0] * 8 + [0.0] * 4


def test_links_that_go_down_are_one_line_in_the_log() -> None:
    """A GPU at a time, not a link; so is their recovery."""
    report = node(8, SXM, (1.0,) * 18)
    others = [gpu(n, SXM, (1.0,) * 18) for n in range(1, 8)]
    down = reduce_all(poll(gpu(0, SXM, (0.0, 0.0) + (1.0,) * 16), *others), report=report)

    assert log_lines(report, down) == [(logging.WARNING, "NVLinks are down")]
    assert log_lines(down, replace(down)) == []
    again = reduce_all(poll(gpu(0, SXM, (1.0,) * 18), *others), report=down)
    assert log_lines(down, again) == [(logging.INFO, "NVLinks are up again")]


def test_no_two_products_share_a_name() -> None:
    """The first row that fits would hide the other."""
    names = [
        SXM,
        PCIE,
        "NVIDIA H100 NVL",
        "NVIDIA H200",
        "NVIDIA H200 NVL",
        "NVIDIA H20",
        "NVIDIA B200",
        "NVIDIA B300 SXM6 AC",
    ]
    names += ["NVIDIA GB200", "NVIDIA GB300", "NVIDIA A100-SXM4-40GB", "NVIDIA A100-PCIE-40GB", "NVIDIA A100 80GB PCIe"]
    names += ["NVIDIA A30", "NVIDIA L40S", "NVIDIA L4", "Tesla T4", "NVIDIA H800", "NVIDIA A800-SXM4-80GB"]
    assert [sum(bool(re.fullmatch(each.names, name)) for each in PRODUCTS) for name in names] == [1] * len(names)
