"""The store keeps what it acknowledged, whatever happens to process and disk."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sample_events import WALL as NOW
from sample_events import change, error_event

from gpumon.model.error_event import XID, ErrorChange, LogPosition
from gpumon.probe.core.result import from_document, to_document
from gpumon.store.errors import StoreError
from gpumon.store.events import ErrorCounter
from gpumon.store.runs import RunQuery
from gpumon.store.schema import MIGRATIONS
from gpumon.store.store import DAY, KEPT_GOOD, Retention, Store

needs_mounts = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")


def counter(count: int, last: float, device: str = "GPU-1", code: int = 79) -> ErrorCounter:
    return ErrorCounter(kind=XID, device=device, code=code, count=count, last_wall=NOW + last)


def result(number: int, outcome: str = "ok", reason: str = "") -> dict[str, object]:
    started = NOW + number
    return {"id": f"r{number}", "probe": "allreduce", "started": started, "outcome": outcome, "reason": reason}


def opened(path: Path, retention: Retention | None = None, now: float = NOW) -> Store:
    return Store.open(path, retention=retention, clock=lambda: now)


@contextlib.contextmanager
def mounted(folder: Path, options: str) -> Iterator[Path]:
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "gpumon.db"


def test_events_and_counters_survive_a_restart(path: Path) -> None:
    """What was recorded is there after closing and opening, with its count and the time of the last event."""
    with opened(path) as store:
        store.record([change(1), change(2), change(3, code=13), change(4, uuid=None)], LogPosition("boot-1", 77))

    with opened(path) as store:
        assert store.recent_events(3) == (error_event(2), error_event(3, code=13), error_event(4, uuid=None))
        assert store.log_position() == LogPosition("boot-1", 77)
        assert store.error_counters() == (
            counter(1, 3, code=13),
            counter(2, 2),
            counter(1, 4, device="pci-00000000:18:00.0"),
        )


def test_a_burst_that_goes_on_counts_what_it_gained(path: Path) -> None:
    """Recording a burst again replaces it, and the same state twice counts nothing; what a retry told is not lost."""
    with opened(path) as store:
        store.record([change(1)])
        grown = error_event(1, nvml=1, kmsg=5, last_at=3.0, last_wall=NOW + 3, texts=("one",), text="two")
        store.record([ErrorChange(grown, 4)])
        store.record([ErrorChange(grown, 4)])
        store.record([change(1)])

        assert store.recent_events(9) == (grown,)
        assert store.error_counters() == (counter(5, 3),)


def test_history_is_on_record_and_not_counted(path: Path) -> None:
    """What happened before the agent was installed has no counter, and a retry makes none."""
    with opened(path) as store:
        for _ in range(2):
            store.record([ErrorChange(error_event(1, historical=True), 0)])

        assert store.recent_events(9) == (error_event(1, historical=True),)
        assert store.error_counters() == ()


def test_what_was_told_without_the_store_is_restored_once(path: Path) -> None:
    """Bursts are written and counters raised, never lowered; the change that comes late counts nothing more."""
    with opened(path) as store:
        store.record([change(1), change(2)])
        store.restore(
            [error_event(3)], [counter(3, 3), counter(1, 0), counter(1, 0, "GPU-2")], LogPosition("boot-1", 9)
        )
        store.record([change(3)])

        assert store.error_counters() == (counter(3, 3), counter(1, 0, "GPU-2"))
        assert store.log_position() == LogPosition("boot-1", 9)


def test_probe_results_and_their_counters_survive(path: Path) -> None:
    """Documents come back whole, newest last; outcomes are counted, and the reasons of skipped runs."""
    documents = [result(1), result(2, "skipped", "busy"), result(3, "skipped", "held"), result(4, "failed", "setup")]
    with opened(path) as store:
        assert [store.add_probe_result(one) for one in [*documents, documents[0]]] == [True, True, True, True, False]

    with opened(path) as store:
        assert store.known_probe_results(newest=4, each=1) == tuple(map(from_document, documents))
        counters = store.probe_counters("allreduce")
        assert counters.outcomes == {"ok": 1, "skipped": 2, "failed": 1}
        assert counters.reasons == {"busy": 1, "held": 1}


MEASURED = {
    "bytes": 1024,
    "iterations": 20,
    "latency_seconds": {},
    "wrong_elements": 0,
    "algbw_bytes_per_second": 50.0,
    "busbw_bytes_per_second": 100.0,
}
BROKEN = {
    "not a number": ("100.0", "NaN"),
    "infinite": ("100.0", "Infinity"),
    "too large for a float": ("100.0", "1e999"),
    "a word for a number": ("100.0", '"fast"'),
    "of another shape": ('"measurements":[', '"measurements":[3,'),
    "less than nothing": ("100.0", "-5.0"),
    "of a year that no calendar has": ('"duration_seconds":', '"duration_seconds":1e13,"was":'),
    "no JSON": ("}", ""),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_stored_run_that_cannot_be_true_is_left_out_and_told(
    path: Path, broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What an earlier agent wrote, or a disk spoilt, costs nobody the runs beside it. Told once, whoever asks again."""
    run = from_document(result(1) | {"id": broken, "measurements": [MEASURED]})
    with opened(path) as store:
        store.add_probe_result(to_document(run))
        store.add_probe_result(to_document(replace(run, id="r2")))
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as spoilt:
        spoilt.execute("UPDATE probe_results SET document = replace(document, ?, ?) WHERE id != 'r2'", BROKEN[broken])
    with opened(path) as store:
        assert [one.id for one in store.known_probe_results(newest=4, each=1)] == ["r2"]
        assert [one.id for one in store.probe_runs(RunQuery()).results] == ["r2"]
        assert store.probe_runs(RunQuery(id=broken)).results == ()
    assert [record.__dict__["id"] for record in caplog.records] == [broken]


