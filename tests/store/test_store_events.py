"""Events are found by what is asked, boards are remembered, and the store of an earlier version is taken over."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sample_events import BUS_ID, WALL, change, error_event

from gpumon.model.error_event import KINDS, OVERRUN, SOURCES, SXID, XID, ErrorChange, ErrorEvent
from gpumon.model.hold import Hold
from gpumon.model.maintenance import Maintenance
from gpumon.model.port_record import PortRecord
from gpumon.model.stored_gpu import StoredGpu
from gpumon.probe.core.result import from_document
from gpumon.store import APPLICATION_ID
from gpumon.store import boards as store_module
from gpumon.store import ports as ports_module
from gpumon.store.events import ErrorCounter, EventQuery
from gpumon.store.schema import MIGRATIONS
from gpumon.store.store import Retention, Store

OTHER = "00000000:2A:00.0"
RUN = {"id": "r1", "probe": "allreduce", "outcome": "ok", "started": WALL}


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tuple[ErrorEvent, ...]]:
    """A store of many different events, and those, oldest first."""
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
    with Store.open(path, clock=lambda: WALL) as store:
        store.record(ErrorChange(one, one.count) for one in events)
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
    """Whatever is asked: page after page, the newest first, none twice and none left out."""
    path, events = filled
    found: list[ErrorEvent] = []
    with Store.open(path, clock=lambda: WALL) as store:
        while page := store.events(query):
            found += [one.event for one in page]
            query = replace(query, before=page[-1].place)

    assert found == [one for one in reversed(events) if query.matches(one)]


def test_what_is_over_is_told_wherever_it_is_found(tmp_path: Path) -> None:
    """Xid 162 ends the 163 before it, of its own GPU, and not the one after it."""
    lost = [error_event(1, 163), error_event(2, 163, bus_id=OTHER, uuid="GPU-2"), error_event(9, 163)]
    with Store.open(tmp_path / "gpumon.db", clock=lambda: WALL) as store:
        store.record(ErrorChange(one, 1) for one in (*lost, error_event(5, 162), error_event(6, 162)))
        found = store.events(EventQuery(code=163))

    assert [one.event.cancelled_wall for one in found] == [None, None, WALL + 5]


def board(number: int, bus_id: str = BUS_ID, last: float = 0.0) -> StoredGpu:
    return StoredGpu(
        uuid=f"GPU-{number}", bus_id=bus_id, serial="165422", name="H100", first_wall=WALL, last_wall=WALL + last
    )


def test_boards_are_remembered_by_uuid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When one was first seen stays, where it was last seen follows it, and the number of them is bounded."""
    monkeypatch.setattr(store_module, "MOST_BOARDS", 3)
    with Store.open(tmp_path / "gpumon.db") as store:
        store.keep_boards([board(1), board(2, last=1)])
        store.keep_boards([replace(board(1, OTHER, last=5), first_wall=WALL + 5)])
        assert store.boards() == (board(2, last=1), board(1, OTHER, last=5))

        store.keep_boards(board(number, last=10 + number) for number in range(3, 6))
    with Store.open(tmp_path / "gpumon.db") as store:
        assert [one.uuid for one in store.boards()] == ["GPU-3", "GPU-4", "GPU-5"]


def made_by_0_1(path: Path) -> None:
    """As version 0.1 left it: statements of a released migration never change."""
    with contextlib.closing(sqlite3.connect(path)) as old:
        old.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        old.execute("PRAGMA journal_mode = WAL")
        old.execute("CREATE TABLE migrations (version INTEGER PRIMARY KEY, applied REAL NOT NULL)")
        for statement in MIGRATIONS[0]:
            old.execute(statement)
        old.execute("INSERT INTO migrations VALUES (1, 0)")
        insert = "INSERT INTO xid_events (boot_id, bus_id, uuid, xid, at, wall, source) VALUES (?, ?, ?, ?, ?, ?, ?)"
        old.execute(insert, ("boot-1", BUS_ID, "GPU-1", 79, 10.0, WALL + 10, "nvml"))
        old.execute(insert, ("boot-1", OTHER, None, 13, 11.0, WALL + 11, "nvml"))
        old.execute("INSERT INTO xid_counters VALUES ('GPU-1', 79, 7, ?)", (WALL + 10,))
        old.execute("INSERT INTO probe_results VALUES (1, 'r1', 'allreduce', ?, 'ok', ?)", (WALL, json.dumps(RUN)))
        old.execute("INSERT INTO probe_counters VALUES ('allreduce', 'ok', '', 4)")
        old.commit()


def test_a_store_of_version_0_1_is_upgraded_in_place(tmp_path: Path) -> None:
    """Events become bursts of one, counters and results stay, and all that is new works."""
    path = tmp_path / "gpumon.db"
    made_by_0_1(path)
    counter = ErrorCounter(kind=XID, device="GPU-1", code=79, count=7, last_wall=WALL + 10)

    for _ in range(2):
        with Store.open(path, clock=lambda: WALL) as store:
            assert store.moved_aside is None
            assert store.recent_events(10) == (
                error_event(10, id="v1-1"),
                error_event(11, 13, None, id="v1-2", bus_id=OTHER),
            )
            assert store.error_counters() == (counter,)
            assert store.probe_counters("allreduce").outcomes == {"ok": 4}
            assert store.known_probe_results(newest=1, each=1) == (from_document(RUN),)
            assert (store.log_position(), store.boards()) == (None, ())

    with Store.open(path, clock=lambda: WALL) as store:
        store.record([change(20), change(21, 20034, None, kind=SXID, bus_id="00000000:C1:00.0")])
        assert [one.count for one in store.error_counters()] == [8, 1]


