"""Every row of every table is decided for every simulated node: there, or absent for a reason."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest

from gpumon.sim.profiles import PROFILES
from scripts.absences import ABSENCES, ALL, Absence
from scripts.profiles import Row, of_gpus, read_on
from scripts.reference import kind

KINDS = tuple(dict.fromkeys(kind(one) for one in PROFILES))


@pytest.fixture(scope="module")
def have() -> dict[str, frozenset[Row]]:
    """By kind: the rows that all profiles of that kind have."""
    found = read_on()
    return {one: frozenset.intersection(*(found[name] for name in PROFILES if kind(name) == one)) for one in KINDS}


def names(absence: Absence, row: Row) -> bool:
    table, name = row
    return any(fnmatchcase(table.PREFIX + name, f"gpumon_{one}") for one in absence.metrics)


@pytest.mark.parametrize("one", KINDS)
def test_every_row_is_there_or_absent_for_a_reason(one: str, have: dict[str, frozenset[Row]]) -> None:
    """Neither is a metric missing without a decision, nor is one there that was decided to be absent."""
    decided = {row for row in of_gpus() for absence in ABSENCES if one in absence.kinds and names(absence, row)}
    absent = set(of_gpus()) - have[one]
    assert absent - decided == set(), "absent: decide in scripts/absences.py"
    assert decided - absent == set(), "there, though decided to be absent"


def test_decisions_are_about_something() -> None:
    """Every decision has a reason, names rows that exist, and nodes that can be simulated."""
    assert set(ALL) == set(KINDS)
    for absence in ABSENCES:
        assert absence.reason
        assert absence.kinds
        assert set(absence.kinds) <= set(KINDS)
        for metric in absence.metrics:
            assert any(names(Absence((metric,), (), ""), row) for row in of_gpus()), metric
