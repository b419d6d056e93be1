"""Verdicts of an agent whose store is full, read-only, or damaged in use."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from loops import turn_until
from stores import StoringAgent, raised_transition, read, verdict, write

from gpumon.clock import boot_clock
from gpumon.health.clear_request import ClearRequest
from gpumon.health.node_health import Pending
from gpumon.health.verdict import FAIL, OK, WARN, Clearance, VerdictChange, VerdictTransition
from gpumon.model.instant import Instant, Now
from gpumon.model.records import AgentRun
from gpumon.services.verdict_writer import VerdictWriter
from gpumon.state.report import Report
from gpumon.store import records, verdicts
from gpumon.store.records import Retention, prune
from gpumon.store.store import Store

needs_mount = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")


def cleared_transition(check: str, wall: float = 2e9 + 60) -> VerdictTransition:
    raised = raised_transition(check, wall)
    return raised._replace(
        change=VerdictChange.CLEARED, cleared_by=Clearance.RESET, time=raised.time._replace(at=160.0)
    )


class VerdictWriterOnly(StoringAgent):
    """An agent with only persistence, a verdict writer and a Report."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, Report(started=0.0, boot_id="boot-1"))
        self.verdict_writer = VerdictWriter(self.loop, self.persistence.writes, lambda: self.monitor.latest)
        self.persistence.start()
        turn_until(self.loop, lambda: self.monitor.latest.agent.restored or self.persistence.error is not None)

    @property
    def open(self) -> set[str]:
        return {check for check, _ in self.monitor.latest.health.open}

    def stop(self) -> None:
        """Wait until no write is missing, and stop."""
        turn_until(self.loop, lambda: self.persistence.error is None and self.persistence.writes.complete)
        self.persistence.close()


