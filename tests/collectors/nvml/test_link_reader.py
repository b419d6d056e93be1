"""Links: when one that is down may be called down, what is at the other end, and what each generation counts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from each_case import each_case
from overlay import answering, overlaid
from polled import Poll, polled

from gpumon.model.nvlink import Nvlink
from gpumon.model.snapshot import GpuReading

CRC_0 = 163, 0
REFUSED = 0, 3, 3, bytes(8)
"""Not supported, as a field of a batch says it."""
KINDS = {"replay", "recovery", "crc"}
DOWN = 'gpus: {"*": {nvlinks: {3: {state: down}}}}'


def slow(poll: Poll, index: int = 0) -> GpuReading:
    return poll.poll_later(all_tiers=True).gpus[index]


def states(seen: GpuReading) -> Counter[float | None]:
    return Counter(link.up for link in seen.links.values())


@each_case("profile", ["h100x8", "a100x8", "b200x8", "gb200x4", "h100pciex2"])
def test_a_dark_link_is_told_as_it_is(tmp_path: Path, profile: str) -> None:
    """From the first reading on, though it was never seen up: whether it should be, is not for the sampler to say."""
    with polled(profile, DOWN, folder=tmp_path) as poll:
        seen = slow(poll)

    assert seen.links["3"].up == 0
    assert seen.links["4"].up == 1
    assert not seen.guest


def test_with_mig_on_the_state_of_links_tells_nothing() -> None:
    """They are switched off, and that is no alarm."""
    with polled("h100migx8") as poll:
        seen = slow(poll)

    assert states(seen) == {None: 18}
    assert seen.gpu is not None
    assert seen.gpu.nvlinks == 18


def test_a_guest_says_so() -> None:
    """It may have a part of the fabric: its links are as they are, and nobody can say whether they should be up."""
    with polled("h100guestx2") as poll:
        seen = slow(poll)

    assert (states(seen), seen.guest) == ({0: 18}, True)


def test_links_that_come_up_late_are_known_in_full(tmp_path: Path) -> None:
    """A link that is down tells little: what it did not know then is asked again, its peer too."""
    text = 'gpus: {"*": {nvlinks: {"*": {state: down}}}}'
    with polled("h100x1", text, folder=tmp_path) as poll:
        dark = slow(poll)
        poll.simulation.edit("gpus: {0: {nvlinks: {5: {crc: 7}}}}")
        lit = slow(poll)

    assert (dark.peers, dark.links["5"].up) == ({}, 0)
    assert lit.links["5"] == Nvlink(up=1, errors_total={"replay": 0, "recovery": 0, "crc": 7})
    assert lit.peers["5"].peer_type == "switch"
    assert lit.gpu is not None
    assert lit.gpu.nvlink_speed_bytes_per_second == 26562e6


def test_a_passing_refusal_of_one_link_costs_no_other_its_counters(tmp_path: Path) -> None:
    """What links have once answered is asked again, whatever the first of them says now."""
    with polled("h100x1", folder=tmp_path) as poll:
        slow(poll)
        with overlaid({"nvmlDeviceGetFieldValues": answering(lambda n, link: REFUSED if (n, link) == CRC_0 else None)}):
            refused = slow(poll).links
        again = slow(poll).links

    assert [set(one.errors_total or {}) for one in (refused["0"], refused["1"])] == [{"replay", "recovery"}, KINDS]
    assert set(again["0"].errors_total or {}) == KINDS


def test_peers_are_told_once() -> None:
    """They do not change: with the first reading, and not with every poll."""
    with polled("h100pciex2") as poll:
        first, second = poll.poll().gpus[0], slow(poll)

    assert {(one.peer_type, one.peer) for one in first.peers.values()} == {("gpu", "00000000:CA:00.0")}
    assert second.peers == {}


def test_a_switch_that_is_no_pci_function_has_no_address() -> None:
    """NVML then writes all ones, which is no place to look for it."""
    with polled("b200x8") as poll:
        peers = poll.poll().gpus[0].peers

    assert {(one.peer_type, one.peer) for one in peers.values()} == {("switch", None)}


def test_blackwell_counts_otherwise(tmp_path: Path) -> None:
    """Counters of its own, and error rates that are packed into a mantissa and a power of ten."""
    text = "gpus: {0: {nvlinks: {2: {symbol: 5, recovery_failed: 1, effective_ber: 3.0e-13}}}}"
    with polled("b200x8", text, folder=tmp_path) as poll:
        link = slow(poll).links["2"]

    assert "crc" not in (link.errors_total or {})
    assert (link.errors_total or {})["symbol"] == 5
    assert link.recoveries_total == {"successful": 0, "failed": 1}
    assert (link.bit_error_ratio or {})["effective"] == pytest.approx(3e-13)


def test_the_slowest_link_is_told(tmp_path: Path) -> None:
    """Of those that move at all: a link that is down has no speed."""
    with polled("h100x1", DOWN, folder=tmp_path) as poll:
        gpu = slow(poll).gpu

    assert gpu is not None
    assert gpu.nvlink_speed_bytes_per_second == 26562e6


def test_grace_has_links_to_its_processor_a_place_and_a_clique(tmp_path: Path) -> None:
    """Chip-to-chip links, rack and fabric; none of it on a host of another kind."""
    with polled("gb200x4", "gpus: {1: {c2c_links: {2: down}}}", folder=tmp_path) as poll:
        grace = slow(poll, 1)
    with polled("h100x8") as poll:
        other = slow(poll)

    assert [one.up for one in grace.c2c_links.values()] == [1, 1, 0, 1, 1]
    assert grace.platform is not None
    assert None not in {grace.platform.chassis, grace.platform.slot, grace.platform.tray}
    assert grace.fabric is not None
    assert (grace.fabric.cluster_uuid or "").count("-") == 4
    assert grace.fabric.clique_id is not None
    assert (other.c2c_links, other.platform) == ({}, None)
    assert other.fabric is not None
    assert (other.fabric.state, other.fabric.cluster_uuid) == (3, None)


@each_case("driver", ["535.183.01", "550.163.01", "570.148.08", "580.173.02", "610.43.02"])
def test_the_fabric_is_asked_in_a_struct_that_the_driver_knows(tmp_path: Path, driver: str) -> None:
    """Three versions in six drivers: the newest is tried first, and which one it takes is remembered."""
    with polled("h100x1", f'driver_version: "{driver}"', folder=tmp_path) as poll:
        fabric = slow(poll).fabric
        before = Counter(poll.simulation.node.library._trace._calls)
        slow(poll)
        after = Counter(poll.simulation.node.library._trace._calls) - before

    assert fabric is not None
    assert (fabric.state, fabric.status) == (3, 0)
    assert after["nvmlDeviceGetGpuFabricInfoV"] + after["nvmlDeviceGetGpuFabricInfo"] == 1


@pytest.mark.parametrize(("state", "status"), [(1, None), (2, None), (3, 0)])
def test_status_means_something_once_the_fabric_is_complete(tmp_path: Path, state: int, status: int | None) -> None:
    """Before that it is absent, and so is the clique."""
    with polled("gb200x4", f"gpus: {{0: {{fabric: {{state: {state}}}}}}}", folder=tmp_path) as poll:
        fabric = slow(poll).fabric

    assert fabric is not None
    assert (fabric.state, fabric.status, fabric.clique_id is not None) == (state, status, state == 3)


def test_unhealthy_checks_of_the_fabric_are_1(tmp_path: Path) -> None:
    """Bits of two and of four, each with its own meaning of well; what is not supported is absent."""
    text = "gpus: {0: {fabric: {health: {degraded_bandwidth: 1, incorrect_configuration: 2}}}}"
    with polled("gb200x4", text, folder=tmp_path) as poll:
        fabric = slow(poll).fabric
    with polled("h100x1") as poll:
        hopper = slow(poll).fabric

    assert fabric is not None
    assert (fabric.health or {})["degraded_bandwidth"] == 1
    assert (fabric.health or {})["incorrect_configuration"] == 1
    assert (fabric.health or {})["route_unhealthy"] == 0
    assert hopper is not None
    assert hopper.health is None


@pytest.mark.parametrize(
    ("profile", "driver", "told"),
    [("gb200x4", "580.65.06", [2, 1]), ("gb200x4", "570.148.08", [None, None]), ("h100x8", "580.65.06", [2, None])],
)
def test_the_sum_of_the_fabrics_health_is_told_where_the_driver_knows_it(
    tmp_path: Path, profile: str, driver: str, told: list[int | None]
) -> None:
    """0 is what it does not know."""
    text = f'{{driver_version: "{driver}", gpus: {{0: {{fabric: {{summary: 2}}}}}}}}'
    with polled(profile, text, folder=tmp_path) as poll:
        assert [gpu.fabric and gpu.fabric.health_summary for gpu in poll.poll_all_tiers().gpus][:2] == told
