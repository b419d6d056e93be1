"""Counters: the daemon alone accumulates, from the driver's raw values or from what the sampler's integrals gained."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from gpumon.model.gpu import Gpu
from gpumon.model.reading import AGENT, RARE, SLOW, Table, metric_type, rows


class Count(NamedTuple):
    """What is exported, and the driver's value it was last advanced by (None: an integral of our own)."""

    total: float
    raw: float | None
    fallen: float | None = None
    """The driver's last value when it was below `raw`; one that is more, and comes next, tells whether it was true."""
    fallen_at: float = 0.0
    """When that was first read, on the clock of Now.uptime."""


Counts = Mapping[str, Mapping[str, Count]]
"""By row, then by label value ("" for a row without labels)."""
Values = Mapping[str, Mapping[str, float]]
"""One poll's values in the same shape."""

RESET_SHARE = 0.5
"""What falls below this share of the last value, and counts on there, began anew."""
BELIEVED_SECONDS = 4 * SLOW.value
"""For how long a value has to stay below the last one to be true: by then it was read anew several times."""
SELDOM = {name: 2 * RARE.value for name, row in rows(Gpu).items() if row.every is RARE}
"""The same of rows that are read more seldom, by name."""
JITTER_SHARE = 0.99
"""What falls to less, and counts on there, has lost a part: a sum over links, of which one went down."""


@cache
def counter_rows(table: type[Table]) -> tuple[str, ...]:
    """Rows of a table that count and whose values come from the driver."""
    return tuple(name for name, row in rows(table).items() if metric_type(name) == "counter" and row.source != AGENT)


def raw_values(table: Table) -> Values:
    """The counters of a reading."""
    values = {name: getattr(table, name) for name in counter_rows(type(table))}
    return {name: _labelled(value) for name, value in values.items() if value is not None}


def gained(increments: Mapping[str, Any]) -> Values:
    """What the sampler's integrals gained."""
    return {name: _labelled(value) for name, value in increments.items()}


def _labelled(value: float | Mapping[str, float]) -> Mapping[str, float]:
    return value if isinstance(value, Mapping) else {"": value}


def advance(counts: Counts, raws: Values, gains: Values, uptime: float) -> Counts:
    """Counters after one more poll. A counter keeps to the kind of source it began with. `lived`: Now.uptime."""
    after = {name: dict(labelled) for name, labelled in counts.items()}
    for name, values in raws.items():
        row, believed = after.setdefault(name, {}), uptime - SELDOM.get(name, BELIEVED_SECONDS)
        for label, raw in values.items():
            count = row.get(label)
            if count is None:
                row[label] = Count(raw, raw)
            elif count.raw is not None:
                row[label] = _advance(count, count.raw, raw, uptime, believed)
    for name, values in gains.items():
        row = after.setdefault(name, {})
        for label, gain in values.items():
            count = row.get(label, Count(0.0, None))
            if count.raw is None:
                row[label] = Count(count.total + gain, None)
    return after


def begun(counts: Counts) -> Counts:
    """Counters of what is known to have begun anew: those that fell have done so."""
    return {
        name: {label: _begun(one, one.raw, one.fallen, one.fallen) for label, one in labelled.items()}
        for name, labelled in counts.items()
    }


def _advance(count: Count, last: float, raw: float, uptime: float, believed: float) -> Count:
    """`believed`: what fell before this moment is true if it has not risen again."""
    fallen = count.fallen
    if fallen is not None and raw >= fallen and count.fallen_at <= believed:
        return _begun(count, last, fallen, raw)
    if raw >= last:
        return Count(count.total + (raw - last), raw)
    if raw >= last * JITTER_SHARE:
        return Count(count.total, last)
    # Taken for a beginning, one wrong value would have the next count all twice; and what falls on does not count.
    if fallen is None or raw < fallen:
        return Count(count.total, last, fallen=raw, fallen_at=uptime)
    return count if raw == fallen else _begun(count, last, fallen, raw)


def _begun(count: Count, last: float | None, fallen: float | None, raw: float | None) -> Count:
    """It fell from the last value to that one, and is at `raw` by now; as it is where it did not fall."""
    if last is None or fallen is None or raw is None:
        return count
    begun_at = 0.0 if fallen < last * RESET_SHARE else fallen
    return Count(count.total + raw - begun_at, raw)


def began_anew(before: Count, after: Count) -> bool:
    """Whether the driver counts from the beginning again; only what it confirms is believed, see `advance`."""
    return before.raw is not None and after.raw is not None and after.raw < before.raw * RESET_SHARE


def totals(table: Table, counts: Counts, gains: Values) -> dict[str, Any]:
    """The counters to export beside this reading, by row. What was not read, or could not be integrated, is absent."""
    shown: dict[str, Any] = {}
    for name in counter_rows(type(table)):
        read = getattr(table, name)
        labelled = {
            label: count.total
            for label, count in counts.get(name, {}).items()
            if _is_current(count, label, read, gains.get(name, {}))
        }
        if labelled:
            shown[name] = labelled.get("", labelled)
    return shown


def _is_current(count: Count, label: str, read: Any, gains: Mapping[str, float]) -> bool:
    if count.raw is None:
        return label in gains
    return read is not None and (not label or label in read)
