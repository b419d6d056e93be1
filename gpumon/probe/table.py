"""A result as a terminal shows it: the columns of nccl-tests."""

from __future__ import annotations

from gpumon.probe.probes import PROBES
from gpumon.probe.result import Measurement, ProbeResult

_COLUMNS = ("size", "count", "type", "algo", "time", "p99", "algbw", "busbw", "#wrong")
_UNITS = ("(B)", "(elements)", "", "", "(us)", "(us)", "(GB/s)", "(GB/s)", "")
_WIDTHS = (12, 13, 9, 9, 10, 10, 8, 8, 8)
_BYTES = {"float32": 4, "bfloat16": 2}


def table(result: ProbeResult) -> str:
    """The whole result in lines; time is the median of an operation. GB are 1e9 bytes."""
    lines = [f"# {_title(result)}"]
    if result.measurements:
        lines += ["#" + _line(_COLUMNS)[1:], "#" + _line(_UNITS)[1:]]
        lines += [_line(_cells(one)) for one in result.measurements]
    lines.append(f"# {_ending(result)}")
    if result.hint:
        lines.append(f"# {result.hint}")
    if result.log:
        lines += ["", result.log]
    return "\n".join(lines) + "\n"


def _title(result: ProbeResult) -> str:
    probe = PROBES.get(result.probe)
    parts = [probe.title if probe else result.probe]
    if result.ranks:
        parts += [result.backend, f"{result.ranks} ranks"]
    parts += [f"{name} {version}" for name, version in result.versions.items()]
    return ", ".join(parts + ["simulated node"] * result.simulated)


def _ending(result: ProbeResult) -> str:
    reason = f": {result.reason}" if result.reason else ""
    wrong = f", {result.wrong_elements} wrong elements" if result.wrong_elements else ""
    return f"{result.outcome}{reason}{wrong}, after {result.duration_seconds:.1f} s"


def _cells(one: Measurement) -> tuple[str, ...]:
    return (
        str(one.bytes),
        str(one.bytes // _BYTES[one.dtype]),
        one.dtype,
        one.algorithm,
        f"{one.latency_seconds['p50'] * 1e6:.1f}",
        f"{one.latency_seconds['p99'] * 1e6:.1f}",
        f"{one.algbw_bytes_per_second / 1e9:.2f}",
        f"{one.busbw_bytes_per_second / 1e9:.2f}",
        str(one.wrong_elements),
    )


def _line(cells: tuple[str, ...]) -> str:
    return "".join(cell.rjust(width) for cell, width in zip(cells, _WIDTHS, strict=True)).rstrip()
