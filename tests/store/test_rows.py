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
from stores import read, write

from gpumon.model.error_event import KINDS, OVERRUN, SOURCES, SXID, XID, ErrorChange, ErrorEvent
from gpumon.model.hold import Hold
from gpumon.model.port_record import PortRecord
from gpumon.model.stored_gpu import StoredGpu
from gpumon.store import error_events, gpus, ports, spans
from gpumon.store.error_events import EventQuery
from gpumon.store.retention import Retention, prune
from gpumon.store.store import Store

OTHER = "00000000:2A:00.0"
RUN = {"id": "r1", "probe": "allreduce", "outcome": "ok", "started": WALL}


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tuple[ErrorEvent, ...]]:
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
        write(store, error_events.record, (ErrorChange(one, one.count) for one in events))
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
def test_the_store_and_the_report_find_the_same(filled: tuple[Path, tuple[ErrorEvent, ...]], query: EventQuery) -> None:
    """The pages of a query have each matching event once, the newest first."""
    path, events = filled
    found: list[ErrorEvent] = []
    with Store.open(path) as store:
        while page := read(store, error_events.find, query):
            found += [one.event for one in page]
            query = replace(query, before=page[-1].place)

    assert found == [one for one in reversed(events) if query.matches(one)]


def test_a_cancelled_event_has_the_time_of_its_cancellation(tmp_path: Path) -> None:
    """Xid 162 cancels an earlier Xid 163 of the same GPU, and no later one."""
    lost = [error_event(1, 163), error_event(2, 163, bus_id=OTHER, uuid="GPU-2"), error_event(9, 163)]
    with Store.open(tmp_path / "gpumon.db") as store:
        write(
            store,
            error_events.record,
            (ErrorChange(one, 1) for one in (*lost, error_event(5, 162), error_event(6, 162))),
        )
        found = read(store, error_events.find, EventQuery(code=163))

    assert [one.event.cancelled_wall for one in found] == [None, None, WALL + 5]


def board(number: int, bus_id: str = BUS_ID, last: float = 0.0) -> StoredGpu:
    return StoredGpu(
        uuid=f"GPU-{number}", bus_id=bus_id, serial="165422", name="H100", first_wall=WALL, last_wall=WALL + last
    )


def test_gpus_are_stored_by_uuid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of the first reading stays, the address is updated, and the number of rows is bounded."""
    monkeypatch.setattr(gpus, "MAX_GPUS", 3)
    with Store.open(tmp_path / "gpumon.db") as store:
        write(store, gpus.put, [board(1), board(2, last=1)])
        write(store, gpus.put, [replace(board(1, OTHER, last=5), first_wall=WALL + 5)])
        assert read(store, gpus.read) == (board(2, last=1), board(1, OTHER, last=5))

        write(store, gpus.put, (board(number, last=10 + number) for number in range(3, 6)))
    with Store.open(tmp_path / "gpumon.db") as store:
        assert [one.uuid for one in read(store, gpus.read)] == ["GPU-3", "GPU-4", "GPU-5"]


def test_an_event_that_continues_is_stored_again_after_its_deletion(tmp_path: Path) -> None:
    """An event that was deleted while it continues is inserted again and counts its gain."""
    with Store.open(tmp_path / "gpumon.db") as store:
        write(store, error_events.record, (change(number) for number in range(10)))
        write(store, prune, Retention(rows=5), WALL)
        write(store, error_events.record, [ErrorChange(error_event(0, nvml=4), 3)])

        assert len(read(store, error_events.read_recent, 100)) == 6
        assert [one.count for one in read(store, error_events.read_counters)] == [13]


def test_all_fields_of_a_gpu_are_stored(tmp_path: Path) -> None:
    """All fields are read as they were written, and an acceptance survives a restart."""
    whole = replace(board(1), gpu=3, boot_id="b1", vbios="96.00", inforom="G520", gsp="580.1", nvlinks=18, energy=1.5e9)
    with Store.open(tmp_path / "gpumon.db") as store:
        write(store, gpus.put, [whole, board(2)])
        assert read(store, gpus.accepted_count) is None
        write(store, gpus.accept, 1, ["GPU-2"])
    with Store.open(tmp_path / "gpumon.db") as store:
        assert read(store, gpus.accepted_count) == 1
        assert set(read(store, gpus.read)) == {whole, replace(board(2), expected=False)}
        write(store, gpus.put, [board(2, last=5)])
        assert board(2, last=5) in read(store, gpus.read)


@pytest.mark.parametrize("column", ["began", "began_at", "until", "deadline", "ended"])
def test_a_stored_hold_that_cannot_be_true_is_left_out_and_told(
    tmp_path: Path, column: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A damaged row does not affect the others."""
    path = tmp_path / "gpumon.db"
    one = Hold(
        began=WALL, began_at=1.0, until=WALL + 9, deadline=10.0, boot_id="boot-1", reason="job", by="api", owner="1"
    )
    with Store.open(path) as store:
        write(store, spans.put, [one, replace(one, owner="2")])
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as spoilt:
        spoilt.execute(f"UPDATE holds SET {column} = 1e300 WHERE owner = '2'")  # noqa: S608 - our own names
    with Store.open(path) as store:
        assert read(store, spans.read, Hold) == (one,)
    assert [record.message for record in caplog.records] == ["a stored span cannot be true, and counts no more"]


def rail(number: int, last: float = 0.0, *, expected: bool | None = True) -> PortRecord:
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
    monkeypatch.setattr(ports, "MAX_PORTS", 2)
    with Store.open(tmp_path / "gpumon.db") as store:
        write(store, ports.put, [rail(1), rail(2, last=1, expected=None)])
        moved = replace(rail(1, last=5), device="mlx5_7", bus_id=OTHER)
        write(store, ports.put, [moved])
    with Store.open(tmp_path / "gpumon.db") as store:
        assert read(store, ports.read) == (rail(2, last=1, expected=None), moved)
        write(store, ports.put, [rail(3, last=9, expected=None), rail(4, last=2)])
        assert read(store, ports.read) == (rail(4, last=2), moved)


def test_accepted_ports_are_stored(tmp_path: Path) -> None:
    """A port is no longer expected, one has a lower speed, and the other is unchanged."""
    with Store.open(tmp_path / "gpumon.db") as store:
        write(store, ports.put, [rail(1), rail(2), rail(3)])
        write(store, gpus.accept, 8, ())
        write(store, ports.accept, [rail(1).identity], {rail(2).identity: 25e9})
    with Store.open(tmp_path / "gpumon.db") as store:
        assert [one.expected for one in read(store, ports.read)] == [False, True, True]
        assert [one.speed for one in read(store, ports.read)] == [50e9, 25e9, 50e9]
        assert read(store, gpus.accepted_count) == 8
