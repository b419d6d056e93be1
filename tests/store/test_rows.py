"""Queries of stored events, and the rows of GPUs, ports and time windows."""

from __future__ import annotations

import contextlib
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sample_events import BUS_ID, WALL, change, error_event
from sample_windows import HOLD, RELEASE, window
from stores import read, write

from gpumon.model.error_event import KINDS, OVERRUN, SOURCES, SXID, XID, ErrorChange, ErrorEvent
from gpumon.model.records import NotifiedAlert, PortRecord, SentAlert, StoredGpu
from gpumon.model.time_window import MAX_ENDED
from gpumon.store import error_events, records
from gpumon.store.error_events import EventQuery
from gpumon.store.records import Retention, prune
from gpumon.store.store import Store

OTHER = "00000000:2A:00.0"
RUN = {"id": "r1", "probe": "allreduce", "outcome": "ok", "started": WALL}


@pytest.fixture(scope="module")
def filled_store(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tuple[ErrorEvent, ...]]:
    """Return a store of many different events, and the events, oldest first."""
    path = tmp_path_factory.mktemp("store") / "gpumon.db"
    events = tuple(
        error_event(
            number,
            (13, 79)[number % 2],
            ("GPU-1", "GPU-2", None)[number % 3],
            kind=(XID, XID, XID, SXID, OVERRUN)[number % 5],
            bus_id=(BUS_ID, OTHER)[number % 7 % 2],
            nvml=number % 2,
            kmsg=(number + 1) % 2,
            unnumbered=number % 11 == 0,
            first_wall=WALL + number - number % 4,
        )
        for number in range(200)
    )
    with Store.open(path) as store:
        write(store, error_events.record, (ErrorChange(event, event.count) for event in events))
    return path, events


maybe = st.none()
queries = st.builds(
    EventQuery,
    uuid=maybe | st.sampled_from(["GPU-1", "GPU-2", "GPU-9"]),
    bus_id=maybe | st.sampled_from([BUS_ID, OTHER]),
    kind=maybe | st.sampled_from(KINDS),
    code=maybe | st.sampled_from([13, 79, 48]),
    source=maybe | st.sampled_from(SOURCES),
    since=maybe | st.integers(-1, 210).map(lambda at: WALL + at),
    until=maybe | st.integers(-1, 210).map(lambda at: WALL + at),
    limit=st.integers(1, 70),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=60)
@given(query=queries)
def test_store_and_report_return_the_same_events(
    filled_store: tuple[Path, tuple[ErrorEvent, ...]], query: EventQuery
) -> None:
    """The pages of a query have each matching event once, newest first."""
    path, events = filled_store
    stored: list[ErrorEvent] = []
    with Store.open(path) as store:
        while page := read(store, error_events.find, query):
            stored += [item.event for item in page]
            query = replace(query, before=page[-1].place)

    assert stored == [event for event in reversed(events) if query.matches(event)]


def test_a_cancelled_event_has_the_time_of_its_cancellation(tmp_path: Path) -> None:
    """Xid 162 cancels an earlier Xid 163 of the same GPU, and no later one."""
    lost = [error_event(1, 163), error_event(2, 163, bus_id=OTHER, uuid="GPU-2"), error_event(9, 163)]
    with Store.open(tmp_path / "gpumon.db") as store:
        write(
            store,
            error_events.record,
            (ErrorChange(event, 1) for event in (*lost, error_event(5, 162), error_event(6, 162))),
        )
        items = read(store, error_events.find, EventQuery(code=163))

    assert [item.event.cancelled_wall for item in items] == [None, None, WALL + 5]


def board(number: int, bus_id: str = BUS_ID, last: float = 0.0) -> StoredGpu:
    return StoredGpu(
        uuid=f"GPU-{number}", bus_id=bus_id, serial="165422", name="H100", first_wall=WALL, last_wall=WALL + last
    )


