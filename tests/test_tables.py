"""The metric tables are the contract of /metrics, the API, the rules and the dashboards: invariants of every row."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pynvml
from each_case import each_case

from gpumon.collectors.nvml import gpm
from gpumon.collectors.nvml.calls import CALLS
from gpumon.collectors.nvml.fields import FIELD_IDS, field_ids
from gpumon.health.table import recorded_windows
from gpumon.model.nvlink import C2cLink, Nvlink
from gpumon.model.reading import (
    KEY_SEPARATOR,
    Bits,
    Call,
    Difference,
    Each,
    Field,
    Gpm,
    Integral,
    LinkCall,
    LinkField,
    Row,
    Source,
    Sysfs,
    Table,
    primary_sources,
    rows,
)
from gpumon.outputs.metric_catalogue import unit
from gpumon.state.sections import TABLES

NEWEST_DRIVER = "9999"

TARGET_LABELS = {"cluster", "rack", "job", "namespace", "pod", "container", "instance", "type", "owner", "team"}
"""Labels that Prometheus, its service discovery or a site puts on targets."""
FORBIDDEN_LABELS = TARGET_LABELS | {"quantile", "le"}

OTHER_UNITS = re.compile(
    r"(percent|percentage|milliseconds|microseconds|nanoseconds|minutes|hours|[kmg]i?b|kilobytes|megabytes|bits"
    r"|milliwatts|kilowatts|millijoules|mhz|ghz|megahertz|fahrenheit|kelvin|ms|us|ns|mw|mj)"
)
UNIT_WORDS = {"seconds", "bytes", "celsius", "watts", "joules", "hertz", "ratio"}

ROWS = [(table, name, row) for table in TABLES for name, row in rows(table).items()]
METRICS = [(table, name, row) for table, name, row in ROWS if not row.identity]

every_row = each_case(("table", "name", "row"), ROWS, ids=[t.PREFIX + n for t, n, _ in ROWS])
every_metric = each_case(("table", "name", "row"), METRICS, ids=[t.PREFIX + n for t, n, _ in METRICS])


def parts(source: Source) -> Iterator[Source]:
    """Yield the calls and fields of a source; a difference is read from two fields."""
    for part in primary_sources(source):
        yield from (part.total, part.part) if isinstance(part, Difference) else (part,)


@every_row
def test_help_is_a_sentence(table: type[Table], name: str, row: Row) -> None:
    """Every help text is a sentence with a capital and a full stop."""
    del table, name
    assert row.help == row.help.strip()
    assert row.help[0].isupper() or row.help[0].isdigit()
    assert row.help.endswith(".")


@every_metric
def test_unit_is_a_base_unit_at_the_end(table: type[Table], name: str, row: Row) -> None:
    """A name ends in its unit, units are base units, and `_total` is for counters of events or amounts."""
    del row
    words = (table.PREFIX + name).removesuffix("_total").split("_")
    assert not [word for word in words if OTHER_UNITS.fullmatch(word)]
    assert bool(unit(name)) == (words[-1] in UNIT_WORDS or words[-3:] == ["bytes", "per", "second"])
    assert "total" not in words or name in {"memory_total_bytes", "bar1_total_bytes"}


@every_metric
def test_integrals_count_seconds(table: type[Table], name: str, row: Row) -> None:
    """An integral is a counter, and the row that it integrates is in the same table."""
    integrals = [part for part in parts(row.source) if isinstance(part, Integral)]
    for integral in integrals:
        assert name.endswith("_total")
        assert integral.of in rows(table)


@every_row
def test_names_are_prometheus_names(table: type[Table], name: str, row: Row) -> None:
    """Names and labels have the characters that Prometheus allows and begin with gpumon_, without a colon."""
    assert re.fullmatch(r"gpumon_[a-z0-9_]+", table.PREFIX + name)
    for label in (*table.LABELS, *row.labels):
        assert re.fullmatch(r"[a-z][a-z0-9_]*", label)


@every_row
def test_labels_do_not_clash_with_target_labels(table: type[Table], name: str, row: Row) -> None:
    """No label clashes with those of Prometheus or of a site, and none occurs twice."""
    labels = [*table.LABELS, *row.labels, *([name] if row.identity else [])]
    assert not FORBIDDEN_LABELS & set(labels)
    assert len(labels) == len(set(labels))


def test_the_tables_have_every_kind_of_row() -> None:
    """There are integrals, labelled readings and details, so that the tests of each kind check something."""
    kinds = {type(part) for _, _, row in METRICS for part in parts(row.source)}
    assert {Integral, Call, Field, Gpm, LinkField, Sysfs} <= kinds
    assert {Each, Bits} <= {type(row.source) for _, _, row in METRICS}
    assert any(isinstance(row.detail, tuple) for _, _, row in METRICS)


def test_metric_names_are_unique() -> None:
    """No two tables have the same metric."""
    names = [table.PREFIX + name for table, name, _ in METRICS]
    names += [f"{table.PREFIX}info" for table in TABLES if any(row.identity for row in rows(table).values())]
    assert len(names) == len(set(names))


@every_row
def test_calls_and_fields_exist(table: type[Table], name: str, row: Row) -> None:
    """Every call is a function of the bindings, and every field has a number on the newest driver."""
    del table, name
    for part in parts(row.source):
        if isinstance(part, Call | LinkCall):
            assert part.name in CALLS or callable(getattr(pynvml, f"nvmlDeviceGet{part.name}"))
        elif isinstance(part, Gpm):
            assert part.name in gpm.METRICS
        elif isinstance(part, Field | LinkField):
            assert part.name in field_ids(NEWEST_DRIVER)


@every_row
def test_label_values_do_not_contain_the_separator(table: type[Table], name: str, row: Row) -> None:
    del table, name
    source = row.source
    keys = source.sources if isinstance(source, Each) else source.bits if isinstance(source, Bits) else {}
    for key in keys:
        assert len(key.split(KEY_SEPARATOR)) == len(row.labels)


@every_row
def test_details_are_values_of_the_label(table: type[Table], name: str, row: Row) -> None:
    """The details of a labelled row are some of its values, not all."""
    del table, name
    if isinstance(row.detail, tuple):
        match row.source:
            case Each(sources=values) | Bits(bits=values) | Sysfs(files=values):
                assert set(row.detail) < set(values)
            case _:
                raise AssertionError("the values of such a source are not listed")


def test_checks_read_windows_of_exported_metrics() -> None:
    """The history records exported metrics only: a window of another metric, or of a detail, would stay empty."""
    by_name = {table.PREFIX + name: row for table, name, row in METRICS}
    windows = recorded_windows()
    assert windows
    assert [name for name in windows if name not in by_name or by_name[name].detail is True] == []


def test_every_field_number_is_used() -> None:
    read = {part.name for _, _, row in ROWS for part in parts(row.source) if isinstance(part, Field | LinkField)}
    read |= {table.COUNT.name for table in (Nvlink, C2cLink)}
    assert {row.name for row in FIELD_IDS} == read


def test_every_gpm_metric_is_used() -> None:
    assert {part.name for _, _, row in ROWS for part in parts(row.source) if isinstance(part, Gpm)} == set(gpm.METRICS)
