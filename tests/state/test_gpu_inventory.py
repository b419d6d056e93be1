"""Stored GPUs that are absent are missing; replaced, excluded or reassigned GPUs are not."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import replace

import pytest
from each_case import each_case
from reduced_reports import UP, gpu_state, log_lines, reduce_all, xid79_verdict

from gpumon.health.products import Basis, Expectation
from gpumon.health.verdict import Level, Verdict
from gpumon.model.error_event import XID, ErrorCounter
from gpumon.model.gpu import Gpu
from gpumon.model.instant import Instant
from gpumon.model.records import StoredGpu
from gpumon.model.snapshot import (
    CONTAINER,
    GUEST,
    HOST,
    DriverStatus,
    GpuReading,
    PciBus,
    Quarantine,
    SamplerStatus,
    Snapshot,
)
from gpumon.outputs.responses.devices import NvlinksResponse
from gpumon.services.inventory_acceptance import acceptance, refusal
from gpumon.state.gpu_inventory import Removal, RemovedGpu
from gpumon.state.messages import Acceptance, Message, StoredState
from gpumon.state.report import Report

SXM = "NVIDIA H100 80GB HBM3"
SEEN_LAST = 1e9 - 3600.0


def address(place: int) -> str:
    return f"00000000:{0x10 + place:02X}:00.0"


def board(number: int, place: int | None = None, *, boot: str = "b1", **values: object) -> StoredGpu:
    """Return the stored record of GPU `number`, last observed at this place."""
    place = number if place is None else place
    record = StoredGpu(
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
    return replace(record, **values)  # type: ignore[arg-type]


def state_with_gpus(*boards: StoredGpu, **values: object) -> StoredState:
    return StoredState(gpus=tuple(sorted(boards, key=lambda record: record.last_wall)), **values)  # type: ignore[arg-type]


EIGHT = state_with_gpus(*map(board, range(8)))


def bus(
    places: Collection[int], *, place: str = HOST, excluded: Collection[int] = (), vfio: Collection[int] = ()
) -> PciBus:
    functions = {address(number): "vfio-pci" if number in vfio else "nvidia" for number in sorted({*places, *vfio})}
    return PciBus(functions=functions, excluded=tuple(map(address, excluded)), place=place)


def complete_poll(gpus: Mapping[int, int], *, name: str = SXM, at: float = 100.0, **values: object) -> Snapshot:
    """Return a complete poll of these GPUs by place; NVML numbers them in bus order."""
    readings = tuple(
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
        gpus=readings,
        present=tuple(reading.bus_id for reading in readings),
        visible=len(readings),
    )
    return replace(whole, **values)  # type: ignore[arg-type]


def report_after(*arrivals: Message, report: Report | None = None, boot: str = "b1", at: float = 100.0) -> Report:
    report = report or Report(started=0.0, boot_id=boot)
    return reduce_all(*arrivals, report=report, at=at)


def in_place(count: int = 8, *, without: Collection[int] = ()) -> dict[int, int]:
    return {number: number for number in range(count) if number not in without}


def faults(report: Report) -> dict[str, str]:
    return {state.uuid: state.fault for state in report.gpus if state.fault is not None}


@pytest.mark.parametrize("late", [False, True], ids=["store first", "poll first"])
def test_a_gpu_that_is_gone_after_a_restart_is_missing(*, late: bool) -> None:
    """A missing GPU keeps its UUID, serial, index and Xids, whether the poll or the store arrives first."""
    stored_state = state_with_gpus(
        *map(board, range(8)), counters=(ErrorCounter(kind=XID, device="GPU-3", code=79, count=2, last_wall=1e9),)
    )
    poll = complete_poll(in_place(without=[3]))
    arrivals = (bus(range(8)), UP, poll, stored_state, poll) if late else (stored_state, bus(range(8)), UP, poll)
    report = report_after(*arrivals)

    assert faults(report) == {"GPU-3": "missing"}
    state = gpu_state(report, "GPU-3")
    assert state.gpu.up == 0.0
    assert (state.gpu.fault or {})["missing"] == 1.0
    assert state.gpu.serial == "S3"
    assert (state.gpu.xid_errors_total or {})["79"] == 2.0
    assert state.detail == "on the PCI bus, but the driver does not list it"
    assert (report.node.gpus_expected, report.node.gpus_visible) == (8.0, 7.0)
    if not late:
        assert [state.index for state in report.gpus] == list(range(8))
        assert state.index == 3
        assert gpu_state(report, "GPU-7").index == 7


def test_a_lost_gpu_keeps_its_age_and_its_nvlinks_over_a_restart() -> None:
    """The age comes from the stored verdict and the number of NVLinks from the store; the link state is unknown."""
    verdict = xid79_verdict("GPU-3")._replace(check="gpu_lost", raised=Instant("", 0.0, SEEN_LAST))
    lost = GpuReading(bus_id=address(3), uuid=None, index=3, gpu=None, fault="lost", error="GPU is lost", watched=0.0)
    poll = complete_poll(in_place(without=[3]))
    poll = replace(poll, gpus=(*poll.gpus, lost), present=(*poll.present, lost.bus_id), visible=8)
    stored_state = state_with_gpus(*(board(number, nvlinks=18) for number in range(8)), verdicts=(verdict,))
    report = report_after(stored_state, bus(range(8)), UP, poll)

    assert gpu_state(report, "GPU-3").fault == "lost"
    assert gpu_state(report, "GPU-3").since == SEEN_LAST
    links = NvlinksResponse.from_report(report, "GPU-3").links
    assert [(link.link, link.model_dump()["up"]) for link in links] == [(link, None) for link in range(18)]


def test_no_gpu_is_missing_before_the_first_complete_poll() -> None:
    """Stored GPUs appear at once with fault "unknown" until the first complete poll."""
    fresh = report_after()
    report = report_after(EIGHT, bus(range(8)), UP, complete_poll({0: 0}, complete=False), report=fresh)

    assert len(report.gpus) == 8
    assert set(faults(report).values()) == {"unknown"}
    assert gpu_state(report, "GPU-5").detail == "not read yet"
    assert gpu_state(report, "GPU-5").gpu.name == SXM
    assert [line for line in log_lines(fresh, report) if "GPU" in line[1]] == [], "a start logs no lost GPU"
    whole = report_after(complete_poll({index: index for index in range(8)}), report=report)
    assert not any(faults(whole).values())
    assert log_lines(report, whole) == [], "the first poll logs no recovery"


def test_gpus_keep_their_identity_after_a_reboot_that_changes_addresses() -> None:
    """A moved GPU keeps its UUID; the absent GPU is missing although another GPU has its address."""
    moved = {number: number + 1 for number in range(7)}  # each GPU is at the address of its neighbor
    report = report_after(EIGHT, bus(range(7)), UP, complete_poll(moved), boot="b2")

    assert faults(report) == {"GPU-0": "missing"}
    assert gpu_state(report, "GPU-0").detail == f"another GPU is at its last address {address(0)}"
    assert gpu_state(report, "GPU-0").gpu.pci_bus_id == address(0)
    assert [gpu_state(report, f"GPU-{n}").index for n in range(1, 8)] == list(
        range(7)
    )  # as nvidia-smi counts in this boot
    assert gpu_state(report, "GPU-0").index == 7
    assert report.node.gpus_expected == 8.0


def test_swapped_gpus_are_both_present() -> None:
    places = in_place() | {2: 5, 5: 2}
    part = complete_poll({2: 5}, complete=False)
    report = report_after(EIGHT, bus(range(8)), UP, part, boot="b2")
    assert "missing" not in faults(report).values()
    report = report_after(complete_poll(places), report=report)

    assert not faults(report)
    assert len(report.gpus) == 8
    assert (gpu_state(report, "GPU-5").bus_id, gpu_state(report, "GPU-2").bus_id) == (address(2), address(5))


@pytest.mark.parametrize("place", [3, 9], ids=["in its slot", "in another slot"])
def test_a_replaced_gpu_is_no_longer_expected(place: int) -> None:
    """When the expected count is reached again, the replaced GPU is removed and the log reports it."""
    before = report_after(EIGHT, bus([*in_place(without=[3]), place]), UP, boot="b2")
    after = report_after(complete_poll(in_place(without=[3]) | {place: 99}), report=before)

    assert not faults(after)
    assert [state.uuid for state in after.gpus if state.uuid == "GPU-3"] == []
    assert len(after.gpus) == 8
    assert after.node.gpus_expected == 8.0
    assert [words for _, words in log_lines(before, after) if "replaced by another" in words]
    assert after.inventory.removed["GPU-3"].bus_id == address(3)


def test_only_the_gpu_whose_slot_is_taken_is_replaced() -> None:
    report = report_after(EIGHT, bus(range(7)), UP, complete_poll(in_place(without=[3, 7]) | {3: 99}), boot="b2")

    assert faults(report) == {"GPU-7": "missing"}
    assert report.node.gpus_expected == 8.0


def test_a_gpu_without_a_uuid_replaces_no_gpu() -> None:
    quarantined = SamplerStatus(quarantined={address(9): Quarantine(fault="stuck", detail="", wall=1e9)})
    seven = complete_poll(in_place(without=[3]), visible=8)
    report = report_after(EIGHT, bus([*in_place(without=[3]), 9]), UP, quarantined, seven, boot="b2")

    assert faults(report) == {"GPU-3": "missing", f"pci-{address(9).lower()}": "stuck"}


def test_a_gpu_of_a_virtual_machine_is_not_missing_after_a_restart() -> None:
    """A GPU bound to another driver is not expected; when it is back it is expected again."""
    seven = complete_poll(in_place(without=[3]))
    report = report_after(EIGHT, bus(range(8), vfio=[3]), UP, seven)
    assert not faults(report)
    assert report.node.gpus_expected == 7.0

    assert report_after(bus(in_place(without=[3])), seven, report=report).node.gpus_expected == 8.0
    back = report_after(bus(range(8)), complete_poll(in_place()), report=report)
    assert (back.node.gpus_expected, len(back.gpus), dict(back.inventory.removed)) == (8.0, 8, {})


def test_an_excluded_gpu_is_not_missing_after_a_restart() -> None:
    eight = complete_poll(in_place(without=[3]), visible=8)
    report = report_after(EIGHT, bus(range(8), excluded=[3]), UP, eight)
    assert not faults(report)
    assert report.node.gpus_expected == 8.0

    off = report_after(EIGHT, bus(in_place(without=[3]), excluded=[3]), UP, complete_poll(in_place(without=[3])))
    assert not faults(off)
    assert off.node.gpus_expected == off.node.gpus_visible == 7.0


def test_without_a_driver_stored_gpus_are_unknown_and_not_missing() -> None:
    sixteen = state_with_gpus(*map(board, range(16)))
    down = DriverStatus(up=False, error="DriverNotLoaded", remedy="modprobe nvidia")
    report = report_after(sixteen, bus([]), down)

    assert len(report.gpus) == 16
    assert set(faults(report).values()) == {"unknown"}
    assert all("modprobe nvidia" in state.detail for state in report.gpus)
    assert (report.node.nvml_up, report.node.gpus_expected) == (0.0, 16.0)


def test_a_store_of_another_host_raises_no_fault() -> None:
    """The GPUs of a copied store of another host count as replaced by the GPUs of this host."""
    foreign = state_with_gpus(*(board(number, number - 100) for number in range(100, 108)))
    report = report_after(foreign, bus(range(8)), UP, complete_poll(in_place()))

    assert (len(report.gpus), faults(report), report.node.gpus_expected) == (8, {}, 8.0)


def test_accepted_parts_are_no_longer_expected() -> None:
    """After acceptance seven GPUs are expected, also after a restart, until the eighth returns."""
    report = report_after(EIGHT, bus(range(8)), UP, complete_poll(in_place(without=[3])))
    accepted = acceptance(report)
    assert accepted == Acceptance(count=7, gone=("GPU-3",))
    after = report_after(accepted, complete_poll(in_place(without=[3])), report=report)
    assert not faults(after)
    assert after.expectation == Expectation(count=7, basis=Basis.ACCEPTED, unlisted=(address(3),))

    seven = state_with_gpus(*(board(number, expected=number != 3) for number in range(8)), accepted=True)
    restarted = report_after(seven, bus(range(8)), UP, complete_poll(in_place(without=[3])))
    assert not faults(restarted)
    assert restarted.expectation == after.expectation
    assert restarted.inventory.removed == {"GPU-3": RemovedGpu(Removal.ACCEPTED, address(3))}

    back = report_after(complete_poll(in_place()), report=restarted)
    assert (back.expectation.count, len(back.gpus), dict(back.inventory.removed)) == (8, 8, {})
    assert faults(report_after(complete_poll(in_place(without=[3])), report=back)) == {"GPU-3": "missing"}


def test_one_missing_part_can_be_accepted_alone() -> None:
    """One missing part is accepted by UUID or PCI address; a name that is not missing is refused."""
    report = report_after(EIGHT, bus(range(8)), UP, complete_poll(in_place(without=[3, 5])))
    for name in ("GPU-3", address(3), address(3).lower()):
        assert acceptance(report, [name]) == Acceptance(count=7, gone=("GPU-3",))
    after = report_after(acceptance(report, ["GPU-3"]), complete_poll(in_place(without=[3, 5])), report=report)
    assert faults(after) == {"GPU-5": "missing"}
    assert (after.expectation.count, after.expectation.basis) == (7, Basis.ACCEPTED)

    assert refusal(report, ["GPU-3", "GPU-5"]) is None
    refused = refusal(report, ["GPU-3", "GPU-4"])
    assert refused is not None
    assert refused.refused.startswith("GPU-4: no GPU and no port of that name is missing")
    assert "GPU-5" in refused.remedy


def with_lanes(number: int, lanes: float, *, place: int | None = None) -> Snapshot:
    """Return a complete poll of eight GPUs, one of which has this many PCIe lanes, and sixteen at most."""
    places = {number if place is None else place: number}
    poll = complete_poll({**in_place(without=[number]), **places})
    gpus = [
        replace(each, gpu=replace(each.gpu, pcie_link_width=lanes, pcie_link_width_max=16.0))
        if each.uuid == f"GPU-{number}" and each.gpu
        else each
        for each in poll.gpus
    ]
    return replace(poll, gpus=tuple(gpus))


def test_the_highest_number_of_lanes_is_remembered_by_address() -> None:
    report = report_after(EIGHT, bus(range(9)), UP, with_lanes(3, 16.0), with_lanes(3, 8.0))
    three = gpu_state(report, "GPU-3").stored
    assert three is not None
    assert (three.lanes, three.lanes_accepted) == (16.0, False)
    restarted = report_after(state_with_gpus(*(three if n == 3 else board(n) for n in range(8))), bus(range(9)), UP)
    same = gpu_state(report_after(with_lanes(3, 8.0), report=restarted), "GPU-3").stored
    moved = gpu_state(report_after(with_lanes(3, 8.0, place=8), report=restarted), "GPU-3").stored
    assert same is not None
    assert moved is not None
    assert (same.lanes, moved.lanes) == (16.0, 8.0)


def test_a_narrow_link_can_be_accepted_until_it_was_wider() -> None:
    """An operator accepts the lanes that a verdict names; a later wider link ends the acceptance."""
    verdict = replace_verdict(xid79_verdict("GPU-3"), {"pcie_link_width": 8.0})
    report = report_after(EIGHT, bus(range(8)), UP, with_lanes(3, 8.0))
    report = replace(report, health=replace(report.health, open={verdict.key: verdict}))
    for name in ("GPU-3", address(3)):
        assert acceptance(report, [name]) == Acceptance(count=None, lanes={"GPU-3": 8.0})
    assert acceptance(report).lanes == {"GPU-3": 8.0}
    report = report_after(acceptance(report, ["GPU-3"]), with_lanes(3, 4.0), report=report)
    three = gpu_state(report, "GPU-3").stored
    assert three is not None
    assert (three.lanes, three.lanes_accepted) == (8.0, True)
    three = gpu_state(report_after(with_lanes(3, 16.0), report=report), "GPU-3").stored
    assert three is not None
    assert (three.lanes, three.lanes_accepted) == (16.0, False)


def replace_verdict(verdict: Verdict, evidence: Mapping[str, float]) -> Verdict:
    return verdict._replace(check="pcie_width_degraded", level=Level.WARN, evidence=evidence)


def test_the_maximum_number_of_lanes_is_that_of_the_slot_if_it_is_lower() -> None:
    """NVML's maximum is that of the GPU: the port above it may have fewer lanes."""
    narrow = replace(bus(range(8)), slot_lanes={address(3): 8})
    report = report_after(EIGHT, narrow, UP, with_lanes(3, 8.0))
    assert gpu_state(report, "GPU-3").gpu.pcie_link_width_max == 8.0


