"""The catalogue of metrics is complete, and each row has a value on each simulated node or a reason for its absence."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from each_case import each_case
from gpumon_sim.profiles import PROFILES

from gpumon.model.reading import rows
from gpumon.outputs.metric_catalogue import catalogue, text
from gpumon.state.report import Report
from gpumon.state.sections import TABLES, samples
from scripts.docs.metrics_page import metrics_page
from scripts.metric_facts import kind
from scripts.missing_metrics import ALL, MISSING_METRICS, missing
from scripts.simulated_reports import gpu_rows, rows_by_profile

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


def test_every_row_has_its_entry() -> None:
    """Each row of each table is an entry, or a label of its table's info metric."""
    entries = {entry.name: entry for entry in catalogue()}
    for table in TABLES:
        for name, row in rows(table).items():
            if row.identity:
                assert name in entries[f"{table.PREFIX}info"].labels
            else:
                assert entries[table.PREFIX + name].help == row.help


def test_every_series_of_a_report_is_in_the_catalogue() -> None:
    """Each series that the agent exports from the start is in the catalogue with its labels."""
    labels = {entry.name: entry.labels for entry in catalogue()}
    for sample in samples(Report(started=0.0)):
        assert labels[sample.name] == tuple(name for name, _ in sample.labels)


def test_entry_has_unit_sources_and_tier() -> None:
    """Unit, sources in the order of preference and tier come from the row."""
    entries = {entry.name: entry for entry in catalogue()}
    energy = entries["gpumon_gpu_energy_joules_total"]
    assert (energy.type, energy.unit, energy.tier) == ("counter", "joules", "slow")
    assert energy.sources == ("field TOTAL_ENERGY", "integral of power_watts")
    assert entries["gpumon_nvlink_up"].labels == ("gpu", "uuid", "link")
    assert entries["gpumon_gpu_ecc_errors_total"].sources[1] == "field ECC_SBE_VOL_TOTAL - field ECC_SBE_VOL_DEV"
    assert entries["gpumon_simulated"].tier == ""


def test_text_and_json_list_every_metric() -> None:
    """Terminal and JSON show the same metrics in the same order."""
    names = [entry.name for entry in catalogue()]
    lines = [line for line in text(catalogue()).splitlines() if not line.startswith(" ")]
    assert [line.partition("{")[0] for line in lines] == names
    assert [load["name"] for load in json.loads(json.dumps([asdict(entry) for entry in catalogue()]))] == names


@pytest.mark.slow
def test_reference_page_is_current() -> None:
    """docs/metrics.md agrees with the tables; `make generate` writes it."""
    assert PAGE.read_text() == metrics_page()


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
