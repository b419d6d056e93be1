"""The state of a node as text for a terminal, from the response of /api/v1/report."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gpumon.health.alert_texts import RUNBOOKS
from gpumon.model.printable import printable
from gpumon.outputs import node_text
from gpumon.outputs.formatting import (
    ABSENT,
    GAP,
    celsius,
    clock,
    count,
    duration,
    participants,
    probe_size,
    quantity,
    row,
    seconds_between,
    share,
    size,
    watts,
)
from gpumon.outputs.node_text import (
    exclusions,
    gpu_counts,
    gpu_warnings,
    headline,
    job_sentences,
    nvlink_sentences,
    port_sentences,
    stopped_services,
    unmonitored_counts,
)
from gpumon.outputs.responses.base import Document

RED, GREEN, YELLOW, DIM, BOLD = "31", "32", "33", "2", "1"
SEVERITY_COLORS = {"critical": RED, "warning": YELLOW, "info": DIM}
STATE_COLORS = {"critical": RED, "warning": YELLOW, "unknown": YELLOW, "ok": GREEN}
HEALTH_COLORS = {2: YELLOW, 3: RED}
OUTCOME_COLORS = {"ok": GREEN, "degraded": YELLOW, "skipped": DIM}
MIN_BAR, MAX_BAR, WITHOUT_BARS = 6, 14, 110
"""Minimum and maximum width of a bar, and width of the GPU table without its three bars, in characters."""
STATUS = ("node", "gpus", "links", "ports", "jobs", "events", "probe")
"""Fields of the response /api/v1/report that `status` reads."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table of GPUs. On a narrow terminal the last columns are omitted."""

    title: str
    cell: Callable[[Document], str]
    mig: Callable[[Document], str] = lambda mig: ""  # noqa: ARG005 - most columns have no text for an instance
    bar: tuple[str, ...] = ()
    """Fields of the bar in a live view: a ratio, or a value and its maximum; empty for no bar."""


def _memory(readings: Document) -> str:
    return _part_of(readings["memory_used_bytes"], readings["memory_total_bytes"], size)


def _part_of(part: float | None, total: float | None, unit: Callable[[float | None], str]) -> str:
    return f"{unit(part)} of {unit(total)}" if total is not None else unit(part)


COLUMNS = (
    Column("GPU", lambda gpu: str(gpu["gpu"])),
    Column(
        "NAME",
        lambda gpu: gpu["name"] or ABSENT,
        lambda mig: f"  MIG {mig['gpu_instance_id']}/{mig['compute_instance_id']} {mig['profile']}",
    ),
    Column(
        "UTIL",
        lambda gpu: share(gpu["utilization_ratio"]),
        lambda mig: f"SM {share(mig['sm_active_ratio'])}",
        ("utilization_ratio",),
    ),
    Column("MEMORY", _memory, _memory, ("memory_used_bytes", "memory_total_bytes")),
    Column("TEMP", lambda gpu: celsius(gpu["temperature_celsius"])),
    Column(
        "POWER",
        lambda gpu: _part_of(gpu["power_watts"], gpu["power_limit_watts"], watts),
        bar=("power_watts", "power_limit_watts"),
    ),
    Column("NVLINK", lambda gpu: _part_of(gpu["nvlinks_active"], gpu["nvlinks"], count)),
    Column("PROCS", lambda gpu: count(gpu["processes"])),
    Column("SM CLOCK", lambda gpu: clock((gpu["clock_hertz"] or {}).get("sm"))),
    Column("UUID", lambda gpu: gpu["uuid"], lambda mig: mig["mig_uuid"]),
)


def table(document: Document, width: int, *, color: bool) -> str:
    """Return the readings as text for `width` columns: heading, GPUs, links and notices of the agent."""
    notices = [f"{notice['subject']}: {printable(notice['message'])}" for notice in document["node"]["notices"]]
    lines = [_heading(document, color=color), "", *_gpu_lines(document, width, color=color)]
    lines += ["", *_connection_lines(document, width)][:-1]
    return "\n".join(lines + [line for notice in notices for line in ("", *_wrap(notice, width, indent=""))]) + "\n"


