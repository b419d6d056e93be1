"""The change log reports each change once, at the failure and at the recovery."""

from __future__ import annotations

import logging
from dataclasses import replace

from reader_turns import host_snapshot
from reduced_reports import UP, gpu_reading, healthy, log_lines, lost_reading, reduce_all, snapshot, xid79_verdict
from sample_events import change, error_event

from gpumon.health.verdict import Clearance, VerdictChange, VerdictTransition
from gpumon.model.instant import Instant
from gpumon.model.snapshot import DriverStatus
from gpumon.state.messages import ErrorChanges, StoredState, VerdictTransitions
from gpumon.state.section import ReducerSettings
from gpumon.state.sections import changes

TERMS = ReducerSettings()
THREE = (gpu_reading(0), gpu_reading(1), gpu_reading(2))


def test_loss_and_recovery_of_a_gpu_are_each_logged_once() -> None:
    """The log has one line at the first poll without the GPU and one at the first poll that reads it again."""
    healthy_report = healthy()
    gone = reduce_all(
        snapshot(gpu_reading(0), lost_reading(1), gpu_reading(2), at=101.0), report=healthy_report, at=101.0
    )
    still = reduce_all(snapshot(gpu_reading(0), lost_reading(1), gpu_reading(2), at=102.0), report=gone, at=102.0)
    back = reduce_all(snapshot(*THREE, at=103.0), report=still, at=103.0)

    assert log_lines(healthy_report, gone) == [(logging.ERROR, "the GPU does not answer")]
    assert log_lines(gone, still) == []
    assert log_lines(still, back) == [(logging.WARNING, "the GPU answers again")]


def test_missing_permission_for_processes_is_logged_once() -> None:
    """The log reports once, at INFO, that permission to list processes is missing, with the remedy."""
    healthy_report = reduce_all(host_snapshot(100.0, stuck=()), report=healthy())
    denied = reduce_all(host_snapshot(101.0, denied=("processes",)), report=healthy_report, at=101.0)
    still = reduce_all(host_snapshot(102.0, denied=("processes", "services")), report=denied, at=102.0)

    words = "processes of other users cannot be read, so gpu_process_stuck is unknown for them"
    assert log_lines(healthy_report, denied) == [(logging.INFO, words)]
    assert log_lines(denied, still) == []
    assert [line.fields["remedy"] for line in changes(healthy_report, denied)] == [
        "install the drop-in gpumon.service.d/processes.conf (docs/install.md)"
    ]


def test_a_missing_driver_is_logged_once_with_its_remedy() -> None:
    """Repeated attempts that fail with the same error log one line."""
    down = DriverStatus(up=False, error="DriverNotLoaded", remedy="modprobe nvidia")
    first = reduce_all(UP)
    gone = reduce_all(down, report=first)

    (line,) = changes(first, gone)
    assert (line.level, line.fields["remedy"]) == (logging.ERROR, "modprobe nvidia")
    assert log_lines(gone, reduce_all(down, report=gone)) == []


def test_an_alert_is_logged_when_it_fires_and_when_it_resolves() -> None:
    """The log lines of an alert contain its rule and its labels."""
    raised = VerdictTransition(verdict=xid79_verdict("GPU-1"), change=VerdictChange.RAISED, time=Instant("", 0.0, 1e9))
    firing = reduce_all(VerdictTransitions(transitions=(raised,)), report=healthy(), terms=TERMS)
    cleared = reduce_all(
        VerdictTransitions(transitions=(raised._replace(change=VerdictChange.CLEARED, cleared_by=Clearance.RESET),)),
        report=firing,
        terms=TERMS,
    )

    verdict, line = changes(healthy(), firing)
    assert (verdict.fields["gpu"], verdict.fields["device"]) == (1, "GPU-1")
    assert verdict.message == f"verdict fail: GPU 1: {raised.verdict.reason}"
    assert (line.fields["rule"], line.fields["label_gpu"]) == ("GpuXidCritical", "1")
    assert (logging.INFO, line.message.replace("firing", "resolved")) in log_lines(firing, cleared)


def test_alert_whose_verdict_is_inhibited_is_not_logged_as_resolved() -> None:
    raised = VerdictTransition(verdict=xid79_verdict("GPU-1"), change=VerdictChange.RAISED, time=Instant("", 0.0, 1e9))
    firing = reduce_all(VerdictTransitions(transitions=(raised,)), report=healthy(), terms=TERMS)
    inhibited = {key: each._replace(inhibited_by=("gpu_lost", "GPU-1")) for key, each in firing.health.open.items()}
    explained = replace(firing, health=replace(firing.health, open=inhibited))

    (line,) = (line for line in changes(firing, explained) if line.message.startswith("alert"))
    assert line.message.startswith("alert inhibited by gpu_lost: ")


def test_an_error_is_logged_once_per_burst() -> None:
    """The level follows the severity; continued, recalled and historical errors are not logged again."""
    healthy_report = healthy()
    news = (change(1, 79), change(2, 13), change(3, 48, historical=True))
    first = reduce_all(ErrorChanges(changes=news), report=healthy_report, terms=TERMS)
    more = reduce_all(ErrorChanges(changes=(change(1, 79, nvml=9),)), report=first, terms=TERMS)
    recalled = reduce_all(StoredState(events=(error_event(9, 94),)), report=more, terms=TERMS)

    assert log_lines(healthy_report, first) == [
        (logging.ERROR, "Xid 79: The GPU has fallen off the bus"),
        (logging.WARNING, "Xid 13: Graphics engine exception"),
    ]
    assert log_lines(first, more) == log_lines(more, recalled) == []
