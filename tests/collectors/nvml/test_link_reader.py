"""NVLinks: link states, remote devices, and the counters of each generation."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from each_case import each_case
from overlay import answering, overlaid
from polled import Poll, open_poll

from gpumon.model.nvlink import Nvlink
from gpumon.model.reading import RARE
from gpumon.model.snapshot import GpuReading

CRC_0 = 163, 0
REFUSED = 0, 3, 3, bytes(8)
"""Return code "not supported" of one field in a batch."""
KINDS = {"replay", "recovery", "crc"}
DOWN = 'gpus: {"*": {nvlinks: {3: {state: down}}}}'


def slow(poll: Poll, index: int = 0) -> GpuReading:
    return poll.poll_later(all_tiers=True).gpus[index]


def states(reading: GpuReading) -> Counter[float | None]:
    return Counter(link.up for link in reading.links.values())


@each_case("profile", ["h100x8", "a100x8", "b200x8", "gb200x4", "h100pciex2"])
def test_a_link_that_is_down_is_reported_down(tmp_path: Path, profile: str) -> None:
    """A link that is down is reported down from the first reading, also if it was never up."""
    with open_poll(profile, DOWN, folder=tmp_path) as poll:
        reading = slow(poll)

    assert reading.links["3"].up == 0
    assert reading.links["4"].up == 1
    assert not reading.guest


def test_a_link_with_disabled_traffic_is_up(tmp_path: Path) -> None:
    """State 3 of driver 615, active with disabled traffic, is not down."""
    with open_poll(text="gpus: {0: {nvlinks: {3: {state: no_traffic}}}}", folder=tmp_path) as poll:
        reading = slow(poll)

    assert states(reading) == {1: 18}


def test_bit_error_rates_are_kept_between_rare_readings() -> None:
    """Bit error rates are in the rare tier, states and errors in the slow one; a link has both."""
    with open_poll("b200x8") as poll:
        slow(poll)
        first = slow(poll).links["3"]
        poll.node._due = {tier: 0.0 if tier is not RARE else float("inf") for tier in poll.node._due}
        second = poll.poll_later().gpus[0].links["3"]

    assert first.bit_error_ratio is not None
    assert second == first


def test_link_states_are_absent_with_mig_on() -> None:
    with open_poll("h100migx8") as poll:
        reading = slow(poll)

    assert states(reading) == {None: 18}
    assert reading.gpu is not None
    assert reading.gpu.nvlinks == 18


def test_a_guest_is_reported_with_its_link_states() -> None:
    """A guest reports its links as they are and is marked as a guest, because it may have a part of the fabric."""
    with open_poll("h100guestx2") as poll:
        reading = slow(poll)

    assert (states(reading), reading.guest) == ({0: 18}, True)


def test_links_that_come_up_late_are_read_in_full(tmp_path: Path) -> None:
    text = 'gpus: {"*": {nvlinks: {"*": {state: down}}}}'
    with open_poll("h100x1", text, folder=tmp_path) as poll:
        dark = slow(poll)
        poll.simulation.edit("gpus: {0: {nvlinks: {5: {crc: 7}}}}")
        lit = slow(poll)

    assert (dark.peers, dark.links["5"].up) == ({}, 0)
    assert lit.links["5"] == Nvlink(up=1, errors_total={"replay": 0, "recovery": 0, "crc": 7})
    assert lit.peers["5"].peer_type == "switch"
    assert lit.gpu is not None
    assert lit.gpu.nvlink_speed_bytes_per_second == 26562e6


def test_a_transient_error_of_one_link_affects_no_other_link(tmp_path: Path) -> None:
    """After a transient error of the first link the fields of all links are read again."""
    with open_poll("h100x1", folder=tmp_path) as poll:
        slow(poll)
        with overlaid({"nvmlDeviceGetFieldValues": answering(lambda n, link: REFUSED if (n, link) == CRC_0 else None)}):
            refused = slow(poll).links
        again = slow(poll).links

    assert [set(link.errors_total or {}) for link in (refused["0"], refused["1"])] == [{"replay", "recovery"}, KINDS]
    assert set(again["0"].errors_total or {}) == KINDS


def test_peers_are_sent_once() -> None:
    """Remote devices are in the first reading only, because they do not change."""
    with open_poll("h100pciex2") as poll:
        first, second = poll.poll().gpus[0], slow(poll)

    assert {(peer.peer_type, peer.peer) for peer in first.peers.values()} == {("gpu", "00000000:CA:00.0")}
    assert second.peers == {}


def test_a_switch_without_a_pci_function_has_no_address() -> None:
    """A remote device whose PCI address NVML fills with ones has no address."""
    with open_poll("b200x8") as poll:
        peers = poll.poll().gpus[0].peers

    assert {(peer.peer_type, peer.peer) for peer in peers.values()} == {("switch", None)}


def test_blackwell_has_its_own_counters(tmp_path: Path) -> None:
    """Blackwell has its own error counters and bit error rates packed into a mantissa and an exponent."""
    text = "gpus: {0: {nvlinks: {2: {symbol: 5, recovery_failed: 1, effective_ber: 3.0e-13}}}}"
    with open_poll("b200x8", text, folder=tmp_path) as poll:
        link = slow(poll).links["2"]

    assert "crc" not in (link.errors_total or {})
    assert (link.errors_total or {})["symbol"] == 5
    assert link.recoveries_total == {"successful": 0, "failed": 1}
    assert (link.bit_error_ratio or {})["effective"] == pytest.approx(3e-13)


def test_the_speed_of_the_slowest_link_is_reported(tmp_path: Path) -> None:
    with open_poll("h100x1", DOWN, folder=tmp_path) as poll:
        gpu = slow(poll).gpu

    assert gpu is not None
    assert gpu.nvlink_speed_bytes_per_second == 26562e6


def test_grace_has_c2c_links_a_rack_location_and_a_clique(tmp_path: Path) -> None:
    """A Grace host has C2C links, a rack location and a clique; other hosts have none of them."""
    with open_poll("gb200x4", "gpus: {1: {c2c_links: {2: down}}}", folder=tmp_path) as poll:
        grace = slow(poll, 1)
    with open_poll("h100x8") as poll:
        other = slow(poll)

    assert [link.up for link in grace.c2c_links.values()] == [1, 1, 0, 1, 1]
    assert grace.platform is not None
    assert None not in {grace.platform.chassis, grace.platform.slot, grace.platform.tray}
    assert grace.fabric is not None
    assert (grace.fabric.cluster_uuid or "").count("-") == 4
    assert grace.fabric.clique_id is not None
    assert (other.c2c_links, other.platform) == ({}, None)
    assert other.fabric is not None
    assert (other.fabric.state, other.fabric.cluster_uuid) == (3, None)


@each_case("driver", ["535.183.01", "550.163.01", "570.148.08", "580.173.02", "610.43.02"])
def test_fabric_info_uses_a_struct_version_of_the_driver(tmp_path: Path, driver: str) -> None:
    """The newest of three struct versions is tried first, and the version that works is remembered."""
    with open_poll("h100x1", f'driver_version: "{driver}"', folder=tmp_path) as poll:
        fabric = slow(poll).fabric
        before = Counter(poll.simulation.node.library._trace._calls)
        slow(poll)
        after = Counter(poll.simulation.node.library._trace._calls) - before

    assert fabric is not None
    assert (fabric.state, fabric.status) == (3, 0)
    assert after["nvmlDeviceGetGpuFabricInfoV"] + after["nvmlDeviceGetGpuFabricInfo"] == 1


@pytest.mark.parametrize(("state", "status"), [(1, None), (2, None), (3, 0)])
def test_the_fabric_status_needs_a_complete_registration(tmp_path: Path, state: int, status: int | None) -> None:
    with open_poll("gb200x4", f"gpus: {{0: {{fabric: {{state: {state}}}}}}}", folder=tmp_path) as poll:
        fabric = slow(poll).fabric

    assert fabric is not None
    assert (fabric.state, fabric.status, fabric.clique_id is not None) == (state, status, state == 3)


def test_unhealthy_checks_of_the_fabric_are_1(tmp_path: Path) -> None:
    """Each health bit field has its own healthy value; an unsupported field is absent."""
    text = "gpus: {0: {fabric: {health: {degraded_bandwidth: 1, incorrect_configuration: 2}}}}"
    with open_poll("gb200x4", text, folder=tmp_path) as poll:
        fabric = slow(poll).fabric
    with open_poll("h100x1") as poll:
        hopper = slow(poll).fabric

    assert fabric is not None
    assert (fabric.health or {})["degraded_bandwidth"] == 1
    assert (fabric.health or {})["incorrect_configuration"] == 1
    assert (fabric.health or {})["route_unhealthy"] == 0
    assert hopper is not None
    assert hopper.health is None


@pytest.mark.parametrize(
    ("profile", "driver", "summaries"),
    [("gb200x4", "580.65.06", [2, 1]), ("gb200x4", "570.148.08", [None, None]), ("h100x8", "580.65.06", [2, None])],
)
def test_the_fabric_health_summary_needs_driver_support(
    tmp_path: Path, profile: str, driver: str, summaries: list[int | None]
) -> None:
    """A health summary of 0 is absent, because it means unknown."""
    text = f'{{driver_version: "{driver}", gpus: {{0: {{fabric: {{summary: 2}}}}}}}}'
    with open_poll(profile, text, folder=tmp_path) as poll:
        assert [gpu.fabric and gpu.fabric.health_summary for gpu in poll.poll_all_tiers().gpus][:2] == summaries
