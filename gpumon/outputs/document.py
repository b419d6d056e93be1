"""The Report as plain values, ready for JSON: what the API, the page and the terminal show.

The rows of the metric tables keep their names, so a JSON key is a metric's suffix, unit included. A reading that is
absent is null, never left out and never 0: who reads a key can tell "not known" from a spelling mistake. A reading with
labels is an object by label value, one level a label. Moments are RFC 3339 in UTC.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpumon.health.alerts.alert import Alert
from gpumon.model.gpu_state import GpuState
from gpumon.model.nvlink import Nvlink, NvlinkPeer
from gpumon.model.reading import Row, Table, labels_of, rows
from gpumon.model.release import Window
from gpumon.model.snapshot import SeenMig
from gpumon.outputs import events, standing
from gpumon.outputs.health import health
from gpumon.outputs.hold import hold
from gpumon.outputs.maintenance import maintenance
from gpumon.outputs.problems import UNJUDGED, Problem, fault_words, problems, worst
from gpumon.outputs.words import duration, rfc3339, stage
from gpumon.probe.core.account import Progress
from gpumon.probe.core.probes import ALL_REDUCE
from gpumon.probe.core.result import ProbeResult, to_document
from gpumon.probe.core.state import ProbeState
from gpumon.state.report import Report

Document = dict[str, Any]

NOT_JUDGED = "Not known yet: the agent has judged nothing since it started."

PRIVATE = frozenset({"log"})
"""Not for everyone: what the ranks of a probe printed names processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """Where and when a document is made."""

    host: str
    wall: float
    """Seconds since the epoch."""
    boot: float
    """CLOCK_BOOTTIME: seconds since the host was booted."""


def whole(report: Report, stamp: Stamp) -> Document:
    """Everything that is known, from one Report."""
    return {
        "node": node(report, stamp),
        "gpus": gpus(report),
        "links": links(report),
        "ports": ports(report),
        "health": health(report, stamp.boot),
        "alerts": [alert(one) for one in report.alerts],
        "events": events.documents(report, report.events),
        "probe": probe(report, stamp),
        "probes": [probe_result(one) for one in reversed(report.probe.known)],
    }


def node(report: Report, stamp: Stamp) -> Document:
    """The node and the agent, and what is wrong with them and with the GPUs."""
    found = problems(report)
    return {
        "host": stamp.host,
        "time": rfc3339(stamp.wall),
        "state": worst(found, judged=report.health.judged),
        "problems": [_problem(one) for one in found],
        "notices": [{"subject": subject, "message": message} for subject, message in report.notices.items()],
        "simulated_profile": report.simulated,
        "excluded": list(report.excluded),
        "releases": release(report, stamp)["windows"],
        "maintenance": maintenance(report),
        "started": rfc3339(report.started),
        "booted": rfc3339(round(stamp.wall - stamp.boot)),
        "build": table(report.build),
        "driver": table(report.driver),
        **table(report.node),
    }


def release(report: Report, stamp: Stamp) -> Document:
    """What the agent keeps off now, because it was asked to."""
    windows = [_window(one, report, stamp) for one in report.release.windows]
    return {"released": bool(windows), "windows": windows}


def _window(one: Window, report: Report, stamp: Stamp) -> Document:
    state = report.gpu(one.bus_id) if one.bus_id else None
    return {
        "gpu": None if state is None else state.index,
        "uuid": None if state is None else state.uuid,
        "pci_bus_id": one.bus_id or None,
        "by": one.by,
        "since": rfc3339(one.since),
        "until": rfc3339(one.until),
        "remaining_seconds": round(max(0.0, one.deadline - stamp.boot), 3),
    }


def gpus(report: Report) -> list[Document]:
    return [gpu(state) for state in report.gpus]


def gpu(state: GpuState) -> Document:
    """One GPU of the inventory, which stays in it whatever becomes of the GPU."""
    readings = table(state.gpu)
    return {
        "gpu": state.index,
        "uuid": state.uuid,
        "state": "released" if state.released else state.fault or ("up" if readings["up"] == 1 else "unknown"),
        "detail": fault_words(state),
        "since": rfc3339(state.since),
        **readings,
        "pci_bus_id": readings["pci_bus_id"] or state.bus_id,
        "fabric": _table_or_none(state.fabric),
        "platform": _table_or_none(state.platform),
        "migs": [_mig(one) for one in state.migs],
        "c2c_links": [{"link": int(link), **table(one)} for link, one in state.c2c_links.items()],
    }


def _mig(seen: SeenMig) -> Document:
    return {
        "mig_uuid": seen.uuid,
        "gpu_instance_id": seen.gpu_instance_id,
        "compute_instance_id": seen.compute_instance_id,
        "profile": seen.profile,
        **table(seen.mig),
    }


def links(report: Report) -> list[Document]:
    """Every NVLink of every GPU, with what is at its other end; of a GPU that does not answer, that alone."""
    return [
        {
            "gpu": state.index,
            "uuid": state.uuid,
            "link": int(link),
            **table(state.links.get(link, Nvlink())),
            **table(state.peers.get(link, NvlinkPeer())),
        }
        for state in report.gpus
        for link in sorted({*state.links, *state.peers}, key=int)
    ]


def ports(report: Report) -> list[Document]:
    """Every InfiniBand or RoCE port."""
    return [
        {
            "device": one.device,
            "port": one.port,
            "link_layer": one.link_layer,
            **table(one.link),
            **table(one.counts),
        }
        for one in report.ports
    ]


