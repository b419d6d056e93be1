"""fold: what arrives becomes what is known."""

from __future__ import annotations

from dataclasses import replace

import pytest
from folded import BUS, TERMS, UP, fallen, healthy, lost, of, polled, seen, told
from sample_events import change

from gpumon.model.error_event import XID, ErrorCounter
from gpumon.model.frame import decode, encode
from gpumon.model.gpu import Gpu
from gpumon.model.now import Now
from gpumon.model.snapshot import DriverStatus, GpuReading, PciBus, Snapshot
from gpumon.state.messages import ErrorChanges, Quarantine, SamplerStatus, StoredState, Tick
from gpumon.state.reduce import reduce


def test_a_healthy_poll_shows_every_gpu() -> None:
    """Each GPU is up, with its readings, its links, its counters and its critical Xids at 0."""
    report = healthy()

    assert [state.uuid for state in report.gpus] == ["GPU-0", "GPU-1", "GPU-2"]
    one = of(report, "GPU-1")
    assert one.gpu.up == 1.0
    assert one.gpu.temperature_celsius == 41.0
    assert one.gpu.busy_seconds_total == 0.5
    assert one.gpu.xid_errors_total == {"79": 0.0}
    assert one.gpu.nvlinks_active == 1.0
    assert set((one.gpu.fault or {}).values()) == {0.0}
    assert report.node.nvml_up == 1.0
    assert (report.node.gpus_visible, report.node.gpus_expected) == (3.0, 3.0)


def test_a_lost_gpu_keeps_its_identity_and_hides_no_other() -> None:
    """Its readings vanish, its name, index and fault stay, and its neighbours go on."""
    report = told(polled(seen(0), lost(1), seen(2), at=101.0), report=healthy(), at=101.0)

    one = of(report, "GPU-1")
    assert (one.gpu.up, one.fault, one.gpu.name, one.index) == (0.0, "lost", "NVIDIA H100", 1)
    assert (one.gpu.fault or {})["lost"] == 1.0
    assert one.gpu.temperature_celsius is None
    assert not one.links
    assert of(report, "GPU-2").gpu.temperature_celsius == 42.0


def test_a_gpu_that_was_never_opened_is_named_by_its_address_until_it_tells_its_uuid() -> None:
    """A stand-in for the uuid comes from the PCI address and goes when the real one is known."""
    unknown = GpuReading(bus_id=BUS[1], fault="reset_required", error="GPU requires restart")
    report = told(UP, polled(seen(0), unknown))
    stand_in = f"pci-{BUS[1].lower()}"

    assert [(state.uuid, state.fault) for state in report.gpus] == [("GPU-0", None), (stand_in, "reset_required")]
    healed = told(polled(seen(0), seen(1)), report=report)
    assert [state.uuid for state in healed.gpus] == ["GPU-0", "GPU-1"]


def test_a_recalled_verdict_on_a_gpu_without_a_name_is_one_series_from_the_first() -> None:
    """It is shown when the PCI bus has told the GPU's index: else one fault would be two alerts after each restart."""
    stand_in = f"pci-{BUS[1].lower()}"
    bus = PciBus(functions=dict.fromkeys(BUS, "nvidia"))
    recalled = told(StoredState(verdicts=(fallen(stand_in),)))
    named = told(bus, report=recalled)

    assert (recalled.health_metrics().health_check, recalled.health_metrics().node_health) == (None, 3.0)
    series = {f"gpu_xid_critical,1,{stand_in},,": 3.0}
    assert named.health_metrics().health_check == series
    assert told(UP, polled(seen(0), lost(1, uuid=None), seen(2)), report=named).health_metrics().health_check == series
    assert told(bus, StoredState(verdicts=(fallen(stand_in),))).health_metrics().health_check == series


def test_a_recalled_verdict_brings_back_no_gpu_that_is_excluded_or_gone() -> None:
    """Only what is on the bus, and ours, has a place."""
    verdicts = tuple(fallen(f"pci-{bus_id.lower()}") for bus_id in BUS)
    bus = PciBus(functions=dict.fromkeys(BUS[:2], "nvidia"), excluded=BUS[:1])

    assert [state.bus_id for state in told(bus, StoredState(verdicts=verdicts)).gpus] == [BUS[1]]


