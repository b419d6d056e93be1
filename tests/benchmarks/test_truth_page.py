"""docs/truth.md matches the tables of faults, explains each miss, and has no false alert that pages."""

from __future__ import annotations

import json
from pathlib import Path

from gpumon_sim.faults.keys import KEYS
from gpumon_sim.faults.row import Act, FaultRow
from gpumon_sim.profiles import PROFILES

from benchmarks.truth.benign import DISTURBANCES
from benchmarks.truth.measure import CalmOutcome, FaultOutcome
from benchmarks.truth.page import MIXED, PAGE, PARTLY, page, page_of, problems_of
from benchmarks.truth.pairs import PairOutcome
from benchmarks.truth.rows import ACTS, MEASURED_FAULTS, UNTESTED, Disturbance
from benchmarks.truth.work import MEASURED, ResultStore, piece_of
from gpumon.health.table import BY_NAME, CHECKS


def test_every_key_and_act_is_used_or_has_a_reason() -> None:
    """Each key of a scenario is used by `make truth`, or its row has a reason; each act can be done."""
    used = {key for fault in MEASURED_FAULTS for step in fault.steps for key in (*step.gpu, *step.node)}
    used |= {key for fault in MEASURED_FAULTS for key in fault.before} | {
        key for each in DISTURBANCES for key in each.before
    }
    assert KEYS.keys() - used == {name for name, key in KEYS.items() if "truth" in key.without}
    assert {step.act for fault in MEASURED_FAULTS for step in fault.steps if step.act} == ACTS.keys() == set(Act)


def test_every_check_has_a_fault_to_detect_or_a_reason() -> None:
    """A check whose fault is never injected is untested."""
    expected = {fault.check for fault in MEASURED_FAULTS}
    assert expected <= BY_NAME.keys()
    assert {check.name for check in CHECKS} - expected - UNTESTED.keys() == set()
    assert UNTESTED.keys() & expected == set()


def test_each_fault_applies_to_a_profile_and_has_a_unique_name() -> None:
    assert len({fault.name for fault in MEASURED_FAULTS}) == len(MEASURED_FAULTS) >= 60
    assert all(any(fault.on(profile) for profile in PROFILES.values()) for fault in MEASURED_FAULTS)
    assert len({each.name for each in DISTURBANCES}) == len(DISTURBANCES) >= 25


def test_a_miss_without_a_reason_is_a_failure() -> None:
    fault = FaultRow(name="some", check="gpu_lost", steps=())
    outcome = FaultOutcome(fault="some", profile="t4x1")
    assert problems_of([outcome], [fault], ()) == ["missed on t4x1: some"]


def test_an_expected_verdict_of_a_disturbance_is_required_and_not_false() -> None:
    """The expected level is unknown: a fail of the same check is false."""
    row = Disturbance(name="some", expected_verdicts={"gpu_count_mismatch": "is unknown."})

    def problems(*raised: tuple[str, str]) -> list[str]:
        return problems_of([CalmOutcome(name="some", profile="l40sx4", hours=1, verdicts_raised=raised)], (), [row])

    assert problems(("gpu_count_mismatch", "unknown")) == []
    assert problems() == ["not raised on l40sx4: gpu_count_mismatch of some"]
    assert problems(("gpu_count_mismatch", "fail")) == ["false on l40sx4: gpu_count_mismatch (fail) of some"]
    assert problems(("gpu_count_mismatch", "unknown"), ("gpumon_poll_slow", "warn")) == [
        "false on l40sx4: gpumon_poll_slow (warn) of some"
    ]


def test_the_page_counts_false_verdicts_apart_from_expected_ones() -> None:
    row = Disturbance(name="some", expected_verdicts={"gpu_count_mismatch": "is unknown: some reason."})
    raised = (("gpu_count_mismatch", "unknown"), ("gpumon_poll_slow", "warn"))
    text = page([CalmOutcome(name="some", profile="l40sx4", hours=1, verdicts_raised=raised)], (), [row], 1)
    assert "| some | 1 | 1 | 0 | 1 | 1 x `gpu_count_mismatch`, 1 x `gpumon_poll_slow` |" in text
    assert "| false verdicts of any level | 1:" in text
    assert "- **some**: `gpu_count_mismatch` is unknown: some reason." in text


def test_a_page_of_partial_or_mixed_results_states_that() -> None:
    """A page of one complete run has neither note."""
    row = Disturbance(name="some")
    known = [CalmOutcome(name="some", profile="l40sx4", hours=1)]
    whole = page(known, (), [row], 1)
    assert PARTLY not in whole
    assert MIXED not in whole
    assert f"{PARTLY}: 1 of 2 measurements" in page(known, (), [row], 2)
    assert f"**{MIXED}**, 2 in all" in page(known, (), [row], 1, 2)


def test_stored_results_record_the_state_of_the_code(tmp_path: Path) -> None:
    """Results of an earlier state of the code are counted as another state, and are measured again on a resume."""
    path = tmp_path / "measured"
    known = [CalmOutcome(name="some", profile=name, hours=1) for name in ("t4x1", "h100x8")]
    pieces = [piece_of(result) for result in known]
    for result in known:
        ResultStore(path).add(result)
    assert ResultStore(path).states(pieces) == 1
    assert ResultStore(path).results(pieces) == known
    first, second = map(json.loads, path.read_text().splitlines())
    path.write_text(f"{json.dumps(first | {'state': 'earlier'})}\n{json.dumps(second)}\n")
    assert ResultStore(path).states(pieces) == 2
    assert [ResultStore(path).is_current(piece) for piece in pieces] == [False, True]


def test_the_store_has_the_newest_result_of_each_row_in_the_table(tmp_path: Path) -> None:
    """Results of every kind are read as they were written; those of a removed row are dropped."""
    path = tmp_path / "measured"
    both = PairOutcome(
        names=("a", "b"),
        profile="h100x8",
        same_gpu=True,
        found=(True, False),
        hidden=(False, True),
        inhibited=(False,) * 2,
    )
    calm = CalmOutcome(name="c", profile="t4x1", hours=1, verdicts_raised=(("gpu_lost", "fail"),))
    missed, found = (FaultOutcome(fault="a", profile="t4x1", seconds=seconds) for seconds in (None, 5.0))
    store = ResultStore(path)
    for result in (missed, both, calm, FaultOutcome(fault="removed", profile="t4x1"), found):
        store.add(result)
    pieces = [piece_of(result) for result in (found, both, calm)]
    store.write(pieces)
    assert ResultStore(path).results(pieces) == [found, both, calm]
    assert len(path.read_text().splitlines()) == 3


def test_a_row_that_was_not_measured_is_marked() -> None:
    """A new fault or disturbance is on the page before it was measured."""
    new = FaultRow(name="new fault", check="gpu_lost", steps=())
    text = page([], [new], [Disturbance(name="new disturbance")], 2)
    assert "| new fault | `gpu_lost` | not yet measured |" in text
    assert "| new disturbance | not yet measured |" in text
    assert f"{PARTLY}: 0 of 2 measurements" in text


def test_the_page_is_that_of_the_stored_results() -> None:
    """`make generate` writes it after a change of a row, `make truth` after a measurement."""
    assert PAGE.read_text() == page_of(ResultStore(MEASURED))


def test_the_page_explains_every_miss_and_has_no_false_failure() -> None:
    text = PAGE.read_text()
    assert "not explained yet" not in text
    assert "| false verdicts of level fail | 0:" in text
