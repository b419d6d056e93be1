"""The store keeps every acknowledged write, whatever happens to the process and the disk."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sample_events import WALL as NOW
from sample_events import change, error_event
from stores import read, write

from gpumon.model.error_event import XID, ErrorChange, ErrorCounter, LogPosition
from gpumon.probe.core.result import Location, Pair, ProbeCounters, ProbeResult, from_document, to_document
from gpumon.store import error_events, probe_runs, schema
from gpumon.store.probe_runs import MAX_BASELINE_RUNS, RunQuery
from gpumon.store.records import DAY, Retention, prune
from gpumon.store.schema import MIGRATIONS, migrate
from gpumon.store.store import Store
from gpumon.store.store_error import StoreError

needs_mounts = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")


def counter(count: int, last: float, device: str = "GPU-1", code: int = 79) -> ErrorCounter:
    return ErrorCounter(kind=XID, device=device, code=code, count=count, last_wall=NOW + last)


def result(number: int, outcome: str = "ok", reason: str = "", probe: str = "allreduce") -> ProbeResult:
    return from_document(
        {"id": f"r{number}", "probe": probe, "started": NOW + number, "outcome": outcome, "reason": reason}
    )


@contextlib.contextmanager
def mounted_disk(folder: Path, options: str) -> Iterator[Path]:
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
    """Events are read as they were recorded, with their counts and the time of the last event."""
    with Store.open(path) as store:
        write(
            store,
            error_events.record,
            [change(1), change(2), change(3, code=13), change(4, uuid=None)],
            LogPosition("boot-1", 77),
        )

    with Store.open(path) as store:
        assert read(store, error_events.read_recent, 3) == (
            error_event(2),
            error_event(3, code=13),
            error_event(4, uuid=None),
        )
        assert read(store, error_events.read_position) == LogPosition("boot-1", 77)
        assert read(store, error_events.read_counters) == (
            counter(1, 3, code=13),
            counter(2, 2),
            counter(1, 4, device="pci-00000000:18:00.0"),
        )


def test_a_continued_event_counts_its_increase(path: Path) -> None:
    """A new version of an event replaces its row, and a change that is recorded twice counts once."""
    with Store.open(path) as store:
        write(store, error_events.record, [change(1)])
        grown = error_event(1, nvml=1, kmsg=5, last_at=3.0, last_wall=NOW + 3, texts=("one",), text="two")
        write(store, error_events.record, [ErrorChange(grown, 4)])
        write(store, error_events.record, [ErrorChange(grown, 4)])
        write(store, error_events.record, [change(1)])

        assert read(store, error_events.read_recent, 9) == (grown,)
        assert read(store, error_events.read_counters) == (counter(5, 3),)


def test_history_is_stored_and_not_counted(path: Path) -> None:
    with Store.open(path) as store:
        for _ in range(2):
            write(store, error_events.record, [ErrorChange(error_event(1, historical=True), 0)])

        assert read(store, error_events.read_recent, 9) == (error_event(1, historical=True),)
        assert read(store, error_events.read_counters) == ()


def test_events_that_could_not_be_written_are_restored_once(path: Path) -> None:
    """Events are written and counters raised, never lowered; a change that is written late counts nothing more."""
    with Store.open(path) as store:
        write(store, error_events.record, [change(1), change(2)])
        counters = [counter(3, 3), counter(1, 0), counter(1, 0, "GPU-2")]
        write(store, error_events.restore, [error_event(3)], counters)
        write(store, error_events.record, [change(3)])

        assert read(store, error_events.read_counters) == (counter(3, 3), counter(1, 0, "GPU-2"))


def test_probe_runs_and_their_counters_survive(path: Path) -> None:
    """Runs are read as they were written, the newest last; outcomes and the reasons of skipped runs are counted."""
    results = [result(1), result(2, "skipped", "busy"), result(3, "skipped", "held"), result(4, "failed", "setup")]
    with Store.open(path) as store:
        for run in [*results, results[0]]:
            write(store, probe_runs.record, run)

    with Store.open(path) as store:
        assert read(store, probe_runs.read_recent, newest=4, each=1) == tuple(results)
        counters = read(store, probe_runs.read_counters)["allreduce"]
        assert counters == ProbeCounters(outcomes={"ok": 1, "skipped": 2, "failed": 1}, reasons={"busy": 1, "held": 1})


def test_probe_runs_that_could_not_be_written_are_restored_once(path: Path) -> None:
    """Missing runs are added and counters raised, but no run returns that the retention has deleted."""
    with Store.open(path) as store:
        write(store, probe_runs.record, result(5))
        counters = ProbeCounters(outcomes={"ok": 3, "skipped": 1, "failed": 1}, reasons={"busy": 1})
        for _ in range(2):
            missing = [result(6, "failed", "setup"), result(4), result(5), result(7, "skipped", "busy")]
            write(store, probe_runs.restore, missing, {"allreduce": counters})

        assert [run.id for run in read(store, probe_runs.read_recent, newest=9, each=1)] == ["r5", "r6", "r7"]
        assert read(store, probe_runs.read_counters) == {"allreduce": counters}


MEASURED = {
    "size": 1024,
    "iterations": 20,
    "latency_seconds": {},
    "wrong_elements": 0,
    "raw_value": 50.0,
    "value": 100.0,
}
BROKEN = {
    "not a number": ("100.0", "NaN"),
    "infinite": ("100.0", "Infinity"),
    "too large for a float": ("100.0", "1e999"),
    "a word instead of a number": ("100.0", '"fast"'),
    "a measurement of another type": ('"measurements":[', '"measurements":[3,'),
    "negative": ("100.0", "-5.0"),
    "a time past the last year": ('"duration_seconds":', '"duration_seconds":1e13,"was":'),
    "no JSON": ("}", ""),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_an_unreadable_run_is_omitted_and_logged(path: Path, broken: str, caplog: pytest.LogCaptureFixture) -> None:
    run = from_document(to_document(result(1)) | {"id": broken, "measurements": [MEASURED]})
    with Store.open(path) as store:
        write(store, probe_runs.record, run)
        write(store, probe_runs.record, replace(run, id="r2"))
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as damaged:
        damaged.execute("UPDATE probe_runs SET run = replace(run, ?, ?) WHERE id != 'r2'", BROKEN[broken])
    with Store.open(path) as store:
        assert [run.id for run in read(store, probe_runs.read_recent, newest=4, each=1)] == ["r2"]
        assert [run.id for run in read(store, probe_runs.find, RunQuery()).results] == ["r2"]
        assert read(store, probe_runs.find, RunQuery(id=broken)).results == ()
    assert [record.__dict__["row"] for record in caplog.records] == [broken]


RING = ("all_reduce", "ring", "float32")
AT_RING = {"collective": "all_reduce", "algorithm": "ring", "dtype": "float32", "bytes": 1024}


def migrated(path: Path, schema: int, members: dict[str, Any]) -> ProbeResult:
    """Return a result with these members after it was stored by a gpumon that had this schema, and read by this one."""
    run = result(1)
    with (
        contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr("gpumon.store.schema.MIGRATIONS", MIGRATIONS[:schema])
        migrate(connection, path)
        document = json.dumps({**to_document(run), **members}, separators=(",", ":"))
        row = (1, run.id, run.probe, run.started, run.outcome, document)
        connection.execute("INSERT INTO probe_runs VALUES (?, ?, ?, ?, ?, ?)", row)
    with Store.open(path) as store:
        [stored] = read(store, probe_runs.find, RunQuery(id=run.id)).results
    return stored


def test_results_of_schema_6_are_read_as_measured_quantities(path: Path) -> None:
    """A migration states quantity and unit of the bandwidths that every probe measured then."""
    times = {"iterations": 20, "latency_seconds": {"p50": 1e-3}, "min_seconds": 1e-4, "variation_ratio": 0.1}
    bandwidths = {"algbw_bytes_per_second": 50.0, "busbw_bytes_per_second": 100.0}
    references = {f"{name}_bytes_per_second": 200.0 for name in ("busbw", "baseline", "spread", "best", "expected")}
    members = {
        "measurements": [{**AT_RING, **times, **bandwidths, "wrong_elements": 3}],
        "comparisons": [{**AT_RING, **references, "runs": 9, "best_date": "2026-11-01", "below_reference": "drift"}],
        "location": {"message": "GPU 1 is slow.", "pairs": [{"ranks": [0, 1], "bandwidth_bytes_per_second": 8.0}]},
    }
    stored = migrated(path, 6, members)
    [measurement], [comparison] = stored.measurements, stored.comparisons
    assert measurement.key == comparison.key == (RING, "busbw", 1024)
    assert (measurement.value, measurement.raw_value, measurement.unit) == (100.0, 50.0, "bytes_per_second")
    assert (measurement.variation_ratio, measurement.wrong_elements) == (0.1, 3)
    assert (comparison.value, comparison.baseline, comparison.spread) == (200.0, 200.0, 200.0)
    assert (comparison.usual, comparison.expected, comparison.runs) == (200.0, 200.0, 9)
    assert stored.location is not None
    assert stored.location.pairs[0].bandwidth_bytes_per_second == 8.0


def test_results_of_an_earlier_schema_are_read(path: Path) -> None:
    """A migration renames the members of stored results, and no text in them."""
    references = {"busbw": 9.0, "baseline": 10.0, "spread": 1.0, "best": 12.0, "expected": 11.0, "low": "drift"}
    pairs = [{"ranks": [0, 1], "bandwidth": 8.0, "wrong": [1, 0], "spoilt": [0, 1]}]
    earlier: dict[str, Any] = {
        "comparisons": [{**AT_RING, **references}],
        "location": {"sentence": "GPU 1 is slow.", "pairs": pairs},
        "log": 'rank 0: {"low":1}',
    }
    stored = migrated(path, 5, earlier)
    [comparison] = stored.comparisons
    assert (comparison.value, comparison.usual, comparison.key) == (9.0, 12.0, (RING, "busbw", 1024))
    assert (comparison.baseline, comparison.spread, comparison.expected) == (10.0, 1.0, 11.0)
    assert stored.log == earlier["log"]
    assert stored.location == Location(
        message="GPU 1 is slow.",
        pairs=(Pair(ranks=(0, 1), bandwidth_bytes_per_second=8.0, wrong_elements=(1, 0), wrong_send_elements=(0, 1)),),
    )


def test_retention_bounds_rows_but_not_counters(path: Path) -> None:
    """The retention deletes the oldest rows, except for counters and the newest run of each outcome."""
    with Store.open(path) as store:
        write(store, probe_runs.record, result(0, "wrong"))
        for number in range(30):
            write(store, error_events.record, [change(number)])
            write(store, probe_runs.record, result(number + 1, "skipped", "busy"))
        write(store, prune, Retention(days=90, rows=10), NOW)

        assert read(store, error_events.read_recent, 100) == tuple(error_event(number) for number in range(20, 30))
        remaining = [run.id for run in read(store, probe_runs.read_recent, newest=100, each=1)]
        assert remaining == ["r0", *(f"r{number}" for number in range(21, 31))]
        assert [counter.count for counter in read(store, error_events.read_counters)] == [30]
        assert read(store, probe_runs.read_counters)["allreduce"].outcomes == {"skipped": 30, "wrong": 1}


def test_retention_keeps_the_runs_of_the_baseline(path: Path) -> None:
    retention = Retention(days=90, rows=10)
    with Store.open(path) as store:
        for number in range(MAX_BASELINE_RUNS + 2):
            write(store, probe_runs.record, result(number))
        write(store, probe_runs.record, result(998, "failed", "ranks"))
        for number in range(1000, 1030):
            write(store, probe_runs.record, result(number, "skipped", "busy"))
        write(store, prune, retention, NOW + 1000 * DAY)
        remaining = [run.id for run in read(store, probe_runs.read_recent, newest=3, each=5)]
        assert remaining == [*(f"r{number}" for number in range(2, MAX_BASELINE_RUNS + 2)), "r998", "r1029"]

        write(store, probe_runs.record, result(1030, "skipped", "busy", probe="another"))
        assert [run.id for run in read(store, probe_runs.read_recent, newest=3, each=5)] == [*remaining, "r1030"]


def test_retention_bounds_age(path: Path) -> None:
    with Store.open(path) as store:
        write(store, error_events.record, [change(1), change(2)])
        write(store, probe_runs.record, result(1, "skipped", "busy"))
        write(store, probe_runs.record, result(2, "skipped", "busy"))
        write(store, prune, Retention(), NOW + 1.5 + 90 * DAY)

        assert read(store, error_events.read_recent, 10) == (error_event(2),)
        assert [run.id for run in read(store, probe_runs.read_recent, newest=10, each=1)] == ["r2"]


def test_a_clock_that_jumps_deletes_few_rows(path: Path) -> None:
    """A wall clock that is 100 days ahead at one start of the agent leaves the rows of the last 90 days."""
    with Store.open(path) as store:
        write(store, error_events.record, [change(1)])
        write(store, prune, Retention(), NOW + 60)
        write(store, prune, Retention(), NOW + 100 * DAY)
        assert len(read(store, error_events.read_recent, 10)) == 1

        with store.writing() as connection:  # the clock is right again, and time passes
            for hour in range(24 * 90):
                prune(connection, Retention(), NOW + hour * 3600)
            assert len(error_events.read_recent(connection, 10)) == 1
            for hour in range(2):
                prune(connection, Retention(), NOW + 90 * DAY + hour * 3600)
            assert error_events.read_recent(connection, 10) == ()


WRITE_FOR_EVER = f"""
    import sys, itertools
    sys.path.append({str(Path(__file__).parents[1])!r})
    from pathlib import Path
    from sample_events import change
    from stores import write
    from gpumon.store import error_events
    from gpumon.store.store import Store
    store = Store.open(Path(sys.argv[1]))
    for number in itertools.count(int(sys.argv[2])):
        write(store, error_events.record, [change(number)])
        print(number, flush=True)
