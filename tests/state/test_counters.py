"""Counters across wraps, resets and restarts of the driver's counters, and the detection of a GPU reset."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from each_case import each_case
from hypothesis import example, given
from hypothesis import strategies as st
from polled import open_poll
from reduced_reports import UP, gpu_reading, gpu_state, lost_reading, reduce_all, snapshot

from gpumon.model.gpu import Gpu
from gpumon.model.infiniband import InfinibandPort
from gpumon.model.nvlink import Nvlink
from gpumon.model.reading import (
    Difference,
    Each,
    Either,
    Field,
    Integral,
    LinkField,
    Source,
    Sysfs,
    Table,
    counter_range,
    rows,
)
from gpumon.model.records import Count, Counts
from gpumon.model.snapshot import GpuReading
from gpumon.state.counters import advance, confirm_reset, counter_rows, raw_values, totals
from gpumon.state.report import Report

ENERGY, SELDOM = "energy_joules_total", "ecc_errors_lifetime_total"


def exported_counts(*polls: dict[str, dict[str, float]], every: float = 1.0) -> Counts:
    counts: Counts = {}
    for number, raws in enumerate(polls):
        counts = advance(counts, raws, {}, number * every)
    return counts


def test_a_counter_starts_at_the_driver_value_and_follows_it() -> None:
    """The first value is exported unchanged; later values add their increase."""
    counts = exported_counts({ENERGY: {"": 100.0}}, {ENERGY: {"": 130.0}})

    assert counts[ENERGY][""] == Count(130.0, 130.0)


def test_a_driver_reload_does_not_make_a_counter_fall() -> None:
    """After a restart of the driver's counter its new values add to the previous total."""
    counts = exported_counts({ENERGY: {"": 1000.0}}, {ENERGY: {"": 5.0}}, {ENERGY: {"": 8.0}})

    assert counts[ENERGY][""].total == 1008.0


def test_one_low_value_is_not_a_restart() -> None:
    """One low reading does not restart a counter that continues afterwards.

    A rarely read value is repeated in every poll until the next reading.
    """
    counts = exported_counts(*({ENERGY: {"": raw}} for raw in (1000.0, 3.0, 3.0, 3.0, 1002.0)))

    assert counts[ENERGY][""] == Count(1002.0, 1002.0)


def test_a_counter_that_restarts_twice_adds_up() -> None:
    counts = exported_counts(*({ENERGY: {"": raw}} for raw in (1000.0, 5.0, 8.0, 100.0, 2.0, 3.0)))

    assert counts[ENERGY][""].total == 1000.0 + 100.0 + 3.0


def test_errors_long_after_a_reset_are_counted() -> None:
    """Two errors, a reset, and one later error make a total of three."""
    counts = exported_counts(*({ENERGY: {"": raw}} for raw in (2.0, 0.0, 0.0, 0.0, 1.0)))

    assert counts[ENERGY][""] == Count(3.0, 1.0)


@pytest.mark.parametrize("later", [2.0, 5.0])
def test_a_value_that_stays_low_is_a_restart(later: float) -> None:
    counts = exported_counts(*({ENERGY: {"": raw}} for raw in (2.0, 0.0, 0.0, 0.0, 0.0, 0.0, later)), every=15.0)

    assert counts[ENERGY][""] == Count(2.0 + later, later)


def test_a_repeated_wrong_value_of_a_slow_field_is_not_a_restart() -> None:
    counts = exported_counts(*({SELDOM: {"": raw}} for raw in (9.0, 0.0, 0.0, 0.0, 0.0, 9.0, 10.0)), every=60.0)

    assert counts[SELDOM][""] == Count(10.0, 10.0)


def test_a_confirmed_reset_restarts_the_counters_that_fell() -> None:
    """After a confirmed reset, values that fell count from zero; values that rose continue."""
    counts = exported_counts({ENERGY: {"fell": 8.0, "rose": 10.0}}, {ENERGY: {"fell": 1.0, "rose": 18.0}})
    counts = advance(confirm_reset(counts), {ENERGY: {"fell": 8.0, "rose": 19.0}}, {}, 2.0)

    assert counts[ENERGY] == {"fell": Count(16.0, 8.0), "rose": Count(19.0, 19.0)}


