"""Checks of NVLinks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from judging import Ward

from gpumon.health.acknowledge import AckRequest, acknowledgement
from gpumon.health.verdict import Action, Level
from gpumon.model.nvlink import NvlinkPeer

BLACKWELL = {
    **dict.fromkeys(("malformed_packet", "buffer_overrun", "receive", "receive_remote", "receive_general"), 0.0),
    **dict.fromkeys(("local_link_integrity", "transmit_discard", "effective", "symbol"), 0.0),
}


def counted(ward: Ward, errors: Mapping[str, float], index: int = 3, link: int = 4) -> None:
    """The link's counters gain so much."""
    known = dict(ward.report.gpus[index].links[str(link)].errors_total or {})
    for kind, gained in errors.items():
        known[kind] = known.get(kind, 0.0) + gained
    ward.link(index, link, errors_total=known)


def growing(ward: Ward, seconds: float, **a_minute: float) -> Ward:
    """They gain so much every minute."""
    for _ in range(int(seconds / 15)):
        counted(ward, {kind: gained / 4 for kind, gained in a_minute.items()})
        ward.go_on(15, every=15)
    return ward


@pytest.mark.parametrize("kind", ["replay", "recovery"])
def test_one_repeated_packet_is_a_warning_for_a_while(kind: str) -> None:
    """It blames the link, and is over when no other comes."""
    ward = Ward().go_on(60)
    counted(ward, {kind: 1.0})
    verdict = ward.go_on(15).verdict("nvlink_errors", 3)
    assert verdict is not None
    assert (verdict.level, verdict.evidence["link"]) == (Level.WARN, "4")
    assert verdict.reason == f"Errors of NVLink 4 in five minutes: 1 {kind}."
    assert not ward.go_on(420).verdicts


def test_errors_from_before_the_agent_began_do_not_count() -> None:
    """What a counter stands at is no error of now."""
    ward = Ward()
    counted(ward, {"replay": 1e6, "recovery": 1e6, "crc": 1e9})
    assert not ward.go_on(2400, every=30).verdicts


def test_a_checksum_error_now_and_then_is_nothing() -> None:
    """Not even one every minute and a half."""
    ward = Ward().go_on(60)
    for _ in range(12):
        counted(ward, {"crc": 1.0})
        ward.go_on(90)
    assert not ward.verdicts


@pytest.mark.parametrize(("a_second", "level"), [(99.0, Level.WARN), (110.0, Level.FAIL)])
def test_checksum_errors_that_go_on_are_judged_by_their_rate(a_second: float, level: Level) -> None:
    """Five minutes of them; then the level follows the rate."""
    ward = Ward().go_on(60)
    growing(ward, 210, crc=a_second * 60)
    assert ward.level("nvlink_crc_high", 3) is Level.OK
    growing(ward, 120, crc=a_second * 60)
    assert ward.level("nvlink_crc_high", 3) is level
    assert not ward.go_on(3600, every=30).verdicts


def test_a_rate_about_the_limit_is_at_least_a_warning() -> None:
    """What is now a warning and now a failure has lasted."""
    ward = Ward().go_on(60)
    for _ in range(8):
        growing(ward, 60, crc=90 * 60)
        growing(ward, 60, crc=140 * 60)
    assert ward.level("nvlink_crc_high", 3) >= Level.WARN


def test_a_link_that_goes_down_and_comes_back_again_and_again_is_unfit() -> None:
    """Though it is never down for so long that it is called so; four times in half an hour are borne."""
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


def test_a_link_with_errors_most_minutes_is_unfit() -> None:
    """Fifteen minutes of thirty are borne, sixteen are not."""
    ward = Ward().go_on(60)
    for _ in range(15):
        counted(ward, {"replay": 1.0})
        ward.go_on(60)
    assert ward.level("nvlink_unstable", 3) is Level.OK
    for _ in range(3):
        counted(ward, {"replay": 1.0})
        ward.go_on(60)
    verdict = ward.verdict("nvlink_unstable", 3)
    assert verdict is not None
    assert verdict.level is Level.FAIL
    warning = ward.verdict("nvlink_errors", 3)
    assert warning is not None
    assert warning.inhibited_by == verdict.key


def test_an_nvlink_5_link_that_could_not_be_trained_again_stays_a_failure() -> None:
    """Until its GPU is reset; one that was trained again is a warning."""
    ward = Ward().go_on(60)
    ward.link(3, 4, errors_total=BLACKWELL, recoveries_total={"successful": 0.0, "failed": 0.0})
    ward.go_on(60)
    ward.link(3, 4, recoveries_total={"successful": 1.0, "failed": 0.0})
    assert ward.go_on(15).seen() == ["nvlink_errors"]
    ward.link(3, 4, recoveries_total={"successful": 1.0, "failed": 1.0})
    verdict = ward.go_on(15).verdict("nvlink_recovery_failed", 3)
    assert verdict is not None
    assert verdict.action is Action.RESET
    assert ward.go_on(86400, every=600).level("nvlink_recovery_failed", 3) is Level.FAIL
    ward.reset(3)
    assert not ward.go_on(600, every=15).verdicts


