"""What goes down slowly takes the median with it, and is told all the same."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gpumon.health.node_health import Health
from gpumon.health.verdict import WARN, Action, Clearance, Verdict, VerdictChange, VerdictTransition
from gpumon.outputs.probe_table import comparison_sentence
from gpumon.probe.core.baseline import MAX_RUNS, Floors, Judge
from gpumon.probe.core.conclusion import conclude
from gpumon.probe.core.frames import Account, Progress, Sized
from gpumon.probe.core.passes import Ending, Pass
from gpumon.probe.core.plan import Run, make_plans
from gpumon.probe.core.probes import GIB, PROBES
from gpumon.probe.core.result import Comparison, Measurement, ProbeResult, from_document, to_document
from gpumon.probe.core.state import ProbeState, end_run, restore
from gpumon.probe.runner.assessment import make_judge
from gpumon.state.report import Report

DAY, BEGAN = 86400.0, 1_767_225_600.0
"""2026-01-01."""
PROBE = PROBES["allreduce"]
[PLAN, _] = make_plans(PROBE, ["GPU-0", "GPU-1"], python="python")
FIRST = 450e9


class Host:
    """Runs the probe four times a day; what is good makes the median of the next."""

    def __init__(self) -> None:
        self.report = Report(started=0.0)
        self.runs = 0

    @property
    def wall(self) -> float:
        return BEGAN + self.runs * DAY / 4

    def judge(self) -> Judge:
        return make_judge(PROBE, PLAN, self.report, Floors(expected=0.0))

    def ran(self, busbw: float) -> Comparison:
        """A run that came to this, as it was judged."""
        measured = Measurement(
            bytes=GIB,
            iterations=20,
            algbw_bytes_per_second=busbw,
            busbw_bytes_per_second=busbw,
            latency_seconds={"p50": 1.0},
            wrong_elements=0,
        )
        judge = self.judge()
        comparison = judge.compare(measured, ranks=2, versions={})
        result = ProbeResult(
            id=f"r{self.runs}",
            probe=PROBE.name,
            outcome="degraded" if comparison.low else "ok",
            reason=comparison.low,
            started=self.wall,
            backend="nccl",
            ranks=2,
            conditions=judge.conditions,
            settings=PLAN.settings,
            measurements=(measured,),
            comparisons=(comparison,),
        )
        self.runs += 1
        self.report = replace(self.report, probe=end_run(self.report.probe, result))
        return comparison

    def declined(self, weekly: float = 0.01, weeks: int = 30) -> Comparison:
        """The first run that is low while it goes down by this share a week."""
        for number in range(28 * weeks):
            comparison = self.ran(FIRST * (1 - weekly) ** (number / 28))
            if comparison.low:
                return comparison
        pytest.fail("nobody was told")

    def forget(self) -> None:
        """Restart: what is known is what was stored."""
        stored = [from_document(json.loads(json.dumps(to_document(one)))) for one in self.report.probe.results]
        self.report = replace(self.report, probe=restore(ProbeState(), stored, {}, {}))

    def acknowledge(self) -> None:
        verdict = Verdict(
            check="allreduce_slow",
            device="",
            level=WARN,
            reason="",
            action=Action.INSPECT,
            since=0.0,
            seen=0.0,
            seen_at=0.0,
            boot_id="",
        )
        told = VerdictTransition(
            verdict=verdict, change=VerdictChange.CLEARED, wall=self.wall, cleared_by=Clearance.ACKNOWLEDGED
        )
        self.report = replace(self.report, health=Health(history=(told,)))


def test_a_host_that_loses_a_hundredth_a_week_is_told() -> None:
    """Never far below the median, which follows it; when a tenth of the best is gone it is low, and stays so."""
    host = Host()
    low = host.declined()
    assert low.low == "drift"
    assert low.baseline is not None
    assert low.best is not None
    assert low.busbw > 0.98 * low.baseline
    assert low.busbw == pytest.approx(0.9 * low.best, rel=0.01)
    assert low.best == pytest.approx(FIRST, rel=0.01)
    assert low.best_date == "2026-01-08"
    assert host.ran(low.busbw).low == "drift"


def test_the_best_is_known_after_a_restart() -> None:
    """It is handed on from run to run, though those it was made of are long forgotten."""
    host = Host()
    before = host.declined()
    host.forget()
    after = host.ran(before.busbw)
    assert (after.low, after.best, after.best_date) == ("drift", before.best, before.best_date)


def test_there_is_no_best_before_a_whole_window() -> None:
    """A few lucky runs ask nothing of those that come."""
    host = Host()
    assert [host.ran(FIRST).best for _ in range(MAX_RUNS)] == [None] * MAX_RUNS
    assert host.ran(FIRST).best == FIRST


def test_a_host_that_came_to_be_faster_is_held_to_that() -> None:
    """The highest median counts, whenever it was; a single fast run makes none."""
    host = Host()
    for busbw in (*(FIRST,) * 40, *(500e9,) * 40, 900e9):
        host.ran(busbw)
    assert host.ran(500e9).best == 500e9


def test_what_was_acknowledged_as_slow_begins_anew() -> None:
    """Median and best, and they do not come back when the ruling is long forgotten."""
    host = Host()
    low = host.declined()
    host.acknowledge()
    fresh = host.ran(low.busbw)
    assert (fresh.low, fresh.baseline, fresh.best, fresh.runs) == ("", None, None, 0)
    host.report = replace(host.report, health=Health())
    host.forget()
    assert host.judge().conditions.accepted
    assert [host.ran(low.busbw).low for _ in range(MAX_RUNS)] == [""] * MAX_RUNS
    assert host.ran(low.busbw).best == pytest.approx(low.busbw)
    assert host.declined(weekly=0.02).low == "drift"


def test_the_result_says_that_it_was_acknowledged() -> None:
    """Else nobody knows why there is no median."""
    host = Host()
    for _ in range(5):
        host.ran(FIRST)
    host.acknowledge()
    assert host.judge().changed_conditions(2, {}) == "slowness was acknowledged at 2026-01-02T06:00:00Z"


def test_drift_is_said_in_words_of_its_own() -> None:
    """Of the runs that it is compared with the date is told: the median says nothing."""
    host = Host()
    low = host.declined()
    seconds = 20 * (GIB / low.busbw,)
    told = [
        Account(
            progress=Progress(rank=rank, stage="end", ratio=1.0),
            sizes={(0, size): Sized(seconds=seconds, wrong=0) for size in PLAN.setting.sizes},
            stepped=1,
            done=True,
            status=0,
        )
        for rank in range(2)
    ]
    one = Pass(plan=PLAN, steps=PLAN.measures, accounts=told, ending=Ending(duration=1.0))
    result = conclude(Run(id="one", trigger="request", started=host.wall), [one], host.judge(), 1.0)
    assert (result.outcome, result.reason) == ("degraded", "drift")
    assert "(this host's best median, in runs up to 2026-01-08; it has fallen slowly since)." in result.hint
    assert "of 448 GB/s (its best median, until 2026-01-08)" in comparison_sentence(result.comparisons[-1])
