"""Replays a recording through NVML's C functions. The answers depend only on the recording and the time.

An answer is valid until the recording has the next answer to the same query. The last answers stay valid after the end
of the recording, so that counters then stay constant. The replayed library lacks functions that were not recorded,
except nvmlErrorString, initialisation and shutdown.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from gpumon_sim.capture import HANGS, INITIALISATIONS, Answer, Capture, CapturedQuery, Timeline
from gpumon_sim.codes import Code, Refusal
from gpumon_sim.nvml_client import NvmlClient
from gpumon_sim.signatures import Signature

_logger = logging.getLogger(__name__)

_HANDLES = 0x7E5C_0000_0000
VERSION_DIGITS = 8
"""Number of hexadecimal digits of an NVML struct's version, which is in the first four bytes of the struct."""
LOOKUPS = "nvmlDeviceGetHandleBy"
WHOLE_GPU_CODES = frozenset({Code.GPU_IS_LOST, Code.RESET_REQUIRED})
"""Return codes that concern a whole GPU. From the time at which a call on a GPU was recorded with such a code, all
calls on that GPU return the code, until the recording has another code for any call on that GPU.
"""


class ReplayEventSet:
    """An event set of a replayed library.

    `registered` has the event type bits and the time of registration (seconds since the replay began), by name of the
    device's handle. `delivered` has the positions of the delivered events in the recorded timeline of EVENT.
    """

    def __init__(self) -> None:
        self.registered: dict[str, tuple[int, float]] = {}
        self.delivered: set[int] = set()


class ReplayGpmSample(NamedTuple):
    """A GPM sample of a device or GPU instance. `taken` is its time, in seconds since the replay began."""

    device: str
    instance: int | None
    taken: float


class Replay(NvmlClient[ReplayEventSet, ReplayGpmSample]):
    """A replayed NVML library: its handles, event sets and GPM samples, and the lookup of recorded answers.

    `epoch` is the start of the replay on `clock`. Processes with the same epoch get the same answers at the same time.
    """

    def __init__(self, recorded: Capture, epoch: float, clock: Callable[[], float]) -> None:
        super().__init__(epoch, clock)
        self.recorded = recorded
        self.signatures = {name: Signature(words) for name, words in recorded.signatures.items()}
        self._numbers = {name: _HANDLES | n << 8 for n, name in enumerate(recorded.handles)}
        self._names = {number: name for name, number in self._numbers.items()}
        self._faults = _faults(recorded)
        self._versions = _versions(recorded)
        self.unanswered: Counter[str] = Counter()
        """Number of calls for which the recording has no answer, by function."""

    # Handles

    def handle(self, name: str) -> int:
        return self._numbers.get(name, 0)

    def name(self, handle: int | None) -> str:
        """Return the recorded name of a handle. Raise Refusal if the handle belongs to no name in the recording."""
        if handle not in self._names:
            raise Refusal(Code.INVALID_ARGUMENT)
        return self._names[handle]

    # Initialisation

    def initialise(self) -> None:
        """Initialise the library. Raise Refusal if the recorded initialisation failed at this time.

        The recorded answers of every function of INITIALISATIONS apply, whichever of them the client calls.
        """
        for function in INITIALISATIONS:
            for _, timeline in self.recorded.questions(function):
                self.succeed(timeline.at(self.time()))
        self._users += 1

    # Answers

    def ask(self, function: str, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the outputs that the recording has for a query at this time.

        Raise Refusal with the recorded error code, or with NOT_SUPPORTED if the query was never recorded. Hang if the
        recorded call hung.
        """
        timeline = self.recorded.answers.get(CapturedQuery(function, inputs))
        if timeline is None:
            raise Refusal(self._unknown_call(function, inputs))
        return self.succeed(timeline.at(self.time()))

    def is_of_another_version(self, function: str, inputs: tuple[Any, ...]) -> bool:
        """Return True if versions of the function's input struct were recorded, but not the version in `inputs`."""
        recorded_versions = self._versions.get(function)
        return recorded_versions is not None and inputs[-1][:VERSION_DIGITS] not in recorded_versions

    def succeed(self, answer: Answer) -> tuple[Any, ...]:
        """Return a recorded answer's outputs. Raise Refusal if the recorded call failed; never return if it hung."""
        code, *outputs = answer
        while code == HANGS:
            time.sleep(3600)
        if code:
            raise Refusal(code)
        return tuple(outputs)

    def need_answering(self, device: str) -> None:
        """Raise Refusal if the GPU with this handle name was recorded as lost or in need of a reset at this time."""
        timeline = self._faults.get(device)
        if timeline is not None:
            self.succeed(timeline.at(self.time()))

    def _unknown_call(self, function: str, inputs: tuple[Any, ...]) -> Code:
        self.unanswered[function] += 1
        times = self.unanswered[function]
        if times == 10 ** (len(str(times)) - 1):  # log the first, the tenth, the hundredth
            details = {"function": function, "given": inputs, "times": times}
            _logger.info('the recording has no answer to this call; returning "not supported"', extra=details)
        return Code.NOT_SUPPORTED


def _versions(recorded: Capture) -> Mapping[str, set[str]]:
    """Return, by function, the versions (hexadecimal) with which its input struct was recorded.

    Functions without a versioned input struct are left out.
    """
    versioned = (name for name, words in recorded.signatures.items() if any(w.startswith("versioned") for w in words))
    return {name: {inputs[-1][:VERSION_DIGITS] for inputs, _ in recorded.questions(name)} for name in versioned}


def _faults(recorded: Capture) -> Mapping[str, Timeline]:
    """Return a timeline for each GPU that was recorded as lost or in need of a reset, by name of the GPU's handle.

    The answers in a timeline are GPU_IS_LOST, RESET_REQUIRED or, for any other recorded return code, SUCCESS.
    """
    codes_by_device: dict[str, list[tuple[float, int]]] = {name: [] for name in recorded.handles}
    for question, timeline in recorded.answers.items():
        for moment, answer in zip(timeline.times, timeline.answers, strict=True):
            device = _device(question, answer)
            if device in codes_by_device:
                codes_by_device[device].append((moment, answer[0]))
    return {
        device: _fault_timeline(sorted(codes))
        for device, codes in codes_by_device.items()
        if any(code in WHOLE_GPU_CODES for _, code in codes)
    }


def _device(question: CapturedQuery, answer: Answer) -> str:
    """Return the name of the handle of the GPU that a recorded answer concerns; "" if the answer concerns no GPU.

    For a lookup, this is the handle in the answer ("" if the lookup failed). For any other query it is the first input,
    or "" if that is no text.
    """
    if question.function.startswith(LOOKUPS):
        return answer[1] if len(answer) > 1 else ""
    return question.inputs[0] if question.inputs and isinstance(question.inputs[0], str) else ""


def _fault_timeline(codes: list[tuple[float, int]]) -> Timeline:
    timeline = Timeline([0.0], [(Code.SUCCESS,)])
    for moment, code in codes:
        timeline.add(moment, (code if code in WHOLE_GPU_CODES else Code.SUCCESS,))
    return timeline
