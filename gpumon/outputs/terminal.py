"""Text for a terminal, from the JSON documents: the same whether they come from this process or over HTTP."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from gpumon.outputs import events, hold
from gpumon.outputs.connections import nvlinks, ports, services
from gpumon.outputs.maintenance import sentences
from gpumon.outputs.node_summary import exclusions, gpu_counts, headline, releases, unmonitored
from gpumon.outputs.remarks import remarks
from gpumon.outputs.responses.base import Document
from gpumon.outputs.words import (
    ABSENT,
    bandwidth,
    celsius,
    clock,
    count,
    duration,
    seconds_between,
    share,
    size,
    took_part,
    watts,
)

RED, GREEN, YELLOW, DIM, BOLD = "31", "32", "33", "2", "1"
SEVERITY_COLORS = {"critical": RED, "warning": YELLOW, "info": DIM}
STATE_COLORS = {"critical": RED, "warning": YELLOW, "unknown": YELLOW, "ok": GREEN}
OUTCOME_COLORS = {"ok": GREEN, "degraded": YELLOW, "skipped": DIM}
GAP = "  "
STATUS = ("node", "gpus", "links", "ports", "events", "probe")
"""The parts of a document that `status` shows."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table of GPUs; the last ones are left out where the terminal is narrow."""

    title: str
    cell: Callable[[Document], str]
    """Of a GPU."""
    mig: Callable[[Document], str] = lambda mig: ""  # noqa: ARG005 - most columns are the GPU's alone
    """Of a MIG instance."""


def _memory(one: Document) -> str:
    return _of(one["memory_used_bytes"], one["memory_total_bytes"], size)


def _of(part: float | None, total: float | None, unit: Callable[[float | None], str]) -> str:
    return f"{unit(part)} of {unit(total)}" if total is not None else unit(part)


COLUMNS = (
    Column("GPU", lambda gpu: str(gpu["gpu"])),
    Column(
        "NAME",
        lambda gpu: gpu["name"] or ABSENT,
        lambda mig: f"  MIG {mig['gpu_instance_id']}/{mig['compute_instance_id']} {mig['profile']}",
    ),
    Column("UTIL", lambda gpu: share(gpu["utilization_ratio"]), lambda mig: f"SM {share(mig['sm_active_ratio'])}"),
    Column("MEMORY", _memory, _memory),
    Column("TEMP", lambda gpu: celsius(gpu["temperature_celsius"])),
    Column("POWER", lambda gpu: _of(gpu["power_watts"], gpu["power_limit_watts"], watts)),
    Column("NVLINK", lambda gpu: _of(gpu["nvlinks_active"], gpu["nvlinks"], count)),
    Column("PROCS", lambda gpu: count(gpu["processes"])),
    Column("SM CLOCK", lambda gpu: clock((gpu["clock_hertz"] or {}).get("sm"))),
    Column("UUID", lambda gpu: gpu["uuid"], lambda mig: mig["mig_uuid"]),
)


def table(document: Document, width: int, *, color: bool) -> str:
    """A heading, a line a GPU, none longer than `width` columns, what connects them, and the agent's notices."""
    notices = [f"{one['subject']}: {printable(one['message'])}" for one in document["node"]["notices"]]
    lines = [_heading(document, color=color), "", *_gpu_lines(document, width, color=color)]
    lines += ["", *_connection_lines(document, width)][:-1]
    return "\n".join(lines + [line for one in notices for line in ("", *_wrapped(one, width, indent=""))]) + "\n"


def status(document: Document, width: int, *, color: bool) -> str:
    """What is wrong first and what to do about it, then a line a GPU, what connects them, and the last probe.

    `document` is document.whole, or its STATUS alone.
    """
    node = document["node"]
    asked = [*sentences(node["maintenance"], node["time"]), *releases(node)]
    lines = [_paint(printable(line), YELLOW, color=color) for line in asked]
    lines += [_paint(headline(node), STATE_COLORS[node["state"]], color=color), ""]
    for problem in node["problems"]:
        lines += [*_problem_lines(problem, node["time"], width, color=color), ""]
    lines += [*_gpu_lines(document, width, color=color), "", *_connection_lines(document, width)]
    lines += _event_lines(document, width, color=color)
    lines += _probe_lines(document["probe"], node["time"], width, color=color)
    return "\n".join((_heading(document, color=color), *lines)) + "\n"


def printable(text: str) -> str:
    """What a driver or a peer says must not steer the terminal: no control or escape characters."""
    return "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in text)


def _heading(document: Document, *, color: bool) -> str:
    node, driver = document["node"], document["node"]["driver"]["driver"]
    parts = [
        _paint(printable(node["host"]), BOLD, color=color),
        f"driver {printable(driver)}" if driver else "driver released" if node["releases"] else "no driver",
        _gpus_up(document),
        f"{node['time'][:10]} {node['time'][11:19]} UTC",
    ]
    if node["simulated_profile"]:
        parts.insert(1, _paint(f"SIMULATED {node['simulated_profile']}", YELLOW, color=color))
    return " · ".join(filter(None, parts))


def _gpus_up(document: Document) -> str:
    up, expected = gpu_counts(document)
    others = unmonitored(document)
    if expected or not (others or document["node"]["releases"]):
        others.insert(0, f"{up} of {expected} GPUs up" if expected else "no GPU expected")
    return ", ".join(others)


