"""Reports that differ from another one in what outputs and checks read, whichever section holds it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from gpumon.health.node_health import apply_transitions
from gpumon.health.verdict import VerdictTransition
from gpumon.state.report import Report

_SECTIONS = {
    "gpus": ("inventory", "states"),
    "driver": ("inventory", "driver"),
    "expectation": ("inventory", "expectation"),
    "release_holders": ("inventory", "release_holders"),
    "events": ("errors", "events"),
    "catalogue": ("errors", "catalogue"),
    "node": ("agent", "node"),
    "notices": ("agent", "notices"),
    "agent_runs": ("agent", "runs"),
    "restored": ("agent", "restored"),
    "lost_to": ("agent", "lost_to"),
}
"""Section and attribute of its state, for each property of the Report, and for other attributes by their own name."""
_PORTS = {"ports": "ports", "gone_ports": "missing"}


def changed(report: Report, **values: Any) -> Report:
    """Return the Report with these attributes or properties changed."""
    for name, value in values.items():
        if name in _PORTS:
            inventory = replace(report.host.inventory, **{_PORTS[name]: value})
            report = replace(report, host=replace(report.host, inventory=inventory, is_current=True))
        elif name == "excluded":
            bus = replace(report.inventory.pci, excluded=value)
            report = replace(report, inventory=replace(report.inventory, bus=bus))
        elif name in _SECTIONS:
            section, attribute = _SECTIONS[name]
            report = replace(report, **{section: replace(getattr(report, section), **{attribute: value})})
        else:
            report = replace(report, **{name: value})
    return report


def new_report(*, started: float = 0.0, **values: Any) -> Report:
    """Return a Report with these attributes and properties."""
    return changed(Report(started=started), **values)


def with_transitions(report: Report, transitions: Iterable[VerdictTransition]) -> Report:
    """Return the Report after these transitions of verdicts."""
    return replace(report, health=apply_transitions(report.health, transitions))
