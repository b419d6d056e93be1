"""Counters: accumulated here alone, from raw values of the driver or from increments of the sampler's integrals."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from gpumon.model.gpu import Gpu
from gpumon.model.reading import AGENT, RARE, SLOW, Table, metric_type, rows


class Count(NamedTuple):
    """The exported total, and the raw value that last advanced it (None for an integral of the sampler)."""

    total: float
    raw: float | None
    fallen: float | None = None
    """A raw value below `raw`, which later values must confirm."""
    fallen_at: float = 0.0
    """When `fallen` was first read, on the clock of Now.uptime."""


Counts = Mapping[str, Mapping[str, Count]]
"""By row, then by label value ("" for a row without labels)."""
Values = Mapping[str, Mapping[str, float]]
"""The values of one poll in the same shape."""

RESET_SHARE = 0.5
"""A counter that falls below this share of its last value and continues to count has restarted."""
BELIEVED_SECONDS = 4 * SLOW.value
"""Time for which a value must stay lower to be confirmed. It is read several times meanwhile."""
RARELY_READ = {name: 2 * RARE.value for name, row in rows(Gpu).items() if row.every is RARE}
"""The same for rows that are read less often, by name."""
JITTER_SHARE = 0.99
"""A counter that falls below this share and continues to count has lost a part: a sum over links, one of which is
down.
"""


@cache
def counter_rows(table: type[Table]) -> tuple[str, ...]:
    """Return the names of the counters of a table that come from the driver."""
    return tuple(name for name, row in rows(table).items() if metric_type(name) == "counter" and row.source != AGENT)


def raw_values(table: Table) -> Values:
    """Return the raw counters of a reading."""
    values = {name: getattr(table, name) for name in counter_rows(type(table))}
    return {name: _labelled(value) for name, value in values.items() if value is not None}


def gained(increments: Mapping[str, Any]) -> Values:
    """Return the increments of the sampler's integrals."""
    return {name: _labelled(value) for name, value in increments.items()}


def _labelled(value: float | Mapping[str, float]) -> Mapping[str, float]:
    return value if isinstance(value, Mapping) else {"": value}


def advance(counts: Counts, raws: Values, gains: Values, uptime: float) -> Counts:
    """Return the counters after a poll. A counter keeps the kind of source it started with. `uptime`: Now.uptime."""
    after = dict(counts)
    for name, values in raws.items():
        believed = uptime - RARELY_READ.get(name, BELIEVED_SECONDS)
        after[name] = _advance_row(counts.get(name, {}), values, uptime, believed)
    for name, gains_by_label in gains.items():
        after[name] = _add(after.get(name, {}), gains_by_label)
    return after


def _advance_row(
    row: Mapping[str, Count], values: Mapping[str, float], uptime: float, believed: float
) -> Mapping[str, Count]:
    """Advance the counters of a row; the same object if nothing changed."""
    changed: dict[str, Count] = {}
    for label, raw in values.items():
        count = row.get(label)
        if count is None:
            changed[label] = Count(raw, raw)
        elif count.raw is not None and (raw != count.raw or count.fallen is not None):
            changed[label] = _advance(count, count.raw, raw, uptime, believed)
    return {**row, **changed} if changed else row


def _add(row: Mapping[str, Count], gains: Mapping[str, float]) -> Mapping[str, Count]:
    """Add the increments of integrals; the same object if nothing changed."""
    changed: dict[str, Count] = {}
    for label, gain in gains.items():
        count = row.get(label)
        if count is None or (count.raw is None and gain):
            changed[label] = Count(gain if count is None else count.total + gain, None)
    return {**row, **changed} if changed else row


def confirm_reset(counts: Counts) -> Counts:
    """Confirm every lower value, because the device was reset."""
    return {
        name: {label: _restart(count, count.raw, count.fallen, count.fallen) for label, count in labelled.items()}
        for name, labelled in counts.items()
    }


def _advance(count: Count, last: float, raw: float, uptime: float, believed: float) -> Count:
    """Advance one counter.

    A lower value that was first read before `believed` is confirmed if it has not risen since.
    """
    fallen = count.fallen
    if fallen is not None and raw >= fallen and count.fallen_at <= believed:
        return _restart(count, last, fallen, raw)
    if raw >= last:
        return Count(count.total + (raw - last), raw)
    if raw >= last * JITTER_SHARE:
        return Count(count.total, last)
    # A wrong value taken for a restart would be counted twice with the next one; a falling value does not count.
    if fallen is None or raw < fallen:
        return Count(count.total, last, fallen=raw, fallen_at=uptime)
    return count if raw == fallen else _restart(count, last, fallen, raw)


def _restart(count: Count, last: float | None, fallen: float | None, raw: float | None) -> Count:
    """Restart a counter that fell from `last` to `fallen` and is now at `raw`; unchanged if it did not fall."""
    if last is None or fallen is None or raw is None:
        return count
    restarted_at = 0.0 if fallen < last * RESET_SHARE else fallen
    return Count(count.total + raw - restarted_at, raw)


def was_reset(before: Count, after: Count) -> bool:
    """Return whether the counter of the driver restarted, once `advance` has confirmed it."""
    return before.raw is not None and after.raw is not None and after.raw < before.raw * RESET_SHARE


def totals(table: Table, counts: Counts, gains: Values) -> dict[str, Any]:
    """Return the counters to export with this reading, by row, without those not read or not integrated."""
    exported: dict[str, Any] = {}
    for name in counter_rows(type(table)):
        read = getattr(table, name)
        labelled = {
            label: count.total
            for label, count in counts.get(name, {}).items()
            if _is_current(count, label, read, gains.get(name, {}))
        }
        if labelled:
            exported[name] = labelled.get("", labelled)
    return exported


def _is_current(count: Count, label: str, read: Any, gains: Mapping[str, float]) -> bool:
    if count.raw is None:
        return label in gains
    return read is not None and (not label or label in read)
