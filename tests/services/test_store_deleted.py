"""The files of the store are deleted, moved or replaced while the agent has them open."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from loops import turn_until
from sample_events import change
from sample_windows import MAINTENANCE, window
from stores import read, write

from gpumon.health.verdict import FAIL, Action, Verdict, VerdictChange, VerdictTransition
from gpumon.model.error_event import LogPosition
from gpumon.model.instant import Instant
from gpumon.model.records import AgentRun, PortRecord, StoredGpu
from gpumon.services.persistence import Persistence
from gpumon.state.monitor import Monitor
from gpumon.state.reducer_settings import ReducerSettings
from gpumon.state.report import Report
from gpumon.store import error_events, records, verdicts
from gpumon.store.retention import Retention
from gpumon.store.store import Store
from gpumon.supervisor.loop import Loop

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


def raised_transition(check: str) -> VerdictTransition:
    verdict = Verdict(
        check=check,
        device="GPU-2",
        level=FAIL,
        reason="It is broken.",
        action=Action.RESET,
        raised=Instant("", 0.0, 2e9),
        last_active=Instant("boot-1", 100.0, 2e9),
        active=False,
    )
    return VerdictTransition(verdict=verdict, change=VerdictChange.RAISED, time=Instant("boot-1", 100.0, 2e9))


class AgentWithDeletedStore:
    """An agent with only persistence and a Report."""

    def __init__(self, path: Path) -> None:
        self.loop = Loop()
        self.monitor = Monitor(Report(started=0.0, boot_id="boot-1"), ReducerSettings())
        self.persistence = Persistence(
            self.loop, path, Retention(), publish=self.monitor.take, latest=lambda: self.monitor.latest
        )
        self.persistence.start()
        turn_until(self.loop, lambda: self.monitor.latest.agent.restored)

    def store_transition(self, transition: VerdictTransition) -> bool:
        """Return whether the transition is stored; it takes effect in any case."""
        results: list[bool] = []
        self.persistence.writes.record_transitions([transition], results.append)
        turn_until(self.loop, lambda: bool(results))
        return results[0]

    def recover(self) -> None:
        """Wait until the store can be written again and no write is missing."""
        turn_until(self.loop, lambda: self.persistence.error is None and self.persistence.writes.complete)
        self.persistence.tick()
        last = self.persistence.read(error_events.read_position)
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
    assert agent.store_transition(raised_transition("before"))
    agent.persistence.writes.record_errors([change(1)], None)
    turn_until(agent.loop, lambda: bool(agent.monitor.latest.events))

    harm(path)
    assert not agent.store_transition(raised_transition("meanwhile"))
    assert "was deleted, moved or replaced while it was open" in (agent.persistence.notice or "")
    agent.recover()
    assert agent.store_transition(raised_transition("after"))
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
        assert not agent.store_transition(raised_transition("ours"))
        turn_until(agent.loop, lambda: "is using it" in (agent.persistence.notice or ""))
        other_store.prove_in_place()
        assert read(other_store, verdicts.read_open) == ()
    agent.persistence.close()
