"""Reduce requests, the stored windows and the passing of time to the windows of the Report. Pure."""

from __future__ import annotations

import functools
from dataclasses import replace

from gpumon.model import hold, maintenance
from gpumon.model.hold import Hold, HoldEnded, Holds
from gpumon.model.maintenance import Known, Maintenance, MaintenanceEnded
from gpumon.model.now import Now
from gpumon.model.release import Release
from gpumon.state import released_gpus
from gpumon.state.messages import Message, StoredState
from gpumon.state.report import Report


def take(report: Report, message: Message, now: Now) -> Report:
    """Return the report with its windows after this message, at this time."""
    if isinstance(message, Release):
        internal = released_gpus.released(report.internal, report.release, message, now.uptime)
        report = replace(report, release=message, internal=internal)
    known = maintenance.in_time(_maintenances(report, message), now, report.boot_id)
    holds = hold.in_time(_holds(report, message), now, report.boot_id)
    if known is report.maintenances and holds is report.holds:
        return report
    return replace(report, maintenances=known, holds=holds)


def _maintenances(report: Report, message: Message) -> Known:
    match message:
        case Maintenance():
            return maintenance.begun(report.maintenances, message)
        case MaintenanceEnded():
            return maintenance.ended(report.maintenances, message)
        case StoredState():
            return functools.reduce(maintenance.begun, report.maintenances, message.maintenances)
        case _:
            return report.maintenances


def _holds(report: Report, message: Message) -> Holds:
    match message:
        case Hold():
            return hold.begun(report.holds, message)
        case HoldEnded():
            return hold.ended(report.holds, message)
        case StoredState():
            return functools.reduce(hold.begun, report.holds, message.holds)
        case _:
            return report.holds
