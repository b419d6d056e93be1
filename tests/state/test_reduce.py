"""`reduce` applies each message to the report."""

from __future__ import annotations

from dataclasses import replace

import pytest
from reduced_reports import (
    BUS,
    TERMS,
    UP,
    gpu_reading,
    gpu_state,
    healthy,
    lost_reading,
    reduce_all,
    snapshot,
    xid79_verdict,
)
from sample_events import change

from gpumon.health.verdict import OK, UNKNOWN
from gpumon.model.error_event import XID, ErrorCounter
from gpumon.model.frame import Decoder, Encoder
from gpumon.model.gpu import Gpu
from gpumon.model.instant import Now
from gpumon.model.snapshot import DriverStatus, GpuReading, PciBus, Quarantine, SamplerStatus, Snapshot
from gpumon.state.messages import ErrorChanges, Message, StoredState, Tick, VerdictTransitions
from gpumon.state.reduce import reduce
from gpumon.state.sections import samples


def test_a_healthy_poll_reports_every_gpu() -> None:
    """Each GPU is up, with its readings, its links, its counters and its critical Xids at 0."""
    report = healthy()

    assert [state.uuid for state in report.gpus] == ["GPU-0", "GPU-1", "GPU-2"]
    gpu = gpu_state(report, "GPU-1")
    assert gpu.gpu.up == 1.0
    assert gpu.gpu.temperature_celsius == 41.0
    assert gpu.gpu.busy_seconds_total == 0.5
    assert gpu.gpu.xid_errors_total == {"79": 0.0}
    assert gpu.gpu.nvlinks_active == 1.0
    assert set((gpu.gpu.fault or {}).values()) == {0.0}
    assert report.node.nvml_up == 1.0
    assert (report.node.gpus_visible, report.node.gpus_expected) == (3.0, 3.0)


def test_a_lost_gpu_keeps_its_identity() -> None:
    """A lost GPU has no readings but keeps its name, index and fault; other GPUs are unchanged."""
    report = reduce_all(snapshot(gpu_reading(0), lost_reading(1), gpu_reading(2), at=101.0), report=healthy(), at=101.0)

    gpu = gpu_state(report, "GPU-1")
    assert (gpu.gpu.up, gpu.fault, gpu.gpu.name, gpu.index) == (0.0, "lost", "NVIDIA H100", 1)
    assert (gpu.gpu.fault or {})["lost"] == 1.0
    assert gpu.gpu.temperature_celsius is None
    assert not gpu.links
    assert gpu_state(report, "GPU-2").gpu.temperature_celsius == 42.0


def test_a_gpu_without_a_uuid_is_named_by_its_address() -> None:
    unknown = GpuReading(bus_id=BUS[1], fault="reset_required", error="GPU requires restart")
    report = reduce_all(UP, snapshot(gpu_reading(0), unknown))
    stand_in = f"pci-{BUS[1].lower()}"

    assert [(state.uuid, state.fault) for state in report.gpus] == [("GPU-0", None), (stand_in, "reset_required")]
    healed = reduce_all(snapshot(gpu_reading(0), gpu_reading(1)), report=report)
    assert [state.uuid for state in healed.gpus] == ["GPU-0", "GPU-1"]


def test_a_stored_verdict_on_an_unnamed_gpu_is_one_series() -> None:
    """A verdict on an unnamed GPU waits for its index, so that a restart does not create a second series."""
    stand_in = f"pci-{BUS[1].lower()}"
    bus = PciBus(functions=dict.fromkeys(BUS, "nvidia"))
    recalled = reduce_all(StoredState(verdicts=(xid79_verdict(stand_in),)))
    named = reduce_all(bus, report=recalled)

    assert (recalled.health_metrics().health_check, recalled.health_metrics().node_health) == (None, 3.0)
    series = {f"gpu_xid_critical,1,{stand_in},,,": 3.0}
    assert named.health_metrics().health_check == series
    assert (
        reduce_all(UP, snapshot(gpu_reading(0), lost_reading(1, uuid=None), gpu_reading(2)), report=named)
        .health_metrics()
        .health_check
        == series
    )
    assert reduce_all(bus, StoredState(verdicts=(xid79_verdict(stand_in),))).health_metrics().health_check == series


