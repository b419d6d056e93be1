"""Texts and bars for the tiles, the GPU table and the lists of the status page. The templates only arrange them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from gpumon.model.error_event import AER, DRIVER, NIC, OVERRUN
from gpumon.outputs.formatting import (
    ABSENT,
    celsius,
    count,
    duration,
    is_partial,
    participants,
    quantity,
    seconds_between,
    share,
    size,
    watts,
)
from gpumon.outputs.node_text import error_code, gpu_counts, unmonitored_counts
from gpumon.outputs.probe_text import largest
from gpumon.outputs.responses.base import Document

HOT_RATIO = 0.95
"""The bar of a temperature has the warning color if temperature / slowdown temperature is at least this ratio."""
ACTIVITY = {"SM": "sm_active_ratio", "tensor": "tensor_active_ratio", "DRAM": "dram_active_ratio"}
LEVEL_TONES = {"fail": "critical", "warn": "warning"}
EVENT_KINDS = {AER: "PCIe", NIC: "adapter", DRIVER: "driver", OVERRUN: "kernel log"}
"""Text for each kind of event whose code is neither an Xid nor an SXid."""
OUTCOME_TONES = {"ok": "ok", "degraded": "warning", "skipped": "muted"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One figure of the node, in a box at the top of the page. `tone` is its CSS class."""

    label: str
    value: str
    note: str = ""
    tone: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A reading that the page shows as text and as a bar. `tone` is the CSS class of the bar."""

    text: str
    limit: str = ""
    ratio: float | None = None
    """Filled part of the bar from 0 to 1; None if the reading or its limit is absent, so that no bar is drawn."""
    tone: str = ""

    @property
    def width(self) -> str:
        return f"{min(max(self.ratio or 0.0, 0.0), 1.0) * 100:.1f}%"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """Cell of the GPU table: a main bar, and smaller bars below it."""

    label: str
    bar: Bar
    parts: tuple[Bar, ...] = ()


def tiles(document: Document) -> list[Tile]:
    """Return the tiles of the page. A node without GPUs has only the tiles for the number of GPUs and for the probe."""
    gpus = document["gpus"]
    if not gpus:
        return [_gpus_tile(document), _probe(document)]
    drawn, limit = _sum(gpus, "power_watts"), _sum(gpus, "power_limit_watts")
    used, total = _sum(gpus, "memory_used_bytes"), _sum(gpus, "memory_total_bytes")
    hottest = Tile(label="Hottest", value=ABSENT)
    reporting = [gpu for gpu in gpus if gpu["temperature_celsius"] is not None]
    if reporting:
        top = max(reporting, key=lambda gpu: gpu["temperature_celsius"])
        bar = _core_temperature(top)
        hottest = Tile(label="Hottest", value=bar.text, note=f"GPU {top['gpu']}", tone=bar.tone)
    return [
        _gpus_tile(document),
        Tile(label="Power", value=_kilowatts(drawn), note="" if limit is None else f"of {_kilowatts(limit)} limit"),
        hottest,
        Tile(label="Memory", value=size(used), note="" if total is None else f"of {size(total)}"),
        *_links(document),
        _probe(document),
    ]


def gpus_worst_first(document: Document) -> list[Document]:
    """Return first the GPUs neither up nor released, then the others; in both groups, worst verdicts first."""
    return sorted(document["gpus"], key=lambda gpu: (gpu["state"] in {"up", "released"}, -(gpu["health"] or 0.0)))


def facts(gpu: Document) -> list[Fact]:
    number, memory = gpu["processes"], gpu["memory_temperature_celsius"]
    processes = "" if not number else "1 process" if number == 1 else f"{count(number)} processes"
    used = Bar(text=share(gpu["utilization_ratio"]), limit=processes, ratio=gpu["utilization_ratio"])
    memory_max = gpu["memory_temperature_max_celsius"]
    parts = () if memory is None else (_temperature("memory ", memory, memory_max),)
    return [
        Fact(label="Utilization", bar=used, parts=_activity(gpu)),
        Fact(label="Memory", bar=_bar(gpu["memory_used_bytes"], gpu["memory_total_bytes"], size)),
        Fact(label="Power", bar=_bar(gpu["power_watts"], gpu["power_limit_watts"], watts)),
        Fact(label="Temperature", bar=_core_temperature(gpu), parts=parts),
    ]


def instance(mig: Document) -> Fact:
    """Return the cell of the GPU table for a MIG instance: its memory and activity."""
    memory = _bar(mig["memory_used_bytes"], mig["memory_total_bytes"], size)
    return Fact(label=mig["profile"], bar=memory, parts=_activity(mig)[:2])


def event_code(event: Document) -> str:
    """Return the code of an event, such as "Xid 79" or "SXid 20034"; if it has no code, a text for its kind."""
    return error_code(event) or EVENT_KINDS[event["kind"]]


def event_place(event: Document) -> str:
    """Return the index of an event's GPU as text, with its MIG instance if reported; without a GPU, the PCI address."""
    if event["gpu"] is None:
        return event["pci_bus_id"] or ""
    instance = event["gpu_instance_id"]
    return f"GPU {event['gpu']}" + ("" if instance is None else f" MIG {instance}")


