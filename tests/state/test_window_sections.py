"""Maintenance, holds and releases in the Report and in the log."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
from changed_report import changed
from reduced_reports import (
    BUS,
    TERMS,
    UP,
    gpu_reading,
    gpu_state,
    healthy,
    log_lines,
    lost_reading,
    reduce_all,
    snapshot,
    xid79_verdict,
)
from sample_windows import HOLD, MAINTENANCE, RELEASE, window

from gpumon.health.alert import FIRING
from gpumon.health.verdict import VerdictChange, VerdictTransition
from gpumon.model.instant import Instant
from gpumon.model.snapshot import DriverStatus, PciBus, Quarantine, SamplerStatus
from gpumon.model.time_window import MAX_ENDED, NODE, TimeWindow, WindowKind, WindowsEnded, in_force
from gpumon.state.gpu_inventory import GpuInventory
from gpumon.state.gpu_section import RESUME_SECONDS
from gpumon.state.messages import StoredState, Tick, VerdictTransitions
from gpumon.state.report import Report

AT = 100.0
"""The time at which `reduce_all` applies messages."""


def in_future(kind: WindowKind, seconds: float = 60.0, start: float = 0.0, **attributes: str) -> TimeWindow:
    """Return a window that starts `start` seconds from then."""
    return window(kind, start=1e9 + AT + start, start_at=AT + start, seconds=seconds, **attributes)


def maintenance() -> TimeWindow:
    return in_future(MAINTENANCE, reason="new power supply")


def hold(owner: str = "", seconds: float = 60.0, start: float = 0.0) -> TimeWindow:
    return in_future(HOLD, seconds, start, owner=owner, reason="prolog")


def release(bus_id: str = NODE) -> TimeWindow:
    return window(RELEASE, start=1e9, start_at=0.0, seconds=400.0, bus_id=bus_id)


def end(*windows: TimeWindow, at: float = AT) -> WindowsEnded:
    return WindowsEnded(ids=frozenset(each.id for each in windows), by="api", time=Instant("", at, 1e9 + at))


@pytest.mark.parametrize(
    ("kind", "effect"), [(HOLD, ": no probe runs"), (MAINTENANCE, ": no alert pages")], ids=["hold", "maintenance"]
)
def test_start_and_end_are_logged_once(kind: WindowKind, effect: str) -> None:
    """The log reports once that a window starts, ends, is replaced, or continues after a restart of the agent."""
    before, first, second = reduce_all(StoredState(), report=healthy()), in_future(kind), in_future(kind, 90.0, 1.0)
    during = reduce_all(first, report=before)
    longer = reduce_all(second, report=during)
    ended = (logging.INFO, f"{kind} ended")
    assert log_lines(before, during) == [(logging.INFO, f"{kind} started{effect}")]
    assert log_lines(during, reduce_all(Tick(), report=during)) == []
    assert log_lines(during, longer) == [(logging.INFO, f"{kind} replaced")]
    assert log_lines(longer, reduce_all(end(second), report=longer)) == [ended]
    assert ended in log_lines(during, reduce_all(Tick(), report=during, at=AT + 61))
    recalled = reduce_all(StoredState(windows=(first,)), report=healthy())
    assert log_lines(healthy(), recalled) == [(logging.INFO, f"{kind} continues{effect}")]


def failed_node() -> Report:
    """Return a report of a node whose GPU 1 has fallen off the bus."""
    raised = VerdictTransition(
        verdict=xid79_verdict("GPU-1"), change=VerdictChange.RAISED, time=Instant("", AT, 1e9 + AT)
    )
    recalled = reduce_all(StoredState(), report=healthy())
    return reduce_all(VerdictTransitions(transitions=(raised,)), Tick(), report=recalled)


def firing(report: Report) -> list[str]:
    return [alert.rule for alert in report.alerts if alert.state == FIRING]


def test_alerts_are_inhibited_during_maintenance_and_fire_again_after_it() -> None:
    """Alerts fire again after a request or at the deadline; the verdict stays open all the time."""
    before = failed_node()
    assert "GpuXidCritical" in firing(before)
    during = reduce_all(maintenance(), Tick(), report=before)
    assert firing(during) == []
    assert during.health.open.keys() == before.health.open.keys()
    for after in (
        reduce_all(end(*during.windows), Tick(), report=during),
        reduce_all(Tick(), report=during, at=AT + 61),
    ):
        assert after.maintenance is None
        assert "GpuXidCritical" in firing(after)


def test_transitions_during_maintenance_are_muted() -> None:
    """Transitions during maintenance are muted, so that the node score and the scheduler ignore them."""
    during = reduce_all(StoredState(), maintenance(), report=healthy())
    down = tuple(replace(state, fault="lost") for state in during.gpus)
    records = {bus_id: replace(gpu, fault="lost") for bus_id, gpu in during.inventory.gpus.items()}
    report = reduce_all(Tick(), report=changed(during, inventory=GpuInventory(gpus=records), gpus=down))
    lost = [transition for transition in report.health.due if transition.verdict.check == "gpu_lost"]
    assert len(lost) == 3
    assert all(transition.muted for transition in lost)


def test_the_metric_is_absent_until_the_store_is_read() -> None:
    started = reduce_all(Tick())
    assert started.node.maintenance_end_timestamp_seconds is None
    recalled = reduce_all(StoredState(windows=(maintenance(),)), report=started)
    assert recalled.node.maintenance_end_timestamp_seconds == 1e9 + AT + 60
    assert reduce_all(Tick(), report=recalled, at=AT + 61).node.maintenance_end_timestamp_seconds == 0


def test_the_log_shows_alerts_as_inhibited_by_maintenance_and_firing_again_after_it() -> None:
    """During maintenance an alert with an open verdict is inhibited, not resolved."""
    before = failed_node()
    during = reduce_all(maintenance(), Tick(), report=before)
    after = reduce_all(Tick(), report=during, at=AT + 61)
    messages = [message for _, message in (*log_lines(before, during), *log_lines(during, after))]

    assert [message.partition(":")[0] for message in messages if message.startswith("alert")] == [
        "alert inhibited by maintenance",
        "alert firing",
    ]


def owners(report: Report) -> list[str]:
    return [active.owner for active in in_force(report.windows)]


def test_each_hold_ends_by_itself() -> None:
    """A hold ends at its deadline or on request; a second hold of one owner replaces the first."""
    third = hold("3", 600.0)
    report = reduce_all(hold("1"), hold("2", 30.0), third, hold("1", 600.0, 1.0))
    assert owners(report) == ["2", "3", "1"]
    assert owners(reduce_all(Tick(), report=report, at=AT + 61)) == ["3", "1"]
    assert owners(reduce_all(end(third, hold("4")), report=report)) == ["2", "1"]


def test_a_new_hold_replaces_the_stored_hold_of_its_owner() -> None:
    report = reduce_all(hold("1", 600.0), StoredState(windows=(hold("1", 60.0, -5.0), hold("2", 60.0, -4.0))))
    assert sorted((active.owner, active.seconds) for active in in_force(report.windows)) == [("1", 600.0), ("2", 60.0)]


def test_ended_holds_are_limited_in_number() -> None:
    report = reduce_all()
    for number in range(100):
        short = hold(str(number), start=number * 1e-3)
        report = reduce_all(short, end(short), report=report)
    assert (owners(report), len(report.windows) <= MAX_ENDED + 1) == ([], True)


DOWN = DriverStatus(up=False, error="LibRmVersionMismatch", remedy="reboot")


def after(*arrivals: object, at: float, began: str = NODE) -> Report:
    """Return the report of a node released at 101 s and resumed at 300 s, after these messages at `at`."""
    report = reduce_all(release(began), report=healthy(), at=101.0)
    report = reduce_all(end(*report.windows, at=300.0), report=report, at=300.0)
    return reduce_all(*arrivals, report=report, at=at)  # type: ignore[arg-type]


def states(report: Report) -> set[tuple[float | None, str | None]]:
    return {(state.gpu.up, state.fault) for state in report.gpus}


def test_a_release_of_any_length_raises_no_fault() -> None:
    """A release makes no reading stale."""
    report = reduce_all(release(), report=healthy(), at=101.0)
    for at in (102.0, 115.0, 300.0):
        report = reduce_all(UP, report=report, at=at)
        assert states(report) == {(None, None)}
        assert report.node.nvml_up is None


@pytest.mark.parametrize("began", [NODE, BUS[1]])
def test_a_resumed_gpu_has_time_for_its_first_reading(began: str) -> None:
    waiting = after(UP, at=300 + RESUME_SECONDS - 1, began=began)
    assert gpu_state(waiting, "GPU-1").released
    assert gpu_state(waiting, "GPU-1").gpu.up is None
    assert waiting.node.release_end_timestamp_seconds == 1e9 + 400

    late = reduce_all(UP, report=waiting, at=300 + RESUME_SECONDS + 1)
    assert (gpu_state(late, "GPU-1").released, gpu_state(late, "GPU-1").fault) == (False, "unknown")
    assert late.node.release_end_timestamp_seconds is None


def test_each_gpu_resumes_at_its_first_reading() -> None:
    """A first partial poll resumes only the GPUs in it, and the driver is up."""
    report = after(UP, replace(snapshot(gpu_reading(0)), complete=False), at=301.0)
    assert [(state.uuid, state.gpu.up) for state in report.gpus] == [("GPU-0", 1.0), ("GPU-1", None), ("GPU-2", None)]
    assert report.node.nvml_up == 1.0
    assert report.node.snapshot_timestamp_seconds is None
    slow = reduce_all(replace(snapshot(gpu_reading(1)), complete=False), report=report, at=370.0)
    slow = reduce_all(replace(snapshot(gpu_reading(0)), complete=False), report=slow, at=400.0)
    assert [(state.uuid, state.gpu.up) for state in slow.gpus if state.released] == [("GPU-2", None)]


def test_the_first_complete_poll_resumes_every_gpu() -> None:
    """After the first complete poll an absent GPU is missing, and a GPU without an answer is at fault."""
    report = after(UP, snapshot(gpu_reading(0), lost_reading(1)), at=301.0)
    assert [state.fault for state in report.gpus] == [None, "lost", "missing"]
    assert not any(state.released for state in report.gpus)
    assert report.node.snapshot_timestamp_seconds is not None


def test_a_poll_that_began_during_the_release_reports_no_missing_gpu() -> None:
    """A sampler that has not opened the GPU may poll after the release. A GPU that none opens is missing later."""
    bus, polled = PciBus(functions=dict.fromkeys(BUS, "nvidia")), snapshot(gpu_reading(0), gpu_reading(2))
    old = after(bus, polled, at=301.0, began=BUS[1])
    assert [(state.fault, state.released) for state in old.gpus] == [(None, False), (None, True), (None, False)]
    late = reduce_all(polled, report=old, at=301.0 + RESUME_SECONDS)
    assert gpu_state(late, "GPU-1").fault == "missing"


def test_a_missing_driver_after_a_release_is_reported_at_once() -> None:
    """A driver that is down, or a GPU whose first call hangs, is reported at once."""
    down = after(DOWN, at=301.0)
    assert down.node.nvml_up == 0.0
    assert states(down) == {(0.0, "unknown")}

    quarantined = {BUS[2]: Quarantine(fault="stuck", detail="nvmlDeviceGetHandleByPciBusId does not return", wall=1e9)}
    hung = after(UP, SamplerStatus(quarantined=quarantined), at=362.0)
    assert gpu_state(hung, "GPU-2").fault == "stuck"
    assert not gpu_state(hung, "GPU-2").released
    assert gpu_state(hung, "GPU-1").released


def test_a_released_gpu_is_not_missing_from_the_polls() -> None:
    report = reduce_all(release(BUS[1]), report=healthy(), at=101.0)
    report = reduce_all(snapshot(gpu_reading(0), gpu_reading(2)), report=report, at=130.0)
    assert [(state.gpu.up, state.gpu.released) for state in report.gpus] == [(1.0, 0.0), (None, 1.0), (1.0, 0.0)]
    assert report.node.nvml_up == 1.0


def test_an_unopened_released_gpu_is_listed_by_its_address() -> None:
    bus = PciBus(functions=dict.fromkeys(BUS, "nvidia"))
    report = reduce_all(release(BUS[1]), bus, UP, snapshot(gpu_reading(0), gpu_reading(2)))
    assert [(state.index, state.gpu.released) for state in report.gpus] == [(0, 0.0), (1, 1.0), (2, 0.0)]
    given = reduce_all(PciBus(functions=dict.fromkeys(BUS, "nvidia") | {BUS[1]: "vfio-pci"}), report=report)
    assert [state.index for state in reduce_all(snapshot(gpu_reading(0), gpu_reading(2)), report=given).gpus] == [0, 2]


def test_a_gpu_given_to_another_driver_is_no_longer_expected() -> None:
    """A GPU bound to another driver lowers the expected count; a GPU that leaves the bus does not."""
    given = dict.fromkeys(BUS, "nvidia") | {BUS[2]: "vfio-pci"}
    report = reduce_all(PciBus(functions=given), snapshot(gpu_reading(0), gpu_reading(1)), report=healthy(), at=101.0)
    assert (report.node.gpus_expected, len(report.gpus)) == (2.0, 2)
    gone = reduce_all(PciBus(functions={BUS[0]: "nvidia", BUS[2]: "vfio-pci"}), report=report, at=102.0)
    assert gone.node.gpus_expected == 2.0


def test_a_configured_expected_count_remains() -> None:
    report = reduce_all(release(), report=healthy(), terms=replace(TERMS, expected=5))
    assert report.node.gpus_expected == 5.0