def test_retention_bounds_rows_but_not_counters(path: Path) -> None:
    """The oldest rows go; counters stay, and so does the newest result of each outcome."""
    retention = Retention(days=90, rows=10)
    with opened(path, retention) as store:
        store.add_probe_result(result(0, "wrong"))
        for number in range(30):
            store.record([change(number)])
            store.add_probe_result(result(number + 1, "skipped", "busy"))

        assert store.recent_events(100) == tuple(error_event(number) for number in range(20, 30))
        kept = [one.id for one in store.known_probe_results(newest=100, each=1)]
        assert kept == ["r0", *(f"r{number}" for number in range(21, 31))]
        assert [one.count for one in store.error_counters()] == [30]
        assert store.probe_counters("allreduce").outcomes == {"skipped": 30, "wrong": 1}


def test_what_is_normal_outlives_skips_and_the_retention(path: Path) -> None:
    """A node that is busy for months still knows what it came to before; skips push out nothing else."""
    with opened(path, Retention(days=90, rows=10)) as store:
        for number in range(KEPT_GOOD + 2):
            store.add_probe_result(result(number))
        store.add_probe_result(result(998, "failed", "ranks"))
        for number in range(1000, 1030):
            store.add_probe_result(result(number, "skipped", "busy"))

    with opened(path, Retention(days=90, rows=10), now=NOW + 1000 * DAY) as store:
        store.prune()
        known = [one.id for one in store.known_probe_results(newest=3, each=5)]
        assert known == [*(f"r{number}" for number in range(2, KEPT_GOOD + 2)), "r998", "r1029"]

        store.add_probe_result(result(1030, "skipped", "busy") | {"probe": "another"})
        assert [one.id for one in store.known_probe_results(newest=3, each=5)] == [*known, "r1030"]


def test_retention_bounds_age(path: Path) -> None:
    """What is older than the days to keep is pruned when the store is next written or told to."""
    with opened(path) as store:
        store.record([change(1), change(2)])
        store.add_probe_result(result(1, "skipped", "busy"))
        store.add_probe_result(result(2, "skipped", "busy"))

    with opened(path, now=NOW + 1.5 + 90 * DAY) as store:
        store.prune()

        assert store.recent_events(10) == (error_event(2),)
        assert [one.id for one in store.known_probe_results(newest=10, each=1)] == ["r2"]