"""


def test_no_acknowledged_write_is_lost_by_a_kill(path: Path) -> None:
    """After repeated SIGKILL the counters equal the rows, and no acknowledged row is missing."""
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

        with Store.open(path) as store:
            events = read(store, error_events.read_recent, 100_000)
            (counted,) = read(store, error_events.read_counters)
        assert acknowledged in {int(event.last.at) for event in events[-2:]}
        assert counted.count == len(events)
    assert counted.count >= 60


def test_a_second_agent_is_refused(path: Path) -> None:
    """A second agent is refused with the pid of the first, until the first has closed the store."""
    with Store.open(path) as store:
        write(store, error_events.record, [change(1)])
        with pytest.raises(StoreError, match=f"process {os.getpid()} is using it; end that agent"):
            Store.open(path)

    with Store.open(path) as store:
        assert len(read(store, error_events.read_recent, 10)) == 1


@pytest.mark.parametrize("damage", ["middle", "header", "zeros", "truncated"])
def test_a_damaged_file_is_renamed_and_re_created(path: Path, damage: str) -> None:
    """A file with any damaged part is renamed, and a new one is created."""
    with Store.open(path) as store:
        write(store, error_events.record, (change(number) for number in range(500)))
    whole = path.read_bytes()
    damaged = {
        "middle": whole[:4096] + os.urandom(8192) + whole[12288:],
        "header": b"not what it was" + whole[15:],
        "zeros": bytes(len(whole)),
        "truncated": whole[: len(whole) // 2],
    }[damage]
    path.write_bytes(damaged)

    with Store.open(path) as store:
        assert store.moved_aside is not None
        assert store.moved_aside.name.startswith("gpumon.db.corrupt-")
        assert store.moved_aside.read_bytes() == damaged
        assert read(store, error_events.read_recent, 10) == ()
        write(store, error_events.record, [change(1)])
        assert read(store, error_events.read_recent, 10) == (error_event(1),)
    with Store.open(path) as store:
        assert store.moved_aside is None


def test_only_the_newest_damaged_files_remain(path: Path) -> None:
    for _ in range(6):
        with Store.open(path) as store:
            write(store, error_events.record, [change(1)])
        path.write_bytes(b"\0" * 4096)
    with Store.open(path) as store:
        newest = store.moved_aside

    moved_files = sorted(path.parent.glob("gpumon.db.corrupt-*"))
    assert len(moved_files) == 3
    assert moved_files[-1] == newest


def test_other_files_are_unchanged(tmp_path: Path) -> None:
    """A text file or another program's database is refused and unchanged."""
    text, database = tmp_path / "passwd", tmp_path / "other.db"
    text.write_text("root:x:0:0:" * 20)
    with contextlib.closing(sqlite3.connect(database)) as connection:
        connection.execute("CREATE TABLE theirs (a)")
    before = [text.read_bytes(), database.read_bytes()]

    for path in (text, database):
        with pytest.raises(StoreError, match="it is not a store of gpumon; move it away"):
            Store.open(path)

    assert [text.read_bytes(), database.read_bytes()] == before
    assert sorted(file.name for file in tmp_path.iterdir()) == ["other.db", "passwd"]