def test_gpus_are_stored_by_uuid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first read time of a GPU remains, its address is updated, and the number of rows is bounded."""
    monkeypatch.setattr(records, "MAX_DEVICES", 3)
    with Store.open(tmp_path / "gpumon.db") as store:
        write(store, records.put_gpus, [board(1), board(2, last=1)])
        write(store, records.put_gpus, [replace(board(1, OTHER, last=5), first_wall=WALL + 5)])
        assert read(store, records.read_gpus) == (board(2, last=1), board(1, OTHER, last=5))

        write(store, records.put_gpus, (board(number, last=10 + number) for number in range(3, 6)))
    with Store.open(tmp_path / "gpumon.db") as store:
        assert [gpu.uuid for gpu in read(store, records.read_gpus)] == ["GPU-3", "GPU-4", "GPU-5"]


def test_an_event_that_continues_is_stored_again_after_its_deletion(tmp_path: Path) -> None:
    """An event that was deleted while it continues is inserted again and counts its gain."""
    with Store.open(tmp_path / "gpumon.db") as store:
        write(store, error_events.record, (change(number) for number in range(10)))
        write(store, prune, Retention(rows=5), WALL)
        write(store, error_events.record, [ErrorChange(error_event(0, nvml=4), 3)])

        assert len(read(store, error_events.read_recent, 100)) == 6
        assert [counter.count for counter in read(store, error_events.read_counters)] == [13]


def test_all_fields_of_a_gpu_are_stored(tmp_path: Path) -> None:
    """All fields are read as they were written, and an acceptance survives a restart."""
    whole = replace(board(1), gpu=3, boot_id="b1", vbios="96.00", inforom="G520", gsp="580.1", nvlinks=18, energy=1.5e9)
    whole = replace(whole, lanes=16.0)
    with Store.open(tmp_path / "gpumon.db") as store:
        write(store, records.put_gpus, [whole, board(2)])
        assert read(store, records.accepted_count) is None
        write(store, records.accept_gpus, 1, ["GPU-2"])
        write(store, records.accept_lanes, {"GPU-1": 8.0})
    whole = replace(whole, lanes=8.0, lanes_accepted=True)
    with Store.open(tmp_path / "gpumon.db") as store:
        assert read(store, records.accepted_count) == 1
        assert set(read(store, records.read_gpus)) == {whole, replace(board(2), expected=False)}
        write(store, records.put_gpus, [board(2, last=5)])
        assert board(2, last=5) in read(store, records.read_gpus)


def test_windows_are_stored_by_id_and_the_oldest_ended_ones_deleted(tmp_path: Path) -> None:
    """A changed window updates its row, and each kind keeps its newest rows."""
    hold = window(HOLD, start=WALL, start_at=1.0, seconds=9.0, owner="1")
    ended = [
        replace(window(RELEASE, start=WALL, start_at=1.0, seconds=9.0), ended=WALL + 1, ended_by="api")
        for _ in range(MAX_ENDED + 5)
    ]
    with Store.open(tmp_path / "gpumon.db") as store:
        write(store, records.put_windows, [hold, *ended])
        rebooted = replace(
            hold,
            started=hold.started._replace(boot_id="boot-2", at=-5.0),
            deadline=hold.deadline._replace(boot_id="boot-2", at=4.0),
        )
        write(store, records.put_windows, [rebooted])
        assert read(store, records.read_windows) == (rebooted, *ended[5:])


def test_an_invalid_stored_window_is_ignored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    damage = {"kind": "nothing", "start": 1e300, "start_at": 1e300, "until": 1e300, "deadline": 1e300, "ended": 1e300}
    good, bad = (window(HOLD, start=WALL, start_at=1.0, seconds=9.0, owner=owner) for owner in "12")
    for column, value in damage.items():
        path = tmp_path / f"{column}.db"
        with Store.open(path) as store:
            write(store, records.put_windows, [good, bad])
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute(f"UPDATE windows SET {column} = ? WHERE owner = '2'", (value,))  # noqa: S608 - constant column names
        with Store.open(path) as store:
            assert read(store, records.read_windows) == (good,), column
    assert {record.message for record in caplog.records} == {"left out an unreadable row of the store"}


def port_record(number: int, last: float = 0.0, *, expected: bool | None = True) -> PortRecord:
    return PortRecord(
        identity=f"5c25:7303:00f0:{number:04x}/1",
        device=f"mlx5_{number}",
        port="1",
        bus_id=BUS_ID,
        guid=f"5c25:7303:00f0:{number:04x}",
        link_layer="InfiniBand",
        board="MT_0000000838",
        firmware="28.43.1014",
        first_wall=WALL,
        last_wall=WALL + last,
        first_up=WALL if expected else None,
        last_up=WALL + last if expected else None,
        speed=50e9,
        expected=expected,
    )


def test_ports_are_stored_by_identity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last state of each port is read; expected ports are deleted last."""
    monkeypatch.setattr(records, "MAX_DEVICES", 2)
    with Store.open(tmp_path / "gpumon.db") as store:
        write(store, records.put_ports, [port_record(1), port_record(2, last=1, expected=None)])
        moved = replace(port_record(1, last=5), device="mlx5_7", bus_id=OTHER)
        write(store, records.put_ports, [moved])
    with Store.open(tmp_path / "gpumon.db") as store:
        assert read(store, records.read_ports) == (port_record(2, last=1, expected=None), moved)
        write(store, records.put_ports, [port_record(3, last=9, expected=None), port_record(4, last=2)])
        assert read(store, records.read_ports) == (port_record(4, last=2), moved)


def test_accepted_ports_are_stored(tmp_path: Path) -> None:
    """Accepted ports are stored as no longer expected or with a lower speed; other ports are unchanged."""
    with Store.open(tmp_path / "gpumon.db") as store:
        write(store, records.put_ports, [port_record(1), port_record(2), port_record(3)])
        write(store, records.accept_gpus, 8, ())
        write(store, records.accept_ports, [port_record(1).identity], {port_record(2).identity: 25e9})
    with Store.open(tmp_path / "gpumon.db") as store:
        assert [port.expected for port in read(store, records.read_ports)] == [False, True, True]
        assert [port.speed for port in read(store, records.read_ports)] == [50e9, 25e9, 50e9]
        assert read(store, records.accepted_count) == 8


def test_messages_that_wait_for_a_receiver_are_read_as_they_were_written(tmp_path: Path) -> None:
    """Also when the alert has ended and the receiver fails. A row that is written again replaces the first."""
    alert = SentAlert(labels=(("alertname", "GpuLost"),), summary="lost", description="", action="", since=WALL)
    fired = NotifiedAlert("webhook 1", alert, delivered=False)
    ended, other = replace(fired, ended=WALL + 1, failing_since=WALL), NotifiedAlert("slack 2", alert)
    with Store.open(tmp_path / "gpumon.db") as store:
        for row in (fired, ended, other):
            write(store, records.put_notified, row)
        assert set(read(store, records.read_notified)) == {ended, other}
        write(store, records.remove_notified, ended)
        assert read(store, records.read_notified) == (other,)
        write(store, records.replace_notified, "webhook 1", [ended])
        write(store, records.replace_notified, "slack 2", [])
        assert read(store, records.read_notified) == (ended,)