WRITE_FOR_EVER = f"""
    import sys, itertools
    sys.path.append({str(Path(__file__).parents[1])!r})
    from pathlib import Path
    from sample_events import change
    from gpumon.store.store import Store
    store = Store.open(Path(sys.argv[1]))
    for number in itertools.count(int(sys.argv[2])):
        store.record([change(number)])
        print(number, flush=True)
"""


def test_kill_loses_nothing_that_was_acknowledged(path: Path) -> None:
    """After kill -9 in mid-stream, again and again, counters equal rows and nothing acknowledged is missing."""
    acknowledged = 0
    for _ in range(3):
        writer = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(WRITE_FOR_EVER), str(path), str(acknowledged + 100)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert writer.stdout is not None
        with writer:
            lines = [writer.stdout.readline() for _ in range(20)]
            writer.send_signal(signal.SIGKILL)
            lines += writer.stdout.readlines()
        acknowledged = int(lines[-1])

        with opened(path, now=2e9) as store:
            events = store.recent_events(100_000)
            (counted,) = store.error_counters()
        assert acknowledged in {int(event.last_at) for event in events[-2:]}
        assert counted.count == len(events)
    assert counted.count >= 60


def test_one_agent_at_a_time(path: Path) -> None:
    """A second agent is refused with the process id of the first, and may come when that has gone."""
    with opened(path) as store:
        store.record([change(1)])
        with pytest.raises(StoreError, match=f"process {os.getpid()} is using it; end that agent"):
            opened(path)

    with opened(path) as store:
        assert len(store.recent_events(10)) == 1


