"""A port that was up before is missing when it is down or gone, under any name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reader_turns import host_snapshot
from reduced_reports import UP, gpu_reading, log_lines, reduce_all, snapshot

from gpumon.model.infiniband import InfinibandLink, InfinibandPort
from gpumon.model.records import PortRecord
from gpumon.model.snapshot import HostSnapshot, HostStatus, PciBus, PortReading
from gpumon.services.inventory_acceptance import acceptance, refusal
from gpumon.state import port_inventory
from gpumon.state.messages import Message, StoredState
from gpumon.state.port_inventory import MAX_RECORDS, SETTLING_SECONDS
from gpumon.state.report import Report

CARDS = 4
LATER = SETTLING_SECONDS + 5.0


def card(number: int, place: int | None = None, device: int | None = None, *, up: float | None = 1.0) -> PortReading:
    """Return card `number` at this place of the bus, with this device name."""
    place = number if place is None else place
    return PortReading(
        device=f"mlx5_{place if device is None else device}",
        port="1",
        link_layer="InfiniBand",
        link=InfinibandLink(port_up=up, port_speed_bytes_per_second=50e9 if up else None),
        counts=InfinibandPort(receive_bytes_total=0.0, link_downs_total=0.0),
        bus_id=f"00000000:{0x10 + place:02X}:00.0",
        board="MT_0000000838",
        guid=f"5c25:7303:00f0:{number:04x}",
        firmware="28.43.1014",
    )


def links(*cards: PortReading, **more: object) -> HostSnapshot:
    return host_snapshot(ports=cards, **more)  # type: ignore[arg-type]


def report_after(*arrivals: Message, report: Report | None = None, at: float = 100.0) -> Report:
    return reduce_all(*arrivals, report=report or Report(started=0.0, boot_id="b2"), at=at)


def port_records(report: Report) -> tuple[PortRecord, ...]:
    return tuple(report.host.inventory.records.values())


def after_reboot(report: Report, *cards: PortReading) -> Report:
    """Return the report after a reboot, after one poll at the start and one when all drivers are loaded."""
    at = report.host.read_at + 1000.0
    after = report_after(StoredState(ports=port_records(report)), links(*cards), at=at)
    return report_after(links(*cards), report=after, at=at + LATER)


def missing(report: Report) -> list[str]:
    return [gone.port.device for gone in report.gone_ports]


def expected_ports(report: Report) -> dict[str, bool | None]:
    """Return whether each port is expected, by its name in verdicts."""
    return {name: record.expected for name, record in port_inventory.by_name(report.host.inventory).items()}


ALL = tuple(card(number) for number in range(CARDS))


@pytest.mark.parametrize("late", [False, True], ids=["store first", "links first"])
def test_a_card_that_is_gone_after_a_reboot_is_missing(*, late: bool) -> None:
    """A gone card is missing since its last reading, whether the store or the poll arrives first."""
    remembered, poll = StoredState(ports=port_records(report_after(links(*ALL)))), links(*ALL[:3])
    arrivals = (poll, remembered, poll) if late else (remembered, poll)
    report = report_after(*arrivals, at=1000.0)

    assert missing(report) == ["mlx5_3"]
    assert report.gone_ports[0].wall == 1e9 + 100.0
    assert report.gone_ports[0].port.link == InfinibandLink()
    assert missing(report_after(links(*ALL), report=report, at=1005.0)) == []


def test_all_cards_that_are_gone_are_missing() -> None:
    """If the driver is not loaded, the empty device folder makes every card missing."""
    assert len(missing(after_reboot(report_after(links(*ALL))))) == CARDS


def test_no_card_is_missing_while_the_list_fails() -> None:
    before = StoredState(ports=port_records(report_after(links(*ALL))))
    assert missing(report_after(before, links(ALL[0], errors={"infiniband": "class/infiniband: denied"}))) == []
    assert missing(report_after(before, HostStatus(trouble="no child"), links(ALL[0]))) == []


def test_only_ports_that_were_up_are_expected() -> None:
    """A port that is down since boot and never counted anything is not expected."""
    first = report_after(links(card(0), card(1, up=0.0)))
    report = after_reboot(first, card(0, up=0.0), card(1, up=0.0))

    assert expected_ports(report) == {"mlx5_0/1": True, "mlx5_1/1": None}
    assert missing(after_reboot(first, card(0, up=0.0))) == []  # the unused card


def test_a_port_used_before_the_agent_started_is_expected() -> None:
    """A port that is down but has counted traffic since boot is expected, also after the next boot."""
    dead = card(1, up=0.0)
    dead = replace(dead, counts=InfinibandPort(receive_bytes_total=7e9, link_downs_total=1.0))
    assert (
        expected_ports(after_reboot(report_after(links(card(0), dead)), card(0), card(1, up=0.0)))["mlx5_1/1"] is True
    )


def test_renamed_cards_keep_their_identity() -> None:
    """An inserted card that shifts names and addresses does not make other cards missing."""
    moved = [card(9, 0), *(card(number, number + 1, up=float(number != 2)) for number in range(CARDS))]
    report = after_reboot(report_after(links(*ALL)), *moved)

    assert missing(report) == []
    assert expected_ports(report) == {f"mlx5_{number}/1": True for number in range(CARDS + 1)}
    assert report.host.inventory.records["5c25:7303:00f0:0002/1"].device == "mlx5_3"


def test_a_missing_card_whose_name_is_taken_is_named_by_its_address() -> None:
    shifted = [card(0), card(2, 2, 1), card(3, 3, 2)]
    report = after_reboot(report_after(links(*ALL)), *shifted)

    assert missing(report) == ["00000000:11:00.0"]
    assert len(expected_ports(report)) == CARDS


@pytest.mark.parametrize("place", [3, 7], ids=["in its slot", "in another slot"])
def test_a_replaced_card_is_no_longer_missing(place: int) -> None:
    """A replaced card is removed when the expected number is up; the log reports it, also after a restart."""
    first = report_after(links(*ALL))
    before = report_after(StoredState(ports=port_records(first)), links(*ALL[:3], card(9, place)), at=1000.0)
    after = report_after(links(*ALL[:3], card(9, place)), report=before, at=1000.0 + LATER)

    assert missing(before)
    assert missing(after) == []
    assert [words for _, words in log_lines(before, after) if "replaced" in words]
    again = after_reboot(after, *ALL[:3], card(9, place))
    assert missing(again) == []
    assert missing(after_reboot(again, *ALL)) == []  # the old card returns to the place of the new reading


def test_a_new_card_in_the_slot_of_an_old_card_is_expected_up() -> None:
    report = after_reboot(report_after(links(*ALL)), *ALL[:3], card(9, 3, up=0.0))

    assert missing(report) == []
    assert expected_ports(report)["mlx5_3/1"] is True


def test_a_moved_card_replaces_no_card() -> None:
    report = after_reboot(report_after(links(*ALL)), card(0), card(1), card(3, 2))
    assert missing(report) == ["00000000:12:00.0"]
    assert len(expected_ports(report)) == CARDS


def test_cards_that_appear_one_after_another_replace_no_card() -> None:
    """A new card that loads first at the address of a later card replaces no card."""
    remembered = StoredState(ports=port_records(report_after(links(*ALL))))
    report = report_after(remembered, links(card(9, 0, up=0.0)), at=1000.0)
    moved = [card(9, 0, up=0.0), *(card(number, number + 1) for number in range(CARDS))]
    report = report_after(links(*moved), report=report, at=1000.0 + SETTLING_SECONDS - 5.0)

    assert missing(report_after(links(*moved), report=report, at=1100.0)) == []
    assert expected_ports(report)["mlx5_0/1"] is None


def at_speed(reading: PortReading, speed: float) -> PortReading:
    return replace(reading, link=replace(reading.link, port_speed_bytes_per_second=speed))


def speeds(report: Report) -> dict[str, float | None]:
    return {name: record.speed for name, record in port_inventory.by_name(report.host.inventory).items()}


def test_a_slower_port_keeps_its_faster_speed_until_acceptance() -> None:
    """A slower port keeps its faster speed over reboots until its own lower speed is accepted."""
    gpus = (PciBus(functions={}), UP, snapshot(gpu_reading(0)))
    slow = tuple(at_speed(reading, 12.5e9) for reading in ALL[:2])
    report = after_reboot(report_after(links(*ALL)), *slow, *ALL[2:])
    at = report.host.read_at
    report = report_after(*gpus, report=report, at=at)
    assert set(speeds(report).values()) == {50e9}

    assert set(acceptance(report).slow.values()) == {12.5e9}
    assert refusal(report, ["mlx5_2/1"]) is not None
    assert refusal(report, ["mlx5_1/1"]) is None
    answer = acceptance(report, ["mlx5_1/1"])
    assert (answer.count, answer.ports, answer.slow) == (None, (), {"5c25:7303:00f0:0001/1": 12.5e9})
    after = after_reboot(report_after(answer, report=report, at=at), *slow, *ALL[2:])
    assert speeds(after) == {"mlx5_0/1": 50e9, "mlx5_1/1": 12.5e9, "mlx5_2/1": 50e9, "mlx5_3/1": 50e9}


def test_a_port_accepted_as_down_returns_at_any_speed() -> None:
    """A port that was accepted as down returns with its current speed, because its cable may be different."""
    report = report_after(links(*ALL[:3], card(3, up=0.0)), report=report_after(links(*ALL)), at=105.0)
    report = report_after(replace(acceptance(report), count=None), report=report, at=105.0)
    back = report_after(links(*ALL[:3], at_speed(ALL[3], 12.5e9)), report=report, at=110.0)
    assert speeds(back)["mlx5_3/1"] == 12.5e9


def test_accepted_parts_are_no_longer_expected() -> None:
    """Accepted ports that are down or gone are not expected, also after a restart, until they are up."""
    gpus = (PciBus(functions={}), UP, snapshot(gpu_reading(0)))
    first = report_after(links(*ALL))
    here = (*ALL[:2], card(2, up=0.0))
    report = report_after(StoredState(ports=port_records(first)), *gpus, links(*here), at=1000.0)
    answer = acceptance(report)
    assert set(answer.ports) == {"5c25:7303:00f0:0002/1", "5c25:7303:00f0:0003/1"}

    for part in ("mlx5_3/1", "5c25:7303:00f0:0003/1"):
        alone = acceptance(report, [part])
        assert (alone.count, alone.gone, alone.ports) == (None, (), ("5c25:7303:00f0:0003/1",))
    partly = report_after(alone, links(*here), report=report, at=1005.0)
    assert (missing(partly), expected_ports(partly)["mlx5_2/1"]) == ([], True)
    assert (partly.inventory.accepted, partly.inventory.learned) == (
        report.inventory.accepted,
        report.inventory.learned,
    )

    after = report_after(answer, links(*here), report=report, at=1005.0)
    assert (missing(after), expected_ports(after)["mlx5_2/1"]) == ([], False)
    assert port_inventory.removed_ports(after.host.inventory) == {"mlx5_3/1", "00000000:13:00.0/1"}
    again = after_reboot(after, *here)
    assert (missing(again), expected_ports(again)["mlx5_2/1"]) == ([], False)

    back = report_after(links(*ALL), report=again, at=1100.0)
    assert expected_ports(back) == {f"mlx5_{number}/1": True for number in range(CARDS)}
    assert missing(report_after(links(*here), report=back, at=1105.0)) == ["mlx5_3"]


def test_a_card_without_a_guid_is_identified_by_its_address() -> None:
    bare = [replace(reading, guid="") for reading in ALL]
    assert missing(after_reboot(report_after(links(*bare)), *bare[:3])) == ["mlx5_3"]
    assert missing(after_reboot(report_after(links(*ALL)), *bare)) == []


def test_cards_that_share_a_guid_are_separate() -> None:
    twins = [card(0), replace(card(1), guid=card(0).guid)]
    report = after_reboot(report_after(links(*twins)), twins[0])
    assert missing(report) == ["mlx5_1"]


def test_port_records_are_limited_in_number() -> None:
    """Records are limited in number, and ports that were never up are removed first."""
    report = report_after(links(card(0)), *(links(card(number, up=0.0)) for number in range(1, MAX_RECORDS + 50)))

    assert len(port_records(report)) == MAX_RECORDS
    assert "5c25:7303:00f0:0000/1" in report.host.inventory.records


boots = st.lists(
    st.permutations(range(CARDS)).flatmap(
        lambda order: st.tuples(
            st.just(order), st.dictionaries(st.integers(0, CARDS - 1), st.sampled_from((0.0, None)))
        )
    ),
    max_size=4,
)


@pytest.mark.slow
@given(boots=boots)
def test_over_any_boots_exactly_the_gone_cards_are_missing(
    boots: list[tuple[list[int], Mapping[int, float | None]]],
) -> None:
    """Exactly the gone cards are missing, with any order of cards and names; None is a gone card."""
    report = report_after(links(*ALL))
    for order, bad in boots:
        here = [card(n, place, up=bad.get(n, 1.0)) for place, n in enumerate(order) if bad.get(n, 1.0) is not None]
        report = after_reboot(report, *here)
        gone = {n for n, how in bad.items() if how is None}
        named = port_inventory.by_name(report.host.inventory)
        assert len(report.gone_ports) == len(gone)
        assert {int(missing_port.port.guid[-4:], 16) for missing_port in report.gone_ports} == gone
        assert all(record.expected for record in named.values())
        assert len(named) == CARDS
