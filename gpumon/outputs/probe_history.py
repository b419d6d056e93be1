"""Formats probe runs as a table or a note for a terminal, and selects measurements of a run, from API responses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from gpumon.outputs.formatting import columns, participants, quantity, share
from gpumon.outputs.responses.base import Document
from gpumon.probe.core.result import DECISIVE, current_result, newest_result, to_document
from gpumon.probe.core.state import ProbeState

NO_RUNS = "No run is stored."


def largest(run: Document) -> Mapping[str, Document]:
    """Return a run's measurements of the largest size, by algorithm; by operation if the run has several.

    Only the data type float32 is used, if the run measured it. The result is empty for a run that failed, timed out or
    was skipped, because the largest size that it measured may be too small to show what is possible.
    """
    if run["outcome"] not in DECISIVE:
        return {}
    measurements = [item for item in run["measurements"] if item["dtype"] == "float32"] or run["measurements"]
    key = "operation" if len({item["operation"] for item in measurements}) > 1 else "algorithm"
    return {item[key]: item for item in sorted(measurements, key=lambda item: item["size"])}


def comparison(run: Document, measurement: Document) -> Document | None:
    """Return the run's comparison of this measurement with reference values; None if the run has none."""
    key = ("operation", "algorithm", "dtype", "size")
    matching = (item for item in run["comparisons"] if all(item[name] == measurement[name] for name in key))
    return next(matching, None)


def baseline_ratio(run: Document, measurement: Document) -> float | None:
    """Return a measured value divided by this host's median at the time of the run; None without a median."""
    compared = comparison(run, measurement)
    baseline = None if compared is None else compared["baseline"]
    return float(measurement["value"]) / baseline if baseline else None


def history(runs: Sequence[Document]) -> str:
    """Return a table with a line for each run; a sentence if there are no runs.

    A line has, for each key of `largest`, the value at the largest size, and its ratio to this host's
    median at the time of the run.
    """
    if not runs:
        return NO_RUNS + "\n"
    algorithms = list(dict.fromkeys(name for run in runs for name in largest(run)))
    titles = ["STARTED", "PROBE", "OUTCOME", "RANKS"]
    titles += [title for name in algorithms for title in (name.upper(), "OF MEDIAN")] + ["REASON", "ID"]
    return "\n".join(columns([titles, *([*_cells(run, algorithms)] for run in runs)])) + "\n"


def _cells(run: Document, algorithms: Iterable[str]) -> Iterable[str]:
    yield f"{run['started'][:10]} {run['started'][11:19]}Z"
    yield run["probe"]
    yield run["outcome"]
    yield f"{participants(run).removesuffix(' ranks')} {run['backend']}" if run["ranks"] else "-"
    by_algorithm = largest(run)
    for name in algorithms:
        measurement = by_algorithm.get(name)
        ratio = None if measurement is None else baseline_ratio(run, measurement)
        yield "-" if measurement is None else quantity(measurement["value"], measurement["unit"])
        yield "-" if ratio is None else share(ratio)
    yield run["reason"] or "-"
    yield run["id"]


def partial_run_note(state: ProbeState, probe: str) -> str:
    """Return a sentence which states that the newest run of a probe had too few GPUs to determine the probe's state.

    Skipped runs do not count. Return an empty string if the newest run determines the state, or without any run.
    """
    run, last = current_result(state.ran, probe), newest_result(state.ran, probe)
    if last is None or last == run:
        return ""
    return f"Run {last.id} is newer and was {last.outcome}, but had only {participants(to_document(last))}."