def test_a_stored_verdict_restores_no_excluded_or_gone_gpu() -> None:
    verdicts = tuple(xid79_verdict(f"pci-{bus_id.lower()}") for bus_id in BUS)
    bus = PciBus(functions=dict.fromkeys(BUS[:2], "nvidia"), excluded=BUS[:1])

    assert [state.bus_id for state in reduce_all(bus, StoredState(verdicts=verdicts)).gpus] == [BUS[1]]


def test_only_the_stuck_gpu_loses_its_readings() -> None:
    quarantined = {BUS[2]: Quarantine(fault="stuck", detail="nvmlDeviceGetTemperature does not return", wall=1e9)}
    report = reduce_all(SamplerStatus(quarantined=quarantined), report=healthy())

    assert gpu_state(report, "GPU-2").gpu.temperature_celsius is None
    assert (gpu_state(report, "GPU-2").gpu.fault or {})["stuck"] == 1.0
    assert gpu_state(report, "GPU-0").gpu.temperature_celsius == 40.0


def test_a_gpu_stuck_in_the_first_poll_has_its_own_index() -> None:
    """A GPU that was stuck at startup has its PCI address and its index on the bus."""
    bus = PciBus(functions=dict.fromkeys(BUS, "nvidia"))
    quarantined = {BUS[1]: Quarantine(fault="stuck", detail="", wall=1e9)}
    report = reduce_all(bus, UP, SamplerStatus(quarantined=quarantined), snapshot(gpu_reading(0), gpu_reading(2)))

    assert [(state.index, state.fault) for state in report.gpus] == [(0, None), (1, "stuck"), (2, None)]


def test_a_quarantined_gpu_is_stuck_and_not_missing() -> None:
    """A fault "stuck" remains while polls omit the GPU and ends with its first reading."""
    quarantined = {BUS[2]: Quarantine(fault="stuck", detail="", wall=1e9)}
    report = reduce_all(
        SamplerStatus(quarantined=quarantined),
        snapshot(gpu_reading(0), gpu_reading(1), at=101.0),
        report=healthy(),
        at=101.0,
    )
    assert gpu_state(report, "GPU-2").fault == "stuck"

    healed = reduce_all(
        SamplerStatus(), snapshot(gpu_reading(0), gpu_reading(1), gpu_reading(2), at=102.0), report=report, at=102.0
    )
    assert gpu_state(healed, "GPU-2").fault is None


def test_a_gpu_that_nvml_no_longer_lists_is_missing_and_expected() -> None:
    bus = PciBus(functions=dict.fromkeys(BUS[:2], "nvidia"))
    report = reduce_all(bus, snapshot(gpu_reading(0), gpu_reading(1), at=101.0), report=healthy(), at=101.0)

    assert gpu_state(report, "GPU-2").fault == "missing"
    assert (report.node.gpus_visible, report.node.gpus_expected) == (2.0, 3.0)


def test_a_gpu_bound_to_vfio_is_not_missing() -> None:
    """A GPU bound to another driver leaves the inventory."""
    bus = PciBus(functions={BUS[0]: "nvidia", BUS[1]: "nvidia", BUS[2]: "vfio-pci"})
    report = reduce_all(bus, snapshot(gpu_reading(0), gpu_reading(1)), report=healthy())

    assert [state.uuid for state in report.gpus] == ["GPU-0", "GPU-1"]
    assert (report.node.gpus_on_pci_bus or {})["vfio-pci"] == 1.0


@pytest.mark.parametrize(("age", "fresh"), [(9.0, True), (11.0, False)])
def test_readings_older_than_ten_seconds_are_absent(age: float, *, fresh: bool) -> None:
    """Readings remain for max(3 intervals, 10 s) without a poll; then they are absent and NVML is down."""
    report = reduce_all(Tick(), report=healthy(), at=100.0 + age)

    assert (gpu_state(report, "GPU-0").gpu.temperature_celsius is not None) is fresh
    assert report.node.nvml_up == float(fresh)
    assert gpu_state(report, "GPU-0").gpu.name == "NVIDIA H100"


