"""Scrapes an agent continuously, and checks what no page may show."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterable, Iterator

from agents import AgentProcess, Metrics
from typing_extensions import Self

from gpumon.clock import boot_clock

Series = tuple[str, frozenset[tuple[str, str]]]


class Scrapes:
    """Scrapes an agent several times a second until stopped, and keeps every page."""

    def __init__(self, agent: AgentProcess) -> None:
        self._agent = agent
        self._stop = threading.Event()
        self.pages: list[tuple[float, Metrics]] = []
        self.failed: list[Exception] = []
        self._thread = threading.Thread(target=self._scrape)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        assert self.pages or self.failed, "no page was scraped: checks of every page would prove nothing"

    @property
    def age(self) -> float:
        """Return the seconds between the first and the last page."""
        return self.pages[-1][0] - self.pages[0][0] if self.pages else 0.0

    def _scrape(self) -> None:
        while not self._stop.wait(0.3):
            try:
                self.pages.append((boot_clock(), self._agent.metrics()))
            except (OSError, AssertionError, http.client.HTTPException) as error:
                self.failed.append(error)


def not_growing(pages: list[tuple[float, Metrics]], gpus: set[str]) -> set[str]:
    """Return the GPUs whose observed time was not higher on the last page than on the first."""
    first, last = (pages[n][1].gpus("gpumon_gpu_observed_seconds_total") for n in (0, -1))
    return {gpu for gpu in gpus if not last.get(gpu, 0.0) > first.get(gpu, 0.0)}


def falls(pages: Iterable[Metrics]) -> Iterator[tuple[Series, float, float]]:
    """Yield the counters that decreased between two pages, with both values."""
    last: dict[Series, float] = {}
    for page in pages:
        for series, value in page.values.items():
            if series[0].endswith("_total"):
                if value < last.get(series, value):
                    yield series, last[series], value
                last[series] = value
