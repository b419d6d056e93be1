"""One opened device as it is asked: what it answered, what it turned out not to support, what failed."""

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
from gpumon.collectors.nvml.plausible import is_plausible
from gpumon.model.reading import FAST, ONCE, RARE, Call, Field, Source, Tier

log = logging.getLogger("gpumon.collectors.nvml")

FAULT_CODES = {GPU_IS_LOST: "lost", RESET_REQUIRED: "reset_required"}
"""Codes that any call may give and that mean the whole GPU."""

Key = tuple[str, tuple[int, ...]] | Scoped
"""What is asked: a call's name and arguments, or a field."""
EVERY_FIELD: Key = ("nvmlDeviceGetFieldValues", ())


class GpuFaultError(Exception):
    """The GPU as a whole does not answer."""

    def __init__(self, fault: str, error: NvmlError) -> None:
        super().__init__(str(error))
        self.fault = fault
        self.error = error


class AbsentError(Exception):
    """This source gives no value."""


class Device:
    """A GPU, or a MIG instance of one. Answers are good for the tier that is being read."""

    def __init__(self, library: Library, handle: Any, bus_id: str, field_ids: Mapping[str, int]) -> None:
        self.library = library
        self.handle = handle
        self.bus_id = bus_id
        self._field_ids = field_ids
        self._unsupported: set[Key] = set()
        self._known: set[Key] = set()
        """What has answered before: when it fails now, that will pass."""
        self._answers_of: dict[Tier, dict[Any, Any]] = {}
        self._answers: dict[Any, Any] = {}
        """Those of the tier that is being read, by Key."""
        self._constants: dict[Call, Any] = {}
        self._batches: dict[tuple[Scoped, ...], list[Batch]] = {}
        self._links_have: set[str] = set()
        self._links_lack: set[str] = set()
        """Fields that some link has answered, and that none does."""
        self._doubted: dict[Tier, dict[str, float]] = {}
        """Rows whose last reading cannot be true, and what it was."""
        self._doubted_before: dict[Tier, Mapping[str, float]] = {}
        self._answered = False
        """Whether any call of the fast tier has answered."""
        self._failed: NvmlError | None = None
        """The last failure of one that did not."""
        self.tier = FAST
        self.errors: Counter[str] = Counter()
        self.denied: set[str] = set()
        """What lacked permission when it was last asked for."""
        self.missed: set[Tier] = set()
        """Tiers whose last reading had errors: what is read seldom is to be read again before its time."""

    def instance(self, handle: Any) -> Device:
        """A part of this device: has support of its own, and shares the rest."""
        part = Device(self.library, handle, self.bus_id, {})
        part.tier, part.errors, part.denied, part.missed = self.tier, self.errors, self.denied, self.missed
        part._doubted = self._doubted
        return part

    def begin(self, tier: Tier) -> None:
        """Forget what was answered for the tier before."""
        self._answers_of[tier] = {}
        self.turn_to(tier)
        self.missed.discard(tier)
        self._doubted_before[tier], self._doubted[tier] = self._doubted.get(tier, {}), {}
        if tier is FAST:
            self._answered, self._failed = False, None

    def turn_to(self, tier: Tier) -> None:
        """Go on with a tier that was begun, after another one was read in between."""
        self.tier = tier
        self._answers = self._answers_of[tier]

    def end(self) -> None:
        """Say which rows have begun to talk nonsense, and which have ceased to. Raises GpuFaultError."""
        if self.tier is FAST and self._failed is not None and not self._answered:
            raise GpuFaultError("unknown", self._failed)
        now, before = self._doubted[self.tier], self._doubted_before[self.tier]
        for row in now.keys() - before.keys():
            told = {"bus_id": self.bus_id, "row": row, "value": now[row]}
            log.warning("this reading cannot be true and is left out", extra=told)
        for row in before.keys() - now.keys():
            log.info("this reading is plausible again", extra={"bus_id": self.bus_id, "row": row})

    def forget(self) -> None:
        """What it supports has changed: find out anew."""
        self._unsupported.clear()
        self._known.clear()
        self._constants.clear()
        self._links_have.clear()
        self._links_lack.clear()
        self._batches.clear()

    def is_plausible(self, row: str, value: float) -> bool:
        """Whether it may be told; what may not is counted and logged."""
        if is_plausible(row, value):
            return True
        self._doubted[self.tier][row] = value
        self.count("Implausible")
        return False

    def count(self, error: str) -> None:
        """One failure of the tier that is being read; what is read once counts as rare."""
        self.errors[f"{(RARE if self.tier is ONCE else self.tier).name.lower()},{error}"] += 1

    # Calls

    def call(self, call: Call) -> Any:
        """What this getter answers, asked once a tier. Raises AbsentError, NvmlError, GpuFaultError."""
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
        """What this getter answered when it first did, or `otherwise` until then."""
        if call not in self._constants:
            try:
                self._constants[call] = self.call(call)
            except (AbsentError, NvmlError):
                return otherwise
        return self._constants[call]

    def link_call(self, name: str, link: int) -> Any:
        """What a getter answers of a link, each time anew: what it does not support now it may with the link up."""
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
        """Whether this failure is the whole GPU's (raises GpuFaultError), for good, or one to count."""
        if error.code in FAULT_CODES:
            raise GpuFaultError(FAULT_CODES[error.code], error)
        if error.code in GONE:
            raise GpuFaultError("unknown", error)
        if error.code in UNSUPPORTED and key not in self._known:
            if key is not None:
                self._unsupported.add(key)
        elif error.code != NO_PERMISSION:  # that is told as what is denied
            self._failed = error
            self.missed.add(self.tier)
            self.count(error.name)

    # Fields

    def ask_fields(self, scoped: Iterable[Scoped]) -> None:
        """Ask for all of these that are not known to be unsupported, as a rule in one call."""
        wanted = tuple(dict.fromkeys(one for one in scoped if not self.lacks_field(one)))
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
            # Of a link that is down the driver knows little: that tells nothing of what the GPU supports.
            elif not key.link or answer.code not in UNSUPPORTED:
                self.judge(answer, key)

    def field(self, scoped: Scoped) -> float:
        """What this field answered. Raises AbsentError, NvmlError."""
        answer = self._answers.get(scoped)
        if answer is None:
            raise AbsentError
        if isinstance(answer, NvmlError):
            raise answer.with_traceback(None)
        return float(answer)

    def leave_out(self, name: str) -> None:
        """Ask no link for this field again, if none has ever answered it."""
        if name not in self._links_have:
            self._links_lack.add(name)

    def lacks(self, source: Source) -> bool:
        """Whether it is known not to support this."""
        match source:
            case Call(name=name, arguments=arguments):
                return (name, arguments) in self._unsupported
            case Field(name=name, scope=scope):
                return self.lacks_field(Scoped(name, scope))
            case _:
                return False

    def has(self, source: Source) -> bool:
        """Whether it is known to support this."""
        return isinstance(source, Field) and Scoped(source.name, source.scope) in self._known

    def lacks_field(self, scoped: Scoped) -> bool:
        return (
            scoped.name not in self._field_ids
            or scoped in self._unsupported
            or EVERY_FIELD in self._unsupported
            or (scoped.link and scoped.name in self._links_lack)
        )


def _apart(wanted: tuple[Scoped, ...]) -> tuple[tuple[Scoped, ...], ...]:
    """On Blackwell, ECC totals cannot be had in one batch with NVLink's counters."""
    ecc = tuple(one for one in wanted if one.name.startswith("ECC_"))
    rest = tuple(one for one in wanted if not one.name.startswith("ECC_"))
    mixed = ecc and any(one.name.startswith("NVLINK_COUNT_") for one in rest)
    return (ecc, rest) if mixed else (wanted,)
