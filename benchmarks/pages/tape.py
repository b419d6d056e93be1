"""Records /metrics of a node around a fault, in virtual time, to be replayed to a real Prometheus."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from gpumon_sim.faults.row import FaultRow
from gpumon_sim.profiles import PROFILES

from benchmarks.truth.measure import STEP_SECONDS, Trial, deadline, world_of
from benchmarks.truth.pairs import FIRST, SECOND, pairs
from benchmarks.truth.rows import MEASURED_FAULTS
from gpumon.health.alert_texts import text_of
from gpumon.health.check_row import Paging
from gpumon.health.table import BY_NAME
from gpumon.health.verdict import Level
from gpumon.outputs.prometheus import Renderer

PROFILE = "h100x8"
PAIRS = 20
BEFORE, AFTER = 30.0, 120.0
"""Seconds of the tape before the first verdict, and after the last one."""
VERDICT = re.compile(r'^gpumon_health_check\{check="(\w+)"([^}]*)\} ([23])$', re.MULTILINE)
TIMESTAMP = re.compile(r"^(gpumon_\w*_timestamp_seconds(?:\{[^}]*\})?) (\d{9,}\S*)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')

Place = tuple[str, str]
"""Alert, and gpu index or port of its device; empty for the node."""


@dataclass(frozen=True, slots=True)
class FaultCase:
    """One fault, or two faults on GPUs of one node."""

    names: tuple[str, ...]
    same_gpu: bool = False

    @property
    def title(self) -> str:
        where = " (same GPU)" if self.same_gpu else ""
        return " and ".join(self.names) + where

    @property
    def second_notification(self) -> str:
        """Return what a second notification is about; empty if none is due."""
        return next((fault.second_notification for fault in MEASURED_FAULTS if (fault.name,) == self.names), "")

    @property
    def faults(self) -> list[tuple[int, FaultRow]]:
        by_name = {fault.name: fault for fault in MEASURED_FAULTS}
        gpus = (FIRST, FIRST if self.same_gpu else SECOND)
        return [(gpu, by_name[name]) for gpu, name in zip(gpus, self.names, strict=False)]


class TapedPage(NamedTuple):
    """/metrics at one moment: seconds on the tape, virtual time in seconds since the epoch, content."""

    at: float
    wall: float
    compressed: bytes


@dataclass(frozen=True, slots=True)
class Tape:
    """/metrics of a node every few seconds."""

    case: FaultCase
    pages: tuple[TapedPage, ...]
    raised: dict[Place, float]
    """Seconds on the tape at which each alert's verdict is first exported."""
    expected: frozenset[Place]
    """Alerts of the checks that the faults must raise; if another verdict inhibits them, the alert of that one."""

    def page_at(self, seconds: float, wall: float) -> str:
        """Return the page of this time on the tape, its times moved to `wall`. The last page stays current."""
        number = next((n for n, page in enumerate(self.pages) if page.at > seconds), len(self.pages))
        page = self.pages[max(0, number - 1)]
        text = gzip.decompress(page.compressed).decode()
        return TIMESTAMP.sub(lambda match: f"{match[1]} {float(match[2]) + wall - page.wall:.3f}", text)


def cases() -> Iterator[FaultCase]:
    """Yield one fault for each check that pages, with the shortest story, then pairs of faults.

    Leave out a fault of a node that was already without a GPU, because the missing GPU is notified before it.
    """
    simplest: dict[str, FaultRow] = {}
    for fault in sorted(MEASURED_FAULTS, key=lambda fault: (len(fault.steps), deadline(fault))):
        check = BY_NAME[fault.check]
        paging = check.levels and check.pages is not Paging.NEVER
        if paging and not fault.miss and "gpus" not in fault.before and fault.on(PROFILES[PROFILE]):
            simplest.setdefault(fault.check, fault)
    yield from (FaultCase((simplest[check].name,)) for check in BY_NAME if check in simplest)
    named = [(one, other, same) for one, other, profile, same in pairs() if profile == PROFILE]
    for one, other, same in named[:: len(named) // PAIRS][:PAIRS]:
        yield FaultCase((one, other), same_gpu=same)


def places(page: str) -> Iterator[Place]:
    """Yield the alerts of the verdicts in a page."""
    for check, labels, level in VERDICT.findall(page):
        rule = text_of(check, Level(int(level)))
        if rule is not None and rule.page is not Paging.NEVER:
            values: dict[str, str] = dict(_LABEL.findall(labels))
            yield rule.name, values.get("gpu") or values.get("device") or ""


def record(case: FaultCase) -> Tape:
    """Return the tape of a case. Runs in virtual time, with the clocks of this process replaced."""
    faults = case.faults
    with world_of(PROFILE, [fault for _, fault in faults]) as world:
        trial = Trial(world, faults)
        renderer = Renderer(lambda: world.report)
        trial.begin()
        end = trial.end
        pages = list[tuple[float, str]]()
        last: float | None = None
        while trial.seconds_passed < end or (last is not None and trial.seconds_passed < last + AFTER):
            pages.append((world.clock, renderer.exposition().raw.decode()))
            trial.advance(STEP_SECONDS)
            if trial.complete:
                last = max(trial.raised_after[key] for key in trial.keys)
                end = min(end, last + AFTER)
    return _tape(case, pages, [fault.check for _, fault in faults])


def _tape(case: FaultCase, pages: Sequence[tuple[float, str]], checks: Sequence[str]) -> Tape:
    """Return the tape, without the time in which nothing happens between two verdicts."""
    raised: dict[Place, float] = {}
    for wall, page in pages:
        for place in places(page):
            raised.setdefault(place, wall)
    kept, at, on_tape = list[TapedPage](), 0.0, dict[float, float]()
    for (wall, page), (following, _) in pairwise([*pages, (pages[-1][0] + STEP_SECONDS, "")]):
        if any(begin - BEFORE <= wall <= begin + AFTER for begin in raised.values()):
            kept.append(TapedPage(at, wall, gzip.compress(page.encode(), 1)))
            on_tape[wall] = at
            at += following - wall
    alerts = {BY_NAME[check].alert for check in checks}
    of_faults = [place for place in raised if place[0].removesuffix("Warning") in alerts]
    expected = frozenset(of_faults or sorted(raised, key=lambda place: raised[place])[:1])
    return Tape(case, tuple(kept), {place: on_tape[wall] for place, wall in raised.items()}, expected)
