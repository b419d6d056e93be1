"""What the all-reduce says of GPUs and the node, from results as runs make them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from judging import Ward, acknowledge
from sample_windows import HOLD, window

from gpumon.health.acknowledge import AckRequest, acknowledgement
from gpumon.health.policy import Policy
from gpumon.health.verdict import Action, Clearance, Level, VerdictChange
from gpumon.probe.core.preflight import REFUSED
from gpumon.probe.core.result import Comparison, Conditions, Location, ProbeResult
from gpumon.probe.core.state import ProbeState, end_run

MINUTE, HOUR = 60.0, 3600.0
LOW = Comparison(
    collective="all_reduce",
    algorithm="default",
    dtype="float32",
    bytes=1 << 30,
    busbw=380e9,
    baseline=475e9,
    spread=1e9,
    runs=30,
    runs_needed=5,
    low="baseline",
)


class Probed(Ward):
    """A ward at rest, whose probe has run on all of its GPUs, unless a test says otherwise."""

    def __init__(self, **values: Any) -> None:
        super().__init__(gpus=4, ports=0, **values)
        for index in range(len(self.report.gpus)):
            self.gpu(index, processes=0.0, utilization_ratio=0.0, memory_used_bytes=0.0)
        self.report = replace(
            self.report, probe=ProbeState(next_run=self.wall + HOUR, last_ended_at=self.moment.uptime)
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
    ) -> Probed:
        """A run has ended, just now. `blames`: the GPUs that it was traced to; `on`: how many took part."""
        located = None if blames is None else Location(sentence="GPU so and so.", gpus=self.uuids(*blames))
        gpus = self.uuids(*range(on)) if backend == "nccl" else ()
        result = ProbeResult(
            id=f"run-{self.at}",
            probe="allreduce",
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


def test_a_run_that_is_well_gives_no_verdict() -> None:
    """Nor does a node on which none has run yet."""
    assert not Probed().go_on(10 * MINUTE, every=30).verdicts
    assert not Probed().ran("ok").go_on(10 * MINUTE, every=30).verdicts


def test_a_slow_run_warns_of_the_node_in_numbers_until_one_is_not() -> None:
    """A skip, and a run that failed, take nothing back."""
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


def test_what_went_down_slowly_is_said_with_the_day_when_it_was_well() -> None:
    """The median, which went down with it, is not told: it would look as if nothing had changed."""
    drift = replace(LOW, baseline=385e9, best=475e9, best_date="2026-05-01", low="drift")
    verdict = Probed().ran("degraded", "drift", low=drift).go_on().verdict("allreduce_slow")
    assert verdict is not None
    assert verdict.reason == (
        "The all-reduce (default) measured 380 GB/s twice: 80% of 475 GB/s, reached by this host in runs up to "
        "2026-05-01; it has fallen slowly since."
    )
    assert verdict.evidence["low"] == "drift"


def test_a_slow_run_may_be_as_it_should_be() -> None:
    """A person who names the verdict says so; one who clears all that can be says nothing of it."""
    ward = Probed().ran("degraded", "baseline").go_on()
    here = {state.uuid for state in ward.report.gpus}
    [(kept, why)] = acknowledgement(AckRequest(), ward.report.health, here).refused
    assert (kept.check, "gpumon ack allreduce_slow" in why) == ("allreduce_slow", True)
    assert [one.check for one in acknowledge(ward, "allreduce_slow")] == ["allreduce_slow"]
    assert not ward.go_on(10 * MINUTE, every=30).verdicts
    assert ward.ran("degraded", "expected").go_on().level("allreduce_slow") is Level.WARN


def test_the_gpu_that_a_run_blames_has_the_verdict() -> None:
    """The node has none then; a path between two GPUs is nobody's alone."""
    ward = Probed().ran("degraded", "baseline", blames=(3,)).go_on()
    assert ward.level("gpu_allreduce_slow", 3) is Level.WARN
    assert ward.active_checks() == ["gpu_allreduce_slow"]
    ward = Probed().ran("degraded", "baseline", blames=(2, 3)).go_on()
    assert ward.active_checks() == ["allreduce_slow"]
    assert ward.verdicts["allreduce_slow", ""].reason.endswith("GPU so and so.")