def transition(change: Document) -> tuple[str, str, str]:
    """Return the level after a transition, or "cleared", its CSS class, and the action, or what cleared the verdict."""
    if change["change"] == "cleared":
        return "cleared", "", change["cleared_by_text"]
    level = change["verdict"]["level"]
    return level, LEVEL_TONES.get(level, ""), change["verdict"]["action_text"]


def relative_time(moment: str | None, now: str) -> str:
    """Return the time from `moment` to `now` as text, such as "5 min ago"."""
    age = seconds_between(moment, now)
    return ABSENT if age is None else f"{duration(age)} ago"


def readings_age(node: Document) -> float | None:
    """Return the seconds since the last complete poll; None if no poll has been completed."""
    polled, now = node["snapshot_timestamp_seconds"], seconds_between("1970-01-01T00:00:00Z", node["time"])
    return None if polled is None or now is None else max(0.0, now - polled)


def current_result(document: Document) -> Document | None:
    """Return the run that determines the state of the all-reduce probe; None without one."""
    current = document["probe"]["current_result"]
    return next((run for run in document["probes"] if current and run["id"] == current["id"]), None)


def outcome_tone(outcome: str) -> str:
    return OUTCOME_TONES.get(outcome, "critical")


def _gpus_tile(document: Document) -> Tile:
    up, expected = gpu_counts(document)
    suffix = "".join(f", {text}" for text in unmonitored_counts(document))
    if not expected and document["node"]["releases"]:
        return Tile(label="GPUs up", value="released", note="not monitored", tone="muted")
    if not expected:
        return Tile(label="GPUs up", value="none", note=f"no GPU is expected{suffix}", tone="muted")
    down = expected - up
    note = f"{down} not responding" if down else "all respond"
    return Tile(label="GPUs up", value=f"{up} of {expected}", note=note + suffix, tone="critical" if down else "ok")


def _links(document: Document) -> Iterator[Tile]:
    reported = [link["up"] for link in document["links"] if link["up"] is not None]
    up, unknown = sum(reported), len(document["links"]) - len(reported)
    if unknown and not reported:
        yield Tile(label="NVLinks up", value="unknown", note=f"{unknown} links", tone="muted")
    if not reported:
        return
    note = f"{count(len(reported) - up)} down" if up < len(reported) else "all up"
    waits = any(alert["state"] == "pending" and alert["rule"] == "NvlinkDown" for alert in document["alerts"])
    yield Tile(
        label="NVLinks up",
        value=f"{count(up)} of {len(reported)}",
        note=note + (f", {unknown} unknown" if unknown else "") + (", verdict pending" if waits else ""),
        tone="" if up == len(reported) else "warning" if waits else "critical",
    )


def _probe(document: Document) -> Tile:
    last, run = document["probe"]["last"], current_result(document)
    if run is None:
        note = "has not run yet" if last is None else f"skipped: {last['reason']}"
        return Tile(label="All-reduce", value=ABSENT, note=note, tone="muted")
    measurement = next(iter(largest(run).values()), None)
    value = run["outcome"] if measurement is None else quantity(measurement["value"], measurement["unit"])
    part = f", {participants(run)}" if is_partial(run) else ""
    note = f"{run['outcome']}, {relative_time(run['started'], document['node']['time'])}{part}"
    return Tile(label="All-reduce", value=value, note=note, tone=outcome_tone(run["outcome"]))


def _bar(value: float | None, limit: float | None, unit: Callable[[float | None], str]) -> Bar:
    of = "" if limit is None else f"of {unit(limit)}"
    return Bar(text=unit(value), limit=of, ratio=_ratio(value, limit))


def _activity(readings: Document) -> tuple[Bar, ...]:
    ratios = ((label, readings[key]) for label, key in ACTIVITY.items() if readings[key] is not None)
    return tuple(Bar(text=f"{label} {share(ratio)}", ratio=ratio) for label, ratio in ratios)


def _core_temperature(gpu: Document) -> Bar:
    temperature, margin = gpu["temperature_celsius"], gpu["thermal_margin_celsius"]
    slowdown = gpu["temperature_slowdown_celsius"]
    if slowdown is not None or temperature is None or margin is None:
        return _temperature("", temperature, slowdown, "slows at")
    # The margin is read less often: a slowdown temperature computed from both would change with each reading.
    return replace(_temperature("", temperature, temperature + margin), limit=f"{celsius(margin)} below slowdown")


def _temperature(label: str, temperature: float | None, slowdown: float | None, word: str = "limit") -> Bar:
    ratio = _ratio(temperature, slowdown)
    return Bar(
        text=label + celsius(temperature),
        limit="" if slowdown is None else f"{word} {celsius(slowdown)}",
        ratio=ratio,
        tone="warning" if ratio is not None and ratio >= HOT_RATIO else "",
    )


def _ratio(value: float | None, limit: float | None) -> float | None:
    return None if value is None or not limit else value / limit


def _sum(gpus: Iterable[Document], key: str) -> float | None:
    values = [gpu[key] for gpu in gpus if gpu[key] is not None]
    return sum(values) if values else None


def _kilowatts(power: float | None) -> str:
    return watts(power) if power is None or power < 1000 else f"{power / 1000:.2f} kW"
