"""Which ports belong here: what was up once is missed when it is down or gone, whatever it is called now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from folded import UP, polled, said, seen
from folded import told as fold_told
from hypothesis import given
from hypothesis import strategies as st

from gpumon.model.infiniband import InfinibandLink, InfinibandPort
from gpumon.model.port_record import PortRecord
from gpumon.model.snapshot import LinksSnapshot, PciBus, PortReading
from gpumon.state import port_inventory
from gpumon.state.acceptance import acceptance, refusal
from gpumon.state.messages import LinksStatus, Message, StoredState
from gpumon.state.port_inventory import MAX_RECORDS, SETTLING_SECONDS
from gpumon.state.report import Report

CARDS = 4
LATER = SETTLING_SECONDS + 5.0


def card(number: int, place: int | None = None, device: int | None = None, *, up: float | None = 1.0) -> PortReading:
    """Card `number` at this place of the bus, under this name."""
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


def links(*cards: PortReading, **more: object) -> LinksSnapshot:
    return LinksSnapshot(ended_at=0.0, ports=cards, **more)  # type: ignore[arg-type]


def told(*arrivals: Message, report: Report | None = None, at: float = 100.0) -> Report:
    return fold_told(*arrivals, report=report or Report(started=0.0, boot_id="b2"), at=at)


def known(report: Report) -> tuple[PortRecord, ...]:
    return tuple(report.internal.ports.records.values())


def rebooted(report: Report, *cards: PortReading) -> Report:
    """Another life, in which these were looked at, and again when all drivers have loaded."""
    at = report.internal.links.read_at + 1000.0
    after = told(StoredState(ports=known(report)), links(*cards), at=at)
    return told(links(*cards), report=after, at=at + LATER)


def missing(report: Report) -> list[str]:
    return [one.port.device for one in report.gone_ports]


def expected(report: Report) -> dict[str, bool | None]:
    """By the name that a verdict gives it."""
    return {name: one.expected for name, one in port_inventory.by_name(report.internal.ports).items()}


ALL = tuple(card(number) for number in range(CARDS))


@pytest.mark.parametrize("late", [False, True], ids=["store first", "links first"])
def test_a_card_that_is_gone_after_a_reboot_is_missing(*, late: bool) -> None:
    """Whichever comes first, the store or the first look; since when it was seen last."""
    remembered, look = StoredState(ports=known(told(links(*ALL)))), links(*ALL[:3])
    arrivals = (look, remembered, look) if late else (remembered, look)
    report = told(*arrivals, at=1000.0)

    assert missing(report) == ["mlx5_3"]
    assert report.gone_ports[0].wall == 1e9 + 100.0
    assert report.gone_ports[0].port.link == InfinibandLink()
    assert missing(told(links(*ALL), report=report, at=1005.0)) == []


def test_all_cards_that_are_gone_are_missing() -> None:
    """The driver did not load: the folder of devices is empty, and that was read."""
    assert len(missing(rebooted(told(links(*ALL))))) == CARDS


def test_while_they_cannot_be_listed_none_is_missing() -> None:
    """Of the first look after a start nobody can tell."""
    before = StoredState(ports=known(told(links(*ALL))))
    assert missing(told(before, links(ALL[0], errors={"infiniband": "class/infiniband: denied"}))) == []
    assert missing(told(before, LinksStatus(trouble="no child"), links(ALL[0]))) == []


def test_a_port_that_was_up_is_expected_and_one_that_never_was_is_not() -> None:
    """Down since the boot, and no counter says that it ever was in use."""
    first = told(links(card(0), card(1, up=0.0)))
    report = rebooted(first, card(0, up=0.0), card(1, up=0.0))

    assert expected(report) == {"mlx5_0/1": True, "mlx5_1/1": None}
    assert missing(rebooted(first, card(0, up=0.0))) == []  # the card that was never in use


def test_a_port_that_was_in_use_before_the_agent_came_is_expected() -> None:
    """It is down, and has counted something since the boot; after the next one its counters say nothing."""
    dead = card(1, up=0.0)
    dead = replace(dead, counts=InfinibandPort(receive_bytes_total=7e9, link_downs_total=1.0))
    assert expected(rebooted(told(links(card(0), dead)), card(0), card(1, up=0.0)))["mlx5_1/1"] is True


def test_cards_that_are_called_otherwise_are_the_same() -> None:
    """One was put in before them: names and addresses have moved, and one of them is down."""
    moved = [card(9, 0), *(card(number, number + 1, up=float(number != 2)) for number in range(CARDS))]
    report = rebooted(told(links(*ALL)), *moved)

    assert missing(report) == []
    assert expected(report) == {f"mlx5_{number}/1": True for number in range(CARDS + 1)}
    assert report.internal.ports.records["5c25:7303:00f0:0002/1"].device == "mlx5_3"


def test_a_missing_card_whose_name_another_has_goes_by_its_address() -> None:
    """Taken out, and those behind it moved up in name alone."""
    shifted = [card(0), card(2, 2, 1), card(3, 3, 2)]
    report = rebooted(told(links(*ALL)), *shifted)

    assert missing(report) == ["00000000:11:00.0"]
    assert len(expected(report)) == CARDS


@pytest.mark.parametrize("place", [3, 7], ids=["in its slot", "in another slot"])
def test_a_card_that_was_replaced_is_missed_no_more(place: int) -> None:
    """As many as should be up are up again; the log says so, and a restart does not forget it."""
    first = told(links(*ALL))
    before = told(StoredState(ports=known(first)), links(*ALL[:3], card(9, place)), at=1000.0)
    after = told(links(*ALL[:3], card(9, place)), report=before, at=1000.0 + LATER)

    assert missing(before)
    assert missing(after) == []
    assert [words for _, words in said(before, after) if "replaced" in words]
    again = rebooted(after, *ALL[:3], card(9, place))
    assert missing(again) == []
    assert missing(rebooted(again, *ALL)) == []  # the old one is back in the place of the new one


def test_a_new_card_in_the_slot_of_an_old_one_is_to_be_up_as_well() -> None:
    """Its cable was forgotten."""
    report = rebooted(told(links(*ALL)), *ALL[:3], card(9, 3, up=0.0))

    assert missing(report) == []
    assert expected(report)["mlx5_3/1"] is True


def test_a_card_that_was_there_before_replaces_none() -> None:
    """It was moved into the slot of the one that is gone."""
    report = rebooted(told(links(*ALL)), card(0), card(1), card(3, 2))
    assert missing(report) == ["00000000:12:00.0"]
    assert len(expected(report)) == CARDS


def test_a_driver_that_brings_up_its_cards_one_after_the_other_has_replaced_none() -> None:
    """A new one comes first, at the address of one that comes later elsewhere."""
    remembered = StoredState(ports=known(told(links(*ALL))))
    report = told(remembered, links(card(9, 0, up=0.0)), at=1000.0)
    moved = [card(9, 0, up=0.0), *(card(number, number + 1) for number in range(CARDS))]
    report = told(links(*moved), report=report, at=1000.0 + SETTLING_SECONDS - 5.0)

    assert missing(told(links(*moved), report=report, at=1100.0)) == []
    assert expected(report)["mlx5_0/1"] is None


def at_speed(one: PortReading, speed: float) -> PortReading:
    return replace(one, link=replace(one.link, port_speed_bytes_per_second=speed))


def speeds(report: Report) -> dict[str, float | None]:
    return {name: one.speed for name, one in port_inventory.by_name(report.internal.ports).items()}


def test_a_port_that_comes_back_slower_has_been_faster_until_a_person_accepts_it() -> None:
    """Over reboots; what is accepted of one says nothing of the others."""
    gpus = (PciBus(functions={}), UP, polled(seen(0)))
    slow = tuple(at_speed(one, 12.5e9) for one in ALL[:2])
    report = rebooted(told(links(*ALL)), *slow, *ALL[2:])
    at = report.internal.links.read_at
    report = told(*gpus, report=report, at=at)
    assert set(speeds(report).values()) == {50e9}

    assert set(acceptance(report).slow.values()) == {12.5e9}
    assert refusal(report, ["mlx5_2/1"]) is not None
    assert refusal(report, ["mlx5_1/1"]) is None
    answer = acceptance(report, ["mlx5_1/1"])
    assert (answer.count, answer.ports, answer.slow) == (None, (), {"5c25:7303:00f0:0001/1": 12.5e9})
    after = rebooted(told(answer, report=report, at=at), *slow, *ALL[2:])
    assert speeds(after) == {"mlx5_0/1": 50e9, "mlx5_1/1": 12.5e9, "mlx5_2/1": 50e9, "mlx5_3/1": 50e9}


def test_what_was_accepted_as_down_comes_back_at_any_speed() -> None:
    """Its cable leads to another switch by now."""
    report = told(links(*ALL[:3], card(3, up=0.0)), report=told(links(*ALL)), at=105.0)
    report = told(replace(acceptance(report), count=None), report=report, at=105.0)
    back = told(links(*ALL[:3], at_speed(ALL[3], 12.5e9)), report=report, at=110.0)
    assert speeds(back)["mlx5_3/1"] == 12.5e9


def test_what_a_person_accepts_is_expected_no_more() -> None:
    """One is down, one is gone; over a restart too, until it is up again."""
    gpus = (PciBus(functions={}), UP, polled(seen(0)))
    first = told(links(*ALL))
    here = (*ALL[:2], card(2, up=0.0))
    report = told(StoredState(ports=known(first)), *gpus, links(*here), at=1000.0)
    answer = acceptance(report)
    assert set(answer.ports) == {"5c25:7303:00f0:0002/1", "5c25:7303:00f0:0003/1"}

    for part in ("mlx5_3/1", "5c25:7303:00f0:0003/1"):
        alone = acceptance(report, [part])
        assert (alone.count, alone.gone, alone.ports) == (None, (), ("5c25:7303:00f0:0003/1",))
    partly = told(alone, links(*here), report=report, at=1005.0)
    assert (missing(partly), expected(partly)["mlx5_2/1"]) == ([], True)
    assert (partly.internal.inventory.accepted, partly.internal.inventory.learned) == (
        report.internal.inventory.accepted,
        report.internal.inventory.learned,
    )

    after = told(answer, links(*here), report=report, at=1005.0)
    assert (missing(after), expected(after)["mlx5_2/1"]) == ([], False)
    assert port_inventory.removed(after.internal.ports) == {"mlx5_3/1", "00000000:13:00.0/1"}
    again = rebooted(after, *here)
    assert (missing(again), expected(again)["mlx5_2/1"]) == ([], False)

    back = told(links(*ALL), report=again, at=1100.0)
    assert expected(back) == {f"mlx5_{number}/1": True for number in range(CARDS)}
    assert missing(told(links(*here), report=back, at=1105.0)) == ["mlx5_3"]


def test_a_card_without_a_guid_is_known_by_its_address() -> None:
    """Nor does it become another one when its GUID cannot be read for once."""
    bare = [replace(one, guid="") for one in ALL]
    assert missing(rebooted(told(links(*bare)), *bare[:3])) == ["mlx5_3"]
    assert missing(rebooted(told(links(*ALL)), *bare)) == []


def test_cards_that_share_a_guid_are_two() -> None:
    """Of one that is gone the other does not take the place."""
    twins = [card(0), replace(card(1), guid=card(0).guid)]
    report = rebooted(told(links(*twins)), twins[0])
    assert missing(report) == ["mlx5_1"]


def test_what_is_remembered_of_ports_is_bounded() -> None:
    """Those that were never up go first."""
    report = told(links(card(0)), *(links(card(number, up=0.0)) for number in range(1, MAX_RECORDS + 50)))

    assert len(known(report)) == MAX_RECORDS
    assert "5c25:7303:00f0:0000/1" in report.internal.ports.records


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
def test_over_any_boots_exactly_what_is_down_or_gone_is_missed(
    boots: list[tuple[list[int], Mapping[int, float | None]]],
) -> None:
    """Wherever the cards sit and whatever they are called; None: the card is gone."""
    report = told(links(*ALL))
    for order, bad in boots:
        here = [card(n, place, up=bad.get(n, 1.0)) for place, n in enumerate(order) if bad.get(n, 1.0) is not None]
        report = rebooted(report, *here)
        gone = {n for n, how in bad.items() if how is None}
        named = port_inventory.by_name(report.internal.ports)
        assert len(report.gone_ports) == len(gone)
        assert {int(one.guid[-4:], 16) for one in (one.port for one in report.gone_ports)} == gone
        assert all(one.expected for one in named.values())
        assert len(named) == CARDS
