"""Who asks for a maintenance is answered when it is on record; a store that fails gets it later."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest
from loops import turn_until
from stores import read

from gpumon.model.maintenance import Maintenance
from gpumon.model.release import Answer
from gpumon.services.maintenance_windows import Maintaining
from gpumon.services.persistence import Persistence
from gpumon.state.messages import Tick
from gpumon.state.monitor import Monitor
from gpumon.state.report import Report
from gpumon.state.settings import ReducerSettings
from gpumon.store import spans
from gpumon.store.retention import Retention
from gpumon.store.store import Store
from gpumon.store.store_error import StoreError
from gpumon.supervisor.loop import Loop


class Maintained:
    """As much of an agent as it takes."""

    def __init__(self, path: Path) -> None:
        self.loop = Loop()
        self.monitor = Monitor(Report(started=0.0, boot_id="a"), ReducerSettings())
        self.persistence = Persistence(
            self.loop,
            path,
            Retention(),
            "allreduce",
            take=self.monitor.take,
            latest=lambda: self.monitor.latest,
        )
        self.changes = 0
        self.maintaining = Maintaining(
            self.loop, self.persistence, most=3600.0, latest=lambda: self.monitor.latest, changed=self._changed
        )
        self.persistence.start()
        turn_until(self.loop, lambda: self.monitor.latest.internal.restored)

    def _changed(self) -> None:
        self.changes += 1

    def answered(self, asked: Future[Answer]) -> Answer:
        turn_until(self.loop, asked.done)
        return asked.result()

    def tick(self) -> None:
        self.monitor.take(Tick())
        self.persistence.tick()

    def reasons(self) -> list[tuple[str, bool]]:
        """Each maintenance that the Report knows, and whether it is in force."""
        return [(one.reason, one.ended is None) for one in self.monitor.latest.maintenances]


def rows(connection: sqlite3.Connection) -> list[tuple[str, bool]]:
    return [(one.reason, one.ended is None) for one in spans.read(connection, Maintenance)]


def stored(path: Path) -> list[tuple[str, bool]]:
    with Store.open(path) as store:
        return read(store, rows)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "gpumon.db"


@pytest.fixture
def agent(path: Path) -> Iterator[Maintained]:
    path.parent.mkdir()
    one = Maintained(path)
    yield one
    one.persistence.close()


def test_the_next_agent_knows_it(agent: Maintained, path: Path) -> None:
    """It is on record when the answer comes: kill -9 right after it changes nothing."""
    assert agent.answered(agent.maintaining.request(60.0, " first ", "api")) == Answer()
    assert not agent.answered(agent.maintaining.request(60.0, "second", "command")).refused
    assert (agent.reasons(), agent.changes) == ([("first", False), ("second", True)], 2)

    agent.persistence.close()
    again = Maintained(path)
    assert again.reasons() == agent.reasons()
    assert again.monitor.latest.maintenance == agent.monitor.latest.maintenance
    assert not again.answered(again.maintaining.end()).refused
    assert again.monitor.latest.maintenance is None
    assert not again.answered(again.maintaining.end()).refused  # asked twice, ended once
    again.persistence.close()
    assert stored(path) == [("first", False), ("second", False)]


@pytest.mark.parametrize(("seconds", "reason"), [(0.0, "x"), (3601.0, "x"), (60.0, " "), (60.0, "a\tb")])
def test_a_wrong_request_changes_nothing(agent: Maintained, seconds: float, reason: str) -> None:
    """Too long, or without a reason: it is said why."""
    answer = agent.answered(agent.maintaining.request(seconds, reason, "api"))
    assert answer.refused
    assert answer.remedy
    assert (agent.reasons(), agent.changes) == ([], 0)


def test_what_time_ends_is_stored_as_ended(agent: Maintained, path: Path) -> None:
    """By the tick that finds it."""
    agent.answered(agent.maintaining.request(0.05, "short", "api"))

    def over() -> bool:
        agent.tick()
        return agent.monitor.latest.maintenance is None

    turn_until(agent.loop, over)
    agent.persistence.close()
    assert stored(path) == [("short", False)]


def test_a_failing_store_keeps_nobody_from_it_and_gets_it_later(agent: Maintained, path: Path) -> None:
    """The folder is gone when it is asked for: it is in force, and on record once the store can be written again."""
    aside = path.parent.with_name("aside")
    agent.answered(agent.maintaining.request(60.0, "before", "api"))
    path.parent.rename(aside)
    path.parent.write_text("no folder")
    assert not agent.answered(agent.maintaining.request(60.0, "meanwhile", "api")).refused
    assert agent.reasons() == [("before", False), ("meanwhile", True)]
    path.parent.unlink()
    shutil.copytree(aside, path.parent)

    def on_record() -> bool:
        agent.tick()
        asked = agent.persistence.read(rows)
        turn_until(agent.loop, asked.done)
        return asked.exception() is None and asked.result() == agent.reasons()

    turn_until(agent.loop, on_record)
    agent.persistence.close()
    assert stored(path) == agent.reasons()


def test_who_asks_is_told_that_the_disk_failed(agent: Maintained, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in force, or over; only the next agent would not know."""

    def full(*_: object) -> None:
        raise StoreError(path, "the disk is full", "make room")

    monkeypatch.setattr("gpumon.store.spans.put", full)
    assert agent.answered(agent.maintaining.request(60.0, "meanwhile", "api")) == Answer(stored=False)
    assert agent.reasons() == [("meanwhile", True)]
    assert agent.answered(agent.maintaining.end()) == Answer(stored=False)
    assert agent.reasons() == [("meanwhile", False)]


def test_an_agent_that_stops_says_so(agent: Maintained) -> None:
    """To whoever asks then."""
    agent.maintaining.stop()
    assert "stopping" in agent.answered(agent.maintaining.request(60.0, "late", "api")).refused
