"""What the page shows of the documents: words, bars and marks; the templates only place them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from gpumon.outputs.node_summary import gpu_counts, unmonitored
from gpumon.outputs.responses.base import Document
from gpumon.outputs.words import (
    ABSENT,
    bandwidth,
    celsius,
    count,
    duration,
    is_partial,
    seconds_between,
    share,
    size,
    took_part,
    watts,
)
from gpumon.probe.core.probes import ALL_REDUCE
from gpumon.probe.core.result import DECISIVE

HOT = 0.95
"""Share of the temperature at which the GPU slows down, from which a bar stands out."""
ACTIVITY = {"SM": "sm_active_ratio", "tensor": "tensor_active_ratio", "DRAM": "dram_active_ratio"}
LEVEL_TONES = {"fail": "critical", "warn": "warning"}
OUTCOME_TONES = {"ok": "ok", "degraded": "warning", "skipped": "muted"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One fact of the node at a glance."""

    label: str
    value: str
    note: str = ""
    tone: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A reading against its limit."""

    text: str
    limit: str = ""
    ratio: float | None = None
    """None draws no bar: nothing is known, which is not nothing."""
    tone: str = ""

    @property
    def width(self) -> str:
        """For an SVG attribute."""
        return f"{min(max(self.ratio or 0.0, 0.0), 1.0) * 100:.1f}%"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A cell of the table of GPUs: a bar, and lesser ones below it."""

    label: str
    bar: Bar
    parts: tuple[Bar, ...] = ()


def tiles(document: Document) -> list[Tile]:
    """The node at a glance; without GPUs there is little to say."""
    gpus = document["gpus"]
    readings = (_power(gpus), _hottest(gpus), _memory(gpus), *_links(document)) if gpus else ()
    return [_gpus_tile(document), *readings, _probe(document)]


def facts(gpu: Document) -> list[Fact]:
    """Utilization, memory, power and temperature of a GPU."""
    used = Bar(text=share(gpu["utilization_ratio"]), limit=_held(gpu["processes"]), ratio=gpu["utilization_ratio"])
    return [
        Fact(label="Utilization", bar=used, parts=_activity(gpu)),
        Fact(label="Memory", bar=_measured(gpu["memory_used_bytes"], gpu["memory_total_bytes"], size)),
        Fact(label="Power", bar=_measured(gpu["power_watts"], gpu["power_limit_watts"], watts)),
        Fact(
            label="Temperature",
            bar=_core_heat(gpu),
            parts=_memory_heat(gpu),
        ),
    ]


def instance(mig: Document) -> Fact:
    """Memory of a MIG instance, and how active its part of the GPU is."""
    memory = _measured(mig["memory_used_bytes"], mig["memory_total_bytes"], size)
    return Fact(label=mig["profile"], bar=memory, parts=_activity(mig)[:2])


def event_code(event: Document) -> str:
    """Xid 79, SXid 20034; the loss of records has no code."""
    if event["xid"] is not None:
        return f"Xid {event['xid']}"
    return "kernel log" if event["sxid"] is None else f"SXid {event['sxid']}"


def event_place(event: Document) -> str:
    """The GPU by its index, with its instance; else the address of what has none."""
    if event["gpu"] is None:
        return event["pci_bus_id"] or ""
    instance = event["gpu_instance_id"]
    return f"GPU {event['gpu']}" + ("" if instance is None else f" MIG {instance}")


def change(transition: Document) -> str:
    """fail, warn; a verdict that went is cleared."""
    return "cleared" if transition["change"] == "cleared" else str(transition["verdict"]["level"])


def level_tone(transition: Document) -> str:
    return "" if transition["change"] == "cleared" else LEVEL_TONES.get(transition["verdict"]["level"], "")


def after(transition: Document) -> str:
    """Why it was cleared, or what it asks for."""
    return str(transition["way_words"] if transition["change"] == "cleared" else transition["verdict"]["action_words"])


def ago(moment: str | None, now: str) -> str:
    """How long since, in words."""
    lasting = seconds_between(moment, now)
    return ABSENT if lasting is None else f"{duration(lasting)} ago"


def readings_age(node: Document) -> float | None:
    """Seconds since the last complete poll."""
    polled, now = node["snapshot_timestamp_seconds"], seconds_between("1970-01-01T00:00:00Z", node["time"])
    return None if polled is None or now is None else max(0.0, now - polled)


def standing(document: Document) -> Document | None:
    """The run that tells how the all-reduce stands: a busy node keeps the result that it has."""
    stands = document["probe"]["standing"]
    return next((run for run in document["probes"] if stands and run["id"] == stands["id"]), None)


def all_reduces(document: Document) -> list[Document]:
    """Runs of the probe that is scheduled, the newest first."""
    return [run for run in document["probes"] if run["probe"] == ALL_REDUCE]


def largest(result: Document | None) -> Document | None:
    """The measurement of the largest size, of a run that measured to its end."""
    if not result or result["outcome"] not in DECISIVE or not result["measurements"]:
        return None
    found: Document = max(result["measurements"], key=lambda one: one["bytes"])
    return found


