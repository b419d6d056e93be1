"""Accumulates exported counters from raw counters of the driver or kernel, or from increments of sampler integrals."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from math import inf
from typing import Any

from gpumon.model.gpu import Gpu
from gpumon.model.reading import AGENT, RARE, SLOW, Table, counter_range, metric_type, rows
from gpumon.model.records import Count, Counts

Values = Mapping[str, Mapping[str, float]]
"""Values of one poll by metric, then by label value ("" for a metric without labels)."""

RESET_SHARE = 0.5
"""A counter that falls below this share of its last value, and continues to count, has restarted at 0."""
BELIEVED_SECONDS = 4 * SLOW.value
"""Seconds after which a lower value of a counter is confirmed although the counter has not risen since. The counter is
read several times in this time.
"""
RARELY_READ = {name: 2 * RARE.value for name, row in rows(Gpu).items() if row.every is RARE}
"""Seconds that replace BELIEVED_SECONDS, by metric, for the rare tier, which is read only every five minutes."""
WRAP_SHARE = 0.25
"""A counter has wrapped if it falls from the highest quarter (this share) of its range to the lowest quarter. A counter
that was at its maximum had stopped there: if it falls, it has restarted.
"""
JITTER_SHARE = 0.99
"""A decrease to this share of the last value or more is noise. A larger decrease, down to RESET_SHARE, shows that a
counter which the driver sums over links no longer includes a link, because that link is down.
"""


@cache
def counter_rows(table: type[Table]) -> tuple[str, ...]:
    """Return the names of the counters in a table, without those that the agent itself counts."""
    return tuple(name for name, row in rows(table).items() if metric_type(name) == "counter" and row.source != AGENT)


def raw_values(table: Table) -> Values:
    """Return the raw counters in a reading, by metric and label value."""
    values = {name: getattr(table, name) for name in counter_rows(type(table))}
    return {name: _by_label(value) for name, value in values.items() if value is not None}


def integral_increments(increments: Mapping[str, Any]) -> Values:
    """Return the increments of a reading (`GpuReading.increments`) by metric and label value ("" without labels)."""
    return {name: _by_label(value) for name, value in increments.items()}


def _by_label(value: float | Mapping[str, float]) -> Mapping[str, float]:
    return value if isinstance(value, Mapping) else {"": value}


@cache
def _range(table: type[Table], name: str, label: str) -> float:
    return counter_range(rows(table)[name].source, label)


def advance(counts: Counts, raws: Values, gains: Values, uptime: float, table: type[Table] = Gpu) -> Counts:
    """Return the counters of a table after a poll. `uptime` is Now.uptime.

    `raws`: raw values of the poll (`raw_values`). `gains`: increments of integrals (`integral_increments`). A counter
    that began with raw values ignores increments, and one that began with increments ignores raw values.
    """
    after = dict(counts)
    for name, values in raws.items():
        after[name] = _advance_row(counts.get(name, {}), values, uptime, (table, name))
    for name, gains_by_label in gains.items():
        after[name] = _add(after.get(name, {}), gains_by_label)
    return after


def _advance_row(
    row: Mapping[str, Count], values: Mapping[str, float], uptime: float, source: tuple[type[Table], str]
) -> Mapping[str, Count]:
    """Return the counters of one row advanced; `row` itself if none changed. `source` is the row's table and name."""
    changed: dict[str, Count] = {}
    for label, raw in values.items():
        count = row.get(label)
        if count is None:
            changed[label] = Count(raw, raw)
        elif count.raw is not None and (raw != count.raw or count.fallen is not None):
            believed = uptime - RARELY_READ.get(source[1], BELIEVED_SECONDS)
            changed[label] = _advance(count, raw, uptime, believed, _range(*source, label))
    return {**row, **changed} if changed else row


def _add(row: Mapping[str, Count], gains: Mapping[str, float]) -> Mapping[str, Count]:
    """Return the counters of one metric with increments of integrals added; `row` itself if none changed."""
    changed: dict[str, Count] = {}
    for label, gain in gains.items():
        count = row.get(label)
        if count is None or (count.raw is None and gain):
            changed[label] = Count(gain if count is None else count.total + gain, None)
    return {**row, **changed} if changed else row


def confirm_reset(counts: Counts) -> Counts:
    """Return the counters after a reset of the device, which confirms each lower value (`fallen`) that was waiting."""
    return {
        name: {label: _restart(count, count.fallen, count.fallen) for label, count in labelled.items()}
        for name, labelled in counts.items()
    }


def _advance(count: Count, raw: float, uptime: float, believed: float, width: float) -> Count:
    """Return the counter advanced to the raw value `raw`. `width` is the value at which the counter wraps to 0.

    A lower value is confirmed by a later one above it or, if it was first read before `believed` (as Now.uptime), by
    an equal one.
    """
    last, fallen = count.raw or 0.0, count.fallen
    if fallen is not None and raw >= fallen and count.fallen_at <= believed:
        return _restart(count, fallen, raw, width)
    if raw >= last:
        return Count(count.total + (raw - last), raw)
    if raw >= last * JITTER_SHARE:
        return Count(count.total, last)
    # If a wrong value counted as a restart, the next correct one would be counted twice. So a lower value must wait.
    if fallen is None or raw < fallen:
        return Count(count.total, last, fallen=raw, fallen_at=uptime)
    return count if raw == fallen else _restart(count, fallen, raw, width)


def _restart(count: Count, fallen: float | None, raw: float | None, width: float = inf) -> Count:
    """Return the counter after its raw value fell to `fallen` and then became `raw`, because it wrapped or restarted.

    Return the counter unchanged if one of the raw values is None.
    """
    last = count.raw
    if last is None or fallen is None or raw is None:
        return count
    if (1 - WRAP_SHARE) * width < last < width - 1 and fallen < WRAP_SHARE * width:
        return Count(count.total + (raw + width - last), raw)
    restarted_at = 0.0 if fallen < last * RESET_SHARE else fallen
    return Count(count.total + (raw - restarted_at), raw)


def was_reset(before: Count, after: Count) -> bool:
    """Return True if the raw value fell below RESET_SHARE of its earlier value: the driver's counter has restarted.

    In states from `advance`, the raw value falls only when that is confirmed.
    """
    return before.raw is not None and after.raw is not None and after.raw < before.raw * RESET_SHARE


def totals(table: Table, counts: Counts, gains: Values) -> dict[str, Any]:
    """Return the totals to export with this reading, by metric; for a metric with labels, a dict by label value.

    `table` is the reading, and `gains` are the increments of the same poll. A counter that this poll neither read nor
    integrated is left out.
    """
    exported: dict[str, Any] = {}
    for name in counter_rows(type(table)):
        value, integrated = getattr(table, name), gains.get(name, {})
        read = () if value is None else _by_label(value)
        labelled = {
            label: count.total
            for label, count in counts.get(name, {}).items()
            if label in (integrated if count.raw is None else read)
        }
        if labelled:
            exported[name] = labelled.get("", labelled)
    return exported
