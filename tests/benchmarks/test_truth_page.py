"""docs/truth.md: it is of this table, it explains its misses, and nothing pages for no fault."""

from __future__ import annotations

import json
import re
from pathlib import Path

from benchmarks.truth.benign import DISTURBANCES
from benchmarks.truth.fault import Disturbance, Fault
from benchmarks.truth.faults import FAULTS
from benchmarks.truth.measure import CalmOutcome, Outcome
from benchmarks.truth.page import MIXED, PARTLY, page, problems_of
from benchmarks.truth.pairs import pairs
from benchmarks.truth.untested import UNTESTED, UNUSED
from benchmarks.truth.work import Piece, ResultStore, disturbance_profiles
from gpumon.health.table import BY_NAME, CHECKS
from gpumon.sim.faults import FAULTS as SIMULATED
from gpumon.sim.profiles import PROFILES

PAGE = Path(__file__).parents[2] / "docs" / "truth.md"


def test_every_fault_of_the_simulation_is_injected_or_excused() -> None:
    """A new row there needs a row here, or a reason."""
    used = {key for fault in FAULTS for step in fault.steps for key in (*step.gpu, *step.node)}
    used |= {key for fault in FAULTS for key in fault.before} | {key for one in DISTURBANCES for key in one.before}
    assert SIMULATED.keys() - used - UNUSED.keys() == set()
    assert UNUSED.keys() & used == set()


def test_every_check_has_a_fault_that_it_must_find_or_an_excuse() -> None:
    """What is never injected is never known to work."""
    expected = {fault.check for fault in FAULTS}
    assert expected <= BY_NAME.keys()
    assert {check.name for check in CHECKS} - expected - UNTESTED.keys() == set()
    assert UNTESTED.keys() & expected == set()


def test_each_fault_can_happen_somewhere_and_has_a_name_of_its_own() -> None:
    """Rows that nothing runs prove nothing."""
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 60
    assert all(any(fault.on(profile) for profile in PROFILES.values()) for fault in FAULTS)
    assert len({one.name for one in DISTURBANCES}) == len(DISTURBANCES) >= 25


def test_a_miss_without_a_reason_is_a_failure() -> None:
    """What `make truth` ends with."""
    fault = Fault(name="some", check="gpu_lost", steps=())
    outcome = Outcome(fault="some", profile="t4x1")
    assert problems_of([outcome], [fault], ()) == ["missed on t4x1: some"]


def test_what_is_true_is_no_false_verdict_and_has_to_be_said() -> None:
    """But never what pages."""
    row = Disturbance(name="some", expected_verdicts={"gpu_count_mismatch": "is unknown."})

    def judged(*said: tuple[str, str]) -> list[str]:
        return problems_of([CalmOutcome(name="some", profile="l40sx4", hours=1, verdicts_raised=said)], (), [row])

    assert judged(("gpu_count_mismatch", "unknown")) == []
    assert judged() == ["not raised on l40sx4: gpu_count_mismatch of some"]
    assert judged(("gpu_count_mismatch", "fail")) == ["false on l40sx4: gpu_count_mismatch (fail) of some"]
    assert judged(("gpu_count_mismatch", "unknown"), ("gpumon_poll_slow", "warn")) == [
        "false on l40sx4: gpumon_poll_slow (warn) of some"
    ]


def test_the_page_counts_what_is_false_apart_from_what_is_true() -> None:
    """And says why."""
    row = Disturbance(name="some", expected_verdicts={"gpu_count_mismatch": "is unknown: nobody knows."})
    said = (("gpu_count_mismatch", "unknown"), ("gpumon_poll_slow", "warn"))
    text = page([CalmOutcome(name="some", profile="l40sx4", hours=1, verdicts_raised=said)], (), [row], 1)
    assert "| some | 1 | 1 | 0 | 1 | 1 x `gpu_count_mismatch`, 1 x `gpumon_poll_slow` |" in text
    assert "| false verdicts of any level | 1:" in text
    assert "- **some**: `gpu_count_mismatch` is unknown: nobody knows." in text


