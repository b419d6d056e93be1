from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from each_case import each_case

from gpumon.probe.core.baseline import ENOUGH_RUNS, MAX_RUNS, Floors, Judge, own_settings
from gpumon.probe.core.plan import make_plans
from gpumon.probe.core.probe_metrics import INITIAL
from gpumon.probe.core.probes import ALGORITHMS, GIB, PROBES
from gpumon.probe.core.result import (
    OUTCOMES,
    Comparison,
    Conditions,
    Measurement,
    ProbeCounters,
    ProbeResult,
    from_document,
    to_document,
)
from gpumon.probe.core.state import MAX_RESULTS, ProbeState, end_run, restore

HERE = Conditions(model="NVIDIA H200", gpus=("GPU-1", "GPU-2"), driver="580.65", host_gpus=2)
SETTINGS = {"NCCL_RAS_ENABLE": "0"}
VERSIONS = {"torch": "2.13.0", "nccl": "2.30.7", "cuda": "13.2", "python": "3.12.1"}


def make_measurement(busbw: float) -> Measurement:
    return Measurement(
        size=GIB,
        iterations=20,
        raw_value=busbw,
        value=busbw,
        latency_seconds={"p50": 1.0, "p95": 1.0, "p99": 1.0},
        wrong_elements=0,
    )


def run(
    number: int,
    busbw: float = 450e9,
    *,
    outcome: str = "ok",
    conditions: Conditions = HERE,
    versions: Mapping[str, str] = VERSIONS,
    settings: Mapping[str, str] = SETTINGS,
) -> ProbeResult:
    return ProbeResult(
        id=f"r{number}",
        probe="allreduce",
        outcome=outcome,
        reason="busy" if outcome == "skipped" else "",
        started=1000.0 + number,
        backend="nccl",
        ranks=len(conditions.gpus),
        versions=versions,
        conditions=conditions,
        settings=settings,
        measurements=() if outcome == "skipped" else (make_measurement(busbw),),
    )


def state_after(*results: ProbeResult) -> ProbeState:
    state = ProbeState(metrics=INITIAL)
    for result in results:
        state = end_run(state, result)
    return state


def judge_with(state: ProbeState) -> Judge:
    return Judge(probe="allreduce", backend="nccl", conditions=HERE, settings=SETTINGS, history=state.good)


def compare_with(
    state: ProbeState,
    busbw: float = 450e9,
    *,
    conditions: Conditions = HERE,
    versions: Mapping[str, str] = VERSIONS,
    floors: Floors = Floors(),  # noqa: B008 - frozen
) -> Comparison:
    judge = replace(judge_with(state), conditions=conditions, floors=floors)
    return judge.compare(make_measurement(busbw), ranks=len(conditions.gpus), versions=versions)


def test_a_host_has_a_median_after_five_good_runs() -> None:
    """A host with fewer than five good runs has no baseline, and the comparison gives the number of missing runs."""
    few = compare_with(state_after(*map(run, range(ENOUGH_RUNS - 1))), 1e9)
    assert (few.baseline, few.runs, few.runs_needed, few.below_reference) == (None, 4, 5, "")
    rates = (440e9, 445e9, 450e9, 455e9, 460e9)
    enough = compare_with(state_after(*(run(number, rate) for number, rate in enumerate(rates))), 400e9)
    assert (enough.baseline, enough.runs, enough.below_reference) == (450e9, 5, "baseline")
    assert enough.spread == pytest.approx(1.4826 * 5e9)


def test_low_bandwidth_is_below_the_floor_and_beyond_the_spread() -> None:
    steady = state_after(*(run(number, 450e9) for number in range(5)))
    assert compare_with(steady, 406e9).below_reference == ""
    assert compare_with(steady, 404e9).below_reference == "baseline"
    assert compare_with(steady, 404e9, floors=Floors(baseline=0.8)).below_reference == ""
    assert compare_with(steady, 1e9, floors=Floors(baseline=0.0)).below_reference == ""
    scattered = state_after(*(run(number, 450e9 + 20e9 * (number - 2)) for number in range(5)))
    assert compare_with(scattered, 404e9).below_reference == ""
    assert compare_with(scattered, 404e9, floors=Floors(spreads=1.0)).below_reference == "baseline"


