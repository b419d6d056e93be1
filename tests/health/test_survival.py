"""Verdicts survive kills of the agent at any time: active ones stay, cleared ones do not return."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from changed_report import with_transitions
from hypothesis import given, settings
from hypothesis import strategies as st
from judging import Ward
from stores import read, write

from gpumon.health.clear_request import ClearRequest, requested_clearance
from gpumon.health.node_health import Health, pending_to_store
from gpumon.health.verdict import Clearance, Key, VerdictChange, VerdictTransition
from gpumon.model.instant import Instant
from gpumon.state import health_section
from gpumon.state.messages import StoredState
from gpumon.state.section import Step
from gpumon.store import verdicts
from gpumon.store.store import Store

XID = 95


class NodeWithStore(Ward):
    """A node with a real store between due transitions and the Report."""

    def __init__(self, path: Path) -> None:
        super().__init__(gpus=2, ports=0)
        self._path = path
        self._store = Store.open(path)
        self.killed_before: str | None = None
        """Kill the agent at the next transition: before it is stored, or before it takes effect."""
        self.seen_open: set[Key] = set()
        """Verdicts that were shown and not cleared."""

    def look(self) -> NodeWithStore:
        """Evaluate, and update the stored verdicts as the daemon does."""
        super().look()
        write(self._store, verdicts.update, [tuple(self.report.health.open.values())])
        write(self._store, verdicts.put_pending, [tuple(pending_to_store(self.report.health, self.report.boot_id))])
        return self

    def rule(self, due: tuple[VerdictTransition, ...]) -> None:
        """Store the transitions, then let them take effect."""
        moment, self.killed_before = (self.killed_before, None) if due else (None, self.killed_before)
        if moment == "stored":
            self.kill()
            return
        write(self._store, verdicts.record, due)
        if moment == "told":
            self.kill()
            self.check(self.rows())
            return
        self.report = with_transitions(self.report, due)
        self.seen_open = set(self.verdicts)

    def kill(self) -> None:
        """Kill the agent and start another with the stored state."""
        self._store.close()
        self._store = Store.open(self._path)
        self.report = replace(self.report, health=Health())
        self.restart()
        remembered = StoredState(
            verdicts=read(self._store, verdicts.read_open),
            transitions=read(self._store, verdicts.read_transitions, 1000),
            cleared=read(self._store, verdicts.read_last_cleared),
            pending=read(self._store, verdicts.read_pending),
        )
        step = Step(message=remembered, now=self.moment, settings=self.terms, report=self.report)
        health = health_section.apply(self.report.health, step)
        self.report = replace(self.report, health=health)

    def clear(self) -> None:
        health = self.report.health
        if health.evaluated:
            answer = requested_clearance(ClearRequest(), health, {state.uuid for state in self.report.gpus})
            self.rule(
                tuple(
                    VerdictTransition(
                        verdict=each,
                        change=VerdictChange.CLEARED,
                        time=Instant(self.report.boot_id, self.at, self.wall),
                        cleared_by=Clearance.OPERATOR,
                    )
                    for each in answer.cleared
                )
            )

    def rows(self) -> tuple[VerdictTransition, ...]:
        return read(self._store, verdicts.read_transitions, 100_000)

    def check(self, rows: tuple[VerdictTransition, ...]) -> None:
        """Assert that the rows are consistent, and that the open verdicts follow from them."""
        there: set[Key] = set()
        for row in rows:
            key = row.verdict.key
            assert (row.change is VerdictChange.RAISED) == (key not in there), f"{row} after {there}"
            there = there - {key} if row.change is VerdictChange.CLEARED else there | {key}
        assert {each.key for each in read(self._store, verdicts.read_open)} == there
        assert set(self.verdicts) == there
        assert self.seen_open - {row.verdict.key for row in rows if row.change is VerdictChange.CLEARED} <= there

    def close(self) -> None:
        self._store.close()


@contextmanager
def node() -> Iterator[NodeWithStore]:
    with tempfile.TemporaryDirectory() as folder:
        one = NodeWithStore(Path(folder) / "gpumon.db")
        yield one
        one.close()


GPUS = st.integers(0, 1)
STEPS = st.one_of(
    st.tuples(st.just("event"), GPUS),
    st.tuples(st.just("bad"), GPUS),
    st.tuples(st.just("good"), GPUS),
    st.tuples(st.just("missing"), GPUS),
    st.tuples(st.just("here"), GPUS),
    st.tuples(st.just("reset"), GPUS),
    st.tuples(st.just("reboot"), st.just(0)),
    st.tuples(st.just("clear"), st.just(0)),
    st.tuples(st.just("wall"), st.sampled_from((-86400, -30, 30, 86400))),
    st.tuples(st.just("pause"), st.sampled_from((30, 3600))),
    st.tuples(st.just("kill"), st.just(0)),
    st.tuples(st.just("killed before stored"), st.just(0)),
    st.tuples(st.just("killed before told"), st.just(0)),
    st.tuples(st.just("time"), st.sampled_from((5, 30, 120, 900, 4000))),
)


def take(one: NodeWithStore, what: str, number: int, boots: Iterator[int]) -> None:  # noqa: PLR0912 - one case a step
    match what:
        case "event":
            one.event(number, XID)
        case "bad":
            one.gpu(number, row_remap_failed=1.0)
        case "good":
            one.gpu(number, row_remap_failed=0.0)
        case "missing":
            one.fault(number, "missing")
        case "here":
            one.fault(number, None)
        case "reset":
            one.reset(number)
        case "reboot":
            one.reboot(f"boot-{next(boots)}")
        case "clear":
            one.clear()
        case "wall":
            one.step(number)
        case "pause":
            one.pause(number)
        case "kill":
            one.kill()
        case "killed before stored" | "killed before told":
            one.killed_before = what.rpartition(" ")[2]
        case "time":
            one.go_on(number, every=max(5.0, number / 8))
    one.go_on()


@pytest.mark.slow
@settings(max_examples=40)
@given(st.lists(STEPS, max_size=25))
def test_nothing_is_lost_raised_twice_or_back_again(steps: list[tuple[str, int]]) -> None:
    """After any sequence of steps the rows are consistent, and the store agrees with the Report."""
    boots = iter(range(2, 1000))
    with node() as one:
        for what, number in steps:
            take(one, what, number, boots)
            one.check(one.rows())
        news = sum(what == "event" for what, _ in steps)
        raised = [
            row for row in one.rows() if row.change is VerdictChange.RAISED and row.verdict.check == "gpu_xid_critical"
        ]
        assert len(raised) <= news, "each error makes a verdict at most once"
        before = set(one.verdicts)
        one.kill()
        assert set(one.verdicts) == before


@pytest.mark.parametrize("moment", ["stored", "told"])
def test_a_kill_during_a_transition_is_harmless(moment: str) -> None:
    """After the restart the verdict is raised or cleared, and the next evaluation completes it."""
    with node() as one:
        one.killed_before = moment
        one.event(1, XID)
        one.go_on(10, every=5)
        assert one.active_checks() == ["gpu_xid_critical"]
        one.killed_before = moment
        one.reset(1)
        one.go_on(120)
        assert not one.verdicts
        assert [row.change for row in one.rows()] == [VerdictChange.RAISED, VerdictChange.CLEARED]
        one.go_on(600)
        assert not one.verdicts