def alert(one: Alert) -> Document:
    return {
        "rule": one.rule,
        "severity": one.severity,
        "state": one.state,
        "labels": dict(one.labels),
        "summary": one.summary,
        "description": one.description,
        "runbook_url": one.runbook_url,
        "value": _number(one.value),
        "since": rfc3339(one.since),
        "firing_since": rfc3339(one.firing_since),
        "resolved_at": rfc3339(one.resolved_at),
    }


def probe(report: Report, stamp: Stamp, name: str = ALL_REDUCE) -> Document:
    """A probe as it stands: the last run, its age, and what comes. Only the all-reduce is scheduled and has metrics."""
    state = report.probe
    scheduled, runs = name == ALL_REDUCE, state.running is not None and state.running_probe == name
    last = state.last if scheduled else next((one for one in reversed(state.history) if one.probe == name), None)
    return {
        "probe": name,
        "running": state.running if runs else None,
        "progress": progress(state.progress) if runs else None,
        "next_run": rfc3339(state.next_run) if scheduled else None,
        "hold": hold(report),
        "age_seconds": None if last is None else round(age(last, stamp), 3),
        "last": None if last is None else probe_result(last),
        "standing": standing.document(state, name, stamp.wall),
        "metrics": table(state.metrics) if scheduled else None,
    }


def probe_running(state: ProbeState) -> Document:
    """The run in progress."""
    return {"id": state.running, "probe": state.running_probe, "running": True, "progress": progress(state.progress)}


def progress(one: Progress | None) -> Document | None:
    """Where the slowest rank of a run is."""
    if one is None:
        return None
    return {
        "rank": one.rank,
        "stage": one.stage,
        "algorithm": one.algorithm,
        "bytes": one.bytes,
        "ratio": one.ratio,
        "words": stage(one.stage, one.bytes, one.algorithm),
    }


def probe_result(result: ProbeResult) -> Document:
    """One run, less what is PRIVATE."""
    attributes = {name: _plain(value) for name, value in to_document(result).items() if name not in PRIVATE}
    return attributes | {"started": rfc3339(result.started)}


def _plain(value: Any) -> Any:
    """With lists for tuples, as JSON reads it."""
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


def age(result: ProbeResult, stamp: Stamp) -> float:
    """Seconds since the run ended."""
    return max(0.0, stamp.wall - result.ended)


def table(one: Table) -> Document:
    """Every row of a metric table, by the name of its attribute."""
    return {name: _value(row, getattr(one, name)) for name, row in rows(type(one)).items()}


def _table_or_none(one: Table | None) -> Document | None:
    return None if one is None else table(one)


def gpus_up(document: Document) -> tuple[int, int]:
    """How many GPUs of a document answer, and how many should: those excluded or released are not asked."""
    node, states = document["node"], [one["state"] for one in document["gpus"]]
    known = max(len(states), int(node["gpus_expected"] or 0) - len(node["excluded"]))
    return states.count("up"), known - states.count("released")


def excluded(node: Document) -> list[str]:
    """A sentence for each GPU that the configuration excludes."""
    return [f"GPU at {bus_id}: excluded by the configuration." for bus_id in node["excluded"]]


def released(node: Document) -> list[str]:
    """A sentence for each release in force."""
    return [_released(one) for one in node["releases"]]


def _released(one: Document) -> str:
    what = (
        "Every GPU" if one["pci_bus_id"] is None else f"GPU {one['pci_bus_id'] if one['gpu'] is None else one['gpu']}"
    )
    until, left = one["until"][11:19], duration(one["remaining_seconds"])
    return f"{what} is released until {until} UTC, for {left} more, by {one['by']}."


def aside(document: Document) -> list[str]:
    """How many GPUs nobody looks at, and why, in words; nothing where there are none."""
    states = [one["state"] for one in document["gpus"]]
    counted = {"excluded": len(document["node"]["excluded"]), "released": states.count("released")}
    return [f"{number} {why}" for why, number in counted.items() if number]


def verdict(node: Document) -> str:
    """The problems of a node in a sentence; what is only for information is not wrong."""
    wrong = sum(one["severity"] != "info" for one in node["problems"])
    if not wrong:
        return NOT_JUDGED if node["state"] == UNJUDGED else "Nothing is wrong."
    return "One thing is wrong." if wrong == 1 else f"{wrong} things are wrong, the worst first."


def _problem(one: Problem) -> Document:
    return _attributes(one) | {"since": rfc3339(one.since)}


def _attributes(one: Problem) -> Document:
    return {f.name: getattr(one, f.name) for f in dataclasses.fields(one) if f.name not in PRIVATE}


def _value(row: Row, value: Any) -> Any:
    if value is None or row.identity:
        return value
    return _by_label(row, value) if row.labels else _number(value)


def _by_label(row: Row, values: Mapping[str, float]) -> Document:
    nested: Document = {}
    for key, value in values.items():
        *outer, (_, last) = labels_of(row, key)
        place = nested
        for _, label in outer:
            place = place.setdefault(label, {})
        place[last] = _number(value)
    return nested


def _number(value: float) -> float | int | None:
    """Whole numbers without their ".0"; JSON knows neither NaN nor infinity."""
    if not math.isfinite(value):
        return None
    return int(value) if value == int(value) else value