def test_what_blackwell_corrects_or_hears_of_is_nothing() -> None:
    """Symbol errors, discards, and what the other end has marked."""
    ward = Ward()
    ward.link(3, 4, errors_total=BLACKWELL)
    ward.go_on(60)
    growing(ward, 1200, symbol=1e4, transmit_discard=10.0, receive_remote=10.0, effective=1.0)
    assert not ward.verdicts


def test_wrong_bits_above_the_limit_are_a_failure() -> None:
    """Those of a good link are not."""
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


def test_a_link_slower_than_its_neighbours_is_a_warning() -> None:
    """Even of a product that nobody has written down."""
    ward = Ward()
    for index in range(4):
        ward.gpu(index, name="NVIDIA Unheard Of", nvlink_speed_bytes_per_second=40e9)
    assert not ward.go_on(900, every=15).verdicts
    ward.gpu(2, nvlink_speed_bytes_per_second=20e9)
    assert ward.go_on(360).level("nvlink_slow", 2) is Level.WARN
    ward.gpu(2, nvlink_speed_bytes_per_second=40e9)
    assert not ward.go_on(90).verdicts


def test_links_that_are_all_slower_than_their_product_are_a_warning() -> None:
    """An H100's are good for 25 GB/s each way, and mostly do a little more."""
    ward = Ward(gpus=2)
    for index in range(2):
        ward.gpu(index, nvlink_speed_bytes_per_second=12.5e9)
    ward.go_on(360)
    assert {key: one.level for key, one in ward.verdicts.items()} == {
        ("nvlink_slow", state.uuid): Level.WARN for state in ward.report.gpus
    }


def test_who_cannot_be_read_keeps_what_was_found() -> None:
    """Links that are not read are neither well nor worse."""
    ward = Ward()
    ward.link(3, 9, bit_error_ratio={"effective": 2e-11})
    assert ward.go_on(360).seen() == ["nvlink_ber_high"]
    ward.gpu(3, state={"links": {}})
    assert ward.go_on(3600, every=30).seen() == ["nvlink_ber_high"]


def test_a_released_neighbour_says_nothing_of_links() -> None:
    """Its reset takes links of others down, and has them trained again."""
    ward = Ward().go_on(60)
    ward.gpu(0, state={"released": True, "links": {}})
    ward.link(3, 4, up=0.0)
    counted(ward, {"replay": 12.0, "recovery": 3.0})
    ward.go_on(600, every=15)
    ward.gpu(0, state={"released": False, "links": ward.report.gpus[1].links})
    ward.link(3, 4, up=1.0)
    counted(ward, {"replay": 2.0})
    ward.reset(0)
    assert not ward.go_on(900, every=15).verdicts


def test_an_xid_of_the_link_is_the_cause_and_another_is_not() -> None:
    """The driver's own word on links comes first; memory errors explain no link."""
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


def test_errors_towards_a_lost_gpu_stand_under_it() -> None:
    """Those of its peers, not those of others."""
    ward = Ward(gpus=2)
    for index in range(2):
        peers = {"4": NvlinkPeer(peer_type="gpu", peer=ward.report.gpus[1 - index].bus_id)}
        ward.gpu(index, state={"peers": peers})
    ward.go_on(60)
    ward.fault(0, "lost")
    counted(ward, {"replay": 5.0}, 1)
    ward.go_on(30)
    assert [one.check for one in ward.report.health.primary] == ["gpu_lost"]


def test_a_link_that_only_the_last_agent_knew_stays_a_failure() -> None:
    """Where links are learnt, a restart forgets which should be up: that proves nothing, and a person may say so."""
    ward = Ward()
    ward.link(3, 4, up=0.0)
    ward.go_on(150)
    ward.restart()
    ward.link(3, 4, up=None)
    verdict = ward.go_on(600, every=15).verdict("nvlink_down", 3)
    assert verdict is not None
    assert not verdict.active
    here = [state.uuid for state in ward.report.gpus]
    assert acknowledgement(AckRequest(check="nvlink_down"), ward.report.health, here).cleared
    ward.link(3, 4, up=1.0)
    assert not ward.go_on(90).verdicts


def test_sleeping_links_and_mig_are_nothing() -> None:
    """A link that sleeps is up; with MIG on, nobody expects any."""
    ward = Ward()
    for index in range(4):
        links = {name: replace(one, up=None) for name, one in ward.report.gpus[index].links.items()}
        ward.gpu(index, state={"links": links}, mig_mode=1.0, nvlink_speed_bytes_per_second=1e9)
    assert not ward.go_on(900, every=15).verdicts


@pytest.mark.parametrize("code", [145, 149])
def test_a_link_that_is_down_explains_an_xid_that_tells_no_more(code: int) -> None:
    """Without its registers nobody can tell what the Xid asks for; that the link is down says enough."""
    ward = Ward(gpus=4, ports=0)
    ward.event(3, code)
    ward.link(3, 4, up=0.0)
    ward.go_on(200)
    assert ward.seen() == ["gpu_xid", "nvlink_down"]
    assert [one.check for one in ward.report.health.primary] == ["nvlink_down"]
