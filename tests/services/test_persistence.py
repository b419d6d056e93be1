"""All rows survive a store that fails and recovers, or whose files are deleted or replaced."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from loops import turn_until, turn_until_equal
from sample_events import change
from sample_windows import MAINTENANCE, window
from stores import StoringAgent, raised_transition, read, write

from gpumon.model.error_event import LogPosition
from gpumon.model.instant import Instant
from gpumon.model.records import AgentRun, PortRecord, StoredGpu
from gpumon.probe.core.probe_metrics import INITIAL
from gpumon.probe.core.result import ProbeCounters, ProbeResult
from gpumon.probe.core.state import MAX_RESULTS, ProbeState
from gpumon.state.messages import Message
from gpumon.state.report import Report
from gpumon.store import error_events, probe_runs, records, verdicts
from gpumon.store.store import Store


def result(name: str, outcome: str = "ok") -> ProbeResult:
    reason = "busy" if outcome == "skipped" else ""
    return ProbeResult(
        id=name,
        probe="allreduce",
        outcome=outcome,
        reason=reason,
        trigger="request",
        started=2e9,
        backend="gloo",
        ranks=2,
    )


class PersistenceOnly(StoringAgent):
    """An agent with only persistence and a Report."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, Report(started=0.0, probe=ProbeState(metrics=INITIAL)))
        self.persistence.start()

    def report_summary(self) -> dict[str, float]:
        """Return the ids of results, the Xid counts, and the number of counted runs in the Report."""
        report = self.monitor.latest
        runs = report.probe.metrics["allreduce"].runs_total or {}
        counts = {f"xid {xid}": count for codes in report.errors.xids.values() for xid, (count, _) in codes.items()}
        return dict.fromkeys((run.id for run in report.probe.history), 1.0) | counts | {"runs": sum(runs.values())}

    def wait_for(self, **expected: float) -> None:
        """Wait until the Report has exactly these ids and counts."""
        turn_until_equal(self.loop, self.report_summary, {name.replace("_", " "): n for name, n in expected.items()})

    def wait_until_ok(self) -> None:
        turn_until(self.loop, lambda: self.persistence.error is None)

    def stop(self) -> None:
        """Wait until no write is missing, and stop."""
        turn_until(self.loop, lambda: self.persistence.writes.complete)
        self.persistence.close()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a small disk."""
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", folder], check=True)
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_records_on_a_full_disk_are_stored_when_space_is_freed(disk: Path) -> None:
    """Results and counters that were reported while the disk was full are stored once after recovery."""
    agent = PersistenceOnly(disk / "gpumon.db")
    agent.persistence.writes.record(result("before"))
    agent.wait_for(before=1, runs=1)
    filler = disk / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
    agent.persistence.writes.record(result("full", "wrong"))
    agent.persistence.writes.record(result("still-full", "skipped"))
    agent.store_errors(change(1))
    full = {"before": 1.0, "full": 1.0, "still-full": 1.0, "xid_79": 1.0, "runs": 3.0}
    agent.wait_for(**full)
    assert agent.persistence.error is not None
    filler.unlink()
    agent.wait_until_ok()
    agent.stop()

    restarted = PersistenceOnly(disk / "gpumon.db")
    restarted.wait_for(**full)
    restarted.stop()


def test_records_from_before_the_store_opens_are_stored(tmp_path: Path) -> None:
    """A result from before the store opens is reported after the restore and after the next start."""
    folder = tmp_path / "later"
    agent = PersistenceOnly(folder / "gpumon.db")
    agent.persistence.writes.record(result("early"))
    agent.store_errors(change(1))
    agent.wait_for(early=1, xid_79=1, runs=1)
    folder.mkdir()
    agent.wait_until_ok()
    agent.stop()
    agent.wait_for(early=1, xid_79=1, runs=1)

    restarted = PersistenceOnly(folder / "gpumon.db")
    restarted.wait_for(early=1, xid_79=1, runs=1)
    restarted.stop()
    assert restarted.persistence.notice is None


def test_the_last_success_is_restored_after_any_number_of_skips(tmp_path: Path) -> None:
    """After a restart the agent reports the bandwidth of the last success, despite many skipped runs since."""
    path = tmp_path / "gpumon.db"
    skips = [result(f"skip {n}", "skipped") for n in range(MAX_RESULTS)]
    with Store.open(path) as store:
        for run in (result("good"), *skips):
            write(store, probe_runs.record, run)

    agent = PersistenceOnly(path)
    turn_until(agent.loop, lambda: agent.monitor.latest.probe.last("allreduce") is not None)
    metrics = agent.monitor.latest.probe.metrics["allreduce"]
    agent.stop()

    assert metrics.last_success_timestamp_seconds == 2e9
    assert (metrics.runs_total or {})["ok"] == 1


def stored_run_count(path: Path, folder: Path) -> float:
    """Return the number of runs that an agent would read from a copy of the current files."""
    folder.mkdir()
    for file in path.parent.glob(f"{path.name}*"):
        shutil.copy(file, folder)
    with Store.open(folder / path.name) as store:
        return sum(read(store, probe_runs.read_counters).get("allreduce", ProbeCounters()).outcomes.values())


def test_no_probe_counter_is_ahead_of_the_store(tmp_path: Path) -> None:
    """A run is counted in /metrics only after the store has counted it, so that no crash reduces a counter."""
    path = tmp_path / "gpumon.db"
    agent = PersistenceOnly(path)
    counted: list[tuple[float, float]] = []
    take = agent.monitor.take

    def check(arrival: Message) -> None:
        take(arrival)
        if isinstance(arrival, ProbeResult):
            shown = agent.monitor.latest.probe.metrics["allreduce"].runs_total or {}
            counted.append((sum(shown.values()), stored_run_count(path, tmp_path / f"crash {len(counted)}")))

    agent.persistence.writes._publish = check
    for name in ("one", "two", "three"):
        agent.persistence.writes.record(result(name))
    turn_until(agent.loop, lambda: len(counted) == 3)
    agent.stop()
    assert all(shown <= stored for shown, stored in counted), counted
    assert counted[-1] == (3, 3)


def test_a_damaged_store_is_reported_until_the_agent_stops(tmp_path: Path) -> None:
    """The notice names the damaged file and remains, although the new file can be written."""
    path = tmp_path / "gpumon.db"
    agent = PersistenceOnly(path)
    agent.persistence.writes.record(result("lost"))
    agent.wait_for(lost=1, runs=1)
    assert agent.persistence.notice is None
    agent.stop()
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(path.stat().st_size - 4096))

    agent = PersistenceOnly(path)
    agent.persistence.writes.record(result("after"))
    agent.wait_for(after=1, runs=1)
    agent.wait_until_ok()
    [damaged] = tmp_path.glob("gpumon.db.corrupt-*Z")
    assert agent.persistence.notice == f"{path} was damaged and is re-created; the damaged file is {damaged}"
    agent.stop()


@pytest.mark.slow
def test_a_store_damaged_in_use_gets_all_results_again(tmp_path: Path) -> None:
    """The new file gets the results and counters of the Report, so that a restart loses none."""
    path = tmp_path / "gpumon.db"
    with Store.open(path) as store:  # more than SQLite keeps in its cache
        write(store, error_events.record, (change(number, 48) for number in range(99_000)))
    agent = PersistenceOnly(path)
    agent.persistence.writes.record(result("before"))
    agent.wait_for(before=1, xid_48=99_000, runs=1)
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(path.stat().st_size - 4096))
    agent.store_errors(change(50_000, 48, id="new"))
    turn_until(agent.loop, lambda: agent.persistence.notice is not None and agent.persistence.error is None)
    agent.wait_for(before=1, xid_48=99_001, runs=1)
    agent.stop()

    restarted = PersistenceOnly(path)
    restarted.wait_for(before=1, xid_48=99_001, runs=1)
    restarted.stop()
    assert restarted.persistence.notice is None, "the new file is sound"

    restarted = PersistenceOnly(path)
    restarted.wait_for(before=1, xid_48=99_001, runs=1)
    restarted.stop()


BEFORE = AgentRun(began=Instant("boot-1", 100.0, 2e9), version="1", last=2e9 + 50, stopped=2e9 + 51)
GONE = StoredGpu(
    uuid="GPU-1", bus_id="00000000:18:00.0", serial="1", name="GPU", first_wall=2e9, last_wall=2e9, expected=False
)
MISSING = replace(GONE, uuid="GPU-2", bus_id="00000000:2A:00.0", serial="2", expected=True)
PORT = PortRecord(
    identity="guid/1",
    device="mlx5_0",
    port="1",
    bus_id="0000:1a:00.0",
    guid="0001",
    link_layer="InfiniBand",
    board="",
    firmware="",
    first_wall=2e9,
    last_wall=2e9,
    expected=True,
)
MAINTAINED = window(MAINTENANCE, start=4e9, start_at=200.0, seconds=9e6, boot_id="boot-1", reason="Work.")


class AgentWithDeletedStore(StoringAgent):
    """An agent with only persistence and a Report."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, Report(started=0.0, boot_id="boot-1"))
        self.persistence.start()
        turn_until(self.loop, lambda: self.monitor.latest.agent.restored)

    def recover(self) -> None:
        """Wait until the store can be written again and no write is missing."""
        turn_until(self.loop, lambda: self.persistence.error is None and self.persistence.writes.complete)
        self.persistence.tick()
        last = self.persistence.submit(error_events.read_position)
        turn_until(self.loop, last.done)
        assert last.result() == LogPosition("boot-1", 7)


