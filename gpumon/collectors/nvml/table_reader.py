"""Read the metrics of one table, a class such as model.gpu.Gpu, from a GPU or MIG instance.

An error of one metric does not affect the others.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from gpumon.clock import boot_clock
from gpumon.collectors.nvml.calls import GpuProcess
from gpumon.collectors.nvml.device import AbsentError, Device
from gpumon.collectors.nvml.fields import ALL_ONES, NONSENSE, Scoped
from gpumon.collectors.nvml.library import NO_PERMISSION, NvmlError
from gpumon.model.reading import (
    KEY_SEPARATOR,
    Bits,
    Call,
    Checks,
    Difference,
    Distinct,
    Each,
    Either,
    Field,
    Gpm,
    Integral,
    LinkField,
    ProcessMemory,
    Row,
    Slowest,
    Source,
    Table,
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
    13: "Rubin",
}

GpmValues = Callable[[str], float]
"""Function that returns the value of a GPM metric, given its name, or raises AbsentError or NvmlError."""


def no_gpm(_metric: str) -> float:
    """Raise AbsentError. This function is the GpmValues function of a device without GPM."""
    raise AbsentError


@dataclasses.dataclass(frozen=True, slots=True)
class ProcessNames:
    """How many processes to name, those with the most GPU memory first (`largest`), and the path of /proc."""

    largest: int = 0
    procfs: Path = Path("/proc")

    def name(self, pid: int) -> str:
        """Return the name of a process from /proc/PID/comm; "" if that file does not exist or cannot be read."""
        try:
            text = (self.procfs / str(pid) / "comm").read_text(encoding="utf-8", errors="replace").rstrip("\n")
        except OSError:
            return ""
        return "".join(
            character if character.isprintable() and character != KEY_SEPARATOR else "_" for character in text
        )


NO_PROCESS_NAMES = ProcessNames()


@cache
def rows_of(table: type[Table], tier: Tier, *, detailed: bool = True) -> Mapping[str, Row]:
    """Return the Row (description) of each metric of a table that is read in this tier, by name of the metric.

    `detailed`: whether to read also details that only detailed metrics use. If not, a Row has the source without them.
    """
    due = {name: row for name, row in rows(table).items() if row.every is tier}
    sources = {name: row.source_to_read(detailed=detailed) for name, row in due.items()}
    return {name: dataclasses.replace(due[name], source=source) for name, source in sources.items() if source}


class TableReader:
    """Reads the metrics of one table from one device. `values` has those that had a value when last read."""

    def __init__(
        self,
        table: type[Table],
        device: Device,
        *,
        gpm: GpmValues = no_gpm,
        processes: ProcessNames = NO_PROCESS_NAMES,
    ) -> None:
        self.table = table
        self._device = device
        self._gpm = gpm
        self._processes = processes
        self._collectors = table.PREFIX.removeprefix("gpumon_").removeprefix("gpu_")
        """Prefix of this table's metric names in `Device.denied`, where all GPM metrics of a table share one name."""
        self.links = 0
        """Number of NVLinks of the GPU, for the metric that is the speed of the slowest link."""
        self.values: dict[str, Any] = {}
        self.pids: tuple[int, ...] = ()
        """Ids of the processes on the GPU at the last reading."""
        self.reads_graphics = True
        """Set to True to read the graphics processes with the next list of processes, also if there were none."""
        self.pids_at: float | None = None
        """Time on the boot clock at which the reading of `pids` began."""

    def fields(self, due: Mapping[str, Row]) -> Iterator[Scoped]:
        """Yield the NVML fields that these metrics need."""
        for row in due.values():
            yield from self._fields(row.source)

    def read(self, due: Mapping[str, Row]) -> Generator[None, None, bool]:
        """Read these metrics, and yield after each. Return True if any has a value.

        The caller must have read their NVML fields before, by `Device.ask_fields`.
        """
        answered = False
        for name, row in due.items():
            value = None
            collector = self._collectors + ("gpm" if isinstance(row.source, Gpm) else name)
            self._device.denied.discard(collector)
            try:
                value = self._value(row.source)
                if not row.identity:
                    value = self._device.plausibility.plausible(self._device.tier, name, value)
                elif value is not None:
                    value = None if value == NONSENSE else words(name, value)
            except AbsentError:
                pass
            except NvmlError as error:
                if error.code == NO_PERMISSION:
                    self._device.denied.add(collector)
            if value is None:
                self.values.pop(name, None)
            else:
                self.values[name] = value
                answered = True
            yield
        return answered

    # Values, by kind of source

    def _value(self, source: Source) -> Any:  # noqa: C901, PLR0911, PLR0912 - one case a kind of source
        match source:
            case Call():
                return self._number(source)
            case Field(name=name, scope=scope, scale=scale):
                return scale_value(self._device.field(Scoped(name, scope)), scale)
            case Gpm(name=name, scale=scale):
                return scale_value(self._gpm(name), scale)
            case Difference(total=total, part=part):
                rest = self._value(total) - self._value(part)
                return max(0.0, rest) if math.isfinite(rest) else NONSENSE
            case Slowest(field=field):
                return self._slowest_link(field)
            case Distinct(lists=lists):
                return self._process_count(lists)
            case ProcessMemory(lists=lists):
                return self._process_memory(lists)
            case Each(sources=sources):
                return self._values(sources)
            case Bits():
                return self._bits(source)
            case Checks():
                return self._checks(source)
            case Either(first=first, second=second):
                if not self._device.lacks(first):
                    try:
                        return self._value(first)
                    except (AbsentError, NvmlError):
                        if not self._device.lacks(first):
                            raise
                return self._value(second)
            case _:  # integrals are computed, not read; rows about the agent are filled in by the daemon
                raise AbsentError

    def _number(self, call: Call) -> Any:
        value = self._device.call(call)
        if isinstance(call.attribute, int):
            value = value[call.attribute]
        elif call.attribute is not None:
            value = getattr(value, call.attribute)
        if value is None or (call.unknown is not None and value == call.unknown):
            raise AbsentError
        if not isinstance(value, (int, float)) or (call.scale == 1 and value not in ALL_ONES):
            return value
        return NONSENSE if value in ALL_ONES else scale_value(value, call.scale)

    def _slowest_link(self, field: LinkField) -> float:
        speeds = (self._device.value(Scoped(field.name, link, link=True)) for link in range(self.links))
        moving = [speed for speed in speeds if speed is not None and speed > 0]
        if not moving:
            raise AbsentError
        return scale_value(min(moving), field.scale)

    def _processes_in(self, lists: Sequence[Call]) -> list[GpuProcess]:
        """Return the processes in these lists; without the last, that of graphics processes, if it may be left out.

        It is left out on a GPU that supports MIG, which has no display, if it was empty when it was last read, unless
        `reads_graphics` is set.
        """
        own: list[GpuProcess] = [process for call in lists[:-1] for process in self._device.call(call)]
        if self.reads_graphics or "mig_mode" not in self.values:
            graphics: list[GpuProcess] = self._device.call(lists[-1])
            self.reads_graphics = bool(graphics)
            own += graphics
        return own

    def _process_count(self, lists: Sequence[Call]) -> float:
        self.pids_at = boot_clock()
        self.pids = tuple(sorted({process.pid for process in self._processes_in(lists)}))
        return float(len(self.pids))

    def _process_memory(self, lists: Sequence[Call]) -> dict[str, float]:
        used: dict[int, int] = {}
        if not self._processes.largest:
            raise AbsentError
        for process in self._processes_in(lists):
            if process.memory is not None:  # the same memory in both lists
                used[process.pid] = max(process.memory, used.get(process.pid, 0))
        largest = sorted(used, key=lambda pid: (-used[pid], pid))[: self._processes.largest]
        return {f"{pid}{KEY_SEPARATOR}{self._processes.name(pid)}": float(used[pid]) for pid in largest}

    def _values(self, sources: Mapping[str, Source]) -> dict[str, Any]:
        values = {}
        failure: Exception = AbsentError()
        for key, source in sources.items():
            try:
                values[key] = self._value(source)
            except (AbsentError, NvmlError) as error:
                failure = error
        if not values:
            raise failure.with_traceback(None)
        return values

    def _bits(self, source: Bits) -> Any:
        mask = self._device.call(source.mask)
        if mask in ALL_ONES:
            return NONSENSE
        supported = self._device.constant(source.supported, otherwise=~0)
        return {key: float(bool(mask & bit)) for key, bit in source.bits.items() if supported & bit}

    def _checks(self, source: Checks) -> dict[str, float]:
        mask = self._number(source.mask)
        if not math.isfinite(mask):
            raise AbsentError
        checks = source.checks.items()
        states = {key: int(mask) >> check.shift & (1 << check.width) - 1 for key, check in checks}
        health = {key: float(state != source.checks[key].healthy) for key, state in states.items() if state}
        if not health:
            raise AbsentError
        return health

    def _fields(self, source: Source) -> Iterator[Scoped]:
        match source:
            case Field(name=name, scope=scope):
                yield Scoped(name, scope)
            case Difference(total=total, part=part):
                yield Scoped(total.name, total.scope)
                yield Scoped(part.name, part.scope)
            case Slowest(field=field):
                yield from (Scoped(field.name, link, link=True) for link in range(self.links))
            case Either(first=first, second=second):
                yield from self._fields(first)
                if not self._device.has(first):
                    yield from self._fields(second)
            case Each(sources=sources):
                for inner in sources.values():
                    yield from self._fields(inner)
            case _:
                return

    # Integrals

    def increments(self, seconds: float) -> dict[str, Any]:
        """Return how much the counters that integrate another metric grow in this number of seconds, by name."""
        gained = ((name, self._gain(row.source, seconds)) for name, row in rows(self.table).items())
        return {name: gain for name, gain in gained if gain is not None}

    def _gain(self, source: Source, seconds: float, key: str = "") -> Any:
        if isinstance(source, Each):
            gains = {key: self._gain(inner, seconds, key) for key, inner in source.sources.items()}
            return {key: gain for key, gain in gains.items() if gain is not None} or None
        if isinstance(source, Either):
            return self._gain(source.second, seconds, key) if self._device.lacks(source.first) else None
        if not isinstance(source, Integral):
            return None
        value = self.values.get(source.of)
        if isinstance(value, dict):
            value = value.get(key)
        return None if value is None else value * seconds


def scale_value(value: float, scale: float) -> float:
    """Return value times scale. If scale is below 1, divide by round(1 / scale): 700 * 0.001 is not exactly 0.7."""
    return value * scale if scale >= 1 else value / round(1 / scale)


def decode_error_rate(value: float) -> float:
    """Return the error rate that NVLink 5 encodes: mantissa in bits 8 to 11, negative power of ten in bits 0 to 7."""
    if not math.isfinite(value):
        return value
    return float((int(value) >> 8 & 0xF) * 10.0 ** -(int(value) & 0xFF))


def words(name: str, value: Any) -> str:
    """Return the value of the identity metric `name` as text: for the architecture a name such as Hopper."""
    if name == "architecture":
        return ARCHITECTURES.get(value, f"architecture {value}")
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return ".".join(str(part) for part in value) if isinstance(value, tuple) else str(value)