def test_a_run_that_left_the_gpu_out_says_nothing_of_it() -> None:
    """The idle half of the node is well: that clears neither the GPU nor the node."""
    ward = Probed().ran("degraded", "baseline", blames=(3,)).go_on()
    ward.ran("ok", on=2).go_on(10 * MINUTE, every=30)
    assert ward.level("gpu_allreduce_slow", 3) is Level.WARN
    ward = Probed().ran("degraded", "baseline").go_on()
    ward.ran("ok", on=2).go_on(10 * MINUTE, every=30)
    assert ward.level("allreduce_slow") is Level.WARN


def test_a_slow_run_follows_from_the_link_that_is_down() -> None:
    """One fault, one verdict that is primary."""
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
def test_a_slow_gpu_follows_from_its_own_clocks_and_from_no_other_ones(
    blames: tuple[int, ...] | None, *, explained: bool
) -> None:
    """It is slow with every other GPU: what holds one of those back explains nothing. Of the node it explains all."""
    ward = Probed()
    for index in range(4):
        ward.gpu(index, utilization_ratio=0.97, clock_event_active={"hw_slowdown": float(index == 3)})
    ward.go_on(6.5 * MINUTE, every=15)
    assert ward.level("gpu_hw_slowdown", 3) is Level.FAIL
    ward.ran("degraded", "baseline", blames=blames).go_on(10)
    verdict = ward.verdict("gpu_allreduce_slow" if blames else "allreduce_slow")
    assert verdict is not None
    assert (verdict.inhibited_by is not None) is explained


def test_wrong_data_is_a_failure_of_the_gpu_it_comes_from_else_of_the_node() -> None:
    """And stays, though a later run is well: whoever corrupts silently is not trusted again by itself."""
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


def test_wrong_data_is_over_when_the_gpu_was_reset_and_a_run_is_well() -> None:
    """The reset alone proves nothing: the run that was wrong came before it."""
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


def test_the_all_reduce_fails_when_two_runs_in_a_row_do() -> None:
    """Before the first operation it is a warning; and on a CPU, where no GPU is in it."""
    assert not Probed().ran("failed", "ranks").go_on().verdicts
    for reason, backend, level in (
        ("ranks", "nccl", Level.FAIL),
        ("setup", "nccl", Level.WARN),
        ("ranks", "gloo", Level.WARN),
    ):
        ward = (
            Probed()
            .ran("timeout", "measure", backend=backend)
            .go_on(10 * MINUTE, every=30)
            .ran("skipped", "busy")
            .go_on()
        )
        ward.ran("failed", reason, backend=backend).go_on()
        assert ward.level("allreduce_failing") is level
        ward.ran("ok", backend=backend).go_on(70)
        assert not ward.verdicts


def test_a_timeout_before_the_first_operation_is_one_of_setup() -> None:
    """Its stage says so."""
    ward = Probed().ran("timeout", "join").go_on().ran("timeout", "join").go_on()
    verdict = ward.verdict("allreduce_failing")
    assert verdict is not None
    assert verdict.level is Level.WARN
    assert "2 times in a row; the last run timed out before its first operation." in verdict.reason


def test_how_many_failures_are_a_verdict_can_be_set() -> None:
    """Null switches it off."""
    for most, level in ((1.0, Level.FAIL), (None, Level.OK)):
        ward = Probed(policy=Policy(thresholds={"allreduce_failures": most}))
        ward.ran("failed", "ranks").go_on().ran("failed", "ranks").go_on()
        assert ward.level("allreduce_failing") is level


def test_ranks_that_cannot_be_killed_ask_for_a_reboot() -> None:
    """After a minute: a large memory takes its time to be given back. The agent's restart forgets nothing."""
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


def test_nobody_can_tell_when_nothing_came_of_the_probe_for_two_periods() -> None:
    """On a node that is free. A run ends it, and somebody at work does."""
    ward = Probed().ran("ok")
    assert not ward.go_on(12 * HOUR + 20 * MINUTE, every=300).verdicts
    verdict = ward.go_on(20 * MINUTE, every=120).verdict("allreduce_stale")
    assert verdict is not None
    assert (verdict.level, verdict.action) == (Level.UNKNOWN, Action.INSPECT)
    assert ward.ran("skipped", "low_memory").go_on().level("allreduce_stale") is Level.UNKNOWN
    assert not ward.ran("failed", "ranks").go_on().verdicts


