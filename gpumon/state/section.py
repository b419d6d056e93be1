"""Sections, which are parts of the Report with a frozen state that messages change, and what `reduce` passes them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from gpumon.health.alert_texts import SEVERITIES
from gpumon.health.catalogue import SHIPPED, Catalogue
from gpumon.health.policy import Policy
from gpumon.model.infiniband import PortPatterns
from gpumon.model.instant import Now
from gpumon.model.reading import Labels, Table
from gpumon.state.messages import Message
from gpumon.state.report import Report

_T = TypeVar("_T")

LOG_LEVELS = dict(zip(SEVERITIES, (logging.ERROR, logging.WARNING, logging.INFO), strict=True))
"""Level of a log line, by the severity of what it reports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReducerSettings:
    """The settings from the configuration that `reduce` and the checks use."""

    interval: float = 1.0
    expected: int | None = None
    """Configured number of GPUs; None if the agent learns the expected number."""
    probe_intervals: Mapping[str, float] = field(default_factory=lambda: {"allreduce": 21600.0})
    """Max seconds between scheduled runs of each scheduled probe, by name."""
    probe_gated: bool = False
    """True if a gate command requests the node from the scheduler before each probe run."""
    ports: PortPatterns = PortPatterns()
    owner_names: frozenset[str] = frozenset()
    """Names of an owner, as attributes of Owner, that every reader may know."""
    policy: Policy = Policy()
    catalogue: Catalogue = SHIPPED

    @property
    def stale_after(self) -> float:
        """Return the age in seconds above which a reading is no longer used."""
        return max(3 * self.interval, 10.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One message that is applied to the Report."""

    message: Message
    now: Now
    settings: ReducerSettings
    report: Report
    """The Report so far: this message was applied to the sections before this one, and not yet to the others."""


class LogLine(NamedTuple):
    """One line to log: level, message and fields, before it is passed to `logging`."""

    level: int
    message: str
    fields: Mapping[str, object]


class Section(NamedTuple):
    """A row of the table of sections."""

    name: str
    """Attribute of the Report that holds the state."""
    apply: Callable[[Any, Step], Any]
    """Returns the state after a message; the same object if nothing changed. Pure."""
    kinds: tuple[type[Table], ...] = ()
    """Kinds of the metric tables of the section, in the order of their metrics on a page."""
    tables: Callable[[Report], Iterable[tuple[Table, Labels]]] = lambda _: ()
    """Returns the metric tables of the section, with the labels that all series of a table have."""
    changes: Callable[[Report, Report], Iterable[LogLine]] = lambda _, __: ()
    """Returns the log lines for what changed from one Report to the next: each failure and recovery is logged once."""


def reuse_if_equal(before: _T, after: _T) -> _T:
    """Return `before` if both objects are equal, else `after`, so that readers can detect changes by identity."""
    return before if before == after else after
