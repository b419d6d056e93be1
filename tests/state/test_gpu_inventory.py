"""Which GPUs belong here: what the store remembers is missed, what was replaced or given away is not."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import pytest
from each_case import each_case
from folded import UP, fallen, of, said
from folded import told as fold_told

from gpumon.health.expectation import Basis, Expectation
from gpumon.model.error_event import XID, ErrorCounter
from gpumon.model.gpu import Gpu
from gpumon.model.snapshot import CONTAINER, GUEST, HOST, DriverStatus, GpuReading, PciBus, Snapshot
from gpumon.model.stored_gpu import StoredGpu
from gpumon.outputs.responses.links import NvlinksResponse
from gpumon.state.acceptance import acceptance, refusal
from gpumon.state.gpu_inventory import Removal, RemovedGpu
from gpumon.state.messages import Acceptance, Message, Quarantine, SamplerStatus, StoredState
from gpumon.state.report import Report

SXM = "NVIDIA H100 80GB HBM3"
SEEN_LAST = 1e9 - 3600.0


def address(place: int) -> str:
    return f"00000000:{0x10 + place:02X}:00.0"


def board(number: int, place: int | None = None, *, boot: str = "b1", **values: object) -> StoredGpu:
    """As the store knows it: GPU `number`, last seen at this place."""
    place = number if place is None else place
    known = StoredGpu(
        uuid=f"GPU-{number}",
        bus_id=address(place),
        serial=f"S{number}",
        name=SXM,
        first_wall=1e8,
        last_wall=SEEN_LAST,
        gpu=number,
        boot_id=boot,
        energy=1e9,
    )
    return replace(known, **values)  # type: ignore[arg-type]


def stored(*boards: StoredGpu, **values: object) -> StoredState:
    return StoredState(gpus=tuple(sorted(boards, key=lambda one: one.last_wall)), **values)  # type: ignore[arg-type]


EIGHT = stored(*map(board, range(8)))


def bus(
    places: Collection[int], *, place: str = HOST, excluded: Collection[int] = (), vfio: Collection[int] = ()
) -> PciBus:
    functions = {address(one): "vfio-pci" if one in vfio else "nvidia" for one in sorted({*places, *vfio})}
    return PciBus(functions=functions, excluded=tuple(map(address, excluded)), place=place)


def polled(gpus: Mapping[int, int], *, name: str = SXM, at: float = 100.0, **values: object) -> Snapshot:
    """A whole poll that sees these GPUs by the place at which each is; NVML counts them in the order of the bus."""
    seen = tuple(
        GpuReading(
            bus_id=address(place),
            uuid=f"GPU-{number}",
            index=index,
            gpu=Gpu(name=name, serial=f"S{number}", energy_joules_total=2e9, nvlinks=18.0),
            watched=1.0,
        )
        for index, (place, number) in enumerate(sorted(gpus.items()))
    )
    whole = Snapshot(
        ended_at=at,
        wall=1e9 + at,
        durations={"fast": 0.01},
        gpus=seen,
        present=tuple(one.bus_id for one in seen),
        visible=len(seen),
    )
    return replace(whole, **values)  # type: ignore[arg-type]


def told(*arrivals: Message, report: Report | None = None, boot: str = "b1", at: float = 100.0) -> Report:
    report = report or Report(started=0.0, boot_id=boot)
    return fold_told(*arrivals, report=report, at=at)


def in_place(count: int = 8, *, without: Collection[int] = ()) -> dict[int, int]:
    return {number: number for number in range(count) if number not in without}


def faults(report: Report) -> dict[str, str]:
    return {state.uuid: state.fault for state in report.gpus if state.fault is not None}


@pytest.mark.parametrize("late", [False, True], ids=["store first", "poll first"])
def test_a_gpu_that_is_gone_after_a_restart_is_missing(*, late: bool) -> None:
    """Seven of eight: with its uuid, its serial, its index, its Xids, whichever comes first, poll or store."""
    known = stored(
        *map(board, range(8)), counters=(ErrorCounter(kind=XID, device="GPU-3", code=79, count=2, last_wall=1e9),)
    )
    poll = polled(in_place(without=[3]))
    arrivals = (bus(range(8)), UP, poll, known, poll) if late else (known, bus(range(8)), UP, poll)
    report = told(*arrivals)

    assert faults(report) == {"GPU-3": "missing"}
    one = of(report, "GPU-3")
    assert one.gpu.up == 0.0
    assert (one.gpu.fault or {})["missing"] == 1.0
    assert one.gpu.serial == "S3"
    assert (one.gpu.xid_errors_total or {})["79"] == 2.0
    assert one.detail == "on the PCI bus, but the driver does not list it"
    assert (report.node.gpus_expected, report.node.gpus_visible) == (8.0, 7.0)
    if not late:
        assert [state.index for state in report.gpus] == list(range(8))
        assert one.index == 3
        assert of(report, "GPU-7").index == 7


def test_a_lost_gpu_keeps_its_age_and_its_nvlinks_over_a_restart() -> None:
    """The age is that of the stored verdict; the number of NVLinks is stored, their state is unknown."""
    verdict = fallen("GPU-3")._replace(check="gpu_lost", since=SEEN_LAST)
    lost = GpuReading(bus_id=address(3), uuid=None, index=3, gpu=None, fault="lost", error="GPU is lost", watched=0.0)
    poll = polled(in_place(without=[3]))
    poll = replace(poll, gpus=(*poll.gpus, lost), present=(*poll.present, lost.bus_id), visible=8)
    known = stored(*(board(number, nvlinks=18) for number in range(8)), verdicts=(verdict,))
    report = told(known, bus(range(8)), UP, poll)

    assert of(report, "GPU-3").fault == "lost"
    assert of(report, "GPU-3").since == SEEN_LAST
    links = NvlinksResponse.from_report(report, "GPU-3").links
    assert [(link.link, link.model_dump()["up"]) for link in links] == [(link, None) for link in range(18)]


def test_before_the_first_whole_poll_nobody_is_missing() -> None:
    """What the store remembers is there at once, and merely has not been read."""
    fresh = told()
    report = told(EIGHT, bus(range(8)), UP, polled({0: 0}, complete=False), report=fresh)

    assert len(report.gpus) == 8
    assert set(faults(report).values()) == {"unknown"}
    assert of(report, "GPU-5").detail == "not read yet"
    assert of(report, "GPU-5").gpu.name == SXM
    assert [one for one in said(fresh, report) if "GPU" in one[1]] == [], "a start is no loss"
    whole = told(polled({index: index for index in range(8)}), report=report)
    assert not any(faults(whole).values())
    assert said(report, whole) == [], "nor is the first poll its end"


def test_after_a_reboot_that_renumbered_all_addresses_each_is_itself() -> None:
    """Who moved keeps its uuid; the one that is gone is missing though another is at its address."""
    moved = {number: number + 1 for number in range(7)}  # each sits where its neighbour was
    report = told(EIGHT, bus(range(7)), UP, polled(moved), boot="b2")

    assert faults(report) == {"GPU-0": "missing"}
    assert of(report, "GPU-0").detail == f"another GPU is at its last address {address(0)}"
    assert of(report, "GPU-0").gpu.pci_bus_id == address(0)
    assert [of(report, f"GPU-{n}").index for n in range(1, 8)] == list(range(7))  # as nvidia-smi counts in this boot
    assert of(report, "GPU-0").index == 7
    assert report.node.gpus_expected == 8.0


def test_boards_that_were_swapped_are_both_here() -> None:
    """Two boards in each other's slots, told one after the other."""
    places = in_place() | {2: 5, 5: 2}
    part = polled({2: 5}, complete=False)
    report = told(EIGHT, bus(range(8)), UP, part, boot="b2")
    assert "missing" not in faults(report).values()
    report = told(polled(places), report=report)

    assert not faults(report)
    assert len(report.gpus) == 8
    assert (of(report, "GPU-5").bus_id, of(report, "GPU-2").bus_id) == (address(2), address(5))


