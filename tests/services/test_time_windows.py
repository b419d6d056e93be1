"""Time windows, and the marker file that requests one."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest
from each_case import each_case
from loops import turn_until
from stores import StoringAgent, read

from gpumon.model.bus_id import nvml_bus_id, parse_bus_id
from gpumon.model.request import RequestResult
from gpumon.model.time_window import MAX_REASON_LENGTH, WindowKind, WindowRequest, WindowSelection, in_force
from gpumon.services.release_marker import MarkerError, MarkerRequest, parse
from gpumon.services.time_windows import MaintenanceEffect, TimeWindows
from gpumon.state.messages import Tick
from gpumon.state.report import Report
from gpumon.store import records
from gpumon.store.store import Store
from gpumon.store.store_error import StoreError

Windows = list[tuple[str, bool]]
"""The reason of each window, and whether it is in force."""


class TimeWindowsOnly(StoringAgent):
    """An agent with only persistence, maintenance windows and a Report."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, Report(started=0.0, boot_id="a"))
        self.changes = 0
        self.windows = TimeWindows(
            self.loop,
            self.persistence.writes,
            {WindowKind.MAINTENANCE: MaintenanceEffect(self._count)},
            max_seconds={WindowKind.MAINTENANCE: 3600.0},
            latest=lambda: self.monitor.latest,
            publish=self.monitor.take,
        )
        self.persistence.start()

    def _count(self) -> None:
        self.changes += 1

    def wait_until_restored(self) -> TimeWindowsOnly:
        turn_until(self.loop, lambda: self.monitor.latest.agent.restored)
        return self

    def start(self, reason: str, seconds: float = 60.0, owner: str = "") -> RequestResult:
        kind = WindowKind.MAINTENANCE
        request = WindowRequest(kind=kind, seconds=seconds, by="api", reason=reason, owner=owner)
        return self._result_of(self.windows.start(request))

    def end(self) -> RequestResult:
        return self._result_of(self.windows.end(WindowSelection(kind=WindowKind.MAINTENANCE, by="api")))

    def _result_of(self, future: Future[RequestResult]) -> RequestResult:
        turn_until(self.loop, future.done)
        return future.result()

    def tick(self) -> None:
        self.monitor.take(Tick())
        self.persistence.tick()

    def reported_windows(self) -> Windows:
        return [(window.reason, window.ended is None) for window in self.monitor.latest.windows]


def read_windows(connection: sqlite3.Connection) -> Windows:
    return [(window.reason, window.ended is None) for window in records.read_windows(connection)]


def windows_in(path: Path) -> Windows:
    with Store.open(path) as store:
        return read(store, read_windows)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "gpumon.db"


@pytest.fixture
def agent(path: Path) -> Iterator[TimeWindowsOnly]:
    path.parent.mkdir()
    created = TimeWindowsOnly(path).wait_until_restored()
    yield created
    created.persistence.close()


def test_a_window_that_ends_while_it_starts_is_not_in_force(agent: TimeWindowsOnly) -> None:
    """Its request is answered so, because its client would reset a GPU; a replaced window is in force as another."""
    request = WindowRequest(kind=WindowKind.MAINTENANCE, seconds=60.0, by="api", reason="a")
    first, second = agent.windows.start(request), agent.windows.start(request)
    turn_until(agent.loop, lambda: first.done() and second.done())
    assert first.result() == second.result() == RequestResult()
    third, end = agent.windows.start(request), agent.windows.end(WindowSelection(by="api"))
    turn_until(agent.loop, lambda: third.done() and end.done())
    assert third.result().not_readable == "The window was ended before it had its full effect. It is not in force."


def test_a_window_is_stored_when_the_request_is_answered(agent: TimeWindowsOnly, path: Path) -> None:
    """A window survives SIGKILL after the answer, and the next agent can end it before it has read the store."""
    assert agent.start(" first ") == RequestResult()
    assert agent.start("second") == RequestResult()
    assert (agent.reported_windows(), agent.changes) == ([("first", False), ("second", True)], 2)
    agent.persistence.close()

    again = TimeWindowsOnly(path)
    assert not again.monitor.latest.agent.restored
    assert again.end() == RequestResult()
    assert again.reported_windows() == [("first", False), ("second", False)]
    assert again.changes == 1
    assert again.end() == RequestResult()
    again.persistence.close()
    assert windows_in(path) == [("first", False), ("second", False)]


