"""Every row of every table is decided for every simulated node: there, or absent for a reason."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase

import pytest

from gpumon.sim.profiles import PROFILES
from scripts.absences import ABSENCES, ALL, absent
from scripts.profiles import of_gpus, read_on
from scripts.reference import kind

KINDS = tuple(dict.fromkeys(kind(one) for one in PROFILES))
METRICS = {table.PREFIX + name for table, name in of_gpus()}


@pytest.fixture(scope="module")
def lacking() -> Mapping[str, set[str]]:
    """By profile: what it has no value for."""
    return {one: METRICS - {table.PREFIX + name for table, name in having} for one, having in read_on().items()}


@pytest.mark.parametrize("profile", PROFILES)
def test_every_row_is_present_or_absent_for_a_reason(profile: str, lacking: Mapping[str, set[str]]) -> None:
    """Each absent metric has an entry in scripts/absences.py, and no present metric has one."""
    assert lacking[profile] == absent(kind(profile), METRICS)


def test_every_absence_is_valid() -> None:
    """Each entry has a reason, and names existing rows and simulated nodes."""
    assert set(ALL) == set(KINDS)
    for absence in ABSENCES:
        assert absence.reason
        assert absence.kinds
        assert set(absence.kinds) <= set(KINDS)
        for metric in absence.metrics:
            assert [one for one in METRICS if fnmatchcase(one, f"gpumon_{metric}")], metric
