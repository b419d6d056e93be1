"""/api/v1/events: filtered, as far back as the store goes, without the store too, and in words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import example_node as example
import example_parts
import sample_reports as samples
from changed_report import changed
from each_case import each_case
from sample_reports import STAMP
from serving import ServedNode, ask, is_problem
from stores import write

from gpumon.model.error_event import OVERRUN, SXID, ErrorChange, ErrorEvent
from gpumon.model.records import StoredGpu
from gpumon.outputs.responses.report import EventsResponse
from gpumon.server.report import PAGE_SIZE
from gpumon.state.report import Report
from gpumon.store import error_events
from gpumon.store.store import Store


def event(number: int, ago: float) -> ErrorEvent:
    """Xid 13 and 79 in turns, on four GPUs in turns."""
    return replace(
        example.event(),
        id=f"e{number}",
        code=(13, 79)[number % 2],
        bus_id=example_parts.bus_id(number % 4),
        uuid=example_parts.uuid(number % 4),
        first=example.event().first._replace(wall=STAMP.wall - ago),
        last=example.event().last._replace(wall=STAMP.wall - ago),
    )


def many_events(count: int) -> Report:
    events = tuple(event(number, 60.0 * (count - number)) for number in range(count))
    return changed(samples.healthy(), events=events)


def store(folder: Path, *events: ErrorEvent) -> Path:
    path = folder / "gpumon.db"
    with Store.open(path) as one:
        write(one, error_events.record, (ErrorChange(event, event.count) for event in events))
    return path


def event_ids(port: int, query: str = "") -> list[str]:
    return [each["id"] for each in ask(port, f"/api/v1/events?{query}").document["events"]]


@each_case(
    ("query", "count"),
    [
        ("", 100),
        ("limit=7", 7),
        ("limit=500", 120),
        ("xid=79", 60),
        ("gpu=1", 30),
        (f"gpu={example_parts.uuid(2)}&xid=13", 30),
        ("gpu=1&xid=13", 0),
        ("severity=critical", 60),
        ("severity=warning&gpu=0", 30),
        ("severity=info", 0),
        ("kind=xid&limit=1000", 120),
        ("kind=sxid", 0),
        ("source=kmsg&limit=3", 3),
        ("since=10m30s", 10),
        ("since=2025-11-20T11:50:30Z", 9),
        ("since=2025-11-20T11:50:30%2B00:00", 9),
        (f"since={STAMP.wall - 90}", 1),
        ("since=10m30s&until=5m30s", 5),
        ("until=119m30s", 1),
    ],
)
@each_case("stored", [True, False])
def test_events_are_filtered(
    node: ServedNode, port: int, query: str, count: int, tmp_path: Path, *, stored: bool
) -> None:
    """By GPU, code, kind, severity, source, time and number together, in the store and in the Report."""
    report = many_events(120)
    node.report = changed(report, events=()) if stored else report
    node.store = store(tmp_path, *report.events) if stored else None
    answer = ask(port, f"/api/v1/events?{query}").document
    events = answer["events"]

    assert len(events) == count
    assert events == sorted(events, key=lambda each: str(each["time"]), reverse=True)
    assert answer["complete"] is stored
    EventsResponse.model_validate(answer)


def test_events_of_store_and_report_are_merged(node: ServedNode, port: int, tmp_path: Path) -> None:
    """An event of both is listed once, as the Report has it."""
    old, both, unstored = event(1, 9000), event(2, 600), event(3, 60)
    node.report = changed(samples.healthy(), events=(replace(both, nvml=9), unstored))
    node.store = store(tmp_path, old, both)
    answer = ask(port, "/api/v1/events").document

    assert [(each["id"], each["count"]) for each in answer["events"]] == [("e3", 1), ("e2", 9), ("e1", 1)]
    assert answer["complete"] is True


def test_search_continues_until_the_limit(node: ServedNode, port: int, tmp_path: Path) -> None:
    """Pages of the store are read until enough events match."""
    critical = [event(1, 90_000), event(3, 80_000)]
    common = [replace(event(2 * number, 100.0), id=f"w{number}") for number in range(2 * PAGE_SIZE + 7)]
    node.store = store(tmp_path, *critical, *common)

    assert event_ids(port, "severity=critical") == ["e3", "e1"]
    assert event_ids(port, "severity=critical&limit=1") == ["e3"]


def test_limit_keeps_the_last_stored_of_simultaneous_events(node: ServedNode, port: int, tmp_path: Path) -> None:
    """Of events with the same time, the store lists the one that was stored last as the newest."""
    node.store = store(tmp_path, *(event(number, 100.0) for number in range(3)))

    assert event_ids(port, "limit=1") == ["e2"]
    assert sorted(event_ids(port, "limit=2")) == ["e1", "e2"]


def test_event_has_meaning_and_action(node: ServedNode, port: int) -> None:
    """It has its times, sources and the text of the kernel log."""
    line = "NETIR_LINK_DOWN Fatal XC0 i0 Link 07 (0x00200011 0x00000000)"
    stored = replace(
        event(0, 100),
        code=149,
        nvml=2,
        kmsg=3,
        texts=(line,),
        text=line,
        first=event(0, 100).first._replace(wall=STAMP.wall - 160),
    )
    node.report = changed(samples.healthy(), events=(stored,))
    (shown,) = ask(port, "/api/v1/events").document["events"]

    assert shown["severity"] == "critical"
    assert (shown["name"], shown["action"]) == ("NVLink 5 link went down (NETIR)", "drain the node and reset the GPU")
    assert (shown["detail"], shown["text"]) == ("NETIR_LINK_DOWN of link 7: fatal.", line)
    assert (shown["since"], shown["time"], shown["count"]) == (
        "2025-11-20T11:57:20.000Z",
        "2025-11-20T11:58:20.000Z",
        3,
    )
    assert (shown["gpu"], shown["xid"], shown["sources"]) == (0, 149, ["nvml", "kmsg"])


def test_events_of_switches_and_of_the_log_have_no_gpu(node: ServedNode, port: int) -> None:
    """Each has its own code, and no other."""
    switch = replace(event(1, 60), kind=SXID, code=12028, bus_id="00000000:C1:00.0", uuid=None, fatal=False)
    overrun = replace(event(2, 30), kind=OVERRUN, code=0, bus_id="", uuid=None)
    node.report = changed(samples.healthy(), events=(switch, overrun))
    shown = ask(port, "/api/v1/events").document["events"]

    assert [(each["xid"], each["sxid"], each["gpu"], each["pci_bus_id"]) for each in shown] == [
        (None, None, None, None),
        (None, 12028, None, "00000000:C1:00.0"),
    ]
    assert event_ids(port, "sxid=12028") == event_ids(port, "kind=sxid") == ["e1"]
    assert event_ids(port, "kind=overrun") == ["e2"]
    assert event_ids(port, "gpu=0") == []


def test_events_of_a_removed_gpu_are_found(node: ServedNode, port: int) -> None:
    """They are found by uuid; a uuid that was never here is an error."""
    gone = StoredGpu(uuid="GPU-gone", bus_id=example_parts.bus_id(0), serial="", name="", first_wall=0.0, last_wall=0.0)
    report = samples.healthy()
    node.report = changed(
        report,
        inventory=replace(report.inventory, stored={gone.bus_id: gone}),
        events=(replace(event(0, 60), uuid=gone.uuid), event(4, 30)),
    )

    assert event_ids(port, "gpu=GPU-gone") == ["e0"]
    assert event_ids(port, "gpu=0") == ["e4"]
    (shown,) = ask(port, "/api/v1/events?gpu=GPU-gone").document["events"]
    assert (shown["gpu"], shown["uuid"]) == (None, "GPU-gone")
    assert is_problem(ask(port, "/api/v1/events?gpu=GPU-never"), 404)