def status(document: Document, width: int, *, color: bool) -> str:
    """Return the status from the fields STATUS of /api/v1/report: problems, GPUs, links, errors, last all-reduce."""
    node = document["node"]
    lines = [*_summary(node, color=color), ""]
    for problem in node["problems"]:
        lines += [*_problem_lines(problem, node["time"], width, color=color), ""]
    lines += [*_gpu_lines(document, width, color=color), "", *_connection_lines(document, width)]
    events = node_text.recent_events(document["events"], node["time"])
    lines += ["Errors of the last day, newest first:"] * bool(events)
    for event in events[: node_text.MAX_EVENTS]:
        severity = paint(event["severity"].upper(), SEVERITY_COLORS[event["severity"]], color=color)
        lines.append(f"{severity}{GAP}{printable(node_text.event_title(event))}")
        for text in (node_text.event_occurrence(event), *node_text.event_advice(event)):
            lines += _wrap(printable(text), width, indent="  ")
    if len(events) > node_text.MAX_EVENTS:
        lines.append(f"{len(events) - node_text.MAX_EVENTS} more: /api/v1/events?since=1d")
    lines += [""] * bool(events)
    lines += _probe_lines(document["probe"], node["time"], width, color=color)
    return "\n".join((_heading(document, color=color), *lines)) + "\n"


def _summary(node: Document, *, color: bool) -> Iterator[str]:
    windows = node_text.maintenance(node["maintenance"], node["time"])
    for line in (*windows, *node_text.releases(node["releases"])):
        yield paint(printable(line), YELLOW, color=color)
    yield paint(headline(node), STATE_COLORS[node["state"]], color=color)