def test_a_page_says_of_what_it_is_put_together() -> None:
    """Nothing, when everything was measured in one state of the code."""
    row = Disturbance(name="some")
    known = [CalmOutcome(name="some", profile="l40sx4", hours=1)]
    whole = page(known, (), [row], 1)
    assert PARTLY not in whole
    assert MIXED not in whole
    assert f"{PARTLY}: 1 of 2 measurements" in page(known, (), [row], 2)
    assert f"**{MIXED}**, 2 in all" in page(known, (), [row], 1, 2)


def test_results_that_were_kept_know_in_which_state_of_the_code_they_were_measured(tmp_path: Path) -> None:
    """Those of one state make a page that says nothing of it; one of an earlier state is counted."""
    path, pieces = tmp_path / "kept", [Piece("calm", ("some",), name) for name in ("t4x1", "h100x8")]
    for piece in pieces:
        ResultStore(path).add(piece, CalmOutcome(name="some", profile=piece.profile, hours=1))
    assert ResultStore(path).states(pieces) == 1
    assert [ResultStore(path)[piece].profile for piece in pieces] == ["t4x1", "h100x8"]
    first, second = map(json.loads, path.read_text().splitlines())
    del first["state"]
    path.write_text(f"{json.dumps(first)}\n{json.dumps(second)}\n")
    assert ResultStore(path).states(pieces) == 2
    assert ResultStore(path).states(pieces[1:]) == 1


def test_a_row_without_all_of_its_nodes_is_lacking_on_a_whole_page() -> None:
    """What the page is held against, below."""
    everywhere = [name for name, profile in PROFILES.items() if FAULTS[0].on(profile)]
    found = [Outcome(fault=FAULTS[0].name, profile=name, seconds=1.0) for name in everywhere]
    calms = [
        CalmOutcome(name=DISTURBANCES[0].name, profile=name, hours=1)
        for name in disturbance_profiles(DISTURBANCES[0].on)
    ]
    rows = {FAULTS[0].name, DISTURBANCES[0].name}
    assert not rows & set(_lacking(page([*found, *calms], FAULTS, DISTURBANCES, 0)))
    assert rows <= set(_lacking(page([*found[1:], *calms[1:]], FAULTS, DISTURBANCES, 0)))
    assert "pairs" in _lacking(page([], FAULTS, DISTURBANCES, 0))


def test_the_page_is_of_this_table() -> None:
    """Run `make truth` when a row has changed. What is not there has not been measured, and the page says so."""
    text = PAGE.read_text()
    assert PARTLY in text or _lacking(text) == []
    known = {fault.name: fault.check for fault in FAULTS}
    told = dict(re.findall(r"^\| ([^|]+) \| `(\w+)` \|", text, re.MULTILINE))
    assert told.items() <= known.items()
    assert PARTLY in text or list(told) == list(known)


def _lacking(text: str) -> list[str]:
    """Rows that are not there, or not on all of their nodes."""
    faults = dict(re.findall(r"^\| ([^|]+) \| `\w+` \| \d+ of (\d+) \|", text, re.MULTILINE))
    calms = dict(re.findall(r"^\| ([^|]+) \| (\d+) \| [\d.e+]+ \| \d+ \| \d+ \|", text, re.MULTILINE))
    pairs_told = re.findall(r"^\| pairs of faults \| (\d+),", text, re.MULTILINE)
    wanted = {fault.name: str(sum(map(fault.on, PROFILES.values()))) for fault in FAULTS}
    calm_wanted = {one.name: str(len(disturbance_profiles(one.on))) for one in DISTURBANCES}
    return [
        *(name for name, number in wanted.items() if faults.get(name) != number),
        *(name for name, number in calm_wanted.items() if calms.get(name) != number),
        *(["pairs"] if pairs_told != [str(len(list(pairs())))] else []),
    ]


def test_the_page_explains_every_miss_and_nothing_pages_for_no_fault() -> None:
    """Done when."""
    text = PAGE.read_text()
    assert "not explained yet" not in text
    assert "| false verdicts of level fail | 0:" in text
