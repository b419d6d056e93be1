"""Summarizes a recording: the host, the duration of calls, and answers to questions that NVML's manual leaves open."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path

from gpumon.collectors.nvml.fields import field_ids
from gpumon.collectors.nvml.library import UNSUPPORTED
from gpumon_sim.arrivals import XID
from gpumon_sim.capture import EVENT, FIELD, Capture, Timeline
from gpumon_sim.codes import Code

CLOCK_EVENTS = "CLOCKS_EVENT_"
"""Prefix of the names of fields that count how long a clocks event reason was active."""
LINK_COUNT, LINK_STATE = "NVLINK_LINK_COUNT", "NVLINK_GET_STATE"
LOOKUP = "nvmlDeviceGetHandleByPciBusId_v2"


def brief(capture: Capture, path: Path, size: int) -> str:
    """Return a summary of one line, plus one line for each reason why the recording was cut short."""
    calls = sum(cost.calls for cost in capture.costs.values())
    masked = "masked" if capture.header.masked else "NOT masked: it names serials, uuids and process ids"
    text = (
        f"{path}: {len(_gpus(capture))} GPUs, {capture.header.seconds:.0f} s, {calls} calls of "
        f"{len(capture.costs)} functions, {size / 1e3:.0f} kB, {masked}"
    )
    return "\n".join([text, *(f"cut short: {remark}" for remark in capture.header.remarks)])


def summary(capture: Capture) -> str:
    """Return the complete summary of a recording as text."""
    sections = (_host, _calls, _gaps, _open_questions)
    return "\n".join("\n".join(section(capture)) + "\n" for section in sections)


def _host(capture: Capture) -> Iterator[str]:
    header = capture.header
    user = "root" if header.root else "an ordinary user"
    products = {str(timeline.answers[0][1]) for _, timeline in _successful_calls(capture, "nvmlDeviceGetName")}
    yield _row("recorded", f"{header.wall} by gpumon {header.gpumon} (nvidia-ml-py {header.bindings}), as {user}")
    yield _row("node", f"the simulated {header.simulated}: no hardware" if header.simulated else "a host")
    yield _row("driver", _driver(capture) or "unknown")
    yield _row("GPUs", f"{len(_gpus(capture))}: {', '.join(sorted(products))}")
    yield _row("time", f"{header.seconds:.0f} s, a poll every {header.interval:g} s")
    yield _row(
        "masked", "serials, uuids, process ids" if header.masked else "no: serials, uuids and process ids are real"
    )
    for remark in header.remarks:
        yield _row("cut short", remark)


def _driver(capture: Capture) -> str:
    timeline = capture.timeline("nvmlSystemGetDriverVersion")
    return str(timeline.answers[0][1]) if timeline and _is_answered(timeline) else ""


def _fields(capture: Capture) -> Mapping[str, int]:
    """Return the field ids that the recorded driver version has, by name of the field."""
    return field_ids(_driver(capture))


def _calls(capture: Capture) -> Iterator[str]:
    yield f"{'calls, in microseconds':48}{'calls':>8}{'p50':>10}{'p90':>10}{'p99':>10}{'longest':>10}"
    for name, cost in sorted(capture.costs.items(), key=lambda item: -item[1].median):
        yield (f"  {name:46}{cost.calls:8}{cost.median:10.1f}{cost.p90:10.1f}{cost.p99:10.1f}{cost.longest:10.1f}")


def _gaps(capture: Capture) -> Iterator[str]:
    yield "what this driver does not give"
    refused = {name for name in capture.signatures if _is_never_called(capture, name)}
    fields = sorted({inputs[1] for inputs, timeline in capture.questions(FIELD) if _is_answered(timeline)})
    yield _row("not supported", _names(refused))
    yield _row("not in the library", _names(capture.missing))
    yield _row("not recorded", _names(capture.unrecorded))
    yield _row("fields that answer", ", ".join(map(str, fields)) or "none")


def _names(names: frozenset[str] | set[str] | tuple[str, ...]) -> str:
    return ", ".join(sorted(names)) or "none"


def _is_never_called(capture: Capture, function: str) -> bool:
    timelines = [timeline for _, timeline in capture.questions(function)]
    return bool(timelines) and all(answer[0] in UNSUPPORTED for timeline in timelines for answer in timeline.answers)


def _is_answered(timeline: Timeline) -> bool:
    return any(answer[0] == 0 for answer in timeline.answers)


def _successful_calls(capture: Capture, function: str) -> Iterator[tuple[tuple[object, ...], Timeline]]:
    return ((inputs, timeline) for inputs, timeline in capture.questions(function) if timeline.answers[0][0] == 0)


def _gpus(capture: Capture) -> list[str]:
    """Return the name of the handle of each GPU whose first lookup by bus id in the recording succeeded."""
    return [timeline.answers[0][1] for _, timeline in _successful_calls(capture, LOOKUP)]


# Open questions


def _open_questions(capture: Capture) -> Iterator[str]:
    yield "open questions"
    for question, answer in OPEN_QUESTIONS.items():
        yield _row(question, answer(capture))
    for what, text in sorted({(what, text) for what, _, text in capture.findings}):
        yield _row(what, text)


def _clock_event_unit(capture: Capture) -> str:
    counters = {number for name, number in _fields(capture).items() if name.startswith(CLOCK_EVENTS)}
    rates = [
        (later[1] - earlier[1]) / seconds
        for inputs, timeline in capture.questions(FIELD)
        if inputs[1] in counters
        for seconds, earlier, later in _steps(timeline)
    ]
    fastest = max(rates, default=0.0)
    if fastest <= 0:
        return "none of the counters grew: record while a GPU is held at its power limit"
    text = f"the fastest grew by {fastest:.3g} in a second: "
    if fastest > 2e6:
        return text + "nanoseconds" if fastest < 1.2e9 else text + "more than nanoseconds have time for"
    return text + "microseconds; or nanoseconds, if no reason held for more than a 500th of the time"


def _steps(timeline: Timeline) -> Iterator[tuple[float, tuple[int, int], tuple[int, int]]]:
    """Yield (seconds in between, earlier (type, value), later (type, value)) for successive values of a field."""
    values = [
        (time, answer[1:3]) for time, answer in zip(timeline.times, timeline.answers, strict=True) if not answer[0]
    ]
    for (earlier, before), (later, after) in pairwise(values):
        if later > earlier:
            yield later - earlier, before, after


def _events(capture: Capture) -> str:
    masks = {timeline.answers[0][1] for _, timeline in _successful_calls(capture, "nvmlDeviceGetSupportedEventTypes")}
    return ", ".join(f"0x{mask:x}" for mask in sorted(masks)) or "none, or not asked"


def _registration(capture: Capture) -> str:
    return _codes(timeline for _, timeline in capture.questions("nvmlDeviceRegisterEvents"))


def _gpm(capture: Capture) -> str:
    return _codes(timeline for _, timeline in capture.questions("nvmlGpmSampleGet"))


def _past_the_last_link(capture: Capture) -> str:
    text, numbers = [], _fields(capture)
    for device in _gpus(capture)[:1]:
        count = capture.timeline(FIELD, device, numbers[LINK_COUNT], 0)
        links = count.answers[0][2] if count and count.answers[0][0] == 0 else 0
        for name, timeline in (
            ("nvmlDeviceGetNvLinkState", capture.timeline("nvmlDeviceGetNvLinkState", device, links)),
            ("the field", capture.timeline(FIELD, device, numbers[LINK_STATE], links)),
        ):
            text.append(f"{name} {_codes([timeline] if timeline else [])}")
    return ", ".join(text) or "no GPU"


def _codes(timelines: Iterable[Timeline]) -> str:
    codes = sorted({answer[0] for timeline in timelines for answer in timeline.answers})
    return ", ".join(_word(code) for code in codes) or "was not asked"


def _word(code: int) -> str:
    return Code(code).words if code in set(Code) else f"code {code}"


def _memory(capture: Capture) -> str:
    exact = []
    for _, timeline in _successful_calls(capture, "nvmlDeviceGetMemoryInfo_v2"):
        numbers = bytes.fromhex(timeline.answers[0][1])[4:]
        total, *parts = (int.from_bytes(numbers[n : n + 8], "little") for n in range(0, 32, 8))
        exact.append(total == sum(parts))
    return "was not asked" if not exact else f"on {sum(exact)} of {len(exact)} GPUs"


def _lost_text(capture: Capture) -> str:
    events = (answer for _, timeline in capture.questions(EVENT) for answer in timeline.answers)
    xids = sorted({data for _, _, event_type, data, *_ in events if event_type & XID})
    counts = capture.timeline("nvmlDeviceGetCount_v2")
    lost = any(answer[0] == Code.GPU_IS_LOST for timeline in capture.answers.values() for answer in timeline.answers)
    text = f"Xids {', '.join(map(str, xids))}; " if xids else ""
    if not lost:
        return text + "no GPU was lost"
    return (
        text
        + "a GPU was lost, and NVML counted "
        + ", then ".join(str(answer[1]) for answer in (counts.answers if counts else ()) if not answer[0])
    )


OPEN_QUESTIONS: dict[str, Callable[[Capture], str]] = {
    "unit of clock-event counters": _clock_event_unit,
    "event types supported": _events,
    "registering for events": _registration,
    "taking a GPM sample": _gpm,
    "past the last NVLink": _past_the_last_link,
    "used + free + reserved = total": _memory,
    "count after a loss": _lost_text,
}


def _row(name: str, text: str) -> str:
    return f"  {name:36}{text}"
