"""The log: each change once, the recovery as well as the failure."""

from __future__ import annotations

import logging

from folded import UP, fallen, healthy, lost, polled, said, seen, told
from sample_events import change, error_event

from gpumon.health.verdict import Clearance, VerdictChange, VerdictTransition
from gpumon.model.snapshot import DriverStatus, LinksSnapshot
from gpumon.state.change_log import changes
from gpumon.state.messages import ErrorChanges, StoredState, Tick, VerdictTransitions
from gpumon.state.reducer_settings import ReducerSettings

TERMS = ReducerSettings()
THREE = (seen(0), seen(1), seen(2))


def test_a_loss_and_its_end_are_each_told_once() -> None:
    """The second poll that finds it lost says nothing; the first that reads it again does."""
    well = healthy()
    gone = told(polled(seen(0), lost(1), seen(2), at=101.0), report=well, at=101.0)
    still = told(polled(seen(0), lost(1), seen(2), at=102.0), report=gone, at=102.0)
    back = told(polled(*THREE, at=103.0), report=still, at=103.0)

    assert said(well, gone) == [(logging.ERROR, "the GPU does not answer")]
    assert said(gone, still) == []
    assert said(still, back) == [(logging.WARNING, "the GPU answers again")]


def test_that_nobody_may_see_what_processes_hold_is_told_once() -> None:
    """Without it the check says nothing, and who relies on it would be misled; it is no fault."""
    well = told(LinksSnapshot(ended_at=100.0, stuck=()), report=healthy())
    denied = told(LinksSnapshot(ended_at=101.0, denied=("processes",)), report=well, at=101.0)
    still = told(LinksSnapshot(ended_at=102.0, denied=("processes", "services")), report=denied, at=102.0)

    words = "processes of other users cannot be read, so gpu_process_stuck is unknown for them"
    assert said(well, denied) == [(logging.INFO, words)]
    assert said(denied, still) == []
    assert [one.fields["remedy"] for one in changes(well, denied)] == [
        "install the drop-in gpumon.service.d/processes.conf (docs/install.md)"
    ]


def test_a_missing_driver_is_told_with_its_remedy_and_not_again() -> None:
    """Attempts that fail alike are one line."""
    down = DriverStatus(up=False, error="DriverNotLoaded", remedy="modprobe nvidia")
    first = told(UP)
    gone = told(down, report=first)

    (line,) = changes(first, gone)
    assert (line.level, line.fields["remedy"]) == (logging.ERROR, "modprobe nvidia")
    assert said(gone, told(down, report=gone)) == []


def test_an_alert_is_told_when_it_fires_and_when_it_resolves() -> None:
    """With its rule and the labels of the instance."""
    raised = VerdictTransition(verdict=fallen("GPU-1"), change=VerdictChange.RAISED, wall=1e9)
    wrong = told(VerdictTransitions(transitions=(raised,)), report=healthy(), terms=TERMS)
    firing = told(Tick(), report=wrong, terms=TERMS)
    cleared = told(
        VerdictTransitions(transitions=(raised._replace(change=VerdictChange.CLEARED, cleared_by=Clearance.RESET),)),
        report=firing,
        terms=TERMS,
    )
    resolved = told(Tick(), report=cleared, at=106.0, terms=TERMS)

    (verdict,) = changes(healthy(), wrong)
    assert (verdict.fields["gpu"], verdict.fields["device"]) == (1, "GPU-1")
    (line,) = changes(wrong, firing)
    assert (line.fields["rule"], line.fields["label_gpu"]) == ("GpuXidCritical", "1")
    assert said(cleared, resolved) == [(logging.INFO, line.message.replace("firing", "resolved"))]


def test_an_error_is_told_once_a_burst_in_words() -> None:
    """The level follows the severity; what goes on, what was recalled and what is history is not said again."""
    well = healthy()
    news = (change(1, 79), change(2, 13), change(3, 48, historical=True))
    first = told(ErrorChanges(changes=news), report=well, terms=TERMS)
    more = told(ErrorChanges(changes=(change(1, 79, nvml=9),)), report=first, terms=TERMS)
    recalled = told(StoredState(events=(error_event(9, 94),)), report=more, terms=TERMS)

    assert said(well, first) == [
        (logging.ERROR, "Xid 79: The GPU has fallen off the bus"),
        (logging.WARNING, "Xid 13: Graphics engine exception"),
    ]
    assert said(first, more) == said(more, recalled) == []
