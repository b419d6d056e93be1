"""No value of a cell in the store ends the agent or fails a page: the row is left out and counted."""

from __future__ import annotations

import contextlib
import json
import math
import random
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sample_reports as samples
from loops import turn_until
from reduced_reports import UP, gpu_reading, reduce_all, snapshot
from sample_events import WALL, change
from sample_windows import HOLD, MAINTENANCE, window
from stores import StoringAgent

from gpumon.health.node_health import PendingVerdict
from gpumon.health.verdict import FAIL, WARN, Action, Clearance, Verdict, VerdictChange, VerdictTransition
from gpumon.model.error_event import SXID, LogPosition
from gpumon.model.instant import Instant
from gpumon.model.records import AgentRun, PortRecord, StoredGpu
from gpumon.model.request import AuditEntry
from gpumon.outputs import terminal
from gpumon.outputs.prometheus import Renderer
from gpumon.outputs.responses.base import HostTime
from gpumon.outputs.responses.report import EventsResponse, newest_first
from gpumon.probe.core.result import from_document
from gpumon.services import write_behind
from gpumon.services.persistence import Persistence
from gpumon.state.messages import StoredState, Tick
from gpumon.state.monitor import Monitor
from gpumon.state.report import Report
from gpumon.store import error_events, probe_runs, records, verdicts
from gpumon.store.error_events import EventQuery
from gpumon.store.probe_runs import RunQuery
from gpumon.store.records import Retention, prune
from gpumon.store.store import Store
from gpumon.store.stored_rows import StoreTable, count_left_out

SEEDS = range(120)
TABLES = (
    *("error_events", "error_counters", "probe_runs", "probe_counters", "verdicts", "verdict_transitions"),
    *("gpus", "ports", "agent_runs", "windows", "meta", "audit"),
)
HOSTILE = (
    *(
        "",
        "x",
        "inf",
        "nan",
        "-1",
        "null",
        "[]",
        "{}",
        "[[[",
        '{"level": 9}',
        "\x1b[31m",
        "a" * 5000,
        b"\xed\xa0\x80",
    ),
    *(0, -1, 7, 2**63 - 1, -(2**63), math.inf, -math.inf, 1e300, 1e-300, 0.5, b"\xff\x00", b"{}"),
)
NOW = HostTime(host="gpu-17", boot=200.0, wall=WALL + 200)


def fill(path: Path) -> None:
    """Write rows of every table."""
    verdict = Verdict(
        *("gpu_xid_critical", "GPU-1", FAIL, "Xid 79", Action.REBOOT),
        raised=Instant("", 0.0, WALL),
        last_active=Instant("boot-1", 100.0, WALL),
        evidence={"xid": 79},
    )
    raised = VerdictTransition(verdict=verdict, change=VerdictChange.RAISED, time=Instant("boot-1", 100.0, WALL))
    other = raised._replace(verdict=verdict._replace(check="gpu_lost", device="GPU-0"))
    cleared = other._replace(
        change=VerdictChange.CLEARED, cleared_by=Clearance.RESET, time=Instant("boot-1", 100.0, WALL + 9)
    )
    pending = PendingVerdict(
        check="gpu_lost", device="GPU-2", level=WARN, lasted={WARN: 1.0}, patience=9.0, seen_at=99.0, boot_id="boot-1"
    )
    run = {"id": "r1", "probe": "allreduce", "started": WALL, "outcome": "ok"}
    with Store.open(path) as store, store.writing() as connection:
        changes = [change(number, (13, 79)[number % 2], f"GPU-{number % 3}") for number in range(6)]
        error_events.record(connection, [*changes, change(9, 20034, None, kind=SXID)], LogPosition("boot-1", 77))
        verdicts.record(connection, [raised, other, cleared])
        verdicts.put_pending(connection, [(pending,)])
        for outcome in ("ok", "failed", "skipped"):
            probe_runs.record(connection, from_document(run | {"id": outcome, "outcome": outcome, "reason": "busy"}))
        gpu = StoredGpu(
            uuid="GPU-0", bus_id="00000000:1B:00.0", serial="1", name="H100", first_wall=WALL, last_wall=WALL
        )
        records.put_gpus(connection, [gpu, replace(gpu, uuid="GPU-7", bus_id="00000000:7B:00.0", gpu=7, energy=1.5)])
        records.accept_gpus(connection, 3, ())
        text: dict[str, Any] = dict.fromkeys(
            ("device", "port", "bus_id", "guid", "link_layer", "board", "firmware"), "1"
        )
        records.put_ports(
            connection, [PortRecord(identity="p", first_wall=WALL, last_wall=WALL, expected=True, **text)]
        )
        agent_run = AgentRun(began=Instant("boot-1", 1.0, WALL), version="1", last=WALL)
        records.put_agent_runs(
            connection, [agent_run, replace(agent_run, began=Instant("boot-0", 1.0, WALL), stopped=WALL, planned=True)]
        )
        records.put_audit_entry(
            connection, AuditEntry(wall=WALL, request="POST /api/v1/clear", reason="x", client="local", uid=0)
        )
        for kind in (HOLD, MAINTENANCE):
            records.put_windows(connection, [window(kind, start=WALL, start_at=1.0, seconds=9e9, reason="a reason")])


