"""A maintenance in the Report: alerts, verdicts, the metric, what the store knew, and the log."""

from __future__ import annotations

import logging
from dataclasses import replace

from folded import fallen, healthy, said, told

from gpumon.health.alert import FIRING
from gpumon.health.verdict import VerdictChange, VerdictTransition
from gpumon.model.maintenance import Maintenance, MaintenanceEnded
from gpumon.state.gpu_inventory import GpuInventory
from gpumon.state.messages import StoredState, Tick, VerdictTransitions
from gpumon.state.report import Report

AT = 100.0
WALL = 1e9 + AT
"""The moment at which `told` tells."""


def maintenance(seconds: float = 60.0, began: float = WALL) -> Maintenance:
    return Maintenance(
        began=began,
        began_at=AT,
        until=began + seconds,
        deadline=AT + seconds,
        boot_id="",
        reason="new power supply",
        by="api",
    )


def wrong() -> Report:
    """A node whose GPU 1 has fallen off the bus."""
    raised = VerdictTransition(verdict=fallen("GPU-1"), change=VerdictChange.RAISED, wall=WALL, at=AT, boot_id="")
    known = told(StoredState(), report=healthy())
    return told(VerdictTransitions(transitions=(raised,)), Tick(), report=known)


def firing(report: Report) -> list[str]:
    return [alert.rule for alert in report.alerts if alert.state == FIRING]


def test_what_fires_resolves_when_it_begins_and_fires_again_when_it_ends() -> None:
    """By request or because its time is up; the verdict stays all the while."""
    before = wrong()
    assert "GpuXidCritical" in firing(before)
    during = told(maintenance(), Tick(), report=before)
    assert firing(during) == []
    assert during.health.open.keys() == before.health.open.keys()
    for after in (
        told(MaintenanceEnded(WALL, AT), Tick(), report=during),
        told(Tick(), report=during, at=AT + 61),
    ):
        assert after.maintenance is None
        assert "GpuXidCritical" in firing(after)


def test_what_is_ruled_in_it_is_muted() -> None:
    """So that the score of the node, and a scheduler, can leave it out."""
    during = told(StoredState(), maintenance(), report=healthy())
    down = tuple(replace(state, fault="lost") for state in during.gpus)
    memory = replace(
        during.internal,
        inventory=GpuInventory(
            gpus={bus_id: replace(gpu, fault="lost") for bus_id, gpu in during.internal.inventory.gpus.items()}
        ),
    )
    report = told(Tick(), report=replace(during, gpus=down, internal=memory))
    lost = [transition for transition in report.health.due if transition.verdict.check == "gpu_lost"]
    assert len(lost) == 3
    assert all(transition.muted for transition in lost)


def test_the_metric_is_absent_until_the_store_has_told() -> None:
    """0 would say that the one from before the restart has ended; then it is the end, or 0."""
    started = told(Tick())
    assert started.node.maintenance_end_timestamp_seconds is None
    known = told(StoredState(maintenances=(maintenance(),)), report=started)
    assert known.node.maintenance_end_timestamp_seconds == WALL + 60
    assert told(Tick(), report=known, at=AT + 61).node.maintenance_end_timestamp_seconds == 0


def test_what_was_begun_before_the_store_could_be_read_came_later() -> None:
    """The one that the store knew has ended with that."""
    report = told(maintenance(began=WALL + 5), StoredState(maintenances=(maintenance(),)), report=healthy())
    assert [one.ended for one in report.maintenances] == [WALL + 5, None]


def test_beginning_and_end_are_told_once() -> None:
    """And that one from before the start goes on."""
    well = told(StoredState(), report=healthy())
    during = told(maintenance(), report=well)
    asked = told(MaintenanceEnded(WALL, AT), report=during)
    late = told(Tick(), report=during, at=AT + 61)
    recalled = told(StoredState(maintenances=(maintenance(),)), report=healthy())

    assert said(well, during) == [(logging.INFO, "maintenance begins: no alert pages")]
    assert said(during, told(Tick(), report=during)) == []
    over = [(logging.INFO, "the maintenance has ended: alerts page again")]
    assert said(during, asked) == over
    assert over[0] in said(during, late)
    assert said(healthy(), recalled) == [(logging.INFO, "the maintenance goes on: no alert pages")]
