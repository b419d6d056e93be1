"""Counters of a driver are 8 to 64 bits wide: totals stay right when one of them wraps or stops."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from each_case import each_case
from polled import open_poll
from reduced_reports import gpu_state, reduce_all

from gpumon.model.counter import Counts
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
from gpumon.state.counters import advance, counter_rows

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