def test_acceptance_needs_a_driver_and_a_store() -> None:
    assert refusal(report_after(bus(range(8)), UP, complete_poll(in_place()))) is not None
    down = report_after(EIGHT, bus(range(8)), DriverStatus(up=False, error="DriverNotLoaded", remedy="modprobe nvidia"))
    refused = refusal(down)
    assert refused is not None
    assert "modprobe nvidia" in refused.refused
    assert refusal(report_after(EIGHT, bus(range(8)), UP, complete_poll(in_place()))) is None


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
def test_product_and_bus_define_the_count_at_the_first_boot(
    place: str, here: int, on_bus: int, expected: Expectation
) -> None:
    """The product and the PCI bus define the expected count on a host; a guest may have fewer GPUs."""
    report = report_after(state_with_gpus(), bus(range(on_bus), place=place), UP, complete_poll(in_place(here)))

    assert replace(report.expectation, unlisted=()) == expected
    assert report.expectation.unlisted == tuple(map(address, range(here, on_bus)))


def test_a_container_expects_the_gpus_it_had() -> None:
    pair = state_with_gpus(board(0), board(1))
    report = report_after(pair, bus(range(8), place=CONTAINER), UP, complete_poll({0: 0}))

    assert faults(report) == {"GPU-1": "missing"}
    assert [state.restored for state in report.gpus] == [False, True]
    assert report.expectation.count == 2


