"""Texts about a node, its GPUs, links, time windows and errors for the page and the terminal, from API responses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from gpumon.health.xid_texts import recovery_of
from gpumon.model.allocation import IDLE_LEVELS
from gpumon.model.error_event import AER, DRIVER, NIC, OVERRUN, SXID
from gpumon.model.nvlink import COMPLETED, STATES, Nvlink
from gpumon.model.printable import printable
from gpumon.model.reading import metric_type, rows
from gpumon.outputs.formatting import DAY, MINUTE, columns, count, duration, seconds_between, share
from gpumon.outputs.problems import NOT_EVALUATED
from gpumon.outputs.responses.base import Document
from gpumon.probe.core.wording import index_ranges

_ERROR_COUNTERS = {
    name: name.removesuffix("_total").replace("_", " ")
    for name, row in rows(Nvlink).items()
    if metric_type(name) == "counter" and len(row.labels) == 1
}
"""For each field of an NVLink's response that counts by one label: what it counts, as a noun such as `errors`."""


def link_state(link: Document) -> str:
    return {1: "up", 0: "down"}.get(link["up"], "unknown")


def link_errors(link: Document) -> list[str]:
    """Return a list with a phrase for each error count of an NVLink that is not 0, such as `12 replay errors`."""
    return [
        f"{count(number)} {kind.replace('_', ' ')} {noun}"
        for name, noun in _ERROR_COUNTERS.items()
        for kind, number in (link[name] or {}).items()
        if number
    ]


def nvlink_sentences(document: Document) -> list[str]:
    """Return a list of sentences: how many NVLinks are up, then one for each GPU with links down or with errors."""
    links = document["links"]
    if not links:
        return []
    reported = [link for link in links if link["up"] is not None]
    up = sum(link["up"] == 1 for link in reported)
    unknown = f", {len(links) - len(reported)} unknown" if len(reported) < len(links) else ""
    by_gpu: dict[int, list[Document]] = {}
    for link in links:
        by_gpu.setdefault(link["gpu"], []).append(link)
    summary = f"{up} of {len(reported)} up{unknown}" if reported else f"{len(links)}, state unknown"
    sentences = [f"NVLinks: {summary}."]
    for gpu, own in by_gpu.items():
        down = [str(link["link"]) for link in own if link["up"] == 0]
        faults = [f"NVLink{'s' if len(down) > 1 else ''} {', '.join(down)} down"] if down else []
        faults += [f"NVLink {link['link']} has {', '.join(errors)}" for link in own if (errors := link_errors(link))]
        sentences += [f"GPU {gpu}: {'; '.join(faults)}."] if faults else []
    return sentences


def fabric_fault(gpu: Document) -> str:
    """Return what is wrong with the NVLink fabric or a GPU's registration in it; "" if nothing is, or unreported."""
    fabric: Document = gpu["fabric"] or {}
    state, status = fabric.get("state"), fabric.get("status")
    if state in STATES:
        return f"the fabric registration {STATES[state]}"
    if state == COMPLETED and status:
        return f"the fabric registration failed with NVML error {count(status)}"
    unhealthy = [check.replace("_", " ") for check, value in (fabric.get("health") or {}).items() if value]
    return f"fabric unhealthy: {', '.join(unhealthy)}" if unhealthy else ""


SERVICES = {"fabric_manager_up": "NVIDIA fabric manager", "imex_up": "NVIDIA IMEX daemon"}


def stopped_services(node: Document) -> list[str]:
    """Return a list with one sentence for each NVIDIA service of the host that is installed but not running."""
    return [f"The {name} is not running." for row, name in SERVICES.items() if node[row] == 0]


def port_sentences(document: Document) -> list[str]:
    """Return a list of sentences: how many InfiniBand and RoCE ports are up, then one for each port that is down."""
    ports = document["ports"]
    if not ports:
        return []
    down = [port for port in ports if port["port_up"] == 0]
    return [
        f"InfiniBand and RoCE: {sum(port['port_up'] == 1 for port in ports)} of {len(ports)} ports up.",
        *(f"{port['device']}/{port['port']} ({port['link_layer']}) is down." for port in down),
    ]


def job_sentences(document: Document) -> list[str]:
    """Return a sentence for each owner of GPUs, then one for the GPUs that are free or of which the owner is unknown.

    Without any source of owners the list is empty.
    """
    jobs, now = document["jobs"], document["node"]["time"]
    if not jobs["jobs"] and not jobs["free"] and not jobs["silent"]:
        return []
    sentences = [_job_sentence(job, now) for job in jobs["jobs"]]
    for gpus, state in ((jobs["free"], "without an owner"), (jobs["unknown"], "perhaps held by an unknown owner")):
        sentences += [f"GPU {index_ranges(gpus)}: {state}."] if gpus else []
    indexes = {gpu["uuid"]: gpu["gpu"] for gpu in document["gpus"]}
    return [*sentences, *(f"GPU {indexes.get(uuid, uuid)}: {text}." for uuid, text in jobs["conflicts"].items())]


IDLE = tuple(f"{level}_seconds" for level in IDLE_LEVELS)
"""Fields of an allocation with the seconds of each idle level."""


