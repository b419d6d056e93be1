"""Query one opened device: cache its answers, remember what it does not support, and count its errors."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from gpumon.collectors.nvml.calls import CALLS
from gpumon.collectors.nvml.fields import Batch, Scoped
from gpumon.collectors.nvml.library import (
    GONE,
    GPU_IS_LOST,
    NO_PERMISSION,
    RESET_REQUIRED,
    UNSUPPORTED,
    Library,
    NvmlError,
)
from gpumon.collectors.nvml.plausible import PlausibilityFilter
from gpumon.model.reading import FAST, ONCE, RARE, Call, Field, Source, Tier

log = logging.getLogger("gpumon.collectors.nvml")

FAULT_CODES = {GPU_IS_LOST: "lost", RESET_REQUIRED: "reset_required"}
"""Error codes that concern the whole GPU, whichever call returns them, with the names of the faults."""

Key = tuple[str, tuple[int, ...]] | Scoped
"""Key of a driver query: name and arguments of a call, or a field with its scope."""
EVERY_FIELD: Key = ("nvmlDeviceGetFieldValues", ())


class GpuFaultError(Exception):
    """Raised if the whole GPU does not answer. `fault` is the reason, such as lost."""

    def __init__(self, fault: str, error: NvmlError) -> None:
        super().__init__(str(error))
        self.fault = fault
        self.error = error


class AbsentError(Exception):
    """Raised if a source has no value on this device, for example because it is not supported."""


class Device:
    """A GPU or MIG instance, queried through NVML. Answers are cached within the tier that is being read."""

    def __init__(self, library: Library, handle: Any, bus_id: str, field_ids: Mapping[str, int]) -> None:
        self.library = library
        self.handle = handle
        self.bus_id = bus_id
        self._field_ids = field_ids
        self._unsupported: set[Key] = set()
        self._known: set[Key] = set()
        """Queries that have succeeded before. If one of them fails as unsupported now, the failure is transient."""
        self._answers_of: dict[Tier, dict[Any, Any]] = {}
        self._answers: dict[Any, Any] = {}
        """Answers of the current tier by query. An error is stored as an answer."""
        self._constants: dict[Call, Any] = {}
        self._batches: dict[tuple[Scoped, ...], list[Batch]] = {}
        self._links_have: set[str] = set()
        self._links_lack: set[str] = set()
        """`_links_have`: fields that at least one link supports. `_links_lack`: fields that no link supports."""
        self._answered = False
        """Whether any query succeeded since the fast tier began."""
        self._failed: NvmlError | None = None
        """The last error that was counted since the fast tier began."""
        self.tier = FAST
        self.errors: Counter[str] = Counter()
        self.denied: set[str] = set()
        """Names of queries that lacked permission when last made."""
        self.missed: set[Tier] = set()
        """Tiers whose last reading had errors. ONCE and RARE are then read again early."""
        self.plausibility = PlausibilityFilter(bus_id, self.count)

    def instance(self, handle: Any) -> Device:
        """Return a device for a MIG instance. It shares everything but the handle and the set of unsupported calls."""
        part = Device(self.library, handle, self.bus_id, {})
        part.tier, part.errors, part.denied, part.missed = self.tier, self.errors, self.denied, self.missed
        part.plausibility = self.plausibility
        return part

    def begin(self, tier: Tier) -> None:
        """Begin a tier: clear its cached answers and its missed state."""
        self._answers_of[tier] = {}
        self.turn_to(tier)
        self.missed.discard(tier)
        self.plausibility.begin(tier)
        if tier is FAST:
            self._answered, self._failed = False, None

    def turn_to(self, tier: Tier) -> None:
        """Make this tier the current one again, after another tier was read in between."""
        self.tier = tier
        self._answers = self._answers_of[tier]

    def end(self) -> None:
        """End the current tier: log rows that became implausible or plausible again.

        Raises GpuFaultError if a query of the fast tier failed and none succeeded.
        """
        if self.tier is FAST and self._failed is not None and not self._answered:
            raise GpuFaultError("unknown", self._failed)
        self.plausibility.log_changes(self.tier)

    def forget(self) -> None:
        """Discard what is known to be supported or unsupported, because the device's capabilities have changed."""
        self._unsupported.clear()
        self._known.clear()
        self._constants.clear()
        self._links_have.clear()
        self._links_lack.clear()
        self._batches.clear()

    def count(self, error: str) -> None:
        """Count an error under the current tier. ONCE counts as RARE."""
        self.errors[f"{(RARE if self.tier is ONCE else self.tier).name.lower()},{error}"] += 1

    # Calls

    def call(self, call: Call) -> Any:
        """Return the answer of a getter, which is called once in a tier.

        Raises AbsentError, NvmlError, GpuFaultError.
        """
        key = call.name, call.arguments
        if key in self._unsupported:
            raise AbsentError
        if key not in self._answers:
            self._answers[key] = self._ask(*key)
        answer = self._answers[key]
        if isinstance(answer, NvmlError):
            raise answer.with_traceback(None)
        return answer

    def constant(self, call: Call, otherwise: Any) -> Any:
        """Return the first answer that a getter gave; `otherwise` if it has not succeeded yet."""
        if call not in self._constants:
            try:
                self._constants[call] = self.call(call)
            except (AbsentError, NvmlError):
                return otherwise
        return self._constants[call]

    def link_call(self, name: str, link: int) -> Any:
        """Return a getter's answer for one link. It is not cached: "unsupported" may change when the link comes up."""
        try:
            return self._driver(name, (link,))
        except NvmlError as error:
            if error.code not in UNSUPPORTED:
                self.judge(error)
            raise

    def _ask(self, name: str, arguments: tuple[int, ...]) -> Any:
        key = name, arguments
        try:
            answer = self._driver(name, arguments)
        except NvmlError as error:
            self.judge(error, key)
            return error
        self._known.add(key)
        self._answered = True
        return answer

    def _driver(self, name: str, arguments: tuple[int, ...]) -> Any:
        own = CALLS.get(name)
        if own is not None:
            return own(self.library, self.handle, self.bus_id, *arguments)
        return self.library.call(f"nvmlDeviceGet{name}", self.handle, *arguments, bus_id=self.bus_id)

    def judge(self, error: NvmlError, key: Key | None = None) -> None:
        """Classify an error: of the whole GPU (raises GpuFaultError), unsupported, lacking permission, or counted."""
        if error.code in FAULT_CODES:
            raise GpuFaultError(FAULT_CODES[error.code], error)
        if error.code in GONE:
            raise GpuFaultError("unknown", error)
        if error.code in UNSUPPORTED and key not in self._known:
            if key is not None:
                self._unsupported.add(key)
        elif error.code != NO_PERMISSION:  # already reported through `denied`
            self._failed = error
            self.missed.add(self.tier)
            self.count(error.name)

    # Fields

    def ask_fields(self, scoped: Iterable[Scoped]) -> None:
        """Read these fields into the cache, normally in one driver call. Fields that are unsupported are left out."""
        wanted = tuple(dict.fromkeys(field for field in scoped if not self.lacks_field(field)))
        if wanted and wanted not in self._batches:
            self._batches[wanted] = [Batch(part, self._field_ids) for part in _apart(wanted)]
        for batch in self._batches.get(wanted, ()):
            self._ask_batch(batch)

    def _ask_batch(self, batch: Batch) -> None:
        try:
            answers = batch.read(self.library, self.handle, self.bus_id)
        except NvmlError as error:
            self.judge(error, EVERY_FIELD)
            self._answers.update(dict.fromkeys(batch.scoped, error))
            return
        self._known.add(EVERY_FIELD)
        self._answers.update(answers)
        for key, answer in answers.items():
            if not isinstance(answer, NvmlError):
                self._known.add(key)
                self._answered = True
                if key.link:
                    self._links_have.add(key.name)
            # The driver reports little about a link that is down, so a failure there does not mean "unsupported".
            elif not key.link or answer.code not in UNSUPPORTED:
                self.judge(answer, key)

    def field(self, scoped: Scoped) -> float:
        """Return the cached answer of a field. Raises AbsentError if it was not read, or its NvmlError."""
        answer = self._answers.get(scoped)
        if answer is None:
            raise AbsentError
        if isinstance(answer, NvmlError):
            raise answer.with_traceback(None)
        return float(answer)

    def stop_reading(self, name: str) -> None:
        """Stop reading this field from links, unless a link has answered it before."""
        if name not in self._links_have:
            self._links_lack.add(name)

    def lacks(self, source: Source) -> bool:
        """Return whether the source was found to be unsupported."""
        match source:
            case Call(name=name, arguments=arguments):
                return (name, arguments) in self._unsupported
            case Field(name=name, scope=scope):
                return self.lacks_field(Scoped(name, scope))
            case _:
                return False

    def has(self, source: Source) -> bool:
        """Return whether the source is a field that has answered before."""
        return isinstance(source, Field) and Scoped(source.name, source.scope) in self._known

    def lacks_field(self, scoped: Scoped) -> bool:
        return (
            scoped.name not in self._field_ids
            or scoped in self._unsupported
            or EVERY_FIELD in self._unsupported
            or (scoped.link and scoped.name in self._links_lack)
        )


def _apart(wanted: tuple[Scoped, ...]) -> tuple[tuple[Scoped, ...], ...]:
    """Return the fields in batches that every driver accepts.

    On Blackwell, ECC totals fail in a batch that also has NVLink counters.
    """
    ecc = tuple(field for field in wanted if field.name.startswith("ECC_"))
    rest = tuple(field for field in wanted if not field.name.startswith("ECC_"))
    mixed = ecc and any(field.name.startswith("NVLINK_COUNT_") for field in rest)
    return (ecc, rest) if mixed else (wanted,)