def test_a_stuck_gpu_loses_its_readings_at_once_and_its_neighbours_do_not() -> None:
    """When its call is declared late only that GPU's readings vanish."""
    aside = {BUS[2]: Quarantine(fault="stuck", detail="nvmlDeviceGetTemperature does not return", wall=1e9)}
    report = told(SamplerStatus(quarantined=aside), report=healthy())

    assert of(report, "GPU-2").gpu.temperature_celsius is None
    assert (of(report, "GPU-2").gpu.fault or {})["stuck"] == 1.0
    assert of(report, "GPU-0").gpu.temperature_celsius == 40.0


def test_a_gpu_stuck_in_the_first_poll_takes_no_neighbours_index() -> None:
    """Only its address is known; its place on the bus is its index."""
    bus = PciBus(functions=dict.fromkeys(BUS, "nvidia"))
    aside = {BUS[1]: Quarantine(fault="stuck", detail="", wall=1e9)}
    report = told(bus, UP, SamplerStatus(quarantined=aside), polled(seen(0), seen(2)))

    assert [(state.index, state.fault) for state in report.gpus] == [(0, None), (1, "stuck"), (2, None)]


def test_a_stuck_gpu_is_not_missing_from_the_polls_that_leave_it_aside() -> None:
    """Its fault stays stuck while a sampler without it polls, and ends with the first poll that reads it."""
    aside = {BUS[2]: Quarantine(fault="stuck", detail="", wall=1e9)}
    report = told(SamplerStatus(quarantined=aside), polled(seen(0), seen(1), at=101.0), report=healthy(), at=101.0)
    assert of(report, "GPU-2").fault == "stuck"

    healed = told(SamplerStatus(), polled(seen(0), seen(1), seen(2), at=102.0), report=report, at=102.0)
    assert of(healed, "GPU-2").fault is None


def test_a_gpu_that_is_no_longer_enumerated_is_missing_and_still_expected() -> None:
    """A count that shrinks does not lower what is expected."""
    bus = PciBus(functions=dict.fromkeys(BUS[:2], "nvidia"))
    report = told(bus, polled(seen(0), seen(1), at=101.0), report=healthy(), at=101.0)

    assert of(report, "GPU-2").fault == "missing"
    assert (report.node.gpus_visible, report.node.gpus_expected) == (2.0, 3.0)


def test_a_gpu_given_to_vfio_is_not_ours_to_miss() -> None:
    """Bound to another driver it leaves the inventory."""
    bus = PciBus(functions={BUS[0]: "nvidia", BUS[1]: "nvidia", BUS[2]: "vfio-pci"})
    report = told(bus, polled(seen(0), seen(1)), report=healthy())

    assert [state.uuid for state in report.gpus] == ["GPU-0", "GPU-1"]
    assert (report.node.gpus_on_pci_bus or {})["vfio-pci"] == 1.0


@pytest.mark.parametrize(("age", "kept"), [(9.0, True), (11.0, False)])
def test_readings_older_than_ten_seconds_vanish(age: float, *, kept: bool) -> None:
    """Without a poll the last good values stay for max(3 intervals, 10 s), then they are absent and NVML is down."""
    report = told(Tick(), report=healthy(), at=100.0 + age)

    assert (of(report, "GPU-0").gpu.temperature_celsius is not None) is kept
    assert report.node.nvml_up == float(kept)
    assert of(report, "GPU-0").gpu.name == "NVIDIA H100"


def test_without_a_driver_it_says_what_is_missing() -> None:
    """NVML is down, and each GPU known from before says why."""
    down = DriverStatus(up=False, error="DriverNotLoaded", remedy="modprobe nvidia")
    report = told(down, report=healthy())

    assert report.node.nvml_up == 0.0
    assert "modprobe nvidia" in of(report, "GPU-0").detail
    assert report.driver.driver is None


def test_a_host_without_gpus_that_expects_none_is_well() -> None:
    """nvml_up is absent there: neither up nor failing."""
    down = DriverStatus(up=False, error="LibraryNotFound")
    report = told(PciBus(functions={}), down)

    assert report.node.nvml_up is None
    assert report.node.gpus_expected == 0.0


