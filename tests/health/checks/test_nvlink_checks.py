"""Checks of NVLinks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from judging import Ward

from gpumon.health.clear_request import ClearRequest, requested_clearance
from gpumon.health.verdict import Action, Level
from gpumon.model.nvlink import NvlinkPeer

BLACKWELL = {
    **dict.fromkeys(("malformed_packet", "buffer_overrun", "receive", "receive_remote", "receive_general"), 0.0),
    **dict.fromkeys(("local_link_integrity", "transmit_discard", "effective", "symbol"), 0.0),
}


def add_errors(ward: Ward, errors: Mapping[str, float], index: int = 3, link: int = 4) -> None:
    """Add to the error counters of one link."""
    known = dict(ward.report.gpus[index].links[str(link)].errors_total or {})
    for kind, gained in errors.items():
        known[kind] = known.get(kind, 0.0) + gained
    ward.link(index, link, errors_total=known)


def add_errors_every_minute(ward: Ward, seconds: float, **a_minute: float) -> Ward:
    """Add to the error counters of a link at a rate per minute while time passes."""
    for _ in range(int(seconds / 15)):
        add_errors(ward, {kind: gained / 4 for kind, gained in a_minute.items()})
        ward.go_on(15, every=15)
    return ward


@pytest.mark.parametrize("kind", ["replay", "recovery"])
def test_one_replay_or_recovery_error_is_a_temporary_warning(kind: str) -> None:
    """One error raises a warning that names the link and clears if no other error follows."""
    ward = Ward().go_on(60)
    add_errors(ward, {kind: 1.0})
    verdict = ward.go_on(15).verdict("nvlink_errors", 3)
    assert verdict is not None
    assert (verdict.level, verdict.evidence["link"]) == (Level.WARN, "4")
    assert verdict.reason == f"Errors of NVLink 4 in five minutes: 1 {kind}."
    assert not ward.go_on(420).verdicts


def test_errors_before_the_agent_started_do_not_count() -> None:
    ward = Ward()
    add_errors(ward, {"replay": 1e6, "recovery": 1e6, "crc": 1e9})
    assert not ward.go_on(2400, every=30).verdicts


def test_occasional_crc_errors_raise_no_verdict() -> None:
    ward = Ward().go_on(60)
    for _ in range(12):
        add_errors(ward, {"crc": 1.0})
        ward.go_on(90)
    assert not ward.verdicts


@pytest.mark.parametrize(("a_second", "level"), [(99.0, Level.WARN), (110.0, Level.FAIL)])
def test_the_rate_of_persistent_crc_errors_sets_the_level(a_second: float, level: Level) -> None:
    """After five minutes the rate of CRC errors decides between warning and failure."""
    ward = Ward().go_on(60)
    add_errors_every_minute(ward, 210, crc=a_second * 60)
    assert ward.level("nvlink_crc_high", 3) is Level.OK
    add_errors_every_minute(ward, 120, crc=a_second * 60)
    assert ward.level("nvlink_crc_high", 3) is level
    assert not ward.go_on(3600, every=30).verdicts


def test_a_rate_that_varies_around_the_limit_is_at_least_a_warning() -> None:
    ward = Ward().go_on(60)
    for _ in range(8):
        add_errors_every_minute(ward, 60, crc=90 * 60)
        add_errors_every_minute(ward, 60, crc=140 * 60)
    assert ward.level("nvlink_crc_high", 3) >= Level.WARN


def test_a_link_that_goes_down_five_times_in_half_an_hour_fails() -> None:
    ward = Ward().go_on(60)

    def falls(times: int) -> None:
        for _ in range(times):
            ward.link(3, 7, up=0.0)
            ward.go_on(90, every=15)
            ward.link(3, 7, up=1.0)
            ward.go_on(30, every=15)

    falls(4)
    assert not ward.verdicts
    falls(1)
    [verdict] = ward.verdicts.values()
    assert (verdict.check, verdict.level, verdict.action) == ("nvlink_unstable", Level.FAIL, Action.INSPECT)
    assert verdict.reason == "NVLink 7 went down 5 times in the last 30 minutes."


def test_a_link_with_errors_in_most_minutes_fails() -> None:
    """A link with errors in more than 15 of 30 minutes fails."""
    ward = Ward().go_on(60)
    for _ in range(15):
        add_errors(ward, {"replay": 1.0})
        ward.go_on(60)
    assert ward.level("nvlink_unstable", 3) is Level.OK
    for _ in range(3):
        add_errors(ward, {"replay": 1.0})
        ward.go_on(60)
    verdict = ward.verdict("nvlink_unstable", 3)
    assert verdict is not None
    assert verdict.level is Level.FAIL
    warning = ward.verdict("nvlink_errors", 3)
    assert warning is not None
    assert warning.inhibited_by == verdict.key


def test_a_failed_nvlink_5_recovery_remains_a_failure_until_the_reset() -> None:
    ward = Ward().go_on(60)
    ward.link(3, 4, errors_total=BLACKWELL, recoveries_total={"successful": 0.0, "failed": 0.0})
    ward.go_on(60)
    ward.link(3, 4, recoveries_total={"successful": 1.0, "failed": 0.0})
    assert ward.go_on(15).active_checks() == ["nvlink_errors"]
    ward.link(3, 4, recoveries_total={"successful": 1.0, "failed": 1.0})
    verdict = ward.go_on(15).verdict("nvlink_recovery_failed", 3)
    assert verdict is not None
    assert verdict.action is Action.RESET
    assert ward.go_on(86400, every=600).level("nvlink_recovery_failed", 3) is Level.FAIL
    ward.reset(3)
    assert not ward.go_on(600, every=15).verdicts


def add_recoveries(ward: Ward, times: int, every: float) -> None:
    """Let link 4 of GPU 3 recover at this interval in seconds; no other counter grows."""
    for _ in range(times):
        before = (ward.report.gpus[3].links["4"].recoveries_total or {}).get("successful", 0.0)
        ward.link(3, 4, recoveries_total={"successful": before + 1.0, "failed": 0.0})
        ward.go_on(every, every=min(every, 300.0))


@pytest.mark.parametrize(("every", "times"), [(420.0, 20), (3600.0, 6)])
def test_a_link_that_recovers_all_day_is_a_warning_until_the_reset(every: float, times: int) -> None:
    """Twenty recoveries in a day, or recoveries in six of 24 hours, raise a warning, which a GPU reset clears."""
    ward = Ward().go_on(60)
    ward.link(3, 4, errors_total=BLACKWELL, recoveries_total={"successful": 505.0, "failed": 0.0})
    ward.go_on(60)
    add_recoveries(ward, times - 1, every)
    assert ward.level("nvlink_recovering", 3) is Level.OK
    add_recoveries(ward, 1, every)
    verdict = ward.verdict("nvlink_recovering", 3)
    assert verdict is not None
    assert (verdict.level, verdict.action, verdict.evidence["link"]) == (Level.WARN, Action.INSPECT, "4")
    ward.reset(3)
    assert not ward.go_on(1800, every=60).verdicts


def test_a_link_that_recovers_each_hour_has_one_verdict() -> None:
    """A recovery every 55 minutes, in six hours or more of any day, does not clear it."""
    ward = Ward().go_on(60)
    ward.link(3, 4, errors_total=BLACKWELL, recoveries_total={"successful": 0.0, "failed": 0.0})
    add_recoveries(ward, 8, 55 * 60.0)
    began = ward.verdict("nvlink_recovering", 3)
    add_recoveries(ward, 8, 55 * 60.0)
    now = ward.verdict("nvlink_recovering", 3)
    assert began is not None
    assert now is not None
    assert now.raised == began.raised


def test_a_link_that_recovers_in_most_minutes_fails() -> None:
    ward = Ward().go_on(60)
    ward.link(3, 4, errors_total=BLACKWELL, recoveries_total={"successful": 0.0, "failed": 0.0})
    ward.go_on(60)
    add_recoveries(ward, 18, 60.0)
    assert ward.level("nvlink_unstable", 3) is Level.FAIL


def test_discards_on_blackwell_raise_no_verdict() -> None:
    ward = Ward()
    ward.link(3, 4, errors_total=BLACKWELL)
    ward.go_on(60)
    add_errors_every_minute(ward, 1200, transmit_discard=10.0)
    assert not ward.verdicts


@pytest.mark.parametrize("kind", ["symbol", "effective", "receive_remote"])
def test_errors_that_dcgm_fails_are_a_warning_and_a_failure_if_they_last(kind: str) -> None:
    """One burst of symbol, effective or remote errors is a warning; errors in most minutes are a failure."""
    ward = Ward()
    ward.link(3, 4, errors_total=BLACKWELL)
    ward.go_on(60)
    add_errors_every_minute(ward, 60, **{kind: 40.0})
    assert ward.level("nvlink_errors", 3) is Level.WARN
    assert ward.level("nvlink_unstable", 3) is Level.OK
    add_errors_every_minute(ward, 1200, **{kind: 40.0})
    assert ward.level("nvlink_unstable", 3) is Level.FAIL


def test_a_bit_error_ratio_above_the_limit_raises_a_verdict() -> None:
    ward = Ward()
    for link in range(18):
        ward.link(3, link, bit_error_ratio={"effective": 1e-12, "symbol": 1e-7})
    assert not ward.go_on(900, every=15).verdicts
    ward.link(3, 9, bit_error_ratio={"effective": 2e-11, "symbol": 1e-7})
    assert ward.go_on(240).level("nvlink_ber_high", 3) is Level.OK
    verdict = ward.go_on(120).verdict("nvlink_ber_high", 3)
    assert verdict is not None
    assert verdict.evidence["link"] == "9"
    ward.link(3, 9, bit_error_ratio={"effective": 0.0, "symbol": 0.0})
    assert not ward.go_on(120).verdicts


def test_links_slower_than_those_of_other_gpus_are_a_warning() -> None:
    """Slow links are detected by comparison, also for a product that is not in the tables."""
    ward = Ward()
    for index in range(4):
        ward.gpu(index, name="NVIDIA Unheard Of", nvlink_speed_bytes_per_second=40e9)
    assert not ward.go_on(900, every=15).verdicts
    ward.gpu(2, nvlink_speed_bytes_per_second=20e9)
    assert ward.go_on(360).level("nvlink_slow", 2) is Level.WARN
    ward.gpu(2, nvlink_speed_bytes_per_second=40e9)
    assert not ward.go_on(90).verdicts


def test_links_slower_than_the_nominal_speed_are_a_warning() -> None:
    """H100 links below the nominal 25 GB/s in each direction raise a warning."""
    ward = Ward(gpus=2)
    for index in range(2):
        ward.gpu(index, nvlink_speed_bytes_per_second=12.5e9)
    ward.go_on(360)
    assert {key: one.level for key, one in ward.verdicts.items()} == {
        ("nvlink_slow", state.uuid): Level.WARN for state in ward.report.gpus
    }


def test_unreadable_links_keep_their_verdicts() -> None:
    ward = Ward()
    ward.link(3, 9, bit_error_ratio={"effective": 2e-11})
    assert ward.go_on(360).active_checks() == ["nvlink_ber_high"]
    ward.gpu(3, state={"links": {}})
    assert ward.go_on(3600, every=30).active_checks() == ["nvlink_ber_high"]


def test_links_are_not_judged_while_a_peer_is_released() -> None:
    """The reset of a released GPU takes links of its peers down, which raises no verdict."""
    ward = Ward().go_on(60)
    ward.gpu(0, state={"released": True, "links": {}})
    ward.link(3, 4, up=0.0)
    add_errors(ward, {"replay": 12.0, "recovery": 3.0})
    ward.go_on(600, every=15)
    ward.gpu(0, state={"released": False, "links": ward.report.gpus[1].links})
    ward.link(3, 4, up=1.0)
    add_errors(ward, {"replay": 2.0})
    ward.reset(0)
    assert not ward.go_on(900, every=15).verdicts


def test_only_a_link_xid_inhibits_link_verdicts() -> None:
    ward = Ward()
    ward.event(3, 74)
    ward.event(1, 95)
    ward.link(3, 4, up=0.0)
    ward.link(1, 4, up=0.0)
    ward.go_on(180)
    linked, other = ward.verdict("nvlink_down", 3), ward.verdict("nvlink_down", 1)
    assert linked is not None
    assert linked.inhibited_by == ("gpu_xid_critical", ward.report.gpus[3].uuid)
    assert other is not None
    assert other.inhibited_by is None


def test_link_errors_towards_a_lost_gpu_are_inhibited() -> None:
    ward = Ward(gpus=2)
    for index in range(2):
        peers = {"4": NvlinkPeer(peer_type="gpu", peer=ward.report.gpus[1 - index].bus_id)}
        ward.gpu(index, state={"peers": peers})
    ward.go_on(60)
    ward.fault(0, "lost")
    add_errors(ward, {"replay": 5.0}, 1)
    ward.go_on(30)
    assert [each.check for each in ward.report.health.primary] == ["gpu_lost"]


def test_a_failed_link_remains_after_a_restart_if_expected_links_are_learned() -> None:
    """A restart that loses the learned links does not clear the verdict, which an operator can clear."""
    ward = Ward()
    ward.link(3, 4, up=0.0)
    ward.go_on(150)
    ward.restart()
    ward.link(3, 4, up=None)
    verdict = ward.go_on(600, every=15).verdict("nvlink_down", 3)
    assert verdict is not None
    assert not verdict.active
    here = [state.uuid for state in ward.report.gpus]
    assert requested_clearance(ClearRequest(check="nvlink_down"), ward.report.health, here).cleared
    ward.link(3, 4, up=1.0)
    assert not ward.go_on(90).verdicts


def test_sleeping_links_and_mig_raise_no_verdict() -> None:
    ward = Ward()
    for index in range(4):
        links = {name: replace(one, up=None) for name, one in ward.report.gpus[index].links.items()}
        ward.gpu(index, state={"links": links}, mig_mode=1.0, nvlink_speed_bytes_per_second=1e9)
    assert not ward.go_on(900, every=15).verdicts


@pytest.mark.parametrize("code", [145, 149])
def test_a_link_that_is_down_inhibits_an_xid_without_registers(code: int) -> None:
    ward = Ward(gpus=4, ports=0)
    ward.event(3, code)
    ward.link(3, 4, up=0.0)
    ward.go_on(200)
    assert ward.active_checks() == ["gpu_xid", "nvlink_down"]
    assert [each.check for each in ward.report.health.primary] == ["nvlink_down"]