def outcome_tone(outcome: str) -> str:
    return OUTCOME_TONES.get(outcome, "critical")


def _gpus_tile(document: Document) -> Tile:
    up, expected = gpu_counts(document)
    suffix = "".join(f", {words}" for words in unmonitored(document))
    if not expected and document["node"]["releases"]:
        return Tile(label="GPUs up", value="released", note="nobody looks", tone="muted")
    if not expected:
        return Tile(label="GPUs up", value="none", note=f"no GPU is expected here{suffix}", tone="muted")
    lacking = expected - up
    note = f"{lacking} not answering" if lacking else "all answer"
    return Tile(label="GPUs up", value=f"{up} of {expected}", note=note + suffix, tone="critical" if lacking else "ok")


def _power(gpus: list[Document]) -> Tile:
    drawn, limit = _sum(gpus, "power_watts"), _sum(gpus, "power_limit_watts")
    note = "" if limit is None else f"of {_kilowatts(limit)} allowed"
    return Tile(label="Power", value=_kilowatts(drawn), note=note)


def _hottest(gpus: list[Document]) -> Tile:
    known = [gpu for gpu in gpus if gpu["temperature_celsius"] is not None]
    if not known:
        return Tile(label="Hottest", value=ABSENT)
    top = max(known, key=lambda gpu: gpu["temperature_celsius"])
    heat = _core_heat(top)
    return Tile(label="Hottest", value=heat.text, note=f"GPU {top['gpu']}", tone=heat.tone)


def _memory(gpus: list[Document]) -> Tile:
    used, total = _sum(gpus, "memory_used_bytes"), _sum(gpus, "memory_total_bytes")
    return Tile(label="Memory", value=size(used), note="" if total is None else f"of {size(total)}")


def _links(document: Document) -> Iterator[Tile]:
    """Nothing where there are none."""
    known = [link["up"] for link in document["links"] if link["up"] is not None]
    up, unknown = sum(known), len(document["links"]) - len(known)
    if unknown and not known:
        yield Tile(label="NVLinks up", value="not known", note=f"{unknown} links", tone="muted")
    if not known:
        return
    note = f"{count(len(known) - up)} down" if up < len(known) else "all carry traffic"
    yield Tile(
        label="NVLinks up",
        value=f"{count(up)} of {len(known)}",
        note=note + (f", {unknown} not known" if unknown else ""),
        tone="critical" if up < len(known) else "",
    )


def _probe(document: Document) -> Tile:
    last, run = document["probe"]["last"], standing(document)
    if run is None:
        note = "has not run yet" if last is None else f"skipped: {last['reason']}"
        return Tile(label="All-reduce", value=ABSENT, note=note, tone="muted")
    found = largest(run)
    value = run["outcome"] if found is None else bandwidth(found["busbw_bytes_per_second"])
    part = f", {took_part(run)}" if is_partial(run) else ""
    note = f"{run['outcome']}, {ago(run['started'], document['node']['time'])}{part}"
    return Tile(label="All-reduce", value=value, note=note, tone=outcome_tone(run["outcome"]))


def _measured(value: float | None, limit: float | None, unit: Callable[[float | None], str]) -> Bar:
    of = "" if limit is None else f"of {unit(limit)}"
    return Bar(text=unit(value), limit=of, ratio=_ratio(value, limit))


def _activity(one: Document) -> tuple[Bar, ...]:
    """What GPU performance monitoring tells of a GPU or an instance; nothing where there is none."""
    known = ((label, one[key]) for label, key in ACTIVITY.items() if one[key] is not None)
    return tuple(Bar(text=f"{label} {share(ratio)}", ratio=ratio) for label, ratio in known)


def _memory_heat(gpu: Document) -> tuple[Bar, ...]:
    temperature = gpu["memory_temperature_celsius"]
    return () if temperature is None else (_heat("memory ", temperature, gpu["memory_temperature_max_celsius"]),)


def _core_heat(gpu: Document) -> Bar:
    """Against what the driver's margin leaves, or where it tells none against the threshold."""
    temperature, margin = gpu["temperature_celsius"], gpu["thermal_margin_celsius"]
    known = temperature is not None and margin is not None
    return _heat("", temperature, temperature + margin if known else gpu["temperature_slowdown_celsius"])


def _heat(label: str, temperature: float | None, slowdown: float | None) -> Bar:
    ratio = _ratio(temperature, slowdown)
    return Bar(
        text=label + celsius(temperature),
        limit="" if slowdown is None else f"slows at {celsius(slowdown)}",
        ratio=ratio,
        tone="warning" if ratio is not None and ratio >= HOT else "",
    )


def _held(processes: float | None) -> str:
    if not processes:
        return ""
    return "1 process" if processes == 1 else f"{count(processes)} processes"


def _ratio(value: float | None, limit: float | None) -> float | None:
    return None if value is None or not limit else value / limit


def _sum(gpus: Iterable[Document], key: str) -> float | None:
    known = [gpu[key] for gpu in gpus if gpu[key] is not None]
    return sum(known) if known else None


def _kilowatts(power: float | None) -> str:
    return watts(power) if power is None or power < 1000 else f"{power / 1000:.2f} kW"