def test_a_store_of_a_newer_version_is_refused(path: Path) -> None:
    Store.open(path).close()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("INSERT INTO migrations VALUES (?, 0)", (len(MIGRATIONS) + 1,))
        connection.commit()

    with pytest.raises(StoreError, match=rf"a newer gpumon has written it \(schema {len(MIGRATIONS) + 1}"):
        Store.open(path)
    assert path.exists()


@pytest.mark.parametrize("version", [0, -5])
def test_a_damaged_version_costs_nothing(path: Path, version: int) -> None:
    """A store whose schema is complete is used, although the cell with its version is damaged."""
    Store.open(path).close()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("DELETE FROM migrations WHERE version > 1")
        connection.execute("UPDATE migrations SET version = ?", (version,))
        connection.commit()
    with Store.open(path) as store:
        assert store.moved_aside is None


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    """The error for a missing folder has the command that creates it."""
    with pytest.raises(StoreError, match=f"its folder does not exist; create it: mkdir -p {tmp_path}/missing"):
        Store.open(tmp_path / "missing" / "gpumon.db")


def test_a_folder_in_place_of_the_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="Is a directory"):
        Store.open(tmp_path)


@needs_mounts
def test_a_write_to_a_full_disk_fails_as_a_whole(tmp_path: Path) -> None:
    """On a full disk a write fails without partial effect, and succeeds when space is freed."""
    with mounted_disk(tmp_path / "disk", "size=300k") as folder, Store.open(folder / "gpumon.db") as store:
        write(store, error_events.record, [change(0)])
        filler = folder / "filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(b"x" * 4096)

        with pytest.raises(
            StoreError, match=r"the disk is full .*; free space on its file system, or set --store.path"
        ):
            write(store, error_events.record, (change(number) for number in range(1, 2000)))
        assert [counter.count for counter in read(store, error_events.read_counters)] == [1]

        filler.unlink()
        write(store, error_events.record, [change(1)])
        assert [counter.count for counter in read(store, error_events.read_counters)] == [2]