def live(document: Document, width: int, height: int, *, color: bool) -> str:
    """Return the status in at most `height` lines, with bars and complete problems if there is room for them."""
    node = document["node"]
    bar = max(MIN_BAR, min(MAX_BAR, (width - WITHOUT_BARS) // 3 - 3)) if width >= WITHOUT_BARS else 0
    gpus = list(_gpu_lines(document, width, color=color, bar=bar))
    links = [*_connection_lines(document, width), *_probe_lines(document["probe"], node["time"], width, color=color)]
    room = max(2, height - len(gpus) - 5)  # the links take the lines that remain
    problems = [line for each in node["problems"] for line in _problem(each, node["time"], width, color=color)]
    if len(problems) > room:
        problems = [_problem(each, node["time"], width, color=color, complete=False)[0] for each in node["problems"]]
    if len(problems) > room:
        problems[room - 1 :] = [f"{len(problems) - room + 1} more: gpumon status"]
    first = [_heading(document, color=color), *_summary(node, color=color)]
    lines = [*first, *problems, "", *gpus, "", *links][: height - 1]
    return "\n".join([*lines, paint("q: end", DIM, color=color)])


def _problem(problem: Document, now: str, width: int, *, color: bool, complete: bool = True) -> list[str]:
    title, *_ = _problem_lines(problem, now, width, color=False)
    text = f"{title}. {printable(problem['action'])}"
    lines = _wrap(text, width, indent="") if complete else [cut(text, width)]
    return [paint(line, SEVERITY_COLORS[problem["severity"]], color=color) for line in lines]


def _heading(document: Document, *, color: bool) -> str:
    node, driver = document["node"], document["node"]["driver"]["driver"]
    (up, expected), counts = gpu_counts(document), unmonitored_counts(document)
    if expected or not (counts or node["releases"]):
        counts.insert(0, f"{up} of {expected} GPUs up" if expected else "no GPU expected")
    parts = [
        paint(printable(node["host"]), BOLD, color=color),
        f"driver {printable(driver)}" if driver else "driver released" if node["releases"] else "no driver",
        ", ".join(counts),
        f"{node['time'][:10]} {node['time'][11:19]} UTC",
    ]
    if node["simulated_profile"]:
        parts.insert(1, paint(f"SIMULATED {node['simulated_profile']}", YELLOW, color=color))
    return " · ".join(filter(None, parts))


def _problem_lines(problem: Document, now: str, width: int, *, color: bool) -> Iterator[str]:
    age = seconds_between(problem["since"], now)
    title = problem["title"] + ("" if age is None else f" (for {duration(age)})")
    severity = paint(problem["severity"].upper(), SEVERITY_COLORS[problem["severity"]], color=color)
    yield f"{severity}{GAP}{printable(title)}"
    runbook = problem["runbook_url"].replace(f"{RUNBOOKS}/", "gpumon runbook ")
    for label, text in (("", problem["detail"]), ("Do: ", problem["action"]), ("Runbook: ", runbook)):
        if text:
            yield from _wrap(label + printable(text), width, indent="  ")


def _gpu_lines(document: Document, width: int, *, color: bool, bar: int = 0) -> Iterator[str]:
    gpus = document["gpus"]
    columns, widths = _columns(gpus, width, bar=bar)
    titles = row((column.title for column in columns), widths)
    yield paint(titles, DIM, color=color) if gpus else "No GPU in the inventory."
    for gpu in gpus:
        if gpu["state"] == "up":
            line = row((_cell(column, gpu, bar=bar) for column in columns), widths)
            yield paint(line, HEALTH_COLORS.get(gpu["health"], ""), color=color and gpu["health"] in HEALTH_COLORS)
            for mig in gpu["migs"]:
                yield row((printable(column.mig(mig)) for column in columns), widths)
        else:
            age = seconds_between(gpu["since"], document["node"]["time"])
            state = gpu["state"].replace("_", " ").upper() + ("" if age is None else f" for {duration(age)}")
            identity = row((printable(column.cell(gpu)) for column in COLUMNS[:2]), widths[:2])
            line = f"{identity}{GAP}{state}. {printable(gpu['detail'])}".rstrip()
            yield paint(cut(line, width), DIM if gpu["state"] == "released" else RED, color=color)
    for line in exclusions(document["node"]):
        yield paint(cut(printable(line), width), DIM, color=color)


def _cell(column: Column, gpu: Document, *, bar: int) -> str:
    text = printable(column.cell(gpu))
    if not bar or not column.bar:
        return text
    part, total = gpu[column.bar[0]] or 0.0, gpu[column.bar[1]] if len(column.bar) > 1 else 1.0
    filled = round(bar * min(max(part / total, 0.0), 1.0)) if total else 0
    return f"[{'█' * filled}{' ' * (bar - filled)}] {text}"


def _columns(gpus: list[Document], width: int, *, bar: int) -> tuple[tuple[Column, ...], tuple[int, ...]]:
    migs = [mig for gpu in gpus for mig in gpu["migs"]]
    widths = [
        max(map(len, (column.title, *(_cell(column, gpu, bar=bar) for gpu in gpus), *map(column.mig, migs))))
        for column in COLUMNS
    ]
    number = len(COLUMNS)
    while number > 2 and sum(widths[:number]) + len(GAP) * (number - 1) > width:
        number -= 1
    return COLUMNS[:number], tuple(widths[:number])


def _connection_lines(document: Document, width: int) -> Iterator[str]:
    warnings = [
        f"GPU {gpu['gpu']}: {'; '.join(texts)}."
        for gpu in document["gpus"]
        if gpu["state"] == "up" and (texts := gpu_warnings(gpu))
    ]
    lines = [*warnings, *job_sentences(document), *stopped_services(document["node"])]
    lines += [*nvlink_sentences(document), *port_sentences(document)]
    for line in lines:
        yield from _wrap(printable(line), width, indent="")
    if lines:
        yield ""


def _probe_lines(probe: Document, now: str, width: int, *, color: bool) -> Iterator[str]:
    holds = probe["hold"]["holders"] if probe["hold"] else []
    for sentence in node_text.holds(holds, now):
        yield paint(printable(sentence), YELLOW, color=color)
    last = probe["last"]
    if probe["running"]:
        yield "All-reduce probe: a run is in progress."
    elif last is None:
        due = probe["next_run"] if (probe["next_run"] or "") > now else None  # a run that has begun is due no more
        first = f" The first run is due at {due}." if due else ""
        yield f"All-reduce probe: has not run yet.{first}"
    if last is None:
        return
    current = probe["current_result"]
    if current and current["partial_run_note"]:
        ago = duration(current["age_seconds"])
        yield f"All-reduce probe: {_outcome(current, color=color)}, {ago} ago, is still the result of all its GPUs."
        yield from _wrap(printable(current["partial_run_note"]), width, indent="  ")
    yield f"All-reduce probe: {_outcome(last, color=color)}, {duration(probe['age_seconds'])} ago{_value(last)}."
    reason = ". ".join(filter(None, (last["reason"], last["hint"])))
    if reason:
        yield from _wrap(printable(reason), width, indent="  ")


def _outcome(run: Document, *, color: bool) -> str:
    return paint(run["outcome"], OUTCOME_COLORS.get(run["outcome"], RED), color=color)


def _value(result: Document) -> str:
    if not result["measurements"] or result["outcome"] == "skipped":  # a skipped run may have measured small sizes
        return ""
    largest = max(result["measurements"], key=lambda measurement: measurement["size"])
    value, at = quantity(largest["value"], largest["unit"]), probe_size(largest["size"], largest["size_unit"])
    return f": {largest['quantity']} {value} at {at}, {participants(result)}, {result['backend']}"


def _wrap(text: str, width: int, *, indent: str) -> list[str]:
    # Commands are not broken at hyphens, so that they can be copied.
    return textwrap.wrap(
        text,
        max(width, 20),
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def paint(text: str, code: str, *, color: bool) -> str:
    """Return the text in the color or style of an ANSI code; return it unchanged if `color` is False."""
    return f"\x1b[{code}m{text}\x1b[0m" if color else text


def cut(line: str, width: int) -> str:
    """Return the line; if it has more than `width` characters, its beginning and an ellipsis."""
    return line if len(line) <= width else line[: width - 1] + "…"
