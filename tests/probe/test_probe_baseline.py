from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from each_case import each_case

from gpumon.probe.core.baseline import ENOUGH_RUNS, MAX_RUNS, Floors, Judge, own_settings
from gpumon.probe.core.plan import make_plans
from gpumon.probe.core.probes import ALGORITHMS, GIB, PROBES
from gpumon.probe.core.result import Comparison, Conditions, Measurement, ProbeResult, from_document, to_document
from gpumon.probe.core.state import MAX_RESULTS, ProbeState, end_run, restore

HERE = Conditions(model="NVIDIA H200", gpus=("GPU-1", "GPU-2"), driver="580.65", host_gpus=2)
SETTINGS = {"NCCL_RAS_ENABLE": "0"}
VERSIONS = {"torch": "2.13.0", "nccl": "2.30.7", "cuda": "13.2", "python": "3.12.1"}


def measured(busbw: float) -> Measurement:
    return Measurement(
        bytes=GIB,
        iterations=20,
        algbw_bytes_per_second=busbw,
        busbw_bytes_per_second=busbw,
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
        measurements=() if outcome == "skipped" else (measured(busbw),),
    )


def after(*results: ProbeResult) -> ProbeState:
    state = ProbeState()
    for result in results:
        state = end_run(state, result)
    return state


def judging(state: ProbeState) -> Judge:
    return Judge(probe="allreduce", backend="nccl", conditions=HERE, settings=SETTINGS, history=state.good)


def compared(
    state: ProbeState,
    busbw: float = 450e9,
    *,
    conditions: Conditions = HERE,
    versions: Mapping[str, str] = VERSIONS,
    floors: Floors = Floors(),  # noqa: B008 - frozen
) -> Comparison:
    judge = replace(judging(state), conditions=conditions, floors=floors)
    return judge.compare(measured(busbw), ranks=len(conditions.gpus), versions=versions)


def test_a_host_has_a_median_after_five_good_runs() -> None:
    """Before that nothing is low, and the comparison says how many runs are missing."""
    few = compared(after(*map(run, range(ENOUGH_RUNS - 1))), 1e9)
    assert (few.baseline, few.runs, few.runs_needed, few.low) == (None, 4, 5, "")
    rates = (440e9, 445e9, 450e9, 455e9, 460e9)
    known = compared(after(*(run(number, rate) for number, rate in enumerate(rates))), 400e9)
    assert (known.baseline, known.runs, known.low) == (450e9, 5, "baseline")
    assert known.spread == pytest.approx(1.4826 * 5e9)


def test_low_is_below_the_share_and_below_the_spreads() -> None:
    """A host whose runs differ much is not called slow for what it has always done."""
    steady = after(*(run(number, 450e9) for number in range(5)))
    assert compared(steady, 406e9).low == ""
    assert compared(steady, 404e9).low == "baseline"
    assert compared(steady, 404e9, floors=Floors(baseline=0.8)).low == ""
    assert compared(steady, 1e9, floors=Floors(baseline=0.0)).low == ""
    uneasy = after(*(run(number, 450e9 + 20e9 * (number - 2)) for number in range(5)))
    assert compared(uneasy, 404e9).low == ""
    assert compared(uneasy, 404e9, floors=Floors(spreads=1.0)).low == "baseline"


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
def test_other_conditions_begin_another_median(conditions: Conditions, versions: Mapping[str, str]) -> None:
    """What it came to before says nothing about now; what came to be otherwise is told."""
    state = after(*map(run, range(10)))
    fresh = compared(state, 1e9, conditions=conditions, versions=versions)
    assert (fresh.baseline, fresh.runs, fresh.low) == (None, 0, "")
    judge = replace(judging(state), conditions=conditions)
    assert judge.changed_conditions(2, versions)
    assert judge.changed_conditions(2, VERSIONS) == "" or conditions != HERE


def test_what_has_changed_is_named_with_both_values() -> None:
    """A driver that moved the bandwidth is the first thing to think of, for as long as there is no new median."""
    judge = replace(judging(after(run(1))), conditions=replace(HERE, driver="590.10"))
    assert judge.changed_conditions(2, VERSIONS) == "driver 590.10 after 580.65"
    since = run(2, conditions=judge.conditions)
    again = replace(judge, history=after(run(1), since).good)
    assert again.changed_conditions(2, VERSIONS) == "driver 590.10 after 580.65"
    assert replace(judge, history=(since,)).changed_conditions(2, VERSIONS) == ""


def test_runs_on_some_of_the_gpus_are_no_news_for_one_on_all() -> None:
    """What they left out is told of them, by the numbers of the GPUs."""
    some = replace(HERE, gpus=("GPU-2", "GPU-3"), indexes=(2, 3), host_gpus=4)
    whole = replace(HERE, gpus=("GPU-0", "GPU-1", "GPU-2", "GPU-3"), indexes=(0, 1, 2, 3), host_gpus=4)
    assert replace(judging(after(run(1, conditions=some))), conditions=whole).changed_conditions(4, VERSIONS) == ""
    judge = replace(judging(after(run(1, conditions=whole))), conditions=some)
    assert judge.changed_conditions(2, VERSIONS) == "ranks 2 after 4, on GPUs 2 and 3 after all"


