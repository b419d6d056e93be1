"""The rows of metric tables, and how a table becomes series.

The frozen dataclass is the table: attribute name = metric suffix = JSON key = the name rules use, the unit is the
suffix, `_total` makes a counter. Help text, source and tier are in the same row.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, ClassVar, NamedTuple, Protocol

KEY_SEPARATOR = ","
"""Joins the label values of a reading that has more than one extra label, as in `{"corrected,dram": 0}`."""


class Tier(enum.Enum):
    """How often a row is read; the value is in seconds. FAST is every poll, whose interval is configured."""

    FAST = 1.0
    SLOW = 15.0
    RARE = 300.0
    ONCE = float("inf")


FAST, SLOW, RARE, ONCE = Tier.FAST, Tier.SLOW, Tier.RARE, Tier.ONCE

ALL_LINKS = 0xFFFFFFFF
"""Scope of an NVLink field that asks for the sum over the links of a GPU."""


@dataclass(frozen=True, slots=True)
class Call:
    """One getter of NVML, `nvmlDeviceGet<name>`, called once per poll for all rows that share it.

    `attribute` selects a member of the returned struct or list; the driver returns the value `unknown` if it has none.
    Names in nvml/calls are called there, because the wrapper of pynvml cannot be used.
    """

    name: str
    arguments: tuple[int, ...] = ()
    attribute: str | int | None = None
    scale: float = 1
    unknown: int | None = None


@dataclass(frozen=True, slots=True)
class Field:
    """One field of nvmlDeviceGetFieldValues, by the name that nvml/field_ids turns into this driver's number."""

    name: str
    scale: float = 1
    scope: int = 0


@dataclass(frozen=True, slots=True)
class LinkField:
    """A field whose scope is the NVLink of the row."""

    name: str
    scale: float = 1
    states: tuple[int, ...] | None = None
    """If given, the reading is 1 for these values and 0 for others."""
    packed: bool = False
    """An error rate: mantissa in bits 8 to 11, negative power of ten in bits 0 to 7."""


@dataclass(frozen=True, slots=True)
class LinkCall:
    """A getter whose argument is the link of the row."""

    name: str
    attribute: str | None = None
    words: Mapping[int, str] | None = None


@dataclass(frozen=True, slots=True)
class Slowest:
    """The lowest value above 0 that this field has on any link."""

    field: LinkField


@dataclass(frozen=True, slots=True)
class Gpm:
    """A metric of GPU performance monitoring, by the name that nvml/gpm turns into a number. Hopper and later."""

    name: str
    scale: float = 0.01


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """Memory of each process, by "pid,name". Read only if configured, and only for the largest processes."""

    lists: tuple[Call, ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """A total minus its part, both read in the same batch."""

    total: Field
    part: Field


@dataclass(frozen=True, slots=True)
class Distinct:
    """Number of different processes in the lists of these calls."""

    lists: tuple[Call, ...]


@dataclass(frozen=True, slots=True)
class Each:
    """A labelled reading: one source for each label value."""

    sources: Mapping[str, Source]


@dataclass(frozen=True, slots=True)
class Bits:
    """A labelled reading: one bit of a mask for each label value.

    Bits that the mask of `supported` lacks are absent.
    """

    mask: Call
    bits: Mapping[str, int]
    supported: Call | None = None


class RowCheck(NamedTuple):
    """One check in a bit mask that has several bits for each check. The value 0 means "not supported"."""

    shift: int
    width: int
    """Bits."""
    healthy: int
    """The value of a healthy check; any other value is unhealthy."""


@dataclass(frozen=True, slots=True)
class Checks:
    """A labelled reading: 1 for an unhealthy check of the mask, 0 for a healthy one."""

    mask: Call
    checks: Mapping[str, RowCheck]


@dataclass(frozen=True, slots=True)
class Integral:
    """Integral over time of another row of the same table, computed between polls. A gap is not integrated."""

    of: str


@dataclass(frozen=True, slots=True)
class Either:
    """The first source that this GPU and driver support. A counter uses the same source for the life of the agent."""

    first: Source
    second: Source


@dataclass(frozen=True, slots=True)
class Agent:
    """Provided by the agent itself, without a driver call."""


@dataclass(frozen=True, slots=True)
class Sysfs:
    """Read by the links child from sysfs, without a driver call; one file per label value."""

    files: tuple[str, ...]


Source = (
    Call
    | Field
    | LinkField
    | LinkCall
    | Slowest
    | Gpm
    | ProcessMemory
    | Difference
    | Distinct
    | Each
    | Bits
    | Checks
    | Integral
    | Either
    | Agent
    | Sysfs
)
AGENT = Agent()


def primary_sources(source: Source) -> Iterator[Source]:
    """Yield the calls, fields and files from which a source is read, in order of preference."""
    match source:
        case Distinct(lists=parts) | ProcessMemory(lists=parts):
            yield from parts
        case Slowest(field=part) | Checks(mask=part):
            yield part
        case Bits(mask=mask, supported=supported):
            yield from (part for part in (mask, supported) if part)
        case Each(sources=sources):
            yield from (part for each in sources.values() for part in primary_sources(each))
        case Either(first=first, second=second):
            yield from (*primary_sources(first), *primary_sources(second))
        case _:
            yield source


@dataclass(frozen=True, slots=True)
class Row:
    """Metadata of an attribute of a table."""

    help: str
    source: Source
    every: Tier
    labels: tuple[str, ...] = ()
    identity: bool = False
    """A text that rarely changes; all identities of a table are labels of its `info` metric."""
    note: str = ""
    """For the reference page: which GPUs have it, traps."""
    detail: bool | tuple[str, ...] = False
    """True if the row is exported only with detailed metrics, or the label values that are exported only then."""

    def hidden(self, key: str) -> bool:
        """Return whether this label value is a detail."""
        return self.detail is True or (self.detail is not False and key in self.detail)


def reading(
    text: str,
    source: Source,
    *,
    every: Tier = FAST,
    label: str | tuple[str, ...] = (),
    note: str = "",
    detail: bool | tuple[str, ...] = False,
) -> Any:
    """Return a row: a gauge, or a counter if the attribute ends in `_total`."""
    labels = (label,) if isinstance(label, str) else label
    return dataclasses.field(default=None, metadata={"row": Row(text, source, every, labels, note=note, detail=detail)})


def accumulated(text: str, *, of: str, label: str = "", note: str = "") -> Any:
    """Return a row that is the integral over time of another row of its table, in seconds."""
    return reading(text, Integral(of), label=(label,) if label else (), note=note)


def identity(text: str, source: Source, *, every: Tier = ONCE) -> Any:
    """Return a row of the identity, which is a label of the `info` metric."""
    return dataclasses.field(default=None, metadata={"row": Row(text, source, every, identity=True)})


def agent(text: str, *, label: str | tuple[str, ...] = (), note: str = "") -> Any:
    """Return a row that the agent provides without the driver."""
    return reading(text, AGENT, every=FAST, label=label, note=note)


Labels = tuple[tuple[str, str], ...]


class Sample(NamedTuple):
    """One series at one time; the name is the full metric name."""

    name: str
    labels: Labels
    value: float


class Table(Protocol):
    """A frozen dataclass whose attributes are rows; its metric names start with PREFIX."""

    PREFIX: ClassVar[str]
    LABELS: ClassVar[tuple[str, ...]]
    """Names of the labels that every series of the table carries."""
    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]