def test_a_burst_that_goes_on_outlives_the_rows_after_it(tmp_path: Path) -> None:
    """Retention keeps the newest rows; one that was pruned while it went on is written anew and counts its gain."""
    with Store.open(tmp_path / "gpumon.db", retention=Retention(rows=5), clock=lambda: WALL) as store:
        store.record(change(number) for number in range(10))
        store.record([ErrorChange(error_event(0, nvml=4), 3)])

        assert len(store.recent_events(100)) == 5
        assert [one.count for one in store.error_counters()] == [13]


def test_a_board_is_kept_with_all_that_is_known_of_it(tmp_path: Path) -> None:
    """Versions, links, energy, and whether it is expected; what a person accepts outlives the agent."""
    whole = replace(board(1), gpu=3, boot_id="b1", vbios="96.00", inforom="G520", gsp="580.1", nvlinks=18, energy=1.5e9)
    with Store.open(tmp_path / "gpumon.db") as store:
        store.keep_boards([whole, board(2)])
        assert store.accepted() is None
        store.accept(1, ["GPU-2"])
    with Store.open(tmp_path / "gpumon.db") as store:
        assert store.accepted() == 1
        assert set(store.boards()) == {whole, replace(board(2), expected=False)}
        store.keep_boards([board(2, last=5)])
        assert board(2, last=5) in store.boards()


def test_a_store_that_never_forgot_a_board_expects_the_last_at_each_address(tmp_path: Path) -> None:
    """Version 2 of the schema kept those that were replaced: they must not be missed after an upgrade."""
    path = tmp_path / "gpumon.db"
    made_by_0_1(path)
    with contextlib.closing(sqlite3.connect(path)) as old:
        for statement in MIGRATIONS[1]:
            old.execute(statement)
        old.execute("INSERT INTO migrations VALUES (2, 0)")
        for uuid, bus_id, last in (("GPU-1", BUS_ID, 5.0), ("GPU-2", BUS_ID, 9.0), ("GPU-3", OTHER, 1.0)):
            old.execute("INSERT INTO boards VALUES (?, ?, 'S', 'H100', 0, ?)", (uuid, bus_id, last))
        old.commit()
    with Store.open(path) as store:
        assert {one.uuid: one.expected for one in store.boards()} == {"GPU-1": False, "GPU-2": True, "GPU-3": True}
        assert store.ports() == ()


def test_a_maintenance_of_an_earlier_version_keeps_its_length(tmp_path: Path) -> None:
    """Version 3 of the schema knew its end on the boot clock, and not its beginning."""
    path = tmp_path / "gpumon.db"
    made_by_0_1(path)
    with contextlib.closing(sqlite3.connect(path)) as old:
        for version in (2, 3):
            for statement in MIGRATIONS[version - 1]:
                old.execute(statement)
            old.execute("INSERT INTO migrations VALUES (?, 0)", (version,))
        old.execute(
            "INSERT INTO maintenance VALUES (1, ?, ?, 8600, 'boot-1', NULL, 'DIMMs', 'api')", (WALL, WALL + 3600)
        )
        old.commit()
    with Store.open(path) as store:
        (known,) = store.spans(Maintenance)
        assert (known.began_at, known.seconds) == (5000.0, 3600.0)
        store.keep_spans([replace(known, began_at=-100.0, deadline=3500.0, boot_id="boot-2")])
        assert [(one.began_at, one.seconds) for one in store.spans(Maintenance)] == [(-100.0, 3600.0)]


@pytest.mark.parametrize("column", ["began", "began_at", "until", "deadline", "ended"])
def test_a_stored_hold_that_cannot_be_true_is_left_out_and_told(
    tmp_path: Path, column: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A disk has spoilt it: it costs nobody the one beside it."""
    path = tmp_path / "gpumon.db"
    one = Hold(
        began=WALL, began_at=1.0, until=WALL + 9, deadline=10.0, boot_id="boot-1", reason="job", by="api", owner="1"
    )
    with Store.open(path) as store:
        store.keep_spans([one, replace(one, owner="2")])
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as spoilt:
        spoilt.execute(f"UPDATE holds SET {column} = 1e300 WHERE owner = '2'")  # noqa: S608 - our own names
    with Store.open(path) as store:
        assert store.spans(Hold) == (one,)
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


def test_ports_are_remembered_by_their_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As they were told last, those that are not wired too; of too many, those that are expected stay."""
    monkeypatch.setattr(ports_module, "MOST_PORTS", 2)
    with Store.open(tmp_path / "gpumon.db") as store:
        store.keep_ports([rail(1), rail(2, last=1, expected=None)])
        moved = replace(rail(1, last=5), device="mlx5_7", bus_id=OTHER)
        store.keep_ports([moved])
    with Store.open(tmp_path / "gpumon.db") as store:
        assert store.ports() == (rail(2, last=1, expected=None), moved)
        store.keep_ports([rail(3, last=9, expected=None), rail(4, last=2)])
        assert store.ports() == (rail(4, last=2), moved)


def test_what_is_accepted_of_ports_is_stored_with_the_gpus(tmp_path: Path) -> None:
    """One of them is expected no more, one runs slower than it did; the other stays as it is."""
    with Store.open(tmp_path / "gpumon.db") as store:
        store.keep_ports([rail(1), rail(2), rail(3)])
        store.accept(8, (), [rail(1).identity], {rail(2).identity: 25e9})
    with Store.open(tmp_path / "gpumon.db") as store:
        assert [one.expected for one in store.ports()] == [False, True, True]
        assert [one.speed for one in store.ports()] == [50e9, 25e9, 50e9]
        assert store.accepted() == 8