def idle_share(job: Document) -> float | None:
    """Return the idle share of the time for which a job held its GPUs; None if that was less than a minute."""
    held, idle = (
        sum(each[name] for each in job["allocations"] for name in names) for names in (("held_seconds",), IDLE)
    )
    return idle / held if held >= MINUTE else None


def motion(job: Document) -> str:
    """Return how the GPUs of a job move, such as "7 still, 1 idle"; "" if that is not known of any."""
    counts = Counter(each["motion"] for each in job["allocations"] if each["motion"])
    motions = [f"{number} {name}" for name, number in counts.most_common()]
    return ", ".join([*motions, *(["waits for storage"] if job["waits_for_storage"] else [])])


def sources(job: Document) -> str:
    """Return the sources that name the owner, each with a `?` if it does not answer at present."""
    return ",".join(sorted({each["source"] + ("" if each["confirmed"] else "?") for each in job["allocations"]}))


def _job_sentence(job: Document, now: str) -> str:
    idle, held = idle_share(job), duration(seconds_between(job["since"], now))
    parts = [f"{job['id']} has held GPU {index_ranges(job['gpus'])} for {held}"]
    if idle is not None:
        parts.append(f"{share(idle)} of it idle")
    if now_moves := motion(job):
        parts.append(f"now {now_moves}")
    if not all(each["confirmed"] for each in job["allocations"]):
        parts.append("as its source last reported")
    return ", ".join(parts) + "."


SLOWDOWN_REASONS = ("hw_slowdown", "hw_thermal", "hw_power_brake", "sw_thermal")
"""Clocks event reasons that do not occur in normal operation."""


def gpu_warnings(gpu: Document) -> list[str]:
    return list(_warnings(gpu))


def _warnings(gpu: Document) -> Iterator[str]:
    if action := gpu["recovery_action"]:
        yield f"the driver requests {recovery_of(action).words}"
    if fault := fabric_fault(gpu):
        yield fault
    if down := [str(link["link"]) for link in gpu["c2c_links"] if link["up"] == 0]:
        yield f"chip-to-chip link{'s' if len(down) > 1 else ''} {', '.join(down)} down"
    if reasons := [reason for reason in SLOWDOWN_REASONS if (gpu["clock_event_active"] or {}).get(reason)]:
        yield f"slowed by {', '.join(reasons)}"
    if errors := sum(number or 0 for number in (gpu["ecc_errors_total"] or {}).get("uncorrected", {}).values()):
        yield f"{count(errors)} uncorrected ECC error{'s' if errors > 1 else ''}"
    if gpu["row_remap_failed"] or gpu["row_remap_pending"]:
        yield "row remapping " + ("failed" if gpu["row_remap_failed"] else "pending: a reset is needed")
    width, full = gpu["pcie_link_width"], gpu["pcie_link_width_max"]
    if width is not None and full and width < full:
        yield f"PCIe x{count(width)} of x{count(full)}"
    xids = {xid: number for xid, number in (gpu["xid_errors_total"] or {}).items() if number}
    if xids:
        yield "; ".join(
            f"Xid {xid}, {'once' if number == 1 else f'{count(number)} times'}" for xid, number in xids.items()
        )


NOT_EVALUATED_TEXT = "Unknown: no check has run since the agent started."


def gpu_counts(document: Document) -> tuple[int, int]:
    """Return the numbers of GPUs that are up and that should be up, without excluded and released ones."""
    node, states = document["node"], [gpu["state"] for gpu in document["gpus"]]
    total = max(len(states), int(node["gpus_expected"] or 0) - len(node["excluded"]))
    return states.count("up"), total - states.count("released")


def unmonitored_counts(document: Document) -> list[str]:
    """Return a phrase for the excluded GPUs and one for the released GPUs, such as `2 excluded`; none for 0."""
    states = [gpu["state"] for gpu in document["gpus"]]
    counts = {"excluded": len(document["node"]["excluded"]), "released": states.count("released")}
    return [f"{number} {reason}" for reason, number in counts.items() if number]


def exclusions(node: Document) -> list[str]:
    """Return a list with one sentence for each GPU that the configuration excludes."""
    return [f"GPU at {bus_id}: excluded by the configuration." for bus_id in node["excluded"]]


def headline(node: Document) -> str:
    """Return a sentence with the number of problems of the node, without those of severity info."""
    number = sum(problem["severity"] != "info" for problem in node["problems"])
    if not number:
        return NOT_EVALUATED_TEXT if node["state"] == NOT_EVALUATED else "No problems."
    return "1 problem." if number == 1 else f"{number} problems, worst first."


CLOCK_TOLERANCE_SECONDS = 60.0
"""A sentence mentions that the wall clock contradicts a time window if they differ by more than these seconds."""
MAX_HOLDS = 3


def releases(windows: list[Document]) -> list[str]:
    """Return a list with one sentence for each of these windows, which release GPUs."""
    sentences = []
    for window in windows:
        gpu, address = window["gpu"], window["pci_bus_id"]
        subject = "Every GPU" if address is None else f"GPU {address if gpu is None else gpu}"
        until, remaining = window["until"][11:19], _full_minutes(window["remaining_seconds"])
        sentences.append(f"{subject} is released until {until} UTC, for {remaining} more, by {window['by']}.")
    return sentences


