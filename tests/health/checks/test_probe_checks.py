"""Checks of probe results, and of the configured limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from judging import Ward, clear
from sample_windows import HOLD, window

from gpumon.health.clear_request import ClearRequest, requested_clearance
from gpumon.health.policy import Policy
from gpumon.health.run_conditions import repairs_since_run
from gpumon.health.verdict import Action, Clearance, Level, VerdictChange, VerdictTransition
from gpumon.model.instant import Instant
from gpumon.probe.core.preflight import REFUSED
from gpumon.probe.core.probe_metrics import METRICS
from gpumon.probe.core.result import Comparison, Conditions, Location, ProbeResult
from gpumon.probe.core.state import ProbeState, end_run

MINUTE, HOUR = 60.0, 3600.0
LOW = Comparison(
    operation="all_reduce",
    algorithm="default",
    dtype="float32",
    size=1 << 30,
    value=380e9,
    baseline=475e9,
    spread=1e9,
    runs=30,
    runs_needed=5,
    below_reference="baseline",
)


class Probed(Ward):
    """An idle node whose probe has run on all of its GPUs, unless a test changes that."""

    def __init__(self, **values: Any) -> None:
        super().__init__(gpus=4, ports=0, **values)
        for index in range(len(self.report.gpus)):
            self.gpu(index, processes=0.0, utilization_ratio=0.0, memory_used_bytes=0.0)
        self.report = replace(
            self.report, probe=ProbeState(next_runs={"allreduce": self.wall + HOUR}, began_at=self.moment.uptime)
        )

    def uuids(self, *indices: int) -> tuple[str, ...]:
        return tuple(self.report.gpus[index].uuid for index in indices)

    def ran(
        self,
        outcome: str,
        reason: str = "",
        *,
        blames: tuple[int, ...] | None = None,
        on: int = 4,
        backend: str = "nccl",
        low: Comparison = LOW,
        hint: str = "",
        probe: str = "allreduce",
    ) -> Probed:
        """A run has ended, just now. `blames`: the GPUs that it was traced to; `on`: how many took part."""
        located = None if blames is None else Location(message="GPU so and so.", gpus=self.uuids(*blames))
        gpus = self.uuids(*range(on)) if backend == "nccl" else ()
        result = ProbeResult(
            id=f"run-{self.at}",
            probe=probe,
            outcome=outcome,
            reason=reason,
            hint=hint,
            started=self.wall - 20,
            duration_seconds=20.0,
            backend=backend,
            ranks=on,
            conditions=Conditions(model="NVIDIA H100 80GB HBM3", gpus=gpus, host_gpus=len(self.report.gpus)),
            comparisons=(low,) if outcome == "degraded" else (),
            location=located,
            wrong_elements=7 if outcome == "wrong" else 0,
        )
        self.report = replace(
            self.report, probe=end_run(self.report.probe, result, at=self.at, uptime=self.moment.uptime)
        )
        return self

    def probe(self, **values: Any) -> None:
        self.report = replace(self.report, probe=replace(self.report.probe, **values))


def test_a_run_below_the_configured_limit_is_no_slow_run() -> None:
    """The check of the limit reports it, and would be inhibited by that of slow runs."""
    ward = Probed().ran("degraded", "limit")
    assert ward.verdict("allreduce_slow") is None


def test_a_probe_without_a_schedule_raises_no_verdict() -> None:
    """A run on request raises none. If the operator then sets a schedule, and later removes it, the verdict stays."""
    ward = Probed().ran("wrong", probe="copy")
    assert not ward.go_on(10 * MINUTE, every=30).verdicts
    unscheduled = ward.terms
    ward.terms = replace(ward.terms, probe_intervals={"copy": 24 * HOUR})
    assert ward.go_on(10 * MINUTE, every=30).level("copy_wrong") is Level.FAIL
    ward.terms = unscheduled
    assert ward.go_on(10 * MINUTE, every=30).level("copy_wrong") is Level.FAIL


def test_a_successful_run_raises_no_verdict() -> None:
    assert not Probed().go_on(10 * MINUTE, every=30).verdicts
    assert not Probed().ran("ok").go_on(10 * MINUTE, every=30).verdicts


def test_a_slow_run_is_a_warning_until_a_run_is_ok() -> None:
    """A skipped or a failed run does not clear the warning."""
    ward = Probed().ran("degraded", "baseline")
    verdict = ward.go_on().verdict("allreduce_slow")
    assert verdict is not None
    assert (verdict.device, verdict.level, verdict.action) == ("", Level.WARN, Action.INSPECT)
    assert verdict.reason == (
        "The all-reduce (default) measured 380 GB/s twice: 80% of 475 GB/s, this host's own median."
    )
    assert verdict.evidence["busbw_ratio"] == 0.8
    ward.ran("skipped", "busy").go_on(10 * MINUTE, every=30)
    ward.ran("failed", "ranks").go_on(10 * MINUTE, every=30)
    assert ward.level("allreduce_slow") is Level.WARN
    ward.ran("ok").go_on(70)
    assert not ward.verdicts


def test_a_slow_drift_is_compared_with_the_best_runs() -> None:
    """The reason names the best bandwidth and its date, not the median, which fell with it."""
    drift = replace(
        LOW,
        baseline=385e9,
        best=475e9,
        best_date="2026-05-01",
        below_reference="drift",
    )
    verdict = Probed().ran("degraded", "drift", low=drift).go_on().verdict("allreduce_slow")
    assert verdict is not None
    assert verdict.reason == (
        "The all-reduce (default) measured 380 GB/s twice: 80% of 475 GB/s, reached by this host in runs up to "
        "2026-05-01; it has fallen slowly since."
    )
    assert verdict.evidence["below_reference"] == "drift"


def test_a_slow_run_is_cleared_by_name_only() -> None:
    ward = Probed().ran("degraded", "baseline").go_on()
    here = {state.uuid for state in ward.report.gpus}
    [(refused, why)] = requested_clearance(ClearRequest(), ward.report.health, here).refused
    assert (refused.check, "gpumon clear allreduce_slow" in why) == ("allreduce_slow", True)
    assert [each.check for each in clear(ward, "allreduce_slow")] == ["allreduce_slow"]
    assert not ward.go_on(10 * MINUTE, every=30).verdicts
    assert ward.ran("degraded", "expected").go_on().level("allreduce_slow") is Level.WARN


def test_a_run_traced_to_one_gpu_is_a_verdict_of_that_gpu() -> None:
    ward = Probed().ran("degraded", "baseline", blames=(3,)).go_on()
    assert ward.level("gpu_allreduce_slow", 3) is Level.WARN
    assert ward.active_checks() == ["gpu_allreduce_slow"]
    ward = Probed().ran("degraded", "baseline", blames=(2, 3)).go_on()
    assert ward.active_checks() == ["allreduce_slow"]
    assert ward.verdicts["allreduce_slow", ""].reason.endswith("GPU so and so.")


def test_a_run_without_all_gpus_clears_no_verdict() -> None:
    """A successful run on half of the GPUs clears neither the verdict of a GPU nor that of the node."""
    ward = Probed().ran("degraded", "baseline", blames=(3,)).go_on()
    ward.ran("ok", on=2).go_on(10 * MINUTE, every=30)
    assert ward.level("gpu_allreduce_slow", 3) is Level.WARN
    ward = Probed().ran("degraded", "baseline").go_on()
    ward.ran("ok", on=2).go_on(10 * MINUTE, every=30)
    assert ward.level("allreduce_slow") is Level.WARN


def test_a_link_that_is_down_inhibits_a_slow_run() -> None:
    ward = Probed()
    for link in range(18):
        ward.link(3, link, up=1.0)
    ward.go_on(MINUTE)
    ward.link(3, 4, up=0.0)
    ward.go_on(5 * MINUTE)
    assert ward.level("nvlink_down", 3) > Level.OK
    ward.ran("degraded", "baseline", blames=(3,)).go_on(MINUTE)
    verdict = ward.verdict("gpu_allreduce_slow", 3)
    assert verdict is not None
    assert verdict.inhibited_by == ("nvlink_down", ward.report.gpus[3].uuid)


@pytest.mark.parametrize(("blames", "explained"), [((3,), True), ((2,), False), (None, True)])
def test_a_clock_slowdown_inhibits_a_slow_run_of_the_same_gpu(
    blames: tuple[int, ...] | None, *, explained: bool
) -> None:
    ward = Probed()
    for index in range(4):
        ward.gpu(index, utilization_ratio=0.97, clock_event_active={"hw_slowdown": float(index == 3)})
    ward.go_on(6.5 * MINUTE, every=15)
    assert ward.level("gpu_hw_slowdown", 3) is Level.FAIL
    ward.ran("degraded", "baseline", blames=blames).go_on(10)
    verdict = ward.verdict("gpu_allreduce_slow" if blames else "allreduce_slow")
    assert verdict is not None
    assert (verdict.inhibited_by is not None) is explained


def test_wrong_data_is_a_latched_failure() -> None:
    """Wrong data is a failure of the GPU it comes from, else of the node, and a later good run does not clear it."""
    ward = Probed().ran("wrong", blames=(2,)).go_on()
    verdict = ward.verdict("gpu_allreduce_wrong", 2)
    assert verdict is not None
    assert (verdict.level, verdict.action, verdict.evidence["wrong_elements"]) == (Level.FAIL, Action.REPLACE, 7.0)
    assert ward.active_checks() == ["gpu_allreduce_wrong"]
    ward.ran("ok").go_on(3 * HOUR, every=300)
    assert ward.level("gpu_allreduce_wrong", 2) is Level.FAIL
    ward = Probed().ran("wrong").go_on()
    node = ward.verdict("allreduce_wrong")
    assert node is not None
    assert (node.device, node.level, node.action) == ("", Level.FAIL, Action.INSPECT)


def test_wrong_data_clears_after_a_reset_and_a_good_run() -> None:
    ward = Probed().ran("wrong", blames=(2,)).go_on()
    ward.at += 1
    ward.reset(2)
    ward.go_on(10 * MINUTE)
    assert ward.level("gpu_allreduce_wrong", 2) is Level.FAIL
    ward.ran("ok").go_on(5 * MINUTE)
    assert ward.verdict("gpu_allreduce_wrong", 2) is None
    assert [transition.cleared_by for transition in ward.transitions if transition.change is VerdictChange.CLEARED][
        -1
    ] is Clearance.RESET


def test_two_failed_runs_in_a_row_raise_a_verdict() -> None:
    """Two failed runs are a failure, but a warning during setup, which is fixed in the software, or on a CPU."""
    assert not Probed().ran("failed", "ranks").go_on().verdicts
    for reason, backend, level, action in (
        ("ranks", "nccl", Level.FAIL, Action.INSPECT),
        ("setup", "nccl", Level.WARN, Action.FIX),
        ("ranks", "gloo", Level.WARN, Action.INSPECT),
    ):
        ward = (
            Probed()
            .ran("timeout", "measure", backend=backend)
            .go_on(10 * MINUTE, every=30)
            .ran("skipped", "busy")
            .go_on()
        )
        verdict = ward.ran("failed", reason, backend=backend).go_on().verdict("allreduce_failing")
        assert verdict is not None
        assert (verdict.level, verdict.action) == (level, action)
        ward.ran("ok", backend=backend).go_on(70)
        assert not ward.verdicts


def test_a_timeout_before_the_first_operation_is_a_warning() -> None:
    """The stage of the timeout shows that no operation has begun, so the action is to fix the software."""
    ward = Probed().ran("timeout", "join").go_on().ran("timeout", "join").go_on()
    verdict = ward.verdict("allreduce_failing")
    assert verdict is not None
    assert (verdict.level, verdict.action) == (Level.WARN, Action.FIX)
    assert "2 times in a row; the last run timed out before its first operation." in verdict.reason


def test_the_number_of_failed_runs_is_configurable() -> None:
    """One failure can be enough, and null disables the check."""
    for limit, level in ((1.0, Level.FAIL), (None, Level.OK)):
        ward = Probed(policy=Policy(thresholds={"probe_failures": limit}))
        ward.ran("failed", "ranks").go_on().ran("failed", "ranks").go_on()
        assert ward.level("allreduce_failing") is level


def test_unkillable_ranks_ask_for_a_reboot() -> None:
    """Ranks that remain for a minute fail the node until a reboot, also after a restart of the agent."""
    ward = Probed()
    ward.probe(unkillable=(4711,))
    assert not ward.go_on(30).verdicts
    ward.probe(unkillable=())
    assert not ward.go_on(2 * MINUTE).verdicts
    ward.probe(unkillable=(4711, 4712))
    verdict = ward.go_on(70).verdict("allreduce_unkillable")
    assert verdict is not None
    assert (verdict.device, verdict.level, verdict.action) == ("", Level.FAIL, Action.REBOOT)
    ward.restart()
    ward.probe(unkillable=())
    ward.go_on(10 * MINUTE, every=30)
    assert ward.level("allreduce_unkillable") is Level.FAIL
    ward.reboot()
    ward.go_on(30 * MINUTE, every=60)
    assert ward.verdict("allreduce_unkillable") is None


def test_a_free_node_without_a_run_for_two_periods_is_stale() -> None:
    """Without a run for two periods the verdict is unknown; any run, but no skip, clears it."""
    ward = Probed().ran("ok")
    assert not ward.go_on(12 * HOUR + 20 * MINUTE, every=300).verdicts
    verdict = ward.go_on(20 * MINUTE, every=120).verdict("allreduce_stale")
    assert verdict is not None
    assert (verdict.level, verdict.action) == (Level.UNKNOWN, Action.FIX)
    assert ward.ran("skipped", "low_memory").go_on().level("allreduce_stale") is Level.UNKNOWN
    assert not ward.ran("failed", "ranks").go_on().verdicts


def test_a_skip_without_a_job_on_the_node_does_not_count_as_a_run() -> None:
    """Runs that are skipped although the node is free leave the probe stale."""
    for reason, gated in (
        ("busy", False),
        ("low_memory", False),
        ("no_scheduler_gate", True),
        ("scheduler_gate_failed", False),
    ):
        ward = Probed().ran("ok")
        ward.terms = replace(ward.terms, probe_gated=gated)
        for _ in range(3):
            ward.go_on(6 * HOUR, every=600).ran("skipped", reason, hint="So and so.")
        verdict = ward.go_on(10).verdict("allreduce_stale")
        assert verdict is not None
        assert verdict.reason.endswith(f"The last run was skipped ({reason}). So and so.")


def test_staleness_is_counted_while_the_node_is_free() -> None:
    """After a long job the schedule has two periods for the next run."""
    ward = Probed().ran("ok")
    ward.gpu(3, processes=1.0)
    ward.go_on(3 * 24 * HOUR, every=HOUR).ran("skipped", "busy")
    ward.gpu(3, processes=0.0)
    assert not ward.go_on(11 * HOUR, every=300).verdicts
    assert ward.go_on(2 * HOUR, every=300).level("allreduce_stale") is Level.UNKNOWN


def test_processes_of_the_probe_do_not_make_the_node_busy() -> None:
    """Repeated runs of the probe without a result make it stale."""
    ward = Probed().ran("ok")
    uuid = ward.report.gpus[3].uuid
    for _ in range(4):
        ward.go_on(3.5 * HOUR, every=300)
        ward.gpu(3, processes=1.0)
        ward.probe(gpus=(uuid,))
        ward.go_on(MINUTE)
        ward.gpu(3, processes=0.0)
        ward.probe(gpus=())
        ward.ran("skipped", "busy", hint="GPU 3 could not be read.")
    assert ward.go_on(10).level("allreduce_stale") is Level.UNKNOWN


def test_a_held_node_is_not_stale() -> None:
    """A hold prevents the stale verdict, also after a reset."""
    ward = Probed().ran("ok").go_on(MINUTE)
    ward.reset(3)
    hold = window(HOLD, start=ward.wall, start_at=ward.at, seconds=24 * HOUR, boot_id="boot-1")
    ward.report = replace(ward.report, windows=(hold,))
    assert not ward.go_on(14 * HOUR, every=300).verdicts
    ward.report = replace(ward.report, windows=())
    assert ward.go_on(35 * MINUTE, every=15).level("allreduce_stale") is Level.UNKNOWN


def test_a_busy_or_excluded_node_is_not_stale() -> None:
    """A busy node, a refusal by the scheduler and a disabled probe are not stale."""
    busy = Probed().ran("ok")
    busy.gpu(3, processes=1.0)
    assert not busy.go_on(14 * HOUR, every=600).verdicts
    for reason, hint in (
        ("no_scheduler_gate", ""),
        ("disabled", ""),
        ("busy", f"{REFUSED} (probe.scheduler_gate): no"),
    ):
        assert not Probed().ran("skipped", reason, hint=hint).go_on(14 * HOUR, every=600).verdicts
    off = Probed().ran("ok")
    off.probe(next_runs={})
    assert not off.go_on(14 * HOUR, every=600).verdicts


@pytest.mark.parametrize("what", ["reset", "replaced", "repaired"])
def test_the_probe_is_stale_half_an_hour_after_a_repair(what: str) -> None:
    """After a repair the schedule has half an hour for the next run."""
    ward = Probed()
    if what == "repaired":
        ward.fault(3, "reset_required")
        ward.go_on()
    ward.ran("ok").go_on(MINUTE)
    if what == "replaced":
        ward.gpu(3, state={"uuid": "GPU-brand-new"})
    else:
        ward.reset(3)
    ward.go_on(20 * MINUTE, every=15)
    assert ward.level("allreduce_stale") is Level.OK
    ward.go_on(15 * MINUTE, every=15)
    verdict = ward.verdict("allreduce_stale")
    assert verdict is not None
    assert verdict.level is Level.UNKNOWN
    assert verdict.reason.startswith("No all-reduce has run since ")
    ward.ran("ok").go_on(10)
    assert ward.level("allreduce_stale") is Level.OK


def test_the_repair_of_a_port_asks_for_no_run() -> None:
    """A failed port that an operator cleared leaves the results of the all-reduce as they are."""
    ward = Probed()
    ward.fault(3, "reset_required")
    [verdict] = ward.go_on().verdicts.values()
    report = ward.ran("ok").report

    def repairs(device: str) -> list[str]:
        failed = verdict._replace(device=device)
        now = Instant(ward.report.boot_id, ward.at, ward.wall)
        later = now._replace(at=ward.at + 1, wall=ward.wall + 1)
        cleared = VerdictTransition(failed, VerdictChange.CLEARED, later, cleared_by=Clearance.OPERATOR)
        found = repairs_since_run(report.probe.ran, report.gpus, [cleared], now)
        return [repair.uuid for repair in found]

    assert repairs("mlx5_0/1") == []
    assert repairs(verdict.device) == [verdict.device]


def test_a_run_without_the_repaired_gpu_leaves_the_probe_stale() -> None:
    ward = Probed().ran("ok").go_on(MINUTE)
    ward.reset(3)
    ward.go_on(MINUTE).ran("ok", on=3)
    assert ward.go_on(35 * MINUTE, every=15).level("allreduce_stale") is Level.UNKNOWN
    assert ward.ran("ok").go_on(10).level("allreduce_stale") is Level.OK


def test_the_time_after_a_repair_counts_while_the_node_is_free() -> None:
    """The half hour after a repair starts again when the node becomes free."""
    ward = Probed().ran("ok").go_on(MINUTE)
    ward.reset(3)
    ward.gpu(3, processes=1.0)
    assert not ward.go_on(3 * HOUR, every=300).verdicts
    ward.gpu(3, processes=0.0)
    ward.go_on(20 * MINUTE, every=15)
    ward.gpu(3, processes=1.0)
    ward.go_on(MINUTE)
    ward.gpu(3, processes=0.0)
    assert not ward.go_on(20 * MINUTE, every=15).verdicts
    assert ward.go_on(15 * MINUTE, every=15).level("allreduce_stale") is Level.UNKNOWN
    ward.gpu(3, processes=1.0)
    assert not ward.go_on().verdicts


@pytest.mark.parametrize(
    ("check", "outcome", "blames"),
    [
        ("allreduce_wrong", "wrong", None),
        ("gpu_allreduce_wrong", "wrong", (2,)),
        ("allreduce_slow", "degraded", None),
        ("gpu_allreduce_slow", "degraded", (2,)),
    ],
)
def test_the_verdict_of_a_run_can_be_cleared(check: str, outcome: str, blames: tuple[int, ...] | None) -> None:
    """A cleared verdict is raised again only by the next run with that outcome."""
    ward = Probed().ran(outcome, blames=blames).go_on(MINUTE)
    assert [each.check for each in clear(ward, check)] == [check]
    assert not ward.go_on(10 * MINUTE, every=30).verdicts
    assert ward.ran(outcome, blames=blames).go_on(10).level(check) > Level.OK


@pytest.mark.parametrize(("outcome", "blames"), [("wrong", None), ("wrong", (2,)), ("degraded", None)])
def test_the_verdict_of_a_run_clears_after_a_reboot(outcome: str, blames: tuple[int, ...] | None) -> None:
    """The verdict clears with the next good run, or with the reboot alone if no run is scheduled."""
    awaiting, off = Probed().ran(outcome, blames=blames).go_on(), Probed().ran(outcome, blames=blames).go_on()
    for ward in (awaiting, off):
        ward.reboot()
    off.probe(next_runs={})
    for ward in (awaiting, off):
        ward.go_on(20 * MINUTE, every=15)
    assert {"allreduce_wrong", "gpu_allreduce_wrong", "allreduce_slow"} & set(awaiting.active_checks())
    assert not off.verdicts
    awaiting.ran("ok").go_on(15 * MINUTE, every=15)
    assert not awaiting.verdicts
    for ward in (awaiting, off):
        assert [transition.cleared_by for transition in ward.transitions if transition.change is VerdictChange.CLEARED][
            -1
        ] is Clearance.REBOOT


def test_the_verdict_of_a_slow_run_expires() -> None:
    """A slow run without a later run is a warning for six days at least."""
    ward = Probed().ran("degraded", "baseline")
    ward.probe(next_runs={})
    ward.go_on(6 * 24 * HOUR, every=HOUR)
    assert ward.level("allreduce_slow") is Level.WARN
    assert not ward.go_on(2 * 24 * HOUR, every=HOUR).verdicts


def node_with_results(
    *,
    latency: dict[str, float] | None = None,
    busbw: dict[str, float] | None = None,
    thresholds: Mapping[str, float | None] | None = None,
) -> Ward:
    """Return a node whose last run has these results, after a minute."""
    ward = Ward(gpus=2, ports=0, policy=Policy(thresholds=thresholds or {}))
    probe = ward.report.probe
    metrics = {"allreduce": replace(METRICS["allreduce"](), latency_seconds=latency, busbw_bytes_per_second=busbw)}
    ward.report = replace(ward.report, probe=replace(probe, metrics=metrics))
    return ward.go_on(60)


def test_a_median_latency_above_two_milliseconds_is_a_warning() -> None:
    """The smallest size on GPUs counts; other sizes, percentiles and backends do not."""
    others = {"nccl,ring,1048576,p50": 0.1, "nccl,ring,1024,p99": 0.1, "gloo,ring,1024,p50": 0.1}
    assert node_with_results(latency={**others, "nccl,ring,1024,p50": 0.0019}).verdict("allreduce_latency_high") is None
    verdict = node_with_results(latency={"nccl,tree,1024,p50": 0.001, "nccl,ring,1024,p50": 0.004}).verdict(
        "allreduce_latency_high"
    )
    assert verdict is not None
    assert verdict.level is Level.WARN
    assert verdict.reason == (
        "Half of the ring all-reduces of 1024 bytes took longer than 4.0 ms; the limit is 2.0 ms."
    )
    off = node_with_results(
        latency={"nccl,ring,1024,p50": 0.004}, thresholds={"max_allreduce_nccl_latency_seconds": None}
    )
    assert off.verdict("allreduce_latency_high") is None


def test_a_bandwidth_below_the_configured_limit_is_a_warning() -> None:
    """Off by default. The best size of each algorithm counts, and each backend has its own limit."""
    busbw = {"nccl,ring,1024": 1e6, "nccl,ring,1048576": 2e11}
    name = "min_allreduce_nccl_busbw_bytes_per_second"
    cases: tuple[tuple[dict[str, float | None], Level], ...] = (
        ({}, Level.OK),
        ({name: 1.5e11}, Level.OK),
        ({name: 2.5e11}, Level.WARN),
        ({"min_allreduce_gloo_busbw_bytes_per_second": 2.5e11}, Level.OK),
    )
    for thresholds, expected in cases:
        ward = node_with_results(busbw=busbw, thresholds=thresholds)
        assert ward.level("allreduce_bandwidth_low") is expected, thresholds