@pytest.mark.parametrize(("value", "low"), [(300.0, ""), (499.0, ""), (501.0, "baseline"), (900.0, "baseline")])
def test_a_higher_value_is_worse_if_lower_is_better(value: float, low: str) -> None:
    """Above the median divided by the limit, and outside the spread of earlier runs."""
    steady = state_after(*(run(number, 450.0) for number in range(5)))
    judge = replace(judge_with(steady), higher_is_better=False)
    assert judge.compare(make_measurement(value), ranks=len(HERE.gpus), versions=VERSIONS).below_reference == low


@each_case(
    ("conditions", "versions"),
    [
        (replace(HERE, driver="590.10"), VERSIONS),
        (replace(HERE, model="NVIDIA H100 80GB HBM3"), VERSIONS),
        (replace(HERE, host_gpus=4), VERSIONS),
        (HERE, VERSIONS | {"nccl": "2.31.0"}),
        (HERE, VERSIONS | {"torch": "2.14.0"}),
    ],
)
def test_changed_conditions_start_a_new_median(conditions: Conditions, versions: Mapping[str, str]) -> None:
    """A change of driver, model, GPU count or library starts a new median and is reported."""
    state = state_after(*map(run, range(10)))
    fresh = compare_with(state, 1e9, conditions=conditions, versions=versions)
    assert (fresh.baseline, fresh.runs, fresh.below_reference) == (None, 0, "")
    judge = replace(judge_with(state), conditions=conditions)
    assert judge.changed_conditions(2, versions)
    assert judge.changed_conditions(2, VERSIONS) == "" or conditions != HERE


def test_a_changed_condition_is_reported_with_both_values() -> None:
    judge = replace(judge_with(state_after(run(1))), conditions=replace(HERE, driver="590.10"))
    assert judge.changed_conditions(2, VERSIONS) == "driver 590.10 after 580.65"
    since = run(2, conditions=judge.conditions)
    again = replace(judge, history=state_after(run(1), since).good)
    assert again.changed_conditions(2, VERSIONS) == "driver 590.10 after 580.65"
    assert replace(judge, history=(since,)).changed_conditions(2, VERSIONS) == ""


def test_a_partial_run_changes_no_conditions_of_a_whole_run() -> None:
    """A partial run does not count as a change for a whole run; its own report names its GPUs."""
    partial = replace(HERE, gpus=("GPU-2", "GPU-3"), indexes=(2, 3), host_gpus=4)
    whole = replace(HERE, gpus=("GPU-0", "GPU-1", "GPU-2", "GPU-3"), indexes=(0, 1, 2, 3), host_gpus=4)
    assert (
        replace(judge_with(state_after(run(1, conditions=partial))), conditions=whole).changed_conditions(4, VERSIONS)
        == ""
    )
    judge = replace(judge_with(state_after(run(1, conditions=whole))), conditions=partial)
    assert judge.changed_conditions(2, VERSIONS) == "ranks 2 after 4, on GPUs 2 and 3 after all"


@pytest.mark.parametrize(
    ("settings", "change"),
    [
        (SETTINGS | {"NCCL_NVLS_ENABLE": "0"}, "NCCL_NVLS_ENABLE 0 after none"),
        ({}, "NCCL_RAS_ENABLE none after 0"),
        (SETTINGS | {"/etc/nccl.conf": "NCCL_NVLS_ENABLE=0"}, "/etc/nccl.conf has changed"),
        (SETTINGS | {"NCCL_DEBUG": "INFO"}, ""),
    ],
)
def test_changed_nccl_settings_start_a_new_median(settings: Mapping[str, str], change: str) -> None:
    """A changed NCCL variable or line of /etc/nccl.conf starts a new median; a changed log level does not."""
    state = state_after(*map(run, range(10)))
    judge = replace(judge_with(state), settings=own_settings(settings, "default"))
    assert judge.changed_conditions(2, VERSIONS) == change
    assert judge.compare(make_measurement(1e9), ranks=2, versions=VERSIONS).runs == (0 if change else 10)