def _problem_lines(problem: Document, now: str, width: int, *, color: bool) -> Iterator[str]:
    lasting = seconds_between(problem["since"], now)
    title = problem["title"] + ("" if lasting is None else f" (for {duration(lasting)})")
    severity = _paint(problem["severity"].upper(), SEVERITY_COLORS[problem["severity"]], color=color)
    yield f"{severity}{GAP}{printable(title)}"
    for label, text in (("", problem["detail"]), ("Do: ", problem["action"]), ("Runbook: ", problem["runbook_url"])):
        if text:
            yield from _wrapped(label + printable(text), width, indent="  ")


def _event_lines(document: Document, width: int, *, color: bool) -> Iterator[str]:
    found = events.recent(document["events"], document["node"]["time"])
    if found:
        yield "Errors of the last day, the newest first:"
    for event in found[: events.MOST_SHOWN]:
        severity = _paint(event["severity"].upper(), SEVERITY_COLORS[event["severity"]], color=color)
        yield f"{severity}{GAP}{printable(events.title(event))}"
        for text in (events.when(event), *events.advice(event)):
            yield from _wrapped(printable(text), width, indent="  ")
    if len(found) > events.MOST_SHOWN:
        yield f"{len(found) - events.MOST_SHOWN} more: /api/v1/events?since=1d"
    if found:
        yield ""


def _gpu_lines(document: Document, width: int, *, color: bool) -> Iterator[str]:
    yield from _watched(document, width, color=color)
    for line in exclusions(document["node"]):
        yield _paint(_cut(printable(line), width), DIM, color=color)


def _watched(document: Document, width: int, *, color: bool) -> Iterator[str]:
    gpus = document["gpus"]
    if not gpus:
        yield "No GPU in the inventory."
        return
    columns, widths = _fitting(gpus, width)
    yield _paint(_row((column.title for column in columns), widths), DIM, color=color)
    for gpu in gpus:
        if gpu["state"] == "up":
            yield _row((printable(column.cell(gpu)) for column in columns), widths)
            for mig in gpu["migs"]:
                yield _row((printable(column.mig(mig)) for column in columns), widths)
        else:
            tone = DIM if gpu["state"] == "released" else RED
            yield _paint(_cut(_faulted(gpu, widths, document["node"]["time"]), width), tone, color=color)


def _fitting(gpus: list[Document], width: int) -> tuple[tuple[Column, ...], tuple[int, ...]]:
    migs = [mig for gpu in gpus for mig in gpu["migs"]]
    widths = [
        max(len(one.title), *(len(printable(cell)) for cell in (*map(one.cell, gpus), *map(one.mig, migs))))
        for one in COLUMNS
    ]
    shown = len(COLUMNS)
    while shown > 2 and sum(widths[:shown]) + len(GAP) * (shown - 1) > width:
        shown -= 1
    return COLUMNS[:shown], tuple(widths[:shown])


def _row(cells: Iterable[str], widths: tuple[int, ...]) -> str:
    return GAP.join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def _faulted(gpu: Document, widths: tuple[int, ...], now: str) -> str:
    lasting = seconds_between(gpu["since"], now)
    since = "" if lasting is None else f" for {duration(lasting)}"
    identity = _row((printable(column.cell(gpu)) for column in COLUMNS[:2]), widths[:2])
    return f"{identity}{GAP}{gpu['state'].replace('_', ' ').upper()}{since}. {printable(gpu['detail'])}".rstrip()


def _connection_lines(document: Document, width: int) -> Iterator[str]:
    """What there is to say of GPUs that answer, and of the links."""
    said = [
        f"GPU {gpu['gpu']}: {'; '.join(found)}."
        for gpu in document["gpus"]
        if gpu["state"] == "up" and (found := remarks(gpu))
    ]
    lines = [*said, *services(document["node"]), *nvlinks(document), *ports(document)]
    for line in lines:
        yield from _wrapped(printable(line), width, indent="")
    if lines:
        yield ""


def _probe_lines(probe: Document, now: str, width: int, *, color: bool) -> Iterator[str]:
    for sentence in hold.sentences(probe["hold"], now):
        yield _paint(printable(sentence), YELLOW, color=color)
    last = probe["last"]
    if last is None:
        coming = f" The first is due at {probe['next_run']}." if probe["next_run"] else ""
        yield f"All-reduce probe: has not run yet.{coming}"
        return
    stands = probe["standing"]
    if stands and stands["unanswered"]:
        yield f"All-reduce probe: {_outcome(stands, color=color)}, {duration(stands['age_seconds'])} ago, still stands."
        yield from _wrapped(printable(stands["unanswered"]), width, indent="  ")
    yield f"All-reduce probe: {_outcome(last, color=color)}, {duration(probe['age_seconds'])} ago{_measured(last)}."
    reason = ". ".join(filter(None, (last["reason"], last["hint"])))
    if reason:
        yield from _wrapped(printable(reason), width, indent="  ")


def _outcome(run: Document, *, color: bool) -> str:
    return _paint(run["outcome"], OUTCOME_COLORS.get(run["outcome"], RED), color=color)


def _measured(result: Document) -> str:
    if not result["measurements"]:
        return ""
    largest = max(result["measurements"], key=lambda one: one["bytes"])
    busbw, of = bandwidth(largest["busbw_bytes_per_second"]), size(largest["bytes"])
    return f": busbw {busbw} at {of}, {took_part(result)}, {result['backend']}"


def _wrapped(text: str, width: int, *, indent: str) -> list[str]:
    # A command is not broken at its hyphens: it would not be found as it stands there.
    return textwrap.wrap(
        text,
        max(width, 20),
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _paint(text: str, code: str, *, color: bool) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if color else text


def _cut(line: str, width: int) -> str:
    return line if len(line) <= width else line[: width - 1] + "…"