def test_a_host_without_gpus_that_expects_some_is_not_well() -> None:
    """A configured count is wanted whatever the bus shows."""
    terms = replace(TERMS, expected=8)
    report = told(PciBus(functions={}), DriverStatus(up=False, error="LibraryNotFound"), terms=terms)

    assert (report.node.nvml_up, report.node.gpus_expected) == (0.0, 8.0)


def test_counters_go_on_over_a_loss() -> None:
    """Busy time counted before a GPU was lost is still there when it is back."""
    report = told(polled(seen(0), lost(1), seen(2), at=101.0), report=healthy(), at=101.0)
    report = told(polled(seen(0), seen(1), seen(2), at=102.0), report=report, at=102.0)

    assert of(report, "GPU-1").gpu.busy_seconds_total == 1.0
    assert of(report, "GPU-1").gpu.observed_seconds_total == 2.0
    assert of(report, "GPU-0").gpu.observed_seconds_total == 3.0


def xids(*codes: int) -> ErrorChanges:
    """Each once, of GPU 1, just now."""
    return ErrorChanges(
        changes=tuple(change(code, code, bus_id=BUS[1], first_wall=1e9, last_wall=1e9) for code in codes)
    )


def test_xids_are_counted_and_outlive_the_gpu() -> None:
    """Counts stay while the GPU is lost, and what the store remembered is added to them."""
    report = told(xids(79, 13), polled(lost(1)), report=healthy())
    assert of(report, "GPU-1").gpu.xid_errors_total == {"79": 1.0, "13": 1.0}

    report = told(
        StoredState(counters=(ErrorCounter(kind=XID, device="GPU-1", code=79, count=4, last_wall=5.0),)), report=report
    )
    assert (of(report, "GPU-1").gpu.xid_errors_total or {})["79"] == 5.0
    assert (of(report, "GPU-1").gpu.xid_last_timestamp_seconds or {})["79"] == 1e9


def test_an_index_stays_with_its_uuid() -> None:
    """When a neighbour is gone and NVML renumbers, nobody is renamed."""
    report = told(polled(seen(0), replace(seen(2), index=1), at=101.0), report=healthy(), at=101.0)

    assert of(report, "GPU-2").index == 2
    assert [state.nvml_index for state in report.gpus] == [0, None, 1]


def test_the_drivers_index_is_that_which_it_gave_last() -> None:
    """One that it does not answer keeps what it said with the fault; one that is left aside keeps it as well."""
    report = told(
        polled(
            seen(0),
            lost(1),
            lost(
                2,
            ),
            at=101.0,
        ),
        report=healthy(),
        at=101.0,
    )
    assert [state.nvml_index for state in report.gpus] == [0, 1, 2]
    unnamed = replace(lost(1), uuid=None, index=None)
    report = told(polled(seen(0), unnamed, replace(seen(2), index=1), at=102.0), report=report, at=102.0)
    assert [state.nvml_index for state in report.gpus] == [0, None, 1]


def test_fold_leaves_the_previous_report_as_it_was() -> None:
    """Replaced whole: an older Report in somebody's hands does not change."""
    before = healthy()
    shown = list(before.samples())
    told(polled(lost(0), lost(1), at=101.0), xids(79), report=before, at=101.0)

    assert list(before.samples()) == shown


def test_no_two_gpus_ever_share_an_index() -> None:
    """When NVML gives a GPU the index that a guess or a neighbour holds, each keeps one of its own."""
    bus = PciBus(functions=dict.fromkeys(BUS, "nvidia"))
    guess = GpuReading(bus_id=BUS[1], fault="lost", error="GPU is lost")
    report = told(bus, UP, polled(seen(0), guess, replace(seen(2), index=1)))
    assert sorted(state.index for state in report.gpus) == [0, 1, 2]
    assert of(report, "GPU-2").index == 1

    healed = told(polled(seen(0), seen(1), seen(2)), report=report)
    assert sorted(state.index for state in healed.gpus) == [0, 1, 2]
    assert of(healed, "GPU-2").index == 1


def test_a_board_in_another_slot_is_the_same_gpu() -> None:
    """The uuid is identity: its counters and index move with it, and it is shown once."""
    moved = replace(seen(1), bus_id="00000000:99:00.0", index=7)
    report = told(polled(seen(0), moved, seen(2), at=101.0), report=healthy(), at=101.0)

    assert [state.uuid for state in report.gpus] == ["GPU-0", "GPU-1", "GPU-2"]
    assert (of(report, "GPU-1").index, of(report, "GPU-1").gpu.busy_seconds_total) == (1, 1.0)


