"""The probe in /metrics: each name and label, after runs with every outcome, and after a restart."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import example_node as example
from changed_report import new_report

from gpumon.outputs.prometheus import Renderer
from gpumon.probe.core.probe_metrics import INITIAL
from gpumon.probe.core.result import OUTCOMES, ProbeCounters, ProbeResult
from gpumon.probe.core.state import ProbeState, end_run, restore

GOLDEN = Path(__file__).parents[1] / "golden" / "probe.metrics"
GOOD = example.run(5)
NOTHING = replace(GOOD, measurements=(), comparisons=(), wrong_elements=None)
RUNS = (
    GOOD,
    replace(example.run(4, peak=400e9), outcome="degraded", reason="baseline"),
    replace(example.run(3), outcome="wrong", wrong_elements=3),
    replace(NOTHING, id="late", started=example.run(2).started, outcome="timeout", reason="join"),
    replace(NOTHING, id="bad", started=example.run(1).started, outcome="failed", reason="setup", duration_seconds=2.5),
    replace(NOTHING, id="skip", started=example.run(0).started, outcome="skipped", reason="held", ranks=0),
)


def after(runs: Sequence[ProbeResult]) -> ProbeState:
    state = ProbeState(metrics=INITIAL)
    for run in runs:
        state = end_run(state, run)
    return state


def page(state: ProbeState, *, restored: bool = True) -> str:
    report = new_report(probe=state, restored=restored)
    lines = Renderer(lambda: report).render(report).splitlines(keepends=True)
    return "".join(line for line in lines if "gpumon_probe_" in line)


def test_the_metrics_of_the_probe_are_the_golden_ones() -> None:
    """Compare bytes after a run of each outcome; UPDATE_GOLDEN=1 rewrites the file, whose diff is reviewed."""
    assert {run.outcome for run in RUNS} == set(OUTCOMES)
    shown = page(after(RUNS))
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(shown, encoding="utf-8")

    assert shown == GOLDEN.read_text(encoding="utf-8")


def test_a_restart_changes_no_metric_of_the_probe() -> None:
    """Results and counters from the store give the same page."""
    before = after(RUNS)
    metrics = before.metrics["allreduce"]
    outcomes, reasons = (
        {name: int(n) for name, n in (t or {}).items()} for t in (metrics.runs_total, metrics.skips_total)
    )
    stored = {"allreduce": ProbeCounters(outcomes=outcomes, reasons=reasons)}
    state = restore(ProbeState(metrics=INITIAL), RUNS, stored)
    assert page(state) == page(before)


def test_no_counter_is_exported_before_the_store_was_read() -> None:
    """Else it would fall to 0 at each restart of the agent, which Prometheus counts as a reset."""
    assert "_total{" not in page(after(()), restored=False)
    assert "_total{" in page(after(()))
