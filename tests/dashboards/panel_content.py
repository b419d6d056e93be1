"""What a panel shows for the answers of a Prometheus, and the wrong answers that a test of the panel must reject."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from dashboards.answers import LETTERS, Line, Series, flat, lines, pivot
from dashboards.panels import OTHERS, Panel

WITHIN = 240.0
"""Maximum seconds until every panel shows the faults. A hot GPU or a link that is down fails after two minutes."""
SIZE = 85_520_809_984
"""Bytes of memory of an H100."""
Answers = Sequence[Sequence[Series]]


class PanelContent:
    """What a panel shows."""

    def __init__(self, panel: Panel, answers: Answers, step: float) -> None:
        """Keep the series that a graph still shows at its right end, and all increases."""
        self.panel, self._answers = panel, answers
        end = max((series.points[-1][0] for series in flat(answers)), default=0.0)
        current = -math.inf if panel.increments else end - 2 * step
        visible = [series for series in flat(answers) if series.points[-1][0] > current]
        self.series = [series for series in visible if series.name != OTHERS]
        self.others = [value for series in visible if series.name == OTHERS for _, value in series.points]
        """Values of the series that states that nothing else occurred."""

    @property
    def number(self) -> float:
        """Return the only value."""
        [series] = self.series
        return series.last

    @property
    def values(self) -> dict[str, float]:
        """Return the last value by the name of the series."""
        return {series.name: series.last for series in self.series}

    @property
    def peaks(self) -> dict[str, float]:
        """Return the highest value of the time range by the name of the series."""
        return {series.name: max(value for _, value in series.points) for series in self.series}

    @property
    def lines(self) -> list[Line]:
        """Return the lines of a table."""
        return lines(self.panel, self._answers)

    @property
    def cells(self) -> dict[str, dict[str, float]]:
        """Return the cells of a matrix."""
        return pivot(self.panel, self._answers)

    def line(self, **cells: Any) -> Line:
        """Return the only line with these cells. Underscores in a heading are blanks."""
        wanted = {heading.replace("_", " "): value for heading, value in cells.items()}
        [line] = [line for line in self.lines if wanted.items() <= line.items()]
        return line

    def has(self, **cells: Any) -> bool:
        """Return whether exactly one line has these cells. Underscores in a heading are blanks."""
        wanted = {heading.replace("_", " "): value for heading, value in cells.items()}
        return sum(wanted.items() <= line.items() for line in self.lines) == 1

    def column(self, heading: str) -> set[Any]:
        """Return the cells of a column."""
        return {line.get(heading) for line in self.lines}

    def between(self, low: float, high: float, *names: str) -> bool:
        """Return whether the last values lie between these: of all series, or of exactly the named ones."""
        return _between(self.values, low, high, names)

    def peaks_between(self, low: float, high: float, *names: str) -> bool:
        """Return whether the highest values lie between these: of all series, or of exactly the named ones."""
        return _between(self.peaks, low, high, names)

    @property
    def nothing(self) -> bool:
        """Return whether there is no series."""
        return not self.series


def seconds_ago(milliseconds: float) -> float:
    """Return the seconds since a time in milliseconds since the epoch."""
    return time.time() - milliseconds / 1000


Expectation = Callable[[PanelContent], bool]


def _between(values: Mapping[str, float], low: float, high: float, names: Sequence[str]) -> bool:
    named = not names or set(names) == set(values)
    return bool(values) and named and all(low <= value <= high for value in values.values())


def elsewhere(_: PanelContent) -> bool:
    """Accept what a panel shows in this view, because another view checks it."""
    return True


def agrees(expectation: Expectation, content: PanelContent) -> bool:
    """Return whether a panel shows what is expected; the series `others`, if it asks for it, must be 0."""
    asks_for_others = any(query.legend == OTHERS for query in content.panel.queries)
    if asks_for_others and set(content.others) != {0.0} and expectation is not elsewhere:
        return False
    try:
        return expectation(content)
    except (KeyError, ValueError, IndexError):  # a series that is not there yet
        return False


def wrong_answers(panel: Panel, answers: Answers) -> Iterator[tuple[str, Answers]]:
    """Yield each wrong answer by name: of one query no series, all values times 1000 (0 becomes 1), or all values 0.

    Values that a table does not show are not changed.
    """
    changes: Mapping[str, Callable[[float], float]] = {
        "values times 1000": lambda value: value * 1000 or 1.0,
        "values 0": lambda value: value * 0,
    }
    for place, found in enumerate(answers):
        if not found:
            continue
        letter = LETTERS[place]
        yield f"{letter} empty", _with(answers, place, [])
        if panel.kind == "table" and letter not in {column.source for column in panel.columns}:
            continue
        for name, change in changes.items():
            changed = [_change_points(series, change) for series in found]
            if str(changed) != str(list(found)):  # NaN is itself
                yield f"{letter} {name}", _with(answers, place, changed)


def _with(answers: Answers, place: int, found: Sequence[Series]) -> Answers:
    return [*answers[:place], found, *answers[place + 1 :]]


def _change_points(series: Series, change: Callable[[float], float]) -> Series:
    return dataclasses.replace(series, points=[(at, change(value)) for at, value in series.points])