@pytest.mark.parametrize("damage", ["middle", "header", "zeros", "truncated"])
def test_a_damaged_file_is_moved_aside(path: Path, damage: str) -> None:
    """Whatever part of it is damaged, the file is kept under a telling name, and a new one works."""
    with opened(path) as store:
        store.record(change(number) for number in range(500))
    whole = path.read_bytes()
    damaged = {
        "middle": whole[:4096] + os.urandom(8192) + whole[12288:],
        "header": b"not what it was" + whole[15:],
        "zeros": bytes(len(whole)),
        "truncated": whole[: len(whole) // 2],
    }[damage]
    path.write_bytes(damaged)

    with opened(path) as store:
        assert store.moved_aside is not None
        assert store.moved_aside.name.startswith("gpumon.db.corrupt-")
        assert store.moved_aside.read_bytes() == damaged
        assert store.recent_events(10) == ()
        store.record([change(1)])
        assert store.recent_events(10) == (error_event(1),)
    with opened(path) as store:
        assert store.moved_aside is None


def test_damaged_files_do_not_pile_up(path: Path) -> None:
    """Only the newest few are kept, so that a failing disk is not filled with them."""
    for _ in range(6):
        with opened(path) as store:
            store.record([change(1)])
        path.write_bytes(b"\0" * 4096)
    with opened(path) as store:
        newest = store.moved_aside

    kept = sorted(path.parent.glob("gpumon.db.corrupt-*"))
    assert len(kept) == 3
    assert kept[-1] == newest


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    """A file that never was a store is neither changed nor moved, be it text or another program's database."""
    text, database = tmp_path / "passwd", tmp_path / "other.db"
    text.write_text("root:x:0:0:" * 20)
    with contextlib.closing(sqlite3.connect(database)) as connection:
        connection.execute("CREATE TABLE theirs (a)")
    before = [text.read_bytes(), database.read_bytes()]

    for path in (text, database):
        with pytest.raises(StoreError, match="it is not a store of gpumon; move it away"):
            opened(path)

    assert [text.read_bytes(), database.read_bytes()] == before
    assert sorted(one.name for one in tmp_path.iterdir()) == ["other.db", "passwd"]


def test_a_store_from_the_future_is_left_alone(path: Path) -> None:
    """A schema that a newer version wrote is neither read nor moved aside."""
    opened(path).close()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("INSERT INTO migrations VALUES (?, 0)", (len(MIGRATIONS) + 1,))
        connection.commit()

    with pytest.raises(StoreError, match=rf"a newer gpumon has written it \(schema {len(MIGRATIONS) + 1}"):
        opened(path)
    assert path.exists()


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    """The remedy is the command that makes the folder."""
    with pytest.raises(StoreError, match=f"its folder does not exist; create it: mkdir -p {tmp_path}/missing"):
        opened(tmp_path / "missing" / "gpumon.db")


def test_a_folder_in_place_of_the_file_is_an_error(tmp_path: Path) -> None:
    """A path that is a folder is told as such."""
    with pytest.raises(StoreError, match="Is a directory"):
        opened(tmp_path)


@needs_mounts
def test_full_disk_refuses_and_recovers(tmp_path: Path) -> None:
    """On a full disk a write fails as a whole, nothing is counted, and all goes on when there is room again."""
    with mounted(tmp_path / "disk", "size=300k") as folder, opened(folder / "gpumon.db") as store:
        store.record([change(0)])
        filler = folder / "filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(b"x" * 4096)

        with pytest.raises(
            StoreError, match=r"the disk is full .*; free space on its file system, or set --store.path"
        ):
            store.record(change(number) for number in range(1, 2000))
        assert [one.count for one in store.error_counters()] == [1]

        filler.unlink()
        store.record([change(1)])
        assert [one.count for one in store.error_counters()] == [2]


@needs_mounts
def test_full_disk_at_the_first_start_is_told(tmp_path: Path) -> None:
    """A store that cannot even be begun says why."""
    with mounted(tmp_path / "disk", "size=8k") as folder, pytest.raises(StoreError, match="the disk is full"):
        opened(folder / "gpumon.db")


@needs_mounts
def test_full_disk_at_a_later_start_still_restores(tmp_path: Path) -> None:
    """Counters are read from a store that was killed, on a disk that has filled up since."""
    with mounted(tmp_path / "disk", "size=300k") as folder:
        _kill_after_one_event(folder / "gpumon.db")
        with contextlib.suppress(OSError), (folder / "filler").open("wb", buffering=0) as file:
            while True:
                file.write(b"x" * 4096)

        with opened(folder / "gpumon.db") as store:
            assert [one.count for one in store.error_counters()] == [1]


@needs_mounts
def test_read_only_disk_still_restores(tmp_path: Path) -> None:
    """What a killed agent left is read from a disk that was mounted read-only since; each write says so."""
    with mounted(tmp_path / "disk", "size=1m") as folder:
        _kill_after_one_event(folder / "gpumon.db")
        subprocess.run(["mount", "-o", "remount,ro", folder], check=True)

        with opened(folder / "gpumon.db") as store:
            assert [one.count for one in store.error_counters()] == [1]
            with pytest.raises(StoreError, match=f"it cannot be written; make {folder} writable for uid 0"):
                store.record([change(2)])
        with pytest.raises(StoreError, match="it cannot be written"):
            opened(folder / "new.db")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_missing_permission_is_told() -> None:
    """A user who may not write the file is told so, with the uid that lacks the permission."""
    code = """
        import os, sys
        from pathlib import Path
        from gpumon.store.store import Store
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
        try:
            Store.open(Path(sys.argv[1])).prove_writable()
        except Exception as error:
            print(error)
    """
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        path = Path(folder) / "gpumon.db"
        opened(path).close()
        command = [sys.executable, "-c", textwrap.dedent(code), str(path)]
        told = subprocess.run(command, capture_output=True, text=True, check=True)

    assert f"{path}: it cannot be written; make {folder} writable for uid 65534" in told.stdout


def _kill_after_one_event(path: Path) -> None:
    code = textwrap.dedent(WRITE_FOR_EVER).replace("print(number, flush=True)", "import os; os.kill(os.getpid(), 9)")
    killed = subprocess.run([sys.executable, "-c", code, str(path), "0"], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert path.with_name(path.name + "-wal").stat().st_size > 0