def test_a_small_decrease_is_not_exported() -> None:
    counts = exported_counts({ENERGY: {"": 1000.0}}, {ENERGY: {"": 999.0}}, {ENERGY: {"": 1001.0}})

    assert counts[ENERGY][""].total == 1001.0


def test_a_sum_that_loses_a_part_continues() -> None:
    """When one of 18 links goes down, the sum continues with the bytes of the other links."""
    counts = exported_counts(*({ENERGY: {"": raw}} for raw in (1800.0, 1702.0, 1704.0, 1710.0)))

    assert counts[ENERGY][""] == Count(1808.0, 1710.0)


def test_a_counter_keeps_its_source() -> None:
    """A row keeps its first source: after a driver value it ignores integrals, and the reverse."""
    driver_first = advance(advance({}, {ENERGY: {"": 10.0}}, {}, 0.0), {}, {ENERGY: {"": 5.0}}, 1.0)
    integral_first = advance(advance({}, {}, {ENERGY: {"": 5.0}}, 0.0), {ENERGY: {"": 10.0}}, {}, 1.0)

    assert driver_first[ENERGY][""].total == 10.0
    assert integral_first[ENERGY][""].total == 5.0


def test_a_driver_counter_without_a_reading_is_absent() -> None:
    counts = exported_counts({ENERGY: {"": 10.0}})

    assert ENERGY not in totals(Gpu(), counts, {})
    assert totals(Gpu(energy_joules_total=12.0), counts, {})[ENERGY] == 10.0


@example([527656066187.01013, 0.0, 381237041059.14136, 190618520530.0, 190618520530.0])
@given(st.lists(st.floats(min_value=0, max_value=1e12), min_size=1))
def test_exported_counters_never_fall(values: list[float]) -> None:
    counts: Counts = {}
    last = 0.0
    for number, value in enumerate(values):
        counts = advance(counts, raw_values(Gpu(energy_joules_total=value)), {}, number * 300.0)
        assert counts[ENERGY][""].total >= last
        last = counts[ENERGY][""].total


WIDTHS = {4, 8, 16, 32, 64}
TABLES: tuple[type[Table], ...] = (Gpu, Nvlink, InfinibandPort)


def widths(source: Source) -> Iterator[tuple[str, int]]:
    """Yield label value and stated width of each counter of the driver that a source reads."""
    match source:
        case Field(bits=bits) | LinkField(bits=bits):
            yield "", bits
        case Difference(total=total, part=part):
            yield from (*widths(total), *widths(part))
        case Either(first=first, second=second):
            yield from (*widths(first), *widths(second))
        case Each(sources=sources):
            yield from ((key, bits) for key, each in sources.items() for _, bits in widths(each))
        case Sysfs(files=files, bits=stated):
            yield from ((name if len(files) > 2 else "", stated.get(name, 0)) for name in files)
        case Integral():
            return
        case _:
            yield "", 0


COUNTERS = [
    (table, name, label, bits)
    for table in TABLES
    for name in counter_rows(table)
    for label, bits in widths(rows(table)[name].source)
]


@each_case(("table", "name", "label", "bits"), COUNTERS)
def test_each_counter_row_counts_across_its_wrap(table: type[Table], name: str, label: str, bits: int) -> None:
    """Every counter row states its width; nothing is lost when the counter continues at 0, unless it stops instead."""
    assert bits in WIDTHS, f"{name}{{{label}}} states no width"
    full = counter_range(rows(table)[name].source, label)
    stops = (table is InfinibandPort and bits < 64 and full == math.inf) or bits == 8
    assert full == math.inf if bits == 64 or stops else full == 2.0**bits

    counts: Counts = {}
    top = 2.0**bits
    for number, raw in enumerate((top - 7, top - 3, 2.0, 5.0)):
        counts = advance(counts, {name: {label: raw}}, {}, number * 15.0, table)
    wrapped = 4 + 5 + 3
    assert counts[name][label].total - (top - 7) == (4 + 5 if math.isinf(full) else wrapped) or bits == 64


SLOW = """gpus: {{0: {{set: {{pcie_replays: {replays}}}, remap: {{correctable: {rows}}},
  pcie_errors: {{correctable: {errors}, naks_sent: {errors}, fatal: {fatal}}}}}}}"""


