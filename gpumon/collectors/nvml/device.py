"""Query a GPU or MIG instance: cache the answers, remember unsupported queries, and count errors."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from gpumon.collectors.nvml.calls import CALLS
from gpumon.collectors.nvml.fields import Answer, Batch, Scoped
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
"""NVML error codes that mean a fault of the whole GPU, whichever call returns them, each with the name of the fault."""

Key = tuple[str, tuple[int, ...]] | Scoped
"""Identifies a query to the driver: name and arguments of a getter, or a field with its scope."""
EVERY_FIELD: Key = ("nvmlDeviceGetFieldValues", ())


class GpuFaultError(Exception):
    """Raised if the whole GPU fails, not only a query. `fault` is the reason, such as "lost" or "reset_required"."""

    def __init__(self, fault: str, error: NvmlError) -> None:
        super().__init__(str(error))
        self.fault = fault
        self.error = error


class AbsentError(Exception):
    """Raised if a getter or field has no value on this device, for example because the device does not support it."""


class Device:
    """A GPU or MIG instance, queried through NVML. Answers are cached until their tier is read again."""

    def __init__(self, library: Library, handle: Any, bus_id: str, field_ids: Mapping[str, int]) -> None:
        self.library = library
        self.handle = handle
        self.bus_id = bus_id
        self._field_ids = field_ids
        self._unsupported: set[Key] = set()
        self._known: set[Key] = set()
        """Queries that have succeeded before. If such a query fails as unsupported, the failure counts as transient."""
        self._answers_of: dict[Tier, dict[Any, Any]] = {}
        self._answers: dict[Any, Any] = {}
        """Answers of the current tier by query. An answer may be an NvmlError."""
        self._constants: dict[Call, Any] = {}
        self._batches: dict[tuple[Scoped, ...], list[Batch]] = {}
        self._links_have: set[str] = set()
        self._links_lack: set[str] = set()
        """`_links_have`: fields that at least one link supports. `_links_lack`: fields that no link supports."""
        self._answered = False
        """True if any query has succeeded since the reading of the fast tier began."""
        self._failed: NvmlError | None = None
        """The last error that was counted since the reading of the fast tier began; None if there was none."""
        self.tier = FAST
        self.errors: Counter[str] = Counter()
        self.denied: set[str] = set()
        """Names of metrics, or groups of metrics, whose last query failed with "no permission"."""
        self.missed: set[Tier] = set()
        """Tiers whose last reading had errors. ONCE and RARE are then read again with the next SLOW."""
        self.plausibility = PlausibilityFilter(bus_id, self.count)

    def instance(self, handle: Any) -> Device:
        """Return a Device for a MIG instance, with this GPU's counts and filter, its own cache, and no NVML fields."""
        part = Device(self.library, handle, self.bus_id, {})
        part.tier, part.errors, part.denied, part.missed = self.tier, self.errors, self.denied, self.missed
        part.plausibility = self.plausibility
        return part

    def begin(self, tier: Tier) -> None:
        """Begin to read a tier: make it the current tier, discard its cached answers, and remove it from `missed`."""
        self._answers_of[tier] = {}
        self.turn_to(tier)
        self.missed.discard(tier)
        self.plausibility.begin(tier)
        if tier is FAST:
            self._answered, self._failed = False, None

    def turn_to(self, tier: Tier) -> None:
        """Make this tier the current one again when its reading continues, after another tier may have been read."""
        self.tier = tier
        self._answers = self._answers_of[tier]

    def end(self) -> None:
        """End the reading of the current tier.

        Raise GpuFaultError if it is FAST, with errors and without any success.
        """
        if self.tier is FAST and self._failed is not None and not self._answered:
            raise GpuFaultError("unknown", self._failed)
        self.plausibility.log_changes(self.tier)

    def forget(self) -> None:
        """Forget what the device supports, and the answers of `constant`, because its capabilities may have changed."""
        self._unsupported.clear()
        self._known.clear()
        self._constants.clear()
        self._links_have.clear()
        self._links_lack.clear()
        self._batches.clear()

    def count(self, error: str) -> None:
        """Count an error, such as "Timeout", for the current tier. Errors of ONCE count for RARE."""
        self.errors[f"{(RARE if self.tier is ONCE else self.tier).name.lower()},{error}"] += 1

    # Calls

    def call(self, call: Call, *, may_become_supported: bool = False) -> Any:
        """Return the answer of an NVML getter, which is called at most once in a reading of the current tier.

        Raise NvmlError if the getter fails, AbsentError if an earlier call found it unsupported, and GpuFaultError if
        the whole GPU fails. `may_become_supported`: call it again even if it is unsupported now, and do not count that.
        """
        key = call.name, call.arguments
        if key in self._unsupported:
            raise AbsentError
        if key not in self._answers:
            try:
                if (own := CALLS.get(call.name)) is not None:
                    answer = own(self.library, self.handle, self.bus_id, *call.arguments)
                else:
                    function = f"nvmlDeviceGet{call.name}"
                    answer = self.library.call(function, self.handle, *call.arguments, bus_id=self.bus_id)
                self._answers[key] = answer
            except NvmlError as error:
                self.judge(error, None if may_become_supported else key)
                self._answers[key] = error
            else:
                self._known.add(key)
                self._answered = True
        answer = self._answers[key]
        if isinstance(answer, NvmlError):
            raise answer.with_traceback(None)
        return answer

    def constant(self, call: Call, otherwise: Any) -> Any:
        """Return a getter's first answer since the last `forget`, or `otherwise`. May raise GpuFaultError."""
        if call not in self._constants:
            try:
                self._constants[call] = self.call(call)
            except (AbsentError, NvmlError):
                return otherwise
        return self._constants[call]

    def judge(self, error: NvmlError, key: Key | None = None) -> None:
        """Raise GpuFaultError if an NVML error concerns the whole GPU or the driver is gone. Otherwise count the error.

        Counting also adds the current tier to `missed`. "No permission" is not counted. "Not supported" is not counted
        either, but remembered for the query `key` (if given), unless that query has succeeded before.
        """
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
        """Read these fields or their errors into the cache, normally with one driver call. Omit unsupported fields."""
        wanted = tuple(dict.fromkeys(field for field in scoped if not self.lacks_field(field)))
        if wanted and wanted not in self._batches:
            ecc = tuple(field for field in wanted if field.name.startswith("ECC_"))
            rest = tuple(field for field in wanted if not field.name.startswith("ECC_"))
            # On Blackwell, ECC totals fail in a batch that also has NVLink counters.
            mixed = ecc and any(field.name.startswith("NVLINK_COUNT_") for field in rest)
            parts = (ecc, rest) if mixed else (wanted,)
            self._batches[wanted] = [Batch(part, self._field_ids) for part in parts]
        for batch in self._batches.get(wanted, ()):
            try:
                answers = batch.read(self.library, self.handle, self.bus_id)
            except NvmlError as error:
                self.judge(error, EVERY_FIELD)
                self._answers.update(dict.fromkeys(batch.scoped, error))
            else:
                self._known.add(EVERY_FIELD)
                self._answers.update(answers)
                self._judge_answers(answers)

    def _judge_answers(self, answers: Mapping[Scoped, Answer]) -> None:
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
        """Return the cached answer of a field (NONSENSE if invalid).

        Raise AbsentError if there is none, or NvmlError.
        """
        answer = self._answers.get(scoped)
        if answer is None:
            raise AbsentError
        if isinstance(answer, NvmlError):
            raise answer.with_traceback(None)
        return float(answer)

    def value(self, scoped: Scoped) -> float | None:
        """Return the cached answer of a field like `field`, but None if there is none or if it is an error."""
        try:
            return self.field(scoped)
        except (AbsentError, NvmlError):
            return None

    def stop_reading(self, name: str) -> None:
        """Stop reading this field from all links of the GPU, unless a link has returned it before."""
        if name not in self._links_have:
            self._links_lack.add(name)

    def lacks(self, source: Source) -> bool:
        """Return True if the source is a getter or field that this device was found not to support."""
        match source:
            case Call(name=name, arguments=arguments):
                return (name, arguments) in self._unsupported
            case Field(name=name, scope=scope):
                return self.lacks_field(Scoped(name, scope))
            case _:
                return False

    def has(self, source: Source) -> bool:
        """Return True if the source is a field that the driver has returned before."""
        return isinstance(source, Field) and Scoped(source.name, source.scope) in self._known

    def lacks_field(self, scoped: Scoped) -> bool:
        return (
            scoped.name not in self._field_ids
            or scoped in self._unsupported
            or EVERY_FIELD in self._unsupported
            or (scoped.link and scoped.name in self._links_lack)
        )