def test_an_invalid_request_changes_nothing(agent: TimeWindowsOnly) -> None:
    for seconds, reason, owner in (
        (0.0, "x", ""),
        (3601.0, "x", ""),
        (float("inf"), "x", ""),
        (float("nan"), "x", ""),
        (60.0, " ", ""),
        (60.0, "a\tb", ""),
        (60.0, "x" * (MAX_REASON_LENGTH + 1), ""),
        (60.0, "x", "x" * 101),
    ):
        answer = agent.start(reason, seconds, owner)
        assert answer.refused, (seconds, reason)
        assert answer.remedy, (seconds, reason)
    assert (agent.reported_windows(), agent.changes) == ([], 0)


def test_too_many_windows_are_refused(agent: TimeWindowsOnly, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the maximum number of windows another owner is refused, and an owner can still replace its own."""
    monkeypatch.setattr("gpumon.model.time_window.MAX_IN_FORCE", 2)
    for owner in ("job 1", "job 2", "job 1"):
        assert agent.start("drain", owner=owner) == RequestResult()
    answer = agent.start("drain", owner="job 3")
    assert answer.refused == "2 windows of kind maintenance are in force, and 2 is the maximum."
    assert "gpumon status" in answer.remedy


def test_a_window_that_ends_by_its_deadline_is_stored_as_ended(agent: TimeWindowsOnly, path: Path) -> None:
    agent.start("short", 0.05)

    def window_has_ended() -> bool:
        agent.tick()
        return not in_force(agent.monitor.latest.windows)

    turn_until(agent.loop, window_has_ended)
    agent.persistence.close()
    assert windows_in(path) == [("short", False)]


def test_a_failing_store_gets_the_windows_when_it_recovers(agent: TimeWindowsOnly, path: Path) -> None:
    moved_folder = path.parent.with_name("aside")
    agent.start("before")
    path.parent.rename(moved_folder)
    path.parent.write_text("not a directory")
    assert not agent.start("meanwhile").refused
    assert agent.reported_windows() == [("before", False), ("meanwhile", True)]
    path.parent.unlink()
    shutil.copytree(moved_folder, path.parent)

    def is_stored() -> bool:
        agent.tick()
        answer = agent.persistence.submit(read_windows)
        turn_until(agent.loop, answer.done)
        return answer.exception() is None and answer.result() == agent.reported_windows()

    turn_until(agent.loop, is_stored)
    agent.persistence.close()
    assert windows_in(path) == agent.reported_windows()


def test_the_answer_reports_a_store_that_failed(
    agent: TimeWindowsOnly, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raise_disk_full(*_: object) -> None:
        raise StoreError(path, "the disk is full", "make room")

    monkeypatch.setattr("gpumon.store.records.put_windows", raise_disk_full)
    assert agent.start("meanwhile") == RequestResult(stored=False)
    assert agent.reported_windows() == [("meanwhile", True)]
    assert agent.end() == RequestResult(stored=False)
    assert agent.reported_windows() == [("meanwhile", False)]


def test_a_stopping_agent_refuses_requests(agent: TimeWindowsOnly) -> None:
    agent.windows.stop()
    assert "stopping" in agent.start("late").refused


@each_case(
    ("text", "expected"),
    [
        ("", MarkerRequest()),
        (" \n", MarkerRequest()),
        ("for=5m", MarkerRequest(seconds=300)),
        ("gpu=3\nfor=1h30m\n", MarkerRequest(gpu="3", seconds=5400)),
        ("gpu=GPU-1f62de0b-cc7b", MarkerRequest(gpu="GPU-1f62de0b-cc7b")),
        ("gpu=0000:1b:00.0", MarkerRequest(gpu="0000:1b:00.0")),
    ],
)
def test_a_marker_is_parsed(text: str, expected: MarkerRequest) -> None:
    """An empty marker requests a release of the whole node for the maximum duration."""
    assert parse(text) == expected


@each_case("text", ["for", "for=", "for=5", "for=-5m", "for=0s", "gpu=", "GPU=3", "gpu=1 gpu=1", "for:5m"])
def test_an_invalid_marker_is_an_error(text: str) -> None:
    with pytest.raises(MarkerError, match=r"write"):
        parse(text)


@pytest.mark.parametrize("text", ["0000:1b:00.0", "1B:00.0", "00000000:1b:00.0", "0:1b:00.0"])
def test_pci_addresses_are_normalized(text: str) -> None:
    """The notations of the kernel, lspci and NVML give one address."""
    assert parse_bus_id(text) == "00000000:1B:00.0"


@each_case("text", ["", "3", "GPU-3", "1b:00", "0000:1b:00.8", "0000:1b:00.0 "])
def test_an_invalid_pci_address_is_rejected(text: str) -> None:
    """An invalid PCI address gives None as user input, and a ValueError from NVML's own notation."""
    assert parse_bus_id(text) is None
    with pytest.raises(ValueError, match="no PCI address"):
        nvml_bus_id(text)