def damage(path: Path, seed: int) -> None:
    """Replace 1 to 12 cells by values of another type, and flip bits of texts."""
    chance = random.Random(seed)  # noqa: S311 - damage that can be repeated
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.text_factory = bytes
        for _ in range(chance.randint(1, 12)):
            table = chance.choice(TABLES)
            column = chance.choice([name.decode() for _, name, *_ in connection.execute(f"PRAGMA table_info({table})")])
            cells = connection.execute(f'SELECT "{column}" FROM {table}').fetchall()  # noqa: S608
            ((old,),) = chance.choices(cells)
            with contextlib.suppress(sqlite3.IntegrityError, sqlite3.OperationalError):
                new = (
                    _flip_bit(old, chance)
                    if isinstance(old, bytes) and chance.random() < 0.5
                    else chance.choice(HOSTILE)
                )
                value = "CAST(? AS TEXT)" if isinstance(old, bytes) and isinstance(new, bytes) else "?"
                connection.execute(f'UPDATE {table} SET "{column}" = {value} WHERE "{column}" IS ?', (new, old))  # noqa: S608


def _flip_bit(text: bytes, chance: random.Random) -> bytes:
    position = chance.randrange(len(text) or 1)
    return bytes(byte ^ (1 << chance.randrange(8)) if n == position else byte for n, byte in enumerate(text))


def serve(stored: StoredState) -> Report:
    """Return the Report of an agent that restores this state, after everything that it shows was rendered."""
    node = (UP, snapshot(gpu_reading(0), gpu_reading(1)))
    report = reduce_all(*node, stored, Tick(), report=Report(started=0.0, boot_id="boot-1"), at=200.0)
    report = reduce_all(*node, Tick(), report=report, at=300.0)
    document = samples.report_document(report, NOW)
    json.dumps(document, allow_nan=False).encode()
    Renderer(lambda: report).exposition()
    terminal.status(document, 100, color=False)
    return report


@pytest.mark.slow
def test_damaged_cells_do_not_end_the_agent(tmp_path: Path) -> None:
    """Stores with damaged cells in all tables are read, shown, searched, pruned and written."""
    left_out_rows = 0
    for seed in SEEDS:
        path = tmp_path / f"{seed}.db"
        fill(path)
        damage(path, seed)
        with Store.open(path) as store, count_left_out() as left_out:
            with store.reading() as connection:
                stored = write_behind.read_stored_state(connection)
                found = error_events.find(connection, EventQuery())
                probe_runs.find(connection, RunQuery())
                records.read_audit_entries(connection, 10)
            left_out_rows += left_out.total()
            report = serve(stored)
            events = newest_first(report, [item.event for item in found])
            json.dumps(EventsResponse(events=events, complete=True).document(), allow_nan=False).encode()
            with store.writing() as connection:
                rows: dict[StoreTable[Any], Sequence[Any]] = {records.GPUS: stored.gpus, records.PORTS: stored.ports}
                rows |= {records.WINDOWS: stored.windows, records.AGENT_RUNS: stored.agent_runs}
                write_behind._write_report(connection, report, rows)
                error_events.record(connection, [change(1, 79, "GPU-1", nvml=5)], LogPosition("boot-1", 78))
                prune(connection, Retention(), WALL + 300)
    assert left_out_rows > len(SEEDS)


@pytest.fixture
def start(tmp_path: Path) -> Callable[[], tuple[Persistence, Monitor]]:
    def begin() -> tuple[Persistence, Monitor]:
        agent = StoringAgent(tmp_path / "gpumon.db", Report(started=0.0, boot_id="boot-1"))
        agent.persistence.start()
        turn_until(agent.loop, lambda: agent.monitor.latest.agent.restored)
        agent.persistence.close()
        return agent.persistence, agent.monitor

    return begin


def test_unreadable_rows_are_counted_in_a_notice(
    start: Callable[[], tuple[Persistence, Monitor]], tmp_path: Path
) -> None:
    """One flipped bit leaves out one row, the others are restored, and the notice has the number of rows by table."""
    fill(tmp_path / "gpumon.db")
    with contextlib.closing(sqlite3.connect(tmp_path / "gpumon.db", isolation_level=None)) as connection:
        connection.execute("UPDATE verdict_transitions SET change = 'saised' WHERE check_name = 'gpu_xid_critical'")
        connection.execute("UPDATE error_events SET last_at = 'inf' WHERE id = 'b1'")
    persistence, monitor = start()

    assert persistence.error is None
    assert persistence.notice == (
        f"2 rows of {tmp_path / 'gpumon.db'} could not be read and are left out (error_events 1, verdict_transitions 1)"
    )
    assert [event.id for event in monitor.latest.events] == ["b0", "b2", "b3", "b4", "b5", "b9"]
    assert list(monitor.latest.health.open) == [("gpu_xid_critical", "GPU-1")]


@pytest.mark.parametrize(("before", "after"), [(b"NOT NULL", b"NOT NU\xccL"), (b"vbios TEXT", b"vbiot TEXT")])
def test_a_damaged_schema_is_replaced(
    start: Callable[[], tuple[Persistence, Monitor]], tmp_path: Path, before: bytes, after: bytes
) -> None:
    """A schema that SQLite cannot quote in its error, or with another column, is damage: the file is re-created."""
    path = tmp_path / "gpumon.db"
    fill(path)
    path.write_bytes(path.read_bytes().replace(before, after, 1))
    persistence, _ = start()

    assert persistence.error is None
    assert "was damaged and is re-created" in (persistence.notice or "")