def test_without_a_driver_every_gpu_has_the_reason() -> None:
    """NVML is down, and every GPU reports the reason."""
    down = DriverStatus(up=False, error="DriverNotLoaded", remedy="modprobe nvidia")
    report = reduce_all(down, report=healthy())

    assert report.node.nvml_up == 0.0
    assert "modprobe nvidia" in gpu_state(report, "GPU-0").detail
    assert report.driver.driver is None


def test_a_node_is_unknown_until_its_gpus_were_read() -> None:
    """Without a driver at the first start no GPU is known, and the node is not ok; a host without GPUs is."""
    down = DriverStatus(up=False, error="DriverNotLoaded", remedy="modprobe nvidia")
    bus = PciBus(functions=dict.fromkeys(BUS, ""))

    def level(*arrivals: Message) -> float | None:
        return reduce_all(StoredState(), *arrivals, Tick(), Tick()).health_metrics().node_health

    assert level() == level(bus) == level(bus, down) == UNKNOWN
    assert level(bus, UP, snapshot(gpu_reading(0), gpu_reading(1), gpu_reading(2))) == OK
    assert level(PciBus(functions={}), down) == OK


def test_a_host_that_expects_no_gpus_is_ok() -> None:
    """nvml_up is absent on a host that has no GPU and expects none."""
    down = DriverStatus(up=False, error="LibraryNotFound")
    report = reduce_all(PciBus(functions={}), down)

    assert report.node.nvml_up is None
    assert report.node.gpus_expected == 0.0


def test_a_host_without_its_expected_gpus_is_failed() -> None:
    """A configured count is expected whatever the bus lists."""
    terms = replace(TERMS, expected=8)
    report = reduce_all(PciBus(functions={}), DriverStatus(up=False, error="LibraryNotFound"), terms=terms)

    assert (report.node.nvml_up, report.node.gpus_expected) == (0.0, 8.0)


def test_counters_continue_after_a_loss() -> None:
    """Busy time from before the loss of a GPU continues when the GPU is back."""
    report = reduce_all(snapshot(gpu_reading(0), lost_reading(1), gpu_reading(2), at=101.0), report=healthy(), at=101.0)
    report = reduce_all(snapshot(gpu_reading(0), gpu_reading(1), gpu_reading(2), at=102.0), report=report, at=102.0)

    assert gpu_state(report, "GPU-1").gpu.busy_seconds_total == 1.0
    assert gpu_state(report, "GPU-1").gpu.observed_seconds_total == 2.0
    assert gpu_state(report, "GPU-0").gpu.observed_seconds_total == 3.0


def xids(*codes: int) -> ErrorChanges:
    """Return one error of GPU 1 per code, at the current time."""
    return ErrorChanges(
        changes=tuple(change(code, code, bus_id=BUS[1], first_wall=1e9, last_wall=1e9) for code in codes)
    )


def test_xid_counts_remain_while_the_gpu_is_lost() -> None:
    report = reduce_all(xids(79, 13), snapshot(lost_reading(1)), report=healthy())
    assert gpu_state(report, "GPU-1").gpu.xid_errors_total == {"79": 1.0, "13": 1.0}

    report = reduce_all(
        StoredState(counters=(ErrorCounter(kind=XID, device="GPU-1", code=79, count=4, last_wall=5.0),)), report=report
    )
    assert (gpu_state(report, "GPU-1").gpu.xid_errors_total or {})["79"] == 5.0
    assert (gpu_state(report, "GPU-1").gpu.xid_last_timestamp_seconds or {})["79"] == 1e9


def test_an_index_stays_with_its_uuid() -> None:
    """When NVML renumbers after the loss of a GPU, the other GPUs keep their index."""
    report = reduce_all(
        snapshot(gpu_reading(0), replace(gpu_reading(2), index=1), at=101.0), report=healthy(), at=101.0
    )

    assert gpu_state(report, "GPU-2").index == 2
    assert [state.nvml_index for state in report.gpus] == [0, None, 1]