def history(path: Path) -> list[tuple[str, VerdictChange]]:
    with Store.open(path) as store:
        return [
            (transition.verdict.check, transition.change) for transition in read(store, verdicts.read_transitions, 1000)
        ]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a small disk."""
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=500k", "tmpfs", folder], check=True)
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


@needs_mount
def test_transitions_on_a_full_disk_are_stored_later(disk: Path) -> None:
    """Transitions take effect at once on a full disk, and are stored once after recovery."""
    path = disk / "gpumon.db"
    agent = VerdictWriterOnly(path)
    assert agent.store_transitions(raised_transition("before"), raised_transition("both"))
    filler = disk / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 512)
    for number in range(60):  # until no page is free
        if not agent.store_transitions(
            raised_transition("full", 2e9 + number), cleared_transition("full", 2e9 + number + 0.5)
        ):
            break
    else:
        pytest.fail("the disk was never full")
    assert not agent.store_transitions(raised_transition("meanwhile"), cleared_transition("before"))
    assert agent.open == {"meanwhile", "both"}
    filler.unlink()
    agent.stop()

    after = history(path)
    assert after.count(("meanwhile", VerdictChange.RAISED)) == 1
    assert after.count(("before", VerdictChange.CLEARED)) == 1
    assert after.count(("full", VerdictChange.RAISED)) == after.count(("full", VerdictChange.CLEARED))
    restarted = VerdictWriterOnly(path)
    assert restarted.open == {"meanwhile", "both"}
    assert ("before", "GPU-1") in restarted.monitor.latest.health.cleared
    restarted.stop()


@pytest.mark.slow
def test_a_store_damaged_in_use_gets_all_verdicts(tmp_path: Path) -> None:
    """The new file has the history of the Report: cleared verdicts remain cleared, and open ones open."""
    path = tmp_path / "gpumon.db"
    with Store.open(path) as store:  # more than SQLite keeps in its cache
        long = verdict("old", reason="x" * 4000)
        old = (
            raised_transition("old")._replace(
                verdict=long._replace(check=f"old {number}"), change=VerdictChange.CHANGED
            )
            for number in range(1500)
        )
        write(store, verdicts.record, old)
        write(store, verdicts.restore, [], [])
    agent = VerdictWriterOnly(path)
    agent.store_transitions(raised_transition("open"), raised_transition("over"))
    agent.store_transitions(cleared_transition("over"))
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(path.stat().st_size - 4096))
    for number in range(50):
        agent.store_transitions(
            raised_transition("later", 2e9 + number), cleared_transition("later", 2e9 + number + 0.5)
        )
        if agent.persistence.notice is not None or agent.persistence.error is not None:
            break
    agent.store_transitions(raised_transition("last"))
    turn_until(agent.loop, lambda: agent.persistence.notice is not None and agent.persistence.error is None)
    agent.stop()

    restarted = VerdictWriterOnly(path)
    assert restarted.open == {"open", "last"}
    assert ("over", "GPU-1") in restarted.monitor.latest.health.cleared
    restarted.stop()


def test_an_update_does_not_reopen_a_cleared_verdict(tmp_path: Path) -> None:
    """The ok time of a verdict continues after a restart, and a cleared verdict remains cleared."""
    path = tmp_path / "gpumon.db"
    agent = VerdictWriterOnly(path)
    agent.store_transitions(raised_transition("quiet"), raised_transition("over"))
    later = tuple(verdict._replace(ok_seconds=1234.0) for verdict in agent.monitor.latest.health.open.values())
    agent.store_transitions(cleared_transition("over"))
    agent.persistence.writes.put(verdicts.TABLE, [later])
    agent.stop()

    restarted = VerdictWriterOnly(path)
    assert restarted.open == {"quiet"}
    assert restarted.monitor.latest.health.open["quiet", "GPU-1"].ok_seconds == 1234.0
    restarted.stop()


def test_a_pending_verdict_survives_a_restart(tmp_path: Path) -> None:
    """The time that a finding has lasted continues after a restart."""
    path = tmp_path / "gpumon.db"
    agent = VerdictWriterOnly(path)
    evaluated = Now(at=boot_clock(), wall=0.0, uptime=120.0)
    pending = {("ib_port_down", "mlx5_0/1"): Pending(OK, {WARN: 110.0, FAIL: 100.0}, 120.0, 240.0)}
    health = replace(agent.monitor.latest.health, pending=pending, evaluated=evaluated)
    agent.monitor.latest = replace(agent.monitor.latest, health=health)
    agent.verdict_writer.put_pending()
    agent.stop()
    restarted = VerdictWriterOnly(path)
    [(key, restored)] = restarted.monitor.latest.health.pending.items()
    assert (key, replace(restored, seen=120.0)) == (("ib_port_down", "mlx5_0/1"), pending[key])
    assert restored.seen <= 0.0
    restarted.stop()


def test_a_clearing_is_durable_before_its_answer(tmp_path: Path) -> None:
    """The note is stored before the answer; a stopping agent refuses a request and clears nothing."""
    path = tmp_path / "gpumon.db"
    agent = VerdictWriterOnly(path)
    agent.store_transitions(raised_transition("gpu_xid_critical"), raised_transition("gpu_lost"))
    latest = agent.monitor.latest
    agent.monitor.latest = replace(latest, health=replace(latest.health, evaluated=Now(at=0.0, wall=0.0, uptime=0.0)))
    answer = agent.verdict_writer.clear(ClearRequest(check="gpu_xid_critical", note="board replaced"))
    turn_until(agent.loop, answer.done)
    assert answer.result().stored
    assert agent.open == {"gpu_lost"}
    agent.verdict_writer.stop()
    refused = agent.verdict_writer.clear(ClearRequest(check="gpu_lost"))
    turn_until(agent.loop, refused.done)
    assert refused.result().error
    agent.stop()
    with Store.open(path) as store:
        [last] = [item for item in read(store, verdicts.read_transitions, 10) if item.change is VerdictChange.CLEARED]
        assert (last.cleared_by, last.note) == (Clearance.OPERATOR, "board replaced")
        assert [verdict.check for verdict in read(store, verdicts.read_open)] == ["gpu_lost"]


def test_retention_keeps_the_last_clearing_of_each_verdict(tmp_path: Path) -> None:
    with Store.open(tmp_path / "gpumon.db") as store:
        write(store, verdicts.record, [raised_transition("a"), cleared_transition("a"), raised_transition("b")])
        write(store, prune, Retention(days=1), 2e9 + 10 * 86400)
        assert set(read(store, verdicts.read_last_cleared)) == {("a", "GPU-1")}
        assert len(read(store, verdicts.read_transitions, 10)) == 1


def test_an_unreadable_row_does_not_affect_the_others(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Store.open(tmp_path / "gpumon.db") as store:
        write(store, verdicts.record, [raised_transition("good"), raised_transition("bad")])
        with store.writing() as connection:
            connection.execute("UPDATE verdicts SET document = '{\"level\": 77}' WHERE check_name = 'bad'")
        assert [verdict.check for verdict in read(store, verdicts.read_open)] == ["good"]
    assert "left out an unreadable row of the store" in caplog.text


def test_the_row_of_a_run_is_updated(tmp_path: Path) -> None:
    first = AgentRun(began=Instant("boot-1", 100.0, 2e9), version="1", last=2e9)
    second = replace(first, began=Instant("boot-1", 600.0, 2e9 + 500), last=2e9 + 500)
    with Store.open(tmp_path / "gpumon.db") as store:
        write(store, records.put_agent_runs, [first])
        write(store, records.put_agent_runs, [replace(first, last=2e9 + 60, stopped=2e9 + 61)])
        write(store, records.put_agent_runs, [second])
        assert read(store, records.read_agent_runs, 10) == (replace(first, last=2e9 + 60, stopped=2e9 + 61), second)
        assert read(store, records.read_agent_runs, 1) == (second,)
