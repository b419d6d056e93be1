"""Rows of metric tables, and the conversion of tables to Prometheus series.

A metric table is a frozen dataclass. Each attribute is a row. The attribute's name is the end of the metric's name and
the key in JSON; it contains the unit, and a final `_total` makes it a counter. A row holds the help text, source and
tier.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, ClassVar, NamedTuple, Protocol

KEY_SEPARATOR = ","
"""Separator of label values in the keys of a reading with several labels, such as `{"corrected,dram": 0}`."""


class Tier(enum.Enum):
    """Interval in seconds at which a metric is read. FAST means at every poll, whose interval is configured."""

    FAST = 1.0
    STATE = 5.0
    """Port states; port counters are SLOW."""
    SLOW = 15.0
    RARE = 300.0
    ONCE = float("inf")


FAST, STATE, SLOW, RARE, ONCE = Tier.FAST, Tier.STATE, Tier.SLOW, Tier.RARE, Tier.ONCE


class Page(enum.Enum):
    """URL path of the page that exports a metric. LINKS, for metrics of single links, can be scraped less often."""

    METRICS = "/metrics"
    LINKS = "/metrics/links"


METRICS, LINKS = Page.METRICS, Page.LINKS

ALL_LINKS = 0xFFFFFFFF
"""Scope of an NVLink field that requests the sum over all links of a GPU."""


@dataclass(frozen=True, slots=True)
class Call:
    """Source: one getter of NVML, `nvmlDeviceGet<name>`, called once per poll for all metrics that use it.

    `arguments` follow the device handle. `attribute` selects a member of the returned struct or list. `scale` converts
    it to the unit of the metric. `unknown` is the value that the driver returns if it has no reading. Getters in
    collectors/nvml/calls replace wrappers of pynvml that cannot be used.
    """

    name: str
    arguments: tuple[int, ...] = ()
    attribute: str | int | None = None
    scale: float = 1
    unknown: int | None = None


@dataclass(frozen=True, slots=True)
class Field:
    """Source: one field of nvmlDeviceGetFieldValues. collectors/nvml/fields maps `name` to the driver's field id."""

    name: str
    scale: float = 1
    scope: int = 0
    bits: int = 0
    """Width of the driver's counter; 0 if the field is no counter."""


@dataclass(frozen=True, slots=True)
class LinkField:
    """Source: a field of nvmlDeviceGetFieldValues whose scope is one NVLink."""

    name: str
    scale: float = 1
    bits: int = 0
    """Width of the driver's counter; 0 if the field is no counter."""
    states: tuple[int, ...] | None = None
    """Field values for which the reading is 1; for all others it is 0. If None, the reading is the field value itself.
    """
    packed: bool = False
    """True if the field packs an error rate: mantissa in bits 8 to 11, negative power of ten in bits 0 to 7."""


@dataclass(frozen=True, slots=True)
class LinkCall:
    """Source: a getter of NVML whose arguments are a GPU and the number of an NVLink.

    `attribute`: member of the returned struct that has the value; None if the getter returns the value itself. `words`:
    text for each value; None if the value is a PCI address.
    """

    name: str
    attribute: str | None = None
    words: Mapping[int, str] | None = None


@dataclass(frozen=True, slots=True)
class Slowest:
    """Source: the lowest value above 0 that a field has on any NVLink of the GPU."""

    field: LinkField