def test_a_skip_is_no_run_where_nobody_is_in_the_way() -> None:
    """Memory that nobody's process holds, or a gate that is broken, would be no news for ever."""
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


def test_silence_is_counted_while_the_node_is_free() -> None:
    """A job that ends after days leaves two periods to the schedule; so do a hold and maintenance."""
    ward = Probed().ran("ok")
    ward.gpu(3, processes=1.0)
    ward.go_on(3 * 24 * HOUR, every=HOUR).ran("skipped", "busy")
    ward.gpu(3, processes=0.0)
    assert not ward.go_on(11 * HOUR, every=300).verdicts
    assert ward.go_on(2 * HOUR, every=300).level("allreduce_stale") is Level.UNKNOWN


def test_runs_of_our_own_do_not_count_as_use() -> None:
    """Runs that end without a word, again and again, are silence all the same."""
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


def test_a_held_node_is_not_stale_and_no_run_is_asked_for() -> None:
    """Not after a repair either: a run by request would be refused."""
    ward = Probed().ran("ok").go_on(MINUTE)
    ward.reset(3)
    hold = window(HOLD, start=ward.wall, start_at=ward.at, seconds=24 * HOUR, boot_id="boot-1")
    ward.report = replace(ward.report, windows=(hold,))
    assert not ward.go_on(14 * HOUR, every=300).verdicts
    ward.report = replace(ward.report, windows=())
    assert ward.go_on(35 * MINUTE, every=15).level("allreduce_stale") is Level.UNKNOWN


def test_a_node_that_is_busy_or_kept_from_probing_is_not_stale() -> None:
    """There is a reason, which somebody wants or knows."""
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
    off.probe(next_run=None)
    assert not off.go_on(14 * HOUR, every=600).verdicts


@pytest.mark.parametrize("what", ["reset", "replaced", "repaired"])
def test_nobody_can_tell_after_a_repair_until_the_next_run(what: str) -> None:
    """Half an hour is given to the schedule."""
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


def test_a_run_without_the_gpu_that_was_repaired_proves_nothing_of_it() -> None:
    """It was left out, as somebody used it."""
    ward = Probed().ran("ok").go_on(MINUTE)
    ward.reset(3)
    ward.go_on(MINUTE).ran("ok", on=3)
    assert ward.go_on(35 * MINUTE, every=15).level("allreduce_stale") is Level.UNKNOWN
    assert ward.ran("ok").go_on(10).level("allreduce_stale") is Level.OK


def test_a_repair_on_a_busy_node_waits_for_the_node_to_be_free() -> None:
    """Then a run comes by itself, or somebody is told."""
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
def test_what_a_run_found_can_be_acknowledged(check: str, outcome: str, blames: tuple[int, ...] | None) -> None:
    """And is not said again of the same run; the next one that finds it says it again."""
    ward = Probed().ran(outcome, blames=blames).go_on(MINUTE)
    assert [one.check for one in acknowledge(ward, check)] == [check]
    assert not ward.go_on(10 * MINUTE, every=30).verdicts
    assert ward.ran(outcome, blames=blames).go_on(10).level(check) > Level.OK


@pytest.mark.parametrize(("outcome", "blames"), [("wrong", None), ("wrong", (2,)), ("degraded", None)])
def test_what_a_run_found_is_over_after_a_reboot(outcome: str, blames: tuple[int, ...] | None) -> None:
    """With a run that is well; where none is to come, the reboot is all the proof there will be."""
    awaiting, off = Probed().ran(outcome, blames=blames).go_on(), Probed().ran(outcome, blames=blames).go_on()
    for ward in (awaiting, off):
        ward.reboot()
    off.probe(next_run=None)
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


def test_a_slow_run_of_last_week_says_nothing_any_more() -> None:
    """Nobody has run another."""
    ward = Probed().ran("degraded", "baseline")
    ward.probe(next_run=None)
    ward.go_on(6 * 24 * HOUR, every=HOUR)
    assert ward.level("allreduce_slow") is Level.WARN
    assert not ward.go_on(2 * 24 * HOUR, every=HOUR).verdicts