@pytest.mark.parametrize("place", [3, 9], ids=["in its slot", "in another slot"])
def test_a_board_that_was_replaced_is_expected_no_more(place: int) -> None:
    """As many as should be are here again: the old one leaves by itself, and the log says so."""
    before = told(EIGHT, bus([*in_place(without=[3]), place]), UP, boot="b2")
    after = told(polled(in_place(without=[3]) | {place: 99}), report=before)

    assert not faults(after)
    assert [state.uuid for state in after.gpus if state.uuid == "GPU-3"] == []
    assert len(after.gpus) == 8
    assert after.node.gpus_expected == 8.0
    assert [words for _, words in said(before, after) if "replaced by another" in words]
    assert after.internal.inventory.removed["GPU-3"].bus_id == address(3)


def test_with_one_of_two_replaced_only_the_one_whose_place_is_taken_leaves() -> None:
    """The other one is still missed."""
    report = told(EIGHT, bus(range(7)), UP, polled(in_place(without=[3, 7]) | {3: 99}), boot="b2")

    assert faults(report) == {"GPU-7": "missing"}
    assert report.node.gpus_expected == 8.0


def test_a_gpu_that_has_not_told_its_name_replaces_nobody() -> None:
    """At a new address there is one that is stuck: it may be the one that is missed."""
    aside = SamplerStatus(quarantined={address(9): Quarantine(fault="stuck", detail="", wall=1e9)})
    seven = polled(in_place(without=[3]), visible=8)
    report = told(EIGHT, bus([*in_place(without=[3]), 9]), UP, aside, seven, boot="b2")

    assert faults(report) == {"GPU-3": "missing", f"pci-{address(9).lower()}": "stuck"}