def test_a_reset_while_the_agent_was_stopped_is_detected_by_energy() -> None:
    """A lower energy counter in the same boot is a reset; after a reboot it is not."""
    drained = complete_poll({0: 0})
    drained = replace(drained, gpus=(replace(drained.gpus[0], gpu=Gpu(name=SXM, energy_joules_total=5.0)),))
    arrivals = (state_with_gpus(board(0)), bus([0]), UP, drained)

    assert gpu_state(report_after(*arrivals, boot="b1"), "GPU-0").reset_at == 100.0
    assert gpu_state(report_after(*arrivals, boot="b2"), "GPU-0").reset_at is None
    assert (
        gpu_state(report_after(state_with_gpus(board(0)), bus([0]), UP, complete_poll({0: 0})), "GPU-0").reset_at
        is None
    )


def test_the_stored_record_of_a_gpu() -> None:
    """The store keeps the first time of a GPU; all other values are those of the last reading."""
    report = report_after(
        state_with_gpus(board(0, 5, boot="b1", vbios="old")), bus([0]), UP, complete_poll({0: 0}), boot="b2"
    )
    record = gpu_state(report, "GPU-0").stored

    assert record == board(0, boot="b2", last_wall=1e9 + 100.0, energy=2e9, nvlinks=18, vbios="old")


def test_entries_without_a_gpu_are_a_notice_until_they_have_one() -> None:
    """The notice names each entry and the remedy, but no GPU that is only lost; begin and end are logged once."""
    lost = (f"GPU-{3}", address(3).removeprefix("0000"))
    store, whole = state_with_gpus(*map(board, range(8))), bus(range(8))
    before = report_after(store, whole, UP, complete_poll(in_place(without=[3])))
    typed = report_after(replace(whole, unmatched=(*lost, "42", "GPU-x")), report=before)
    still = report_after(replace(whole, unmatched=(*lost, "42", "GPU-x")), report=typed)
    repaired = report_after(replace(whole, unmatched=lost), report=still)

    notice = typed.notices["gpus_exclude"]
    assert "uuid: 42, GPU-x. Correct or remove these entries of gpus.exclude" in notice
    assert log_lines(before, typed) == [(logging.WARNING, "entries of gpus.exclude name no GPU")]
    assert log_lines(typed, still) == []
    assert log_lines(still, repaired) == [(logging.INFO, "every entry of gpus.exclude names a GPU again")]
    assert "gpus_exclude" not in repaired.notices