def test_the_nvml_index_is_the_last_reported_index() -> None:
    """A GPU that does not respond, or is quarantined, keeps its last NVML index."""
    report = reduce_all(
        snapshot(
            gpu_reading(0),
            lost_reading(1),
            lost_reading(
                2,
            ),
            at=101.0,
        ),
        report=healthy(),
        at=101.0,
    )
    assert [state.nvml_index for state in report.gpus] == [0, 1, 2]
    unnamed = replace(lost_reading(1), uuid=None, index=None)
    report = reduce_all(
        snapshot(gpu_reading(0), unnamed, replace(gpu_reading(2), index=1), at=102.0), report=report, at=102.0
    )
    assert [state.nvml_index for state in report.gpus] == [0, None, 1]


def test_reduce_does_not_change_the_previous_report() -> None:
    before = healthy()
    shown = list(samples(before))
    reduce_all(snapshot(lost_reading(0), lost_reading(1), at=101.0), xids(79), report=before, at=101.0)

    assert list(samples(before)) == shown


def test_no_two_gpus_share_an_index() -> None:
    """Every GPU has a unique index, also when NVML assigns an index that is in use."""
    bus = PciBus(functions=dict.fromkeys(BUS, "nvidia"))
    guess = GpuReading(bus_id=BUS[1], fault="lost", error="GPU is lost")
    report = reduce_all(bus, UP, snapshot(gpu_reading(0), guess, replace(gpu_reading(2), index=1)))
    assert sorted(state.index for state in report.gpus) == [0, 1, 2]
    assert gpu_state(report, "GPU-2").index == 1

    healed = reduce_all(snapshot(gpu_reading(0), gpu_reading(1), gpu_reading(2)), report=report)
    assert sorted(state.index for state in healed.gpus) == [0, 1, 2]
    assert gpu_state(healed, "GPU-2").index == 1


def test_a_board_in_another_slot_is_the_same_gpu() -> None:
    """A GPU keeps its UUID, counters and index in another slot, and is listed once."""
    moved = replace(gpu_reading(1), bus_id="00000000:99:00.0", index=7)
    report = reduce_all(snapshot(gpu_reading(0), moved, gpu_reading(2), at=101.0), report=healthy(), at=101.0)

    assert [state.uuid for state in report.gpus] == ["GPU-0", "GPU-1", "GPU-2"]
    assert (gpu_state(report, "GPU-1").index, gpu_state(report, "GPU-1").gpu.busy_seconds_total) == (1, 1.0)


def test_an_excluded_gpu_is_not_missing() -> None:
    """A GPU that is excluded by a reload leaves the inventory and has no alert."""
    bus = PciBus(functions=dict.fromkeys(BUS, "nvidia"), excluded=(BUS[1],))
    report = reduce_all(bus, snapshot(gpu_reading(0), gpu_reading(2)), report=healthy())

    assert [state.uuid for state in report.gpus] == ["GPU-0", "GPU-2"]
    assert report.excluded == (BUS[1],)


def test_a_partial_poll_keeps_its_gpus_fresh() -> None:
    report = healthy()
    for second in range(1, 13):
        part = replace(snapshot(gpu_reading(0), gpu_reading(1), at=100.0 + second), complete=False)
        report = reduce_all(part, report=report, at=100.0 + second)

    assert [state.fault for state in report.gpus] == [None, None, "unknown"]
    assert report.node.nvml_up == 1.0


def test_a_name_remains_after_a_failed_read() -> None:
    nameless = replace(gpu_reading(1), gpu=Gpu(temperature_celsius=41.0))
    report = reduce_all(snapshot(gpu_reading(0), nameless, gpu_reading(2)), report=healthy())

    assert gpu_state(report, "GPU-1").gpu.name == "NVIDIA H100"


def test_an_integral_is_absent_while_its_source_is() -> None:
    """Busy time is absent while its source is absent, and continues afterwards."""
    blind = replace(gpu_reading(1), gpu=Gpu(temperature_celsius=41.0), increments={})
    report = reduce_all(snapshot(gpu_reading(0), blind, gpu_reading(2)), report=healthy())
    assert gpu_state(report, "GPU-1").gpu.busy_seconds_total is None

    report = reduce_all(snapshot(gpu_reading(0), gpu_reading(1), gpu_reading(2)), report=report)
    assert gpu_state(report, "GPU-1").gpu.busy_seconds_total == 1.0