def test_a_gpu_given_to_a_virtual_machine_is_not_missed_over_a_restart() -> None:
    """Nor is it expected while another driver has it; gone from the bus it is, back it is one of ours."""
    seven = polled(in_place(without=[3]))
    report = told(EIGHT, bus(range(8), vfio=[3]), UP, seven)
    assert not faults(report)
    assert report.node.gpus_expected == 7.0

    assert told(bus(in_place(without=[3])), seven, report=report).node.gpus_expected == 8.0
    back = told(bus(range(8)), polled(in_place()), report=report)
    assert (back.node.gpus_expected, len(back.gpus), dict(back.internal.inventory.removed)) == (8.0, 8, {})


def test_an_excluded_gpu_is_not_missed_over_a_restart() -> None:
    """Whether or not it is on the bus: who excluded it knows why."""
    eight = polled(in_place(without=[3]), visible=8)
    report = told(EIGHT, bus(range(8), excluded=[3]), UP, eight)
    assert not faults(report)
    assert report.node.gpus_expected == 8.0

    off = told(EIGHT, bus(in_place(without=[3]), excluded=[3]), UP, polled(in_place(without=[3])))
    assert not faults(off)
    assert off.node.gpus_expected == off.node.gpus_visible == 7.0


def test_without_a_driver_sixteen_boards_are_known_and_none_is_missing() -> None:
    """Nobody can tell; each says why."""
    sixteen = stored(*map(board, range(16)))
    down = DriverStatus(up=False, error="DriverNotLoaded", remedy="modprobe nvidia")
    report = told(sixteen, bus([]), down)

    assert len(report.gpus) == 16
    assert set(faults(report).values()) == {"unknown"}
    assert all("modprobe nvidia" in state.detail for state in report.gpus)
    assert (report.node.nvml_up, report.node.gpus_expected) == (0.0, 16.0)


def test_a_store_of_another_host_does_not_frighten() -> None:
    """A disk that was copied: all of its boards were replaced by those that are here."""
    foreign = stored(*(board(number, number - 100) for number in range(100, 108)))
    report = told(foreign, bus(range(8)), UP, polled(in_place()))

    assert (len(report.gpus), faults(report), report.node.gpus_expected) == (8, {}, 8.0)


def test_what_a_person_accepts_is_expected_no_more() -> None:
    """Seven are all there are, on a board for eight too; nor does a restart forget it."""
    report = told(EIGHT, bus(range(8)), UP, polled(in_place(without=[3])))
    accepted = acceptance(report)
    assert accepted == Acceptance(count=7, gone=("GPU-3",))
    after = told(accepted, polled(in_place(without=[3])), report=report)
    assert not faults(after)
    assert after.expectation == Expectation(count=7, basis=Basis.ACCEPTED, unlisted=(address(3),))

    seven = stored(*(board(number, expected=number != 3) for number in range(8)), accepted=True)
    restarted = told(seven, bus(range(8)), UP, polled(in_place(without=[3])))
    assert not faults(restarted)
    assert restarted.expectation == after.expectation
    assert restarted.internal.inventory.removed == {"GPU-3": RemovedGpu(Removal.ACCEPTED, address(3))}

    back = told(polled(in_place()), report=restarted)
    assert (back.expectation.count, len(back.gpus), dict(back.internal.inventory.removed)) == (8, 8, {})
    assert faults(told(polled(in_place(without=[3])), report=back)) == {"GPU-3": "missing"}


