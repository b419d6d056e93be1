"""docs/truth.md: it is of this table, it explains its misses, and nothing pages for no fault."""

from __future__ import annotations

import re
from pathlib import Path

from gpumon.health.table import BY_NAME, CHECKS
from gpumon.sim.faults import FAULTS as SIMULATED
from gpumon.sim.profiles import PROFILES
from truth.benign import DISTURBANCES
from truth.fault import Disturbance, Fault
from truth.faults import FAULTS
from truth.measure import Calm, Outcome
from truth.page import page, unexplained
from truth.untested import UNTESTED, UNUSED

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
    assert unexplained([outcome], [fault], ()) == ["missed on t4x1: some"]


def test_what_is_true_is_no_false_verdict_and_has_to_be_said() -> None:
    """But never what pages."""
    row = Disturbance(name="some", says={"gpu_count": "is unknown."})

    def judged(*said: tuple[str, str]) -> list[str]:
        return unexplained([Calm(name="some", profile="l40sx4", hours=1, said=said)], (), [row])

    assert judged(("gpu_count", "unknown")) == []
    assert judged() == ["not said on l40sx4: gpu_count of some"]
    assert judged(("gpu_count", "fail")) == ["false on l40sx4: gpu_count (fail) of some"]
    assert judged(("gpu_count", "unknown"), ("poll_slow", "warn")) == ["false on l40sx4: poll_slow (warn) of some"]


def test_the_page_counts_what_is_false_apart_from_what_is_true() -> None:
    """And says why."""
    row = Disturbance(name="some", says={"gpu_count": "is unknown: nobody knows."})
    said = (("gpu_count", "unknown"), ("poll_slow", "warn"))
    text = page([Calm(name="some", profile="l40sx4", hours=1, said=said)], (), [row], 1)
    assert "| some | 1 | 1 | 0 | 1 | 1 x `gpu_count`, 1 x `poll_slow` |" in text
    assert "| false verdicts in all | 1:" in text
    assert "- **some**: `gpu_count` is unknown: nobody knows." in text
    assert "Not all of it" not in text


def test_the_page_is_of_this_table() -> None:
    """Run `make truth` when a row has changed. A row that is not there has not been measured, and the page says so."""
    rows = re.findall(r"^\| ([^|]+) \|", PAGE.read_text(), re.MULTILINE)
    assert [fault.name for fault in FAULTS if fault.name not in rows] == []
    assert "Not all of it has been measured" in PAGE.read_text() or {one.name for one in DISTURBANCES} <= set(rows)
    checks = re.findall(r"^\| [^|]+ \| `(\w+)` \|", PAGE.read_text(), re.MULTILINE)
    assert checks == [fault.check for fault in FAULTS]


def test_the_page_explains_every_miss_and_nothing_pages_for_no_fault() -> None:
    """Done when."""
    text = PAGE.read_text()
    assert "nobody has explained" not in text
    assert "| false verdicts that page (fail) | 0:" in text