@dataclass(frozen=True, slots=True)
class Gpm:
    """Source: a GPU performance monitoring metric (Hopper and later). collectors/nvml/gpm maps `name` to its id."""

    name: str
    scale: float = 0.01


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """Source: GPU memory of each of the largest processes in `lists`, by "pid,name". Read only if enabled."""

    lists: tuple[Call, ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """Source: the field `total` minus the field `part`, both read in the same batch."""

    total: Field
    part: Field


@dataclass(frozen=True, slots=True)
class Distinct:
    """Source: the number of different processes in the lists that several calls return."""

    lists: tuple[Call, ...]


@dataclass(frozen=True, slots=True)
class Each:
    """Source of a labelled reading: one source for each label value."""

    sources: Mapping[str, Source]


@dataclass(frozen=True, slots=True)
class Bits:
    """Source: one bit of a mask for each label value, as 1 or 0; absent if not set in the mask of `supported`."""

    mask: Call
    bits: Mapping[str, int]
    supported: Call


class RowCheck(NamedTuple):
    """Position and healthy value of one check in a mask with several bits per check. Value 0 means "not supported"."""

    shift: int
    width: int
    """Number of bits."""
    healthy: int
    """The value of a healthy check; any other value is unhealthy."""


@dataclass(frozen=True, slots=True)
class Checks:
    """Source of a labelled reading: 1 for each unhealthy check of a mask, 0 for healthy ones, none if unsupported."""

    mask: Call
    checks: Mapping[str, RowCheck]


@dataclass(frozen=True, slots=True)
class Integral:
    """Source: integral over time of another row of the table, named by `of`. Gaps are not integrated."""

    of: str


@dataclass(frozen=True, slots=True)
class Either:
    """Source: `first` if GPU and driver support it, else `second`. For a counter, the choice remains until the end."""

    first: Source
    second: Source


@dataclass(frozen=True, slots=True)
class Agent:
    """Source: a value that the agent itself provides, without a driver call."""


@dataclass(frozen=True, slots=True)
class Sysfs:
    """Source: files of sysfs, which the host child reads without a driver call.

    A labelled reading has one file for each label value. Other readings combine the files or use the first that exists.
    """

    files: tuple[str, ...]
    bits: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Width in bits of the counter in each file."""
    wraps: Collection[str] = ()
    """Files whose counter wraps to 0. Other counters stop at their maximum."""


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
    """Yield the sources that `source` combines, the preferred first. A Difference or Integral is yielded itself."""
    match source:
        case Distinct(lists=parts) | ProcessMemory(lists=parts):
            yield from parts
        case Slowest(field=part) | Checks(mask=part):
            yield part
        case Bits(mask=mask, supported=supported):
            yield from (mask, supported)
        case Each(sources=sources):
            yield from (part for each in sources.values() for part in primary_sources(each))
        case Either(first=first, second=second):
            yield from (*primary_sources(first), *primary_sources(second))
        case _:
            yield source


WIDEST = 64
"""Counters that have at least this width in bits are assumed never to wrap."""

STOPS_BITS = 8
"""Counters that have at most this width in bits are assumed to stop at their maximum; a lower value means a reset."""


def counter_range(source: Source, label: str = "") -> float:
    """Return the value, in the metric's unit, at which a counter wraps to 0; infinity if it does not."""
    match source:
        case Field(bits=bits, scale=scale) | LinkField(bits=bits, scale=scale):
            return 2.0**bits * scale if STOPS_BITS < bits < WIDEST else math.inf
        case Sysfs(bits=widths, wraps=wraps) if label in wraps:
            return 2.0 ** widths[label] if widths[label] < WIDEST else math.inf
        case Each(sources=sources) if label in sources:
            return counter_range(sources[label])
        case Either(first=first):
            return counter_range(first, label)
        case _:
            return math.inf


@dataclass(frozen=True, slots=True)
class Row:
    """Description of one metric: an attribute of a metric table."""

    help: str
    source: Source
    every: Tier
    labels: tuple[str, ...] = ()
    identity: bool = False
    """True for a text that rarely changes. All identity rows of a table are labels of the table's `info` metric."""
    note: str = ""
    """Text for the reference page: which GPUs provide the metric, and what to be careful about."""
    detail: bool | tuple[str, ...] = False
    """Whether the metric, or which of its label values, is exported only with detailed metrics."""
    unread: bool = False
    """True if no check, probe or other page uses what `detail` names: without detailed metrics it is not read."""
    page: Page = METRICS
    """The page that exports the metric. On LINKS, `detail` has no effect: that page always exports all its metrics."""
    zeros: bool = True
    """False if the page has no series for a value of 0."""

    def needs_detail(self, key: str) -> bool:
        """Return True if the series with the label values `key` is exported only with detailed metrics."""
        return self.detail is True or (self.detail is not False and key in self.detail)

    def source_to_read(self, *, detailed: bool) -> Source | None:
        """Return the source, without its unread details unless `detailed` is True; None if nothing of it is read."""
        if detailed or not self.unread:
            return self.source
        if not isinstance(self.source, Each) or self.detail is True:
            return None
        return Each({key: part for key, part in self.source.sources.items() if not self.needs_detail(key)})

    def omits(self, key: str, value: float, *, detailed: bool) -> bool:
        """Return True if the series with the label values `key` and this value is not exported."""
        return not (detailed or self.page is LINKS or not self.needs_detail(key)) or not (self.zeros or value)


def reading(
    text: str,
    source: Source,
    *,
    every: Tier = FAST,
    label: str | tuple[str, ...] = (),
    note: str = "",
    detail: bool | tuple[str, ...] = False,
    unread: bool = False,
    page: Page = METRICS,
    zeros: bool = True,
) -> Any:
    """Return the dataclass field that declares a row: a counter if its name ends in `_total`, else a gauge."""
    labels = (label,) if isinstance(label, str) else label
    row = Row(text, source, every, labels, note=note, detail=detail, unread=unread, page=page, zeros=zeros)
    return dataclasses.field(default=None, metadata={"row": row})


def accumulated(text: str, *, of: str, note: str = "") -> Any:
    """Return the dataclass field that declares a row as the integral over time of the row `of`."""
    return reading(text, Integral(of), note=note)


def identity(text: str, source: Source, *, every: Tier = ONCE, page: Page = METRICS) -> Any:
    """Return the dataclass field that declares an identity row: its text is a label of the table's `info` metric."""
    return dataclasses.field(default=None, metadata={"row": Row(text, source, every, identity=True, page=page)})


def agent(text: str, *, label: str | tuple[str, ...] = (), note: str = "", zeros: bool = True) -> Any:
    """Return the dataclass field that declares a row whose values the agent provides without the driver."""
    return reading(text, AGENT, label=label, note=note, zeros=zeros)


Labels = tuple[tuple[str, str], ...]


class Sample(NamedTuple):
    """One exported value: full metric name, labels and value."""

    name: str
    labels: Labels
    value: float


class Table(Protocol):
    """A metric table: a frozen dataclass whose attributes are rows. Its metric names start with PREFIX."""

    PREFIX: ClassVar[str]
    LABELS: ClassVar[tuple[str, ...]]
    """Names of the labels that every series of the table has."""
    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]