def test_a_person_may_accept_one_part_and_not_another() -> None:
    """By uuid or PCI address; what is not named stays missed, and a name of nothing missed is refused."""
    report = told(EIGHT, bus(range(8)), UP, polled(in_place(without=[3, 5])))
    for name in ("GPU-3", address(3), address(3).lower()):
        assert acceptance(report, [name]) == Acceptance(count=7, gone=("GPU-3",))
    after = told(acceptance(report, ["GPU-3"]), polled(in_place(without=[3, 5])), report=report)
    assert faults(after) == {"GPU-5": "missing"}
    assert (after.expectation.count, after.expectation.basis) == (7, Basis.ACCEPTED)

    assert refusal(report, ["GPU-3", "GPU-5"]) is None
    refused = refusal(report, ["GPU-3", "GPU-4"])
    assert refused is not None
    assert refused.refused.startswith("GPU-4: no GPU and no port of that name is missing")
    assert "GPU-5" in refused.remedy


def test_nobody_accepts_what_nobody_can_count() -> None:
    """Without a driver, or before the store was read."""
    assert refusal(told(bus(range(8)), UP, polled(in_place()))) is not None
    down = told(EIGHT, bus(range(8)), DriverStatus(up=False, error="DriverNotLoaded", remedy="modprobe nvidia"))
    refused = refusal(down)
    assert refused is not None
    assert "modprobe nvidia" in refused.refused
    assert refusal(told(EIGHT, bus(range(8)), UP, polled(in_place()))) is None


@each_case(
    ("place", "here", "on_bus", "expected"),
    [
        (HOST, 7, 7, Expectation(count=8, basis=Basis.PRODUCT)),
        (HOST, 3, 3, Expectation(count=4, basis=Basis.PRODUCT)),
        (HOST, 8, 8, Expectation(count=8)),
        (GUEST, 2, 2, Expectation(count=2, may=4, may_basis=Basis.PRODUCT, place=GUEST)),
        (CONTAINER, 2, 8, Expectation(count=2, may=8, may_basis=Basis.BUS, place=CONTAINER)),
        (GUEST, 2, 3, Expectation(count=3, may=4, may_basis=Basis.PRODUCT, place=GUEST)),
    ],
)
def test_at_a_first_boot_product_and_bus_tell_what_should_be(
    place: str, here: int, on_bus: int, expected: Expectation
) -> None:
    """On the host itself they are right; elsewhere the host may have given us fewer."""
    report = told(stored(), bus(range(on_bus), place=place), UP, polled(in_place(here)))

    assert replace(report.expectation, unlisted=()) == expected
    assert report.expectation.unlisted == tuple(map(address, range(here, on_bus)))


def test_what_was_here_once_is_learned_in_a_container_too() -> None:
    """Its own GPUs, not the host's."""
    pair = stored(board(0), board(1))
    report = told(pair, bus(range(8), place=CONTAINER), UP, polled({0: 0}))

    assert faults(report) == {"GPU-1": "missing"}
    assert [state.restored for state in report.gpus] == [False, True]
    assert report.expectation.count == 2


def test_a_reset_while_the_agent_was_away_is_seen_by_the_energy() -> None:
    """In the same boot its counter went back; after a reboot that says nothing of a reset."""
    drained = polled({0: 0})
    drained = replace(drained, gpus=(replace(drained.gpus[0], gpu=Gpu(name=SXM, energy_joules_total=5.0)),))
    arrivals = (stored(board(0)), bus([0]), UP, drained)

    assert of(told(*arrivals, boot="b1"), "GPU-0").reset_at == 100.0
    assert of(told(*arrivals, boot="b2"), "GPU-0").reset_at is None
    assert of(told(stored(board(0)), bus([0]), UP, polled({0: 0})), "GPU-0").reset_at is None


def test_what_the_store_is_told_of_a_gpu() -> None:
    """When it was first seen stays; all else is as it was read last."""
    report = told(stored(board(0, 5, boot="b1", vbios="old")), bus([0]), UP, polled({0: 0}), boot="b2")
    known = of(report, "GPU-0").stored

    assert known == board(0, boot="b2", last_wall=1e9 + 100.0, energy=2e9, nvlinks=18, vbios="old")