def test_an_excluded_gpu_is_not_missed() -> None:
    """Excluded by a reload it leaves the inventory, and no alert is about it."""
    bus = PciBus(functions=dict.fromkeys(BUS, "nvidia"), excluded=(BUS[1],))
    report = told(bus, polled(seen(0), seen(2)), report=healthy())

    assert [state.uuid for state in report.gpus] == ["GPU-0", "GPU-2"]
    assert report.excluded == (BUS[1],)


def test_a_part_of_a_slow_poll_keeps_its_gpus_true() -> None:
    """What a poll has read so far is fresh; what it has not read for long is absent, alone."""
    report = healthy()
    for second in range(1, 13):
        part = replace(polled(seen(0), seen(1), at=100.0 + second), complete=False)
        report = told(part, report=report, at=100.0 + second)

    assert [state.fault for state in report.gpus] == [None, None, "unknown"]
    assert report.node.nvml_up == 1.0


def test_identity_outlives_a_poll_that_could_not_read_it() -> None:
    """A name that fails once does not go blank."""
    nameless = replace(seen(1), gpu=Gpu(temperature_celsius=41.0))
    report = told(polled(seen(0), nameless, seen(2)), report=healthy())

    assert of(report, "GPU-1").gpu.name == "NVIDIA H100"


def test_an_integral_is_absent_while_its_source_is() -> None:
    """Busy time that cannot be counted is not shown as standing still; later it goes on."""
    blind = replace(seen(1), gpu=Gpu(temperature_celsius=41.0), increments={})
    report = told(polled(seen(0), blind, seen(2)), report=healthy())
    assert of(report, "GPU-1").gpu.busy_seconds_total is None

    report = told(polled(seen(0), seen(1), seen(2)), report=report)
    assert of(report, "GPU-1").gpu.busy_seconds_total == 1.0


def test_a_stopped_daemon_finds_no_gpu_silent() -> None:
    """Time that the daemon did not live through makes no reading stale."""
    report = reduce(healthy(), Tick(), Now(at=160.0, wall=1e9 + 160, uptime=106.0), TERMS)

    assert {state.fault for state in report.gpus} == {None}


def test_a_sampler_that_only_crashes_means_that_nvml_is_down() -> None:
    """It was tried, and there is nothing to read: down, with the reason among the notices."""
    bus = PciBus(functions=dict.fromkeys(BUS, "nvidia"))
    report = told(bus, SamplerStatus(restarts={"crash": 3.0}), Tick())

    assert report.node.nvml_up == 0.0
    assert "crashed 3 times" in report.notices["driver"]


def test_an_alert_on_a_verdict_survives_a_restart_of_the_agent() -> None:
    """What the store remembers fires from the first evaluation on."""
    verdict = fallen("GPU-1")
    report = told(StoredState(verdicts=(verdict,)), PciBus(functions=dict.fromkeys(BUS, "nvidia")))
    report = told(UP, polled(seen(0), seen(1)), Tick(), report=report, at=101.0)

    firing = [dict(alert.labels)["gpu"] for alert in report.alerts if alert.rule == "GpuXidCritical"]
    assert firing == ["1"]


def test_what_a_poll_tells_while_a_probe_runs_crosses_the_pipe() -> None:
    """What each link has moved is known while it is read; who reaches whose memory, once told, stays known."""
    access = {"GPU-1": {"read": "ok", "nvlink": "not_supported"}}
    watched = polled(seen(0, link_bytes={"0": 7.0}, peer_access=access, pids=(4,), pids_at=99.0), seen(1))
    crossed = decode(encode(watched))
    assert isinstance(crossed, Snapshot)
    report = told(crossed, report=healthy())
    assert (of(report, "GPU-0").link_bytes, of(report, "GPU-0").peer_access) == ({"0": 7.0}, access)
    assert (of(report, "GPU-0").pids, of(report, "GPU-0").pids_at) == ((4,), 99.0)
    later = told(polled(seen(0), seen(1), at=101.0), report=report, at=101.0)
    assert (of(later, "GPU-0").link_bytes, of(later, "GPU-0").peer_access) == ({}, access)
