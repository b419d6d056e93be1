"""Every row of every table is decided for every simulated node: there, or absent for a reason."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase

import pytest
from each_case import each_case
from gpumon_sim.profiles import PROFILES

from scripts.metric_facts import kind
from scripts.missing_metrics import ALL, MISSING_METRICS, missing
from scripts.simulated_reports import gpu_rows, rows_by_profile

KINDS = tuple(dict.fromkeys(kind(each) for each in PROFILES))
METRICS = {table.PREFIX + name for table, name in gpu_rows()}


@pytest.fixture(scope="module")
def lacking() -> Mapping[str, set[str]]:
    """By profile: what it has no value for."""
    return {one: METRICS - {table.PREFIX + name for table, name in having} for one, having in rows_by_profile().items()}


@each_case("profile", PROFILES)
def test_every_row_is_present_or_absent_for_a_reason(profile: str, lacking: Mapping[str, set[str]]) -> None:
    """Each absent metric has an entry in scripts/missing_metrics.py, and no present metric has one."""
    assert lacking[profile] == missing(kind(profile), METRICS)


def test_every_absence_is_valid() -> None:
    """Each entry has a reason, and names existing rows and simulated nodes."""
    assert set(ALL) == set(KINDS)
    for absence in MISSING_METRICS:
        assert absence.reason
        assert absence.kinds
        assert set(absence.kinds) <= set(KINDS)
        for metric in absence.metrics:
            assert [each for each in METRICS if fnmatchcase(each, f"gpumon_{metric}")], metric
