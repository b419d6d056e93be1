"""Reads and writes rows of an open store, each in a transaction, and an agent that has a store."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from loops import turn_until

from gpumon.health.verdict import FAIL, Action, Verdict, VerdictChange, VerdictTransition
from gpumon.model.error_event import ErrorChange
from gpumon.model.instant import Instant
from gpumon.services.persistence import Persistence
from gpumon.state.messages import ErrorChanges, VerdictTransitions
from gpumon.state.monitor import Monitor
from gpumon.state.report import Report
from gpumon.state.section import ReducerSettings
from gpumon.store.records import Retention
from gpumon.store.store import Store
from gpumon.supervisor.loop import Loop

P = ParamSpec("P")
T = TypeVar("T")


def write(
    store: Store, work: Callable[Concatenate[sqlite3.Connection, P], T], /, *arguments: P.args, **options: P.kwargs
) -> T:
    """Return the result of `work` after it is durable."""
    with store.writing() as connection:
        return work(connection, *arguments, **options)


def read(
    store: Store, query: Callable[Concatenate[sqlite3.Connection, P], T], /, *arguments: P.args, **options: P.kwargs
) -> T:
    """Return the result of `query`."""
    with store.reading() as connection:
        return query(connection, *arguments, **options)


def verdict(check: str, **values: object) -> Verdict:
    default = Verdict(
        check=check,
        device="GPU-1",
        level=FAIL,
        reason="It is broken.",
        action=Action.RESET,
        raised=Instant("", 0.0, 2e9),
        last_active=Instant("boot-1", 100.0, 2e9),
        active=False,
    )
    return default._replace(**values)  # type: ignore[arg-type]


def raised_transition(check: str, wall: float = 2e9) -> VerdictTransition:
    return VerdictTransition(verdict=verdict(check), change=VerdictChange.RAISED, time=Instant("boot-1", 100.0, wall))


class StoringAgent:
    """An agent with only persistence and a Report."""

    def __init__(self, path: Path, report: Report) -> None:
        self.loop = Loop()
        self.monitor = Monitor(report, ReducerSettings())
        self.persistence = Persistence(
            self.loop, path, Retention(), publish=self.monitor.take, latest=lambda: self.monitor.latest
        )

    def store_transitions(self, *transitions: VerdictTransition) -> bool:
        """Return whether the transitions are stored; they take effect in any case."""
        results: list[object] = []
        self.persistence.writes.record(VerdictTransitions(transitions=transitions), results.append)
        turn_until(self.loop, lambda: bool(results))
        return results[0] is None

    def store_errors(self, *changes: ErrorChange) -> None:
        """Begin to store these changes of error events."""
        self.persistence.writes.record(ErrorChanges(changes=changes))