def test_the_probed_algorithm_is_not_part_of_the_settings() -> None:
    """A run of the ring alone is compared with the ring results of runs of both algorithms."""
    ring = replace(make_measurement(450e9), algorithm="ring")
    ring_runs = [
        replace(run(number, settings={**SETTINGS, **ALGORITHMS["ring"]}), measurements=(ring,)) for number in range(5)
    ]
    assert judge_with(state_after(*ring_runs)).compare(ring, ranks=2, versions=VERSIONS).runs == 5
    both, ring_only = (
        make_plans(
            PROBES["allreduce"], HERE.gpus, python="python", algorithms=names, nccl_conf={"/etc/nccl.conf": "A=1"}
        )
        for names in (("default", "ring"), ("ring",))
    )
    settings = [own_settings(plan.settings, plan.algorithm) for plan in (*both, *ring_only)]
    assert settings[0] == settings[1] == settings[2]
    assert settings[0]["/etc/nccl.conf"] == "A=1"


def test_nccl_settings_do_not_affect_cpu_runs() -> None:
    cpu = Conditions(driver="580.65")
    judge = replace(
        judge_with(state_after(*(run(number, conditions=cpu) for number in range(5)))), conditions=cpu, settings={}
    )
    assert judge.compare(make_measurement(1e9), ranks=0, versions=VERSIONS).runs == 5


def test_a_replaced_board_keeps_the_median_of_a_whole_host() -> None:
    replaced = replace(HERE, gpus=("GPU-1", "GPU-3"))
    assert compare_with(state_after(*map(run, range(5))), conditions=replaced).runs == 5
    partial, partial_replaced = replace(HERE, host_gpus=4), replace(replaced, host_gpus=4)
    assert (
        compare_with(
            state_after(*(run(number, conditions=partial) for number in range(5))), conditions=partial_replaced
        ).runs
        == 0
    )


def test_skipped_and_degraded_runs_do_not_displace_the_median() -> None:
    good = [run(number) for number in range(5)]
    degraded = [run(number, 200e9, outcome="degraded") for number in range(100, 100 + 2 * MAX_RESULTS)]
    skips = [run(number, outcome="skipped") for number in range(1000, 1000 + 2 * MAX_RESULTS)]
    state = state_after(*good, *degraded, *skips)
    assert len(state.history) == MAX_RESULTS
    assert state.ran[-1] == degraded[-1]
    assert compare_with(state, 200e9).below_reference == "baseline"


def test_runs_under_other_conditions_do_not_displace_the_median() -> None:
    first, second = replace(HERE, driver="1"), replace(HERE, driver="2")
    runs = [run(number, conditions=first) for number in range(5)]
    state = state_after(*runs, *(run(number, conditions=second) for number in range(10, 10 + 3 * MAX_RUNS)))
    assert compare_with(state, conditions=first).runs == 5
    assert compare_with(state, conditions=second).runs == MAX_RUNS


def test_restored_runs_give_the_same_median() -> None:
    """The median is the same after a restart, and runs from before the store was read are appended."""
    before = state_after(*map(run, range(7)), run(8, outcome="skipped"))
    stored = [from_document(to_document(result)) for result in before.results]
    counters = ProbeCounters(outcomes={"ok": 7, "skipped": 1}, reasons={"busy": 1})
    state = restore(state_after(run(9)), stored, {"allreduce": counters})
    assert compare_with(state) == compare_with(state_after(*map(run, range(7)), run(9)))
    assert (state.last("allreduce"), state.ran[-1], state.history[0].id) == (run(9), run(9), "r0")
    assert state.metrics["allreduce"].runs_total == dict.fromkeys(OUTCOMES, 0.0) | {"ok": 8.0, "skipped": 1.0}
