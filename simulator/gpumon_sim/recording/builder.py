"""Builds a recording from the lines of the call log that the sampler child writes (see call_recorder.py)."""

from __future__ import annotations

import json
from array import array
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from gpumon_sim.capture import (
    BUS,
    EVENT,
    FIELD,
    HANGS,
    METRIC,
    UUIDS,
    Answer,
    Capture,
    CapturedQuery,
    Cost,
    Header,
    Timeline,
)
from gpumon_sim.codes import Code
from gpumon_sim.recording.mask import Mask

FIELD_VALUES, WAIT, METRICS_GET = "nvmlDeviceGetFieldValues", "nvmlEventSetWait_v2", "nvmlGpmMetricsGet"


class Builder:
    """Builds a recording from the lines of a call log.

    `began` is the time on the boot clock, in seconds, at which the recording began.
    """

    def __init__(self, mask: Mask, began: float) -> None:
        self._mask = mask
        self._began = began
        self._calls: dict[int, tuple[str, tuple[Any, ...]]] = {}
        self._seconds: defaultdict[str, array[float]] = defaultdict(lambda: array("f"))
        self._answers: dict[CapturedQuery, Timeline] = {}
        self._signatures: dict[str, tuple[str, ...]] = {}
        self._names: dict[str, dict[str, None]] = {"handle": {}, "missing": {}, "unrecorded": {}}
        self._findings: list[tuple[str, str, str]] = []

    def take(self, line: bytes) -> None:
        """Add a line of the call log to the recording."""
        kind, *rest = json.loads(line)
        match kind:
            case "in":
                serial, function, inputs = rest
                self._calls[serial] = function, _tuple(self._mask.inputs(inputs))
            case "out":
                self._add_answer(*rest)
            case "signature":
                self._signatures[rest[0]] = tuple(rest[1])
            case "finding":
                self._findings.append((rest[0], rest[1], rest[2]))
            case "handle" | "missing" | "unrecorded":
                self._names[kind][self._mask.inputs(rest[0])] = None
            case _:  # BUS or UUIDS, which the child reads without NVML
                self._add(CapturedQuery(BUS if kind == BUS else UUIDS), rest[0], (0, self._mask.inputs(rest[1])))

    def child_ended(self, hung_since: float | None) -> None:
        """End the calls in progress, because the sampler child ended. They have no answer.

        If `hung_since` (boot clock, in seconds) is set, record the calls as hanging since then; otherwise drop them.
        """
        left, self._calls = self._calls, {}
        for function, inputs in left.values() if hung_since is not None else ():
            self._add(CapturedQuery(function, inputs), hung_since or 0.0, (HANGS,))

    def capture(self, header: Header) -> Capture:
        return Capture(
            header=header,
            signatures=self._signatures,
            costs={function: _cost(seconds) for function, seconds in self._seconds.items()},
            answers=self._answers,
            handles=tuple(self._names["handle"]),
            missing=tuple(sorted(self._names["missing"])),
            unrecorded=tuple(sorted(self._names["unrecorded"])),
            findings=tuple(self._findings),
        )

    def _add_answer(self, serial: int, at: float, seconds: float, code: int, outputs: Sequence[Any] | None) -> None:
        function, inputs = self._calls.pop(serial)
        self._seconds[function].append(seconds)
        if outputs is None or code == Code.INSUFFICIENT_SIZE:  # outputs unreadable, or the buffer too small
            return
        if function == WAIT and code == 0:
            self._add(CapturedQuery(EVENT), at, (0, *_tuple(self._mask.inputs(outputs))), anyway=True)
            return
        parts = _PARTS.get(function)
        for question, answer in parts(inputs, outputs) if parts else ():
            self._add(question, at, answer)
        self._add(CapturedQuery(function, inputs), at, (code, *(() if parts else self._outputs(function, outputs))))

    def _outputs(self, function: str, outputs: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(map(_tuple, self._mask.outputs(function, outputs)))

    def _add(self, question: CapturedQuery, at: float, answer: Answer, *, anyway: bool = False) -> None:
        timeline = self._answers.setdefault(question, Timeline())
        timeline.add(max(0.0, at - self._began), answer, anyway=anyway)


def _fields(inputs: tuple[Any, ...], outputs: Sequence[Any]) -> list[tuple[CapturedQuery, Answer]]:
    return [
        (CapturedQuery(FIELD, (inputs[0], number, scope)), (0, kind, value, stamped) if not code else (code,))
        for number, scope, code, kind, value, stamped in outputs
    ]


def _metrics(inputs: tuple[Any, ...], outputs: Sequence[Any]) -> list[tuple[CapturedQuery, Answer]]:
    return [
        (CapturedQuery(METRIC, (*inputs, number)), (0, value) if not code else (code,))
        for number, code, value in outputs
    ]


_PARTS: Mapping[str, Any] = {FIELD_VALUES: _fields, METRICS_GET: _metrics}
"""Python functions that split an answer into several queries with answers, by NVML function."""


def _cost(seconds: array[float]) -> Cost:
    times = sorted(seconds)
    median, p90, p99 = (times[min(len(times) - 1, len(times) * part // 100)] for part in (50, 90, 99))
    return Cost(len(times), *(round(value * 1e6, 1) for value in (median, p90, p99, times[-1])))


def _tuple(values: Any) -> Any:
    return tuple(_tuple(value) for value in values) if isinstance(values, (list, tuple)) else values