def test_totals_follow_counters_of_the_simulated_driver_across_their_width(tmp_path: Path) -> None:
    """Counters of 16 and 32 bits wrap and are counted on; an 8-bit counter stops at 255."""
    grown = [
        {"replays": 2**16 + n, "rows": 2**32 - 10, "errors": 2**16 + n, "fatal": 250 + n} for n in (-20, -3, 4, 5, 30)
    ]
    report = None
    with open_poll("h100x8", SLOW.format(**grown[0]), folder=tmp_path) as poll:
        for at, values in enumerate(grown):
            poll.simulation.edit(SLOW.format(**values))
            snapshot = poll.poll_later(all_tiers=True)
            report = reduce_all(snapshot, at=100.0 + 15 * at, report=report)
    assert report is not None
    gpu = gpu_state(report, snapshot.gpus[0].uuid or "").gpu
    assert gpu.pcie_replays_total == 2**16 + 30
    assert gpu.pcie_errors_total is not None
    assert (gpu.pcie_errors_total["correctable"], gpu.pcie_errors_total["naks_sent"]) == (2**16 + 30, 2**16 + 30)
    assert gpu.pcie_errors_total["fatal"] == 255


@pytest.mark.parametrize(
    ("kind", "last", "gained"),
    [("fatal", 255.0, 3.0), ("fatal", 250.0, 3.0), ("correctable", 40000.0, 3.0), ("correctable", 65530.0, 9.0)],
)
def test_a_reset_is_not_taken_for_a_wrap(kind: str, last: float, gained: float) -> None:
    """Only a counter of 16 bits or more that falls from near its maximum to near 0 has wrapped."""
    counts: Counts = {}
    for number, raw in enumerate((last, 1.0, 3.0)):
        counts = advance(counts, {"pcie_errors_total": {kind: raw}}, {}, number * 15.0)
    assert counts["pcie_errors_total"][kind].total == last + gained


def reads(errors: float | None = None, energy: float | None = None) -> GpuReading:
    counted = None if errors is None else {"corrected,dram": errors}
    return gpu_reading(0, gpu=Gpu(name="NVIDIA T4", ecc_errors_total=counted, energy_joules_total=energy))


def after(*polls: GpuReading, every: float = 1.0) -> Report:
    report = reduce_all(UP)
    for second, reading in enumerate(polls):
        at = 100.0 + second * every
        report = reduce_all(snapshot(replace(reading, bus_id=gpu_reading(0).bus_id), at=at), at=at, report=report)
    return report


def reset_at(*polls: GpuReading, every: float = 1.0) -> float | None:
    return gpu_state(after(*polls, every=every), "GPU-0").reset_at


def test_energy_that_restarts_is_a_reset_at_its_second_reading() -> None:
    """A reset is detected at the second lower energy reading, because one alone may be wrong."""
    assert reset_at(reads(energy=1e6), reads(energy=5.0)) is None
    assert reset_at(reads(energy=1e6), reads(energy=5.0), reads(energy=6.0)) == 102.0
    assert reset_at(reads(energy=1e6), reads(energy=1e6 - 1), reads(energy=1e6 + 9)) is None


def test_without_energy_errors_that_fell_over_a_gap_are_a_reset() -> None:
    """Without energy, lower errors prove a reset only after a fault or a gap between readings."""
    assert reset_at(reads(40.0), lost_reading(0), reads(0.0)) == 102.0
    assert reset_at(reads(40.0), reads(0.0), every=60.0) == 160.0
    assert reset_at(reads(40.0), reads(0.0), reads(0.0)) is None
    assert reset_at(reads(40.0), lost_reading(0), reads(40.0)) is None
    assert reset_at(reads(0.0), lost_reading(0), reads(0.0)) is None


def test_errors_after_a_reset_are_added() -> None:
    """After a reset that the energy counter shows, the same number of errors counts again."""
    report = after(reads(2.0, 1e6), lost_reading(0), reads(0.0, 5.0), reads(0.0, 6.0), reads(2.0, 7.0))
    assert gpu_state(report, "GPU-0").gpu.ecc_errors_total == {"corrected,dram": 4.0}


def test_energy_has_precedence_over_errors() -> None:
    """If energy is counted, lower error counts alone are no reset, because an operator may clear them."""
    assert reset_at(reads(40.0, 1e6), lost_reading(0), reads(0.0, 1e6 + 5), reads(0.0, 1e6 + 6)) is None