@needs_mounts
def test_a_full_disk_at_the_first_start_is_reported(tmp_path: Path) -> None:
    """The error states that the disk is full if the store cannot be created."""
    with mounted_disk(tmp_path / "disk", "size=8k") as folder, pytest.raises(StoreError, match="the disk is full"):
        Store.open(folder / "gpumon.db")


@needs_mounts
def test_the_store_is_read_from_a_full_disk(tmp_path: Path) -> None:
    """The counters of a killed agent are read from a disk that is full since."""
    with mounted_disk(tmp_path / "disk", "size=300k") as folder:
        _kill_after_one_event(folder / "gpumon.db")
        with contextlib.suppress(OSError), (folder / "filler").open("wb", buffering=0) as file:
            while True:
                file.write(b"x" * 4096)

        with Store.open(folder / "gpumon.db") as store:
            assert [counter.count for counter in read(store, error_events.read_counters)] == [1]


@needs_mounts
def test_the_store_is_read_from_a_read_only_disk(tmp_path: Path) -> None:
    """The store of a killed agent is read from a read-only disk, and each write fails with that reason."""
    with mounted_disk(tmp_path / "disk", "size=1m") as folder:
        _kill_after_one_event(folder / "gpumon.db")
        subprocess.run(["mount", "-o", "remount,ro", folder], check=True)

        with Store.open(folder / "gpumon.db") as store:
            assert [counter.count for counter in read(store, error_events.read_counters)] == [1]
            with pytest.raises(StoreError, match=f"it cannot be written; make {folder} writable for uid 0"):
                write(store, error_events.record, [change(2)])
        with pytest.raises(StoreError, match="it cannot be written"):
            Store.open(folder / "new.db")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_missing_permission_is_reported() -> None:
    """The error names the uid that lacks the permission."""
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
        Store.open(path).close()
        command = [sys.executable, "-c", textwrap.dedent(code), str(path)]
        process = subprocess.run(command, capture_output=True, text=True, check=True)

    assert f"{path}: it cannot be written; make {folder} writable for uid 65534" in process.stdout