def maintenance(window: Document | None, now: str | None = None) -> list[str]:
    """Return at most one sentence about a maintenance, with the remaining time if the time `now` is given."""
    if window is None:
        return []
    end = f"{_end(window['until'])}{_remaining_time(window, now)}"
    return [f"In maintenance until {end}, by {window['by']}: {window['reason'].rstrip('.')}. No alert pages."]


def holds(windows: list[Document], now: str | None = None) -> list[str]:
    """Return at most one sentence about windows that hold probes, with the remaining time if `now` is given."""
    if not windows:
        return []
    last = max(windows, key=lambda window: str(window["until"]))
    named = []
    for window in windows[:MAX_HOLDS]:
        owner = f" for {window['owner']}" if window["owner"] else ""
        reason = f" ({window['reason']})" if window["reason"] else ""
        named.append(f"by {window['by']}{owner}{reason}")
    more = len(windows) - len(named)
    others = f"; and {more} more" if more else ""
    return [f"No probe runs until {_end(last['until'])}{_remaining_time(last, now)}: held {'; '.join(named)}{others}."]


def _end(until: str) -> str:
    return f"{until[:10]} {until[11:19]} UTC"


def _remaining_time(window: Document, now: str | None) -> str:
    if now is None:
        return ""
    passed, left = seconds_between(window["since"], now), seconds_between(now, window["until"])
    if passed is None or left is None or min(passed, left) < -CLOCK_TOLERANCE_SECONDS:
        return " (the wall clock contradicts this and is not trusted yet after the boot)"
    return f", for {_full_minutes(left)} more"


def _full_minutes(seconds: float) -> str:
    """Format a remaining time; from a minute on, rounded to full minutes: 4 min 59 s are 5 min."""
    return duration(seconds if seconds < MINUTE else MINUTE * round(seconds / MINUTE))


MAX_EVENTS = 5
NO_EVENTS = "No event is stored that matches."
EVENT_TITLES = ("LAST", "SEVERITY", "DEVICE", "TIMES", "EVENT")


def recent_events(events: Sequence[Document], now: str) -> list[Document]:
    """Return the events of the 24 hours before `now` (RFC 3339), without historical and cancelled ones."""
    return [
        event
        for event in events
        if not event["historical"]
        and event["cancelled"] is None
        and (seconds_between(event["time"], now) or 0.0) <= DAY
    ]


def event_title(event: Document) -> str:
    """Return a title for an event: what happened, with the Xid or SXid code and the device if the event has them."""
    if event["kind"] in {OVERRUN, DRIVER}:
        return str(event["name"])
    if event["kind"] == AER:
        return f"{event['name']} of {_gpu_of(event) if event['gpu'] is not None else event['pci_bus_id']}"
    if event["kind"] == NIC:
        return f"{event['name']}: {event['pci_bus_id']}"
    device = f"NVSwitch {event['pci_bus_id']}" if event["kind"] == SXID else _gpu_of(event)
    return f"{error_code(event)} on {device}: {event['name']}"


def error_code(event: Document) -> str:
    """Return the code of an event, such as "Xid 79" or "SXid 20034"; an empty string if it has none."""
    if event["xid"] is not None:
        return f"Xid {event['xid']}"
    return "" if event["sxid"] is None else f"SXid {event['sxid']}"


def event_occurrence(event: Document) -> str:
    """Return when an event occurred, as text: its time or, for a burst, the number of errors, first and last time."""
    day, clock = event["time"][:10], event["time"][11:19]
    if event["count"] == 1:
        return f"{day} {clock} UTC"
    return f"{event['count']} times from {event['since'][:10]} {event['since'][11:19]} to {day} {clock} UTC"


def event_advice(event: Document) -> Iterator[str]:
    """Yield a text on the numbers in the event's kernel message, if their meaning is documented, then what to do."""
    if event["detail"]:
        yield str(event["detail"])
    yield f"Do: {event['action']}"


def event_table(events: Sequence[Document]) -> str:
    """Return a table with a line for each event, in the given order; NO_EVENTS if there are none."""
    lines = [EVENT_TITLES]
    for event in events:
        device = f"GPU {event['gpu']}" if event["gpu"] is not None else event["pci_bus_id"] or "-"
        time, times = f"{event['time'][:10]} {event['time'][11:19]}Z", str(event["count"])
        numbered = ": ".join(filter(None, (error_code(event), event["name"])))
        historical = " (before the agent was installed)" if event["historical"] else ""
        held = f" (held by {', '.join(map(printable, event['owners']))})" if event["owners"] else ""
        lines.append((time, event["severity"], device, times, numbered + historical + held))
    return "\n".join(columns(lines)) if events else NO_EVENTS


def _gpu_of(event: Document) -> str:
    return f"GPU {event['gpu']}" if event["gpu"] is not None else f"the GPU at {event['pci_bus_id']}"