def test_time_while_the_daemon_is_stopped_makes_no_gpu_stale() -> None:
    report = reduce(healthy(), Tick(), Now(at=160.0, wall=1e9 + 160, uptime=106.0), TERMS)

    assert {state.fault for state in report.gpus} == {None}


def test_a_sampler_that_only_crashes_means_that_nvml_is_down() -> None:
    bus = PciBus(functions=dict.fromkeys(BUS, "nvidia"))
    report = reduce_all(bus, SamplerStatus(restarts={"crash": 3.0}), Tick())

    assert report.node.nvml_up == 0.0
    assert "crashed 3 times" in report.notices["driver"]


def test_an_alert_on_a_verdict_survives_a_restart_of_the_agent() -> None:
    """A stored verdict fires its alert as soon as it is read, and from the first evaluation with the GPU's index."""
    verdict = xid79_verdict("GPU-1")
    report = reduce_all(StoredState(verdicts=(verdict,)), PciBus(functions=dict.fromkeys(BUS, "nvidia")))
    assert [alert.state for alert in report.alerts if alert.rule == "GpuXidCritical"] == ["firing"]
    report = reduce_all(UP, snapshot(gpu_reading(0), gpu_reading(1)), Tick(), report=report, at=101.0)

    alerts = [alert for alert in report.alerts if alert.rule == "GpuXidCritical" and alert.state == "firing"]
    assert [dict(alert.labels)["gpu"] for alert in alerts] == ["1"]


def test_an_xid_fires_its_alert_without_waiting_for_a_tick() -> None:
    """The checks are evaluated when the Xid arrives, and the alert fires as soon as its verdict is stored."""
    xid = change(100, 79, bus_id=BUS[1], boot_id="", first_wall=1e9 + 100, last_wall=1e9 + 100)
    report = reduce_all(ErrorChanges(changes=(xid,)), report=reduce_all(StoredState(), Tick(), report=healthy()))
    assert [(each.verdict.check, each.verdict.device) for each in report.health.due] == [("gpu_xid_critical", "GPU-1")]

    report = reduce_all(VerdictTransitions(transitions=report.health.due), report=report)
    alerts = [(alert.state, dict(alert.labels)["gpu"]) for alert in report.alerts if alert.rule == "GpuXidCritical"]
    assert alerts == [("firing", "1")]


def test_a_lost_gpu_is_evaluated_when_its_loss_is_read() -> None:
    """A poll that changes the fault of a GPU evaluates the checks; the next poll, which changes none, does not."""
    before = reduce_all(StoredState(), Tick(), report=healthy())
    lost = snapshot(gpu_reading(0), lost_reading(1), gpu_reading(2), at=101.0)
    report = reduce_all(lost, report=before, at=101.0)
    assert report.health.evaluated is not None
    assert report.health.evaluated.uptime == 101.0
    assert "gpu_lost" in {check for check, _ in report.health.pending}
    assert reduce_all(lost, report=report, at=102.0).health is report.health


def test_link_bytes_processes_and_peer_access_survive_encoding() -> None:
    access = {"GPU-1": {"read": "ok", "nvlink": "not_supported"}}
    watched = snapshot(
        gpu_reading(0, link_bytes={"0": 7.0}, peer_access=access, pids=(4,), pids_at=99.0), gpu_reading(1)
    )
    crossed = Decoder().decode(Encoder().encode(watched))
    assert isinstance(crossed, Snapshot)
    report = reduce_all(crossed, report=healthy())
    assert (gpu_state(report, "GPU-0").link_bytes, gpu_state(report, "GPU-0").peer_access) == ({"0": 7.0}, access)
    assert (gpu_state(report, "GPU-0").pids, gpu_state(report, "GPU-0").pids_at) == ((4,), 99.0)
    later = reduce_all(snapshot(gpu_reading(0), gpu_reading(1), at=101.0), report=report, at=101.0)
    assert (gpu_state(later, "GPU-0").link_bytes, gpu_state(later, "GPU-0").peer_access) == ({}, access)
