"""Detection of a slow decline, during which the median declines too."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gpumon.health.node_health import Health
from gpumon.health.verdict import WARN, Action, Clearance, Verdict, VerdictChange, VerdictTransition
from gpumon.model.instant import Instant
from gpumon.outputs.probe_text import comparison_sentence
from gpumon.probe.core.baseline import MAX_RUNS, Floors, Judge
from gpumon.probe.core.conclusion import conclude
from gpumon.probe.core.frames import Account, Progress, Sized
from gpumon.probe.core.passes import Ending, Pass
from gpumon.probe.core.plan import Run, make_plans
from gpumon.probe.core.probes import GIB, PROBES
from gpumon.probe.core.result import Comparison, Measurement, ProbeResult, from_document, to_document
from gpumon.probe.core.state import ProbeState, end_run, restore
from gpumon.runner.assessment import make_judge
from gpumon.state.report import Report

DAY, BEGAN = 86400.0, 1_767_225_600.0
"""2026-01-01T00:00:00Z."""
PROBE = PROBES["allreduce"]
[PLAN, _] = make_plans(PROBE, ["GPU-0", "GPU-1"], python="python")
FIRST = 450e9


class DriftingHost:
    """A host that runs the probe four times a day and keeps its state."""

    def __init__(self) -> None:
        self.report = Report(started=0.0)
        self.runs = 0

    @property
    def wall(self) -> float:
        return BEGAN + self.runs * DAY / 4

    def judge(self) -> Judge:
        return make_judge(PROBE, PLAN, self.report, Floors(expected=0.0))

    def run(self, busbw: float) -> Comparison:
        """Run the probe with this result, and return its comparison."""
        measured = Measurement(
            size=GIB,
            iterations=20,
            raw_value=busbw,
            value=busbw,
            latency_seconds={"p50": 1.0},
            wrong_elements=0,
        )
        judge = self.judge()
        comparison = judge.compare(measured, ranks=2, versions={})
        result = ProbeResult(
            id=f"r{self.runs}",
            probe=PROBE.name,
            outcome="degraded" if comparison.below_reference else "ok",
            reason=comparison.below_reference,
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

    def decline_until_low(self, weekly: float = 0.01, weeks: int = 30) -> Comparison:
        """Return the first low comparison while the bandwidth declines by this share each week."""
        for number in range(28 * weeks):
            comparison = self.run(FIRST * (1 - weekly) ** (number / 28))
            if comparison.below_reference:
                return comparison
        pytest.fail("no run was low")

    def restart(self) -> None:
        """Restart the agent with the stored results only."""
        stored = [from_document(json.loads(json.dumps(to_document(result)))) for result in self.report.probe.results]
        self.report = replace(self.report, probe=restore(ProbeState(), stored, {}))

    def clear(self) -> None:
        verdict = Verdict(
            check="allreduce_slow",
            device="",
            level=WARN,
            reason="",
            action=Action.INSPECT,
            raised=Instant("", 0.0, 0.0),
            last_active=Instant("", 0.0, 0.0),
        )
        transition = VerdictTransition(
            verdict=verdict,
            change=VerdictChange.CLEARED,
            time=Instant("", 0.0, self.wall),
            cleared_by=Clearance.OPERATOR,
        )
        self.report = replace(self.report, health=Health(history=(transition,)))


def test_a_decline_of_one_percent_a_week_is_reported() -> None:
    """A run is low with reason "drift" when it is 10% below the best median, and remains low."""
    host = DriftingHost()
    low = host.decline_until_low()
    assert low.below_reference == "drift"
    assert low.baseline is not None
    assert low.best is not None
    assert low.value > 0.98 * low.baseline
    assert low.value == pytest.approx(0.9 * low.best, rel=0.01)
    assert low.best == pytest.approx(FIRST, rel=0.01)
    assert low.best_date == "2026-01-08"
    assert host.run(low.value).below_reference == "drift"


def test_the_best_median_survives_a_restart() -> None:
    host = DriftingHost()
    before = host.decline_until_low()
    host.restart()
    after = host.run(before.value)
    assert (after.below_reference, after.best, after.best_date) == (
        "drift",
        before.best,
        before.best_date,
    )


def test_there_is_no_best_before_a_whole_window() -> None:
    host = DriftingHost()
    assert [host.run(FIRST).best for _ in range(MAX_RUNS)] == [None] * MAX_RUNS
    assert host.run(FIRST).best == FIRST


def test_a_faster_host_has_a_higher_best_median() -> None:
    host = DriftingHost()
    for busbw in (*(FIRST,) * 40, *(500e9,) * 40, 900e9):
        host.run(busbw)
    assert host.run(500e9).best == 500e9


def test_a_cleared_slowness_restarts_median_and_best() -> None:
    host = DriftingHost()
    low = host.decline_until_low()
    host.clear()
    fresh = host.run(low.value)
    assert (fresh.below_reference, fresh.baseline, fresh.best, fresh.runs) == (
        "",
        None,
        None,
        0,
    )
    host.report = replace(host.report, health=Health())
    host.restart()
    assert host.judge().conditions.accepted
    assert [host.run(low.value).below_reference for _ in range(MAX_RUNS)] == [""] * MAX_RUNS
    assert host.run(low.value).best == pytest.approx(low.value)
    assert host.decline_until_low(weekly=0.02).below_reference == "drift"


def test_a_cleared_slowness_is_reported_as_a_changed_condition() -> None:
    host = DriftingHost()
    for _ in range(5):
        host.run(FIRST)
    host.clear()
    assert host.judge().changed_conditions(2, {}) == "an operator accepted the bandwidth at 2026-01-02T06:00:00Z"


def test_the_hint_of_a_drift_names_the_best_median() -> None:
    """The hint of a drift gives the best median and the date of its last run."""
    host = DriftingHost()
    low = host.decline_until_low()
    seconds = 20 * (GIB / low.value,)
    accounts = [
        Account(
            progress=Progress(rank=rank, stage="end", ratio=1.0),
            sizes={(0, size): Sized(seconds=seconds, wrong=0) for size in PLAN.setting.sizes},
            stepped=1,
            done=True,
            status=0,
        )
        for rank in range(2)
    ]
    finished = Pass(plan=PLAN, steps=PLAN.measures, accounts=accounts, ending=Ending(duration=1.0))
    result = conclude(Run(id="one", trigger="request", started=host.wall), [finished], host.judge(), 1.0)
    assert (result.outcome, result.reason) == ("degraded", "drift")
    assert "(this host's best median, in runs up to 2026-01-08; it has fallen slowly since)." in result.hint
    assert "of 448 GB/s (its best median, until 2026-01-08)" in comparison_sentence(result.comparisons[-1], "allreduce")