@pytest.mark.parametrize(
    ("settings", "news"),
    [
        (SETTINGS | {"NCCL_NVLS_ENABLE": "0"}, "NCCL_NVLS_ENABLE 0 after none"),
        ({}, "NCCL_RAS_ENABLE none after 0"),
        (SETTINGS | {"/etc/nccl.conf": "NCCL_NVLS_ENABLE=0"}, "/etc/nccl.conf has changed"),
        (SETTINGS | {"NCCL_DEBUG": "INFO"}, ""),
    ],
)
def test_other_settings_of_nccl_begin_another_median(settings: Mapping[str, str], news: str) -> None:
    """By a variable of the configuration or a line of /etc/nccl.conf; not by how much NCCL is to say."""
    state = after(*map(run, range(10)))
    judge = replace(judging(state), settings=own_settings(settings, "default"))
    assert judge.changed_conditions(2, VERSIONS) == news
    assert judge.compare(measured(1e9), ranks=2, versions=VERSIONS).runs == (0 if news else 10)


def test_the_algorithm_of_the_probe_is_no_setting_of_the_host() -> None:
    """A run that measured the ring alone is compared with the ring of runs that measured both."""
    ring = replace(measured(450e9), algorithm="ring")
    alone = [
        replace(run(number, settings={**SETTINGS, **ALGORITHMS["ring"]}), measurements=(ring,)) for number in range(5)
    ]
    assert judging(after(*alone)).compare(ring, ranks=2, versions=VERSIONS).runs == 5
    both, one = (
        make_plans(
            PROBES["allreduce"], HERE.gpus, python="python", algorithms=names, nccl_conf={"/etc/nccl.conf": "A=1"}
        )
        for names in (("default", "ring"), ("ring",))
    )
    told = [own_settings(plan.settings, plan.algorithm) for plan in (*both, *one)]
    assert told[0] == told[1] == told[2]
    assert told[0]["/etc/nccl.conf"] == "A=1"


def test_settings_of_nccl_say_nothing_of_the_cpu() -> None:
    """There nobody asks NCCL."""
    cpu = Conditions(driver="580.65")
    judge = replace(judging(after(*(run(number, conditions=cpu) for number in range(5)))), conditions=cpu, settings={})
    assert judge.compare(measured(1e9), ranks=0, versions=VERSIONS).runs == 5


def test_a_board_that_was_replaced_is_held_against_what_the_host_came_to() -> None:
    """Its uuid is no condition, but where a run leaves GPUs out it matters which."""
    replaced = replace(HERE, gpus=("GPU-1", "GPU-3"))
    assert compared(after(*map(run, range(5))), conditions=replaced).runs == 5
    some, others = replace(HERE, host_gpus=4), replace(replaced, host_gpus=4)
    assert compared(after(*(run(number, conditions=some) for number in range(5))), conditions=others).runs == 0


def test_skips_and_failures_push_nothing_out_of_the_median() -> None:
    """A node that is busy for months, or sick for weeks, still knows what it came to when it was well."""
    good = [run(number) for number in range(5)]
    sick = [run(number, 200e9, outcome="degraded") for number in range(100, 100 + 2 * MAX_RESULTS)]
    skips = [run(number, outcome="skipped") for number in range(1000, 1000 + 2 * MAX_RESULTS)]
    state = after(*good, *sick, *skips)
    assert len(state.history) == MAX_RESULTS
    assert state.ran[-1] == sick[-1]
    assert compared(state, 200e9).low == "baseline"


def test_runs_under_other_conditions_push_none_out() -> None:
    """Of each conditions so many are kept as a median is made of."""
    one, other = replace(HERE, driver="1"), replace(HERE, driver="2")
    runs = [run(number, conditions=one) for number in range(5)]
    state = after(*runs, *(run(number, conditions=other) for number in range(10, 10 + 3 * MAX_RUNS)))
    assert compared(state, conditions=one).runs == 5
    assert compared(state, conditions=other).runs == MAX_RUNS


def test_what_was_stored_gives_the_same_median() -> None:
    """A restart begins no new one; what ended before the store could be read stands behind what it knew."""
    before = after(*map(run, range(7)), run(8, outcome="skipped"))
    stored = [from_document(to_document(one)) for one in before.results]
    state = restore(after(run(9)), stored, {"ok": 7.0, "skipped": 1.0}, {"busy": 1.0})
    assert compared(state) == compared(after(*map(run, range(7)), run(9)))
    assert (state.last, state.ran[-1], state.history[0].id) == (run(9), run(9), "r0")
    assert state.metrics.runs_total is not None
    assert (state.metrics.runs_total["ok"], state.metrics.runs_total["timeout"]) == (8.0, 0.0)