def _kill_after_one_event(path: Path) -> None:
    code = textwrap.dedent(WRITE_FOR_EVER).replace("print(number, flush=True)", "import os; os.kill(os.getpid(), 9)")
    killed = subprocess.run([sys.executable, "-c", code, str(path), "0"], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert path.with_name(path.name + "-wal").stat().st_size > 0


@pytest.mark.skipif(os.geteuid() != 0, reason="changes owners")
@pytest.mark.parametrize("suffix", ["", "-wal", "-journal", ".lock"])
def test_a_link_in_the_folder_is_not_written_through(path: Path, suffix: str) -> None:
    """A user who owns the folder cannot make root's command overwrite a file of root."""
    victim = path.parent.parent / "victim"
    victim.write_text("secret")
    path.with_name(path.name + suffix).symlink_to(victim)
    with pytest.raises(StoreError, match="not a regular file"):
        Store.open(path)
    assert victim.read_text() == "secret"


@pytest.mark.skipif(os.geteuid() != 0, reason="changes owners")
def test_nothing_is_written_in_a_folder_of_another_user(path: Path) -> None:
    """Its owner could replace a file between the check and the write. The store is a copy that can be read."""
    with Store.open(path) as store:
        store.prove_writable()
    os.chown(path.parent, 65534, 65534)
    before = {file: file.stat().st_mtime_ns for file in path.parent.iterdir()}
    with Store.open(path) as store, pytest.raises(StoreError, match="belongs to uid 65534; run as that user"):
        store.prove_writable()
    assert {file: file.stat().st_mtime_ns for file in path.parent.iterdir()} == before


def test_sql_runs_on_the_sqlite_of_rhel_9() -> None:
    """SQLite 3.34 requires the columns of an upsert, and lacks later additions to its SQL."""
    sources = "\n".join(file.read_text() for file in Path(schema.__file__).parent.glob("*.py"))
    assert len(re.findall(r"ON CONFLICT \(", sources)) > 3
    assert not re.findall(
        r"ON CONFLICT(?! \()|\bRETURNING\b|\bSTRICT\b|DROP COLUMN|unixepoch\(|->>|MATERIALIZED", sources
    )