@cache
def rows(table: type[Table]) -> Mapping[str, Row]:
    """Return the rows of a table in their order, by attribute name."""
    return {f.name: f.metadata["row"] for f in dataclasses.fields(table) if "row" in f.metadata}


INFO_HELP = "Always 1; the labels hold the identity."
"""Help of every `info` metric."""


def metric_type(name: str) -> str:
    """Return the Prometheus type of a metric from its name."""
    return "counter" if name.endswith("_total") else "gauge"


def samples(
    table: Table, own: Labels, *, detailed: bool = True, names: frozenset[str] | None = None
) -> Iterator[Sample]:
    """Yield the series of a table, with details if `detailed`; None is absent. `names`: of these metrics only."""
    for attribute, name, row in _exported_rows(type(table), names):
        value = getattr(table, attribute)
        if value is None or (row.detail is True and not detailed):
            continue
        if row.labels:
            for key, number in value.items():
                if detailed or not row.hidden(key):
                    yield Sample(name, own + labels_of(row.labels, key), float(number))
        else:
            yield Sample(name, own, float(value))
    if names is None or table.PREFIX + "info" in names:
        yield from _info(table, own)


def count_series(table: Table, *, detailed: bool = True) -> int:
    """Return the number of series that `samples` yields."""
    count = sum(1 for _ in _info(table, ()))
    for attribute, _, row in _exported_rows(type(table), None):
        value = getattr(table, attribute)
        if value is None or (row.detail is True and not detailed):
            continue
        if not row.labels:
            count += 1
        elif detailed or not row.detail:
            count += len(value)
        else:
            count += sum(not row.hidden(key) for key in value)
    return count


@cache
def _exported_rows(table: type[Table], names: frozenset[str] | None) -> tuple[tuple[str, str, Row], ...]:
    """Return attribute, metric name and row of each row that is a metric of its own. `names`: of these only."""
    named = ((attribute, table.PREFIX + attribute, row) for attribute, row in rows(table).items() if not row.identity)
    return tuple(each for each in named if names is None or each[1] in names)


def _info(table: Table, own: Labels) -> Iterator[Sample]:
    """Yield the `info` series if any identity is known."""
    values = {name: getattr(table, name) for name, row in rows(type(table)).items() if row.identity}
    labels = tuple((name, "" if value is None else str(value)) for name, value in values.items())
    if any(value for _, value in labels):
        yield Sample(table.PREFIX + "info", own + labels, 1.0)


@lru_cache(maxsize=1 << 12)
def labels_of(names: tuple[str, ...], key: str) -> Labels:
    """Return the extra labels of a value of a labelled reading; an empty label is absent, as in Prometheus."""
    values = key.split(KEY_SEPARATOR) if len(names) > 1 else (key,)
    return tuple(pair for pair in zip(names, values, strict=True) if pair[1])
