"""A slow or failing disk never blocks the caller of the store writer."""

from __future__ import annotations

import contextlib
import os
import queue
import sqlite3
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest
from sample_events import change
from stores import read, write

from gpumon.model.error_event import ErrorChange
from gpumon.store import error_events
from gpumon.store import writer as writer_module
from gpumon.store.store import Store
from gpumon.store.store_error import StoreError
from gpumon.store.writer import MAX_QUEUED, StoreWriter

SOON = 60.0
"""Timeout of a test in seconds."""
MORE_THAN_CACHED = 40_000
"""Rows that SQLite cannot keep in its cache of 2 MB."""


class CollectingLoop:
    """A replacement of the daemon's loop that collects the results of callbacks."""

    def __init__(self) -> None:
        self._posted: queue.Queue[Callable[[], None]] = queue.Queue()
        self.done: list[object] = []
        self.failed: list[StoreError] = []
        self.opened: list[int] = []
        self.reopened = 0

    def post(self, callback: Callable[[], None]) -> None:
        self._posted.put(callback)

    def on_open(self, store: Store) -> None:
        counts = sum(counter.count for counter in read(store, error_events.read_counters))
        self.post(lambda: self.opened.append(counts))

    def on_reopen(self) -> None:
        self.post(self._reopen)

    def _reopen(self) -> None:
        self.reopened += 1

    def turn(self) -> None:
        self._posted.get(timeout=SOON)()

    def add(self, writer: StoreWriter, *changes: ErrorChange) -> None:
        self.submit(writer, lambda connection: error_events.record(connection, changes))

    def submit(self, writer: StoreWriter, work: Callable[[sqlite3.Connection], object]) -> None:
        writer.submit(work).add_done_callback(lambda answer: self.post(lambda: self._end(answer)))

    def _end(self, answer: Future[object]) -> None:
        try:
            self.done.append(answer.result())
        except StoreError as error:
            self.failed.append(error)


@pytest.fixture
def loop() -> CollectingLoop:
    return CollectingLoop()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "gpumon.db"


@pytest.fixture
def start(loop: CollectingLoop) -> Iterator[Callable[[Path], StoreWriter]]:
    writers: list[StoreWriter] = []

    def start_writer(path: Path) -> StoreWriter:
        writers.append(StoreWriter(path, on_open=loop.on_open, on_reopen=loop.on_reopen, back_off=(0.02, 0.1)))
        writers[-1].start()
        return writers[-1]

    yield start_writer
    for writer in writers:
        writer.close(SOON)


def test_completed_jobs_are_durable(path: Path, loop: CollectingLoop, start: Callable[[Path], StoreWriter]) -> None:
    """Acknowledged rows are in the file after closing, which finishes queued jobs first."""
    writer = start(path)
    for number in range(5):
        loop.add(writer, change(number))

    assert writer.close(SOON)
    for _ in range(6):
        loop.turn()

    assert loop.opened == [0]
    assert loop.done == [None] * 5
    with Store.open(path) as store:
        assert [counter.count for counter in read(store, error_events.read_counters)] == [5]


def test_jobs_fail_until_the_store_can_be_opened(
    loop: CollectingLoop, start: Callable[[Path], StoreWriter], tmp_path: Path
) -> None:
    """Jobs fail with the reason while the folder is missing, and the store opens when it exists."""
    folder = tmp_path / "later"
    writer = start(folder / "gpumon.db")
    loop.add(writer, change(1))
    loop.turn()
    assert [error.problem for error in loop.failed] == ["its folder does not exist"]
    error_now = writer.error()
    assert error_now is not None
    assert error_now.remedy == f"create it: mkdir -p {folder}"

    folder.mkdir()
    loop.turn()
    assert loop.opened == [0]
    loop.add(writer, change(1))
    loop.turn()

    assert loop.done == [None]
    assert writer.error() is None


@pytest.mark.slow
def test_a_store_that_is_damaged_in_use_is_replaced(
    path: Path, loop: CollectingLoop, start: Callable[[Path], StoreWriter]
) -> None:
    """The job that detects the damage fails, the file is renamed, and the next job succeeds."""
    with Store.open(path) as store:
        write(store, error_events.record, (change(number) for number in range(MORE_THAN_CACHED)))
    writer = start(path)
    loop.turn()
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(path.stat().st_size - 4096))

    loop.submit(writer, lambda connection: error_events.read_recent(connection, MORE_THAN_CACHED))
    loop.turn()
    loop.turn()
    loop.add(writer, change(1))
    loop.turn()

    assert [error.damaged for error in loop.failed] == [True]
    assert (loop.opened, loop.reopened) == ([MORE_THAN_CACHED], 1)
    assert loop.done == [None]
    assert len(list(path.parent.glob("gpumon.db.corrupt-*Z"))) == 1


def test_a_defect_in_a_job_does_not_end_the_thread(
    path: Path, loop: CollectingLoop, start: Callable[[Path], StoreWriter]
) -> None:
    """A job that raises an unexpected exception fails, and later jobs run."""
    writer = start(path)
    loop.turn()
    loop.submit(writer, lambda _: dict[str, None]()["probe"])
    loop.turn()
    loop.turn()
    loop.add(writer, change(1))
    loop.turn()

    assert ["KeyError('probe')" in error.problem for error in loop.failed] == [True]
    assert loop.done == [None]


def test_a_hung_disk_blocks_no_caller(
    path: Path, loop: CollectingLoop, start: Callable[[Path], StoreWriter], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hung job is reported, jobs are refused when the queue is full, and closing has a timeout."""
    monkeypatch.setattr(writer_module, "HUNG_SECONDS", 0.05)
    writer = start(path)
    loop.turn()
    entered, healed = threading.Event(), threading.Event()

    def hang(_: object) -> None:
        entered.set()
        healed.wait(SOON)

    loop.submit(writer, hang)
    assert entered.wait(SOON)
    for number in range(MAX_QUEUED + 1):
        loop.add(writer, change(number))
    loop.turn()
    assert [error.problem for error in loop.failed] == [f"{MAX_QUEUED} writes are queued"]
    assert not writer.close(0.1)
    error_now = writer.error()
    assert error_now is not None
    assert error_now.problem.startswith("the disk has not answered for")

    healed.set()
    for _ in range(MAX_QUEUED + 1):
        loop.turn()
    assert len(loop.done) == MAX_QUEUED + 1
    assert writer.close(SOON)
    assert writer.error() is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_a_full_disk_is_reported_until_space_is_freed(
    tmp_path: Path, loop: CollectingLoop, start: Callable[[Path], StoreWriter]
) -> None:
    """Counters are read from a full disk, jobs fail, and the store recovers when space is freed."""
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", folder], check=True)
    try:
        with Store.open(folder / "gpumon.db") as store:
            write(store, error_events.record, [change(1)])
        filler = folder / "filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(b"x" * 4096)

        writer = start(folder / "gpumon.db")
        loop.add(writer, change(2))
        loop.turn()
        loop.turn()
        assert loop.opened == [1]
        assert ["the disk is full" in error.problem for error in loop.failed] == [True]
        assert str(writer.error()) == str(loop.failed[0])

        filler.unlink()
        loop.turn()
        assert (loop.opened, loop.reopened) == ([1], 1)
        assert writer.error() is None
        assert writer.close(SOON)
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)