@cache
def rows(table: type[Table]) -> Mapping[str, Row]:
    """Return the rows of a table by attribute name, in the order of their declaration."""
    return {f.name: f.metadata["row"] for f in dataclasses.fields(table) if "row" in f.metadata}


INFO_HELP = "Always 1; the labels hold the identity."
"""Help text of every `info` metric."""


def metric_type(name: str) -> str:
    """Return the Prometheus type of a metric: "counter" if its name ends in `_total`, else "gauge"."""
    return "counter" if name.endswith("_total") else "gauge"


def samples(
    table: Table, own: Labels, *, detailed: bool = True, names: frozenset[str] | None = None
) -> Iterator[Sample]:
    """Yield a Sample, with the labels `own`, for each value of a table, on whichever page it is exported, also for 0.

    Unless `names` is None, yield only the metrics with these names.
    """
    for attribute, name, row in _exported_rows(type(table), names):
        value = getattr(table, attribute)
        if value is None or (row.detail is True and not detailed):
            continue
        if row.labels:
            for key, number in value.items():
                if detailed or not row.needs_detail(key):
                    yield Sample(name, own + labels_of(row.labels, key), float(number))
        else:
            yield Sample(name, own, float(value))
    if names is None or table.PREFIX + "info" in names:
        yield from _info(table, own)


def count_series(table: Table, page: Page, *, detailed: bool = True) -> int:
    """Return the number of Prometheus series that the table has on this page, including its `info` series."""
    count = sum(1 for _ in _info(table, ())) if info_page(type(table)) is page else 0
    for attribute, _, row in _exported_rows(type(table), None):
        value = getattr(table, attribute)
        if value is None or row.page is not page:
            continue
        if row.labels and row.zeros and (detailed or not row.detail):
            count += len(value)
        else:
            values = value if row.labels else {"": value}
            count += sum(not row.omits(key, number, detailed=detailed) for key, number in values.items())
    return count


@cache
def info_page(table: type[Table]) -> Page | None:
    """Return the page that exports the `info` metric of a table; None if the table has no identity rows."""
    return next((row.page for row in rows(table).values() if row.identity), None)


@cache
def _exported_rows(table: type[Table], names: frozenset[str] | None) -> tuple[tuple[str, str, Row], ...]:
    """Return (attribute, metric name, row) for each row except identity rows, or only for the metrics in `names`."""
    named = ((attribute, table.PREFIX + attribute, row) for attribute, row in rows(table).items() if not row.identity)
    return tuple(each for each in named if names is None or each[1] in names)


def _info(table: Table, own: Labels) -> Iterator[Sample]:
    """Yield the table's `info` series, whose labels are the identity rows. Yield nothing if all of them are empty."""
    values = {name: getattr(table, name) for name, row in rows(type(table)).items() if row.identity}
    labels = tuple((name, "" if value is None else str(value)) for name, value in values.items())
    if any(value for _, value in labels):
        yield Sample(table.PREFIX + "info", own + labels, 1.0)


@lru_cache(maxsize=1 << 12)
def labels_of(names: tuple[str, ...], key: str) -> Labels:
    """Return the labels with these names and the values in `key` ("corrected,dram"). Leave out empty values."""
    values = key.split(KEY_SEPARATOR) if len(names) > 1 else (key,)
    return tuple(pair for pair in zip(names, values, strict=True) if pair[1])


MAX_SERIES: Mapping[str, int] = {
    "xids": 64,
    "processes": 64,
    "migs": 16,
    "links": 36,
    "sxids": 64,
    "ports": 64,
    "poll_errors": 128,
}
"""Maximum number of items that get series, by kind. Per GPU: Xid codes, processes, MIG instances, and links of each
type. Per node: SXid codes of NVSwitches, ports, and poll errors.
"""
