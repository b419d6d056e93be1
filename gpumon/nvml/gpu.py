"""Reads one GPU: the rows of the tables, tier by tier. A failure stays with its row, a fault with its GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from gpumon.nvml.calls import CALLS
from gpumon.nvml.fields import Asked, Batch
from gpumon.nvml.library import (
    GONE,
    GPU_IS_LOST,
    NO_PERMISSION,
    RESET_REQUIRED,
    UNKNOWN,
    UNSUPPORTED,
    Library,
    NvmlError,
)
from gpumon.snapshot.gpu import Gpu
from gpumon.snapshot.nvlink import Nvlink
from gpumon.snapshot.reading import (
    FAST,
    ONCE,
    RARE,
    Bits,
    Call,
    Difference,
    Distinct,
    Each,
    Either,
    Field,
    Integral,
    LinkField,
    Row,
    Source,
    Tier,
    rows,
)

ARCHITECTURES = {
    2: "Kepler",
    3: "Maxwell",
    4: "Pascal",
    5: "Volta",
    6: "Turing",
    7: "Ampere",
    8: "Ada",
    9: "Hopper",
    10: "Blackwell",
}
FAULT_CODES = {GPU_IS_LOST: "lost", RESET_REQUIRED: "reset_required"}
"""Codes that any call may give and that mean the whole GPU."""

EVERY_FIELD = Field("every field")
"""Stands for nvmlDeviceGetFieldValues itself."""


class GpuFaultError(Exception):
    """The GPU as a whole does not answer."""

    def __init__(self, fault: str, error: NvmlError) -> None:
        super().__init__(str(error))
        self.fault = fault
        self.error = error


class AbsentError(Exception):
    """This source gives no value."""


class GpuReader:
    """One opened GPU. Knows what its driver supports, and the last value of each row."""

    def __init__(self, library: Library, handle: Any, bus_id: str, field_ids: Mapping[str, int]) -> None:
        self._library = library
        self.handle = handle
        self.bus_id = bus_id
        self._field_ids = field_ids
        self._unsupported: set[Source] = set()
        self._known: set[Source] = set()
        """What has answered before: when it fails now, that will pass."""
        self._batches: dict[tuple[tuple[str, int], ...], Batch] = {}
        self._answers: dict[Source, Any] = {}
        self._tier = ONCE
        self.values: dict[str, Any] = {}
        self.links: dict[str, Nvlink] = {}
        self.errors: Counter[str] = Counter()
        self.denied: set[str] = set()
        """Rows whose last reading lacked permission."""
        self.missed: set[Tier] = set()
        """Tiers whose last reading had errors: what is read seldom is to be read again before its time."""

    def read(self, tier: Tier) -> None:
        """Read the rows of a tier into `values` and `links`. Raises GpuFaultError."""
        self._tier = tier
        self._answers.clear()
        self.missed.discard(tier)
        table = {name: row for name, row in rows(Gpu).items() if row.every is tier}
        self._ask_fields((field, field.scope) for row in table.values() for field in self._fields(row.source))
        answered = 0
        for name, row in table.items():
            value = self._row(name, row)
            if value is None:
                self.values.pop(name, None)
            else:
                self.values[name] = value
                answered += 1
        self._read_links(tier)
        if tier is FAST and not answered:
            raise GpuFaultError("unknown", NvmlError(UNKNOWN, "every call of the poll"))

    def increments(self, seconds: float) -> dict[str, Any]:
        """What our own integrals gained in this time, by row."""
        gained = ((name, self._gain(name, row.source, seconds)) for name, row in rows(Gpu).items())
        return {name: gain for name, gain in gained if gain is not None}

    def _gain(self, name: str, source: Source, seconds: float, key: str = "") -> Any:
        if isinstance(source, Each):
            gains = {key: self._gain(name, one, seconds, key) for key, one in source.sources.items()}
            return {key: gain for key, gain in gains.items() if gain is not None} or None
        if isinstance(source, Either):
            return self._gain(name, source.second, seconds, key) if self._lacks(source.first) else None
        if not isinstance(source, Integral):
            return None
        value = self.values.get(source.of)
        if isinstance(value, dict):
            value = value.get(key)
        return None if value is None else value * seconds

    def _row(self, name: str, row: Row) -> Any:
        self.denied.discard(name)
        try:
            value = self._value(row.source)
        except AbsentError:
            return None
        except NvmlError as error:
            if error.code == NO_PERMISSION:
                self.denied.add(name)
            return None
        return _words(name, value) if row.identity else value

    def _value(self, source: Source) -> Any:  # noqa: PLR0911 - one line a kind of source
        match source:
            case Call():
                return self._number(source)
            case Field():
                return _scaled(self._field(source, source.scope), source.scale)
            case Difference(total, part):
                return max(0.0, self._field(total, total.scope) - self._field(part, part.scope))
            case Distinct(lists):
                return float(len({process.pid for one in lists for process in self._ask(one)}))
            case Each(sources):
                return self._each(sources)
            case Bits():
                return self._bits(source)
            case Either(first, second):
                return self._either(first, second)
            case _:  # an integral is not read; what the agent knows, the daemon fills in
                raise AbsentError

    def _number(self, call: Call) -> Any:
        value = self._ask(call)
        if isinstance(call.attribute, int):
            value = value[call.attribute]
        elif call.attribute is not None:
            value = getattr(value, call.attribute)
        if call.unknown is not None and value == call.unknown:
            raise AbsentError
        return _scaled(value, call.scale) if isinstance(value, (int, float)) else value

    def _each(self, sources: Mapping[str, Source]) -> dict[str, Any]:
        values = {}
        for key, source in sources.items():
            try:
                values[key] = self._value(source)
            except (AbsentError, NvmlError):
                continue
        if not values:
            raise AbsentError
        return values

    def _bits(self, source: Bits) -> dict[str, float]:
        mask = self._ask(source.mask)
        try:
            known = self._ask(source.supported) if source.supported else ~0
        except (AbsentError, NvmlError):
            known = ~0
        return {key: float(bool(mask & bit)) for key, bit in source.bits.items() if known & bit}

    def _either(self, first: Source, second: Source) -> Any:
        if not self._lacks(first):
            try:
                return self._value(first)
            except (AbsentError, NvmlError):
                if not self._lacks(first):
                    raise
        return self._value(second)

    def _lacks(self, source: Source) -> bool:
        key = _key(source)
        if isinstance(key, Field) and (key.name not in self._field_ids or EVERY_FIELD in self._unsupported):
            return True
        return key in self._unsupported

    def _ask(self, call: Call) -> Any:
        key = _key(call)
        if key in self._unsupported:
            raise AbsentError
        if key not in self._answers:
            self._answers[key] = self._driver(call)
        answer = self._answers[key]
        if isinstance(answer, NvmlError):
            raise answer.with_traceback(None)
        return answer

    def _driver(self, call: Call) -> Any:
        own = CALLS.get(call.name)
        try:
            if own is not None:
                answer = own(self._library, self.handle, self.bus_id)
            else:
                name = f"nvmlDeviceGet{call.name}"
                answer = self._library.call(name, self.handle, *call.arguments, bus_id=self.bus_id)
        except NvmlError as error:
            self._judge(error, _key(call))
            return error
        self._known.add(_key(call))
        return answer

    def _judge(self, error: NvmlError, source: Source) -> None:
        if error.code in FAULT_CODES:
            raise GpuFaultError(FAULT_CODES[error.code], error)
        if error.code in GONE:
            raise GpuFaultError("unknown", error)
        if error.code in UNSUPPORTED and source not in self._known:
            self._unsupported.add(source)
        else:
            self.missed.add(self._tier)
            self.errors[f"{(RARE if self._tier is ONCE else self._tier).name.lower()},{error.name}"] += 1

    def _field(self, field: Field | LinkField, scope: int) -> float:
        answer = self._answers.get(_scoped(field, scope))
        if isinstance(answer, NvmlError):
            raise answer.with_traceback(None)
        if answer is None:
            raise AbsentError
        return float(answer)

    def _fields(self, source: Source) -> Iterator[Field]:
        match source:
            case Field() if not self._lacks(source):
                yield source
            case Difference(total, part):
                yield from self._fields(total)
                yield from self._fields(part)
            case Either(first, second):
                yield from self._fields(second if self._lacks(first) else first)
            case Each(sources):
                for one in sources.values():
                    yield from self._fields(one)
            case _:
                return

    def _ask_fields(self, fields: Iterator[tuple[Field | LinkField, int]]) -> None:
        wanted = tuple((_scoped(field, scope).name, scope) for field, scope in fields)
        if not wanted:
            return
        batch = self._batches.get(wanted)
        if batch is None:
            batch = Batch([Asked(self._field_ids[name], scope) for name, scope in wanted])
            self._batches[wanted] = batch
        try:
            answers = batch.read(self._library, self.handle, self.bus_id)
        except NvmlError as error:
            self._judge(error, EVERY_FIELD)
            return
        self._known.add(EVERY_FIELD)
        for (name, scope), answer in zip(wanted, answers, strict=True):
            self._take(Field(name, scope=scope), answer.code, answer.value)

    def _take(self, key: Field, code: int, value: float | None) -> None:
        if code:
            error = NvmlError(code, f"field {key.name}")
            self._judge(error, key)
            self._answers[key] = error
        else:
            self._known.add(key)
            self._answers[key] = value

    def _read_links(self, tier: Tier) -> None:
        count = int(self.values.get("nvlinks", 0))
        table = {name: row for name, row in rows(Nvlink).items() if row.every is tier}
        if not table:
            return
        fields = [
            field for row in table.values() for field in _link_fields(row.source) if field.name in self._field_ids
        ]
        asked = ((field, link) for link in range(count) for field in fields)
        self._ask_fields(
            (field, link) for field, link in asked if Field(field.name, scope=link) not in self._unsupported
        )
        self.links = {str(link): self._link(table, link) for link in range(count)}

    def _link(self, table: Mapping[str, Row], link: int) -> Nvlink:
        values = {name: self._link_value(row.source, link) for name, row in table.items()}
        return Nvlink(**values)

    def _link_value(self, source: Source, link: int) -> Any:
        if isinstance(source, Each):
            values = {key: self._link_value(one, link) for key, one in source.sources.items()}
            return {key: value for key, value in values.items() if value is not None} or None
        if not isinstance(source, LinkField):
            return None
        try:
            value = self._field(source, link)
        except (AbsentError, NvmlError):
            return None
        return _scaled(value, source.scale) if source.states is None else float(int(value) in source.states)


def _scaled(value: float, scale: float) -> float:
    """Divided where the driver counts in thousandths and the like: 700 mW times 0.001 is not quite 0.7."""
    return value * scale if scale >= 1 else value / round(1 / scale)


def _key(source: Source) -> Source:
    """What a source asks of the driver, apart from how its answer is used."""
    match source:
        case Call():
            return Call(source.name, source.arguments)
        case Field() | LinkField():
            return _scoped(source, getattr(source, "scope", 0))
        case _:
            return source


def _scoped(field: Field | LinkField, scope: int) -> Field:
    return Field(field.name, scope=scope)


def _link_fields(source: Source) -> Iterator[LinkField]:
    if isinstance(source, LinkField):
        yield source
    elif isinstance(source, Each):
        for one in source.sources.values():
            yield from _link_fields(one)


def _words(name: str, value: Any) -> str:
    if name == "architecture":
        return ARCHITECTURES.get(value, f"architecture {value}")
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return ".".join(str(part) for part in value) if isinstance(value, tuple) else str(value)