def delete_all(path: Path) -> None:
    for file in path.parent.glob("gpumon.db*"):
        file.unlink(missing_ok=True)  # the store may just have removed it


def delete_database(path: Path) -> None:
    path.unlink()


def delete_wal(path: Path) -> None:
    path.with_name("gpumon.db-wal").unlink()


def replace_database(path: Path) -> None:
    other = path.with_name("other.db")
    with Store.open(other) as store:
        write(store, records.put_agent_runs, [replace(BEFORE, began=BEFORE.began._replace(at=1.0))])
        write(store, verdicts.record, [raised_transition("not_ours")])
    other.replace(path)


@pytest.mark.parametrize("harm", [delete_all, delete_database, delete_wal, replace_database])
def test_a_deleted_store_is_re_created_with_all_data(
    harm: Callable[[Path], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The next write fails, and the new file has all data for the agent after a kill."""
    caplog.set_level("INFO")
    path = tmp_path / "state" / "gpumon.db"
    path.parent.mkdir()
    with Store.open(path) as store:
        write(store, records.put_agent_runs, [BEFORE])
        write(store, records.put_gpus, [GONE, MISSING])
        write(store, records.put_ports, [PORT])
        write(store, records.put_windows, [MAINTAINED])
        write(store, records.accept_gpus, 1, ())
        write(store, error_events.record, [], LogPosition("boot-1", 7))
    agent = AgentWithDeletedStore(path)
    assert agent.store_transitions(raised_transition("before"))
    agent.store_errors(change(1))
    turn_until(agent.loop, lambda: bool(agent.monitor.latest.events))

    harm(path)
    assert not agent.store_transitions(raised_transition("meanwhile"))
    assert "was deleted, moved or replaced while it was open" in (agent.persistence.notice or "")
    agent.recover()
    assert agent.store_transitions(raised_transition("after"))
    assert agent.persistence.notice is None
    messages = [record.message for record in caplog.records]
    assert messages.count("the store cannot be written") == messages.count("the store can be written again") == 1

    survivors = tmp_path / "survivors"
    shutil.copytree(path.parent, survivors)  # as SIGKILL leaves them
    with Store.open(survivors / "gpumon.db") as store:
        assert {verdict.check for verdict in read(store, verdicts.read_open)} == {"before", "meanwhile", "after"}
        assert {transition.verdict.check for transition in read(store, verdicts.read_transitions, 10)} >= {
            "before",
            "meanwhile",
            "after",
        }
        assert set(read(store, records.read_gpus)) == {GONE, MISSING}
        assert read(store, records.read_ports) == (PORT,)
        assert read(store, records.read_windows) == agent.monitor.latest.windows != ()
        assert read(store, records.accepted_count) is not None
        assert [counter.count for counter in read(store, error_events.read_counters)] == [1]
        assert len(read(store, error_events.read_recent, 10)) == 1
        assert BEFORE in read(store, records.read_agent_runs, 10)
    agent.persistence.close()


def test_a_store_of_another_agent_is_not_written(tmp_path: Path) -> None:
    """The error names the process that uses the new store, which is not written."""
    path = tmp_path / "gpumon.db"
    agent = AgentWithDeletedStore(path)
    delete_all(path)
    with Store.open(path) as other_store:
        assert not agent.store_transitions(raised_transition("ours"))
        turn_until(agent.loop, lambda: "is using it" in (agent.persistence.notice or ""))
        other_store.prove_in_place()
        assert read(other_store, verdicts.read_open) == ()
    agent.persistence.close()
