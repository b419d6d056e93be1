"""Scrapes an agent without pause, and says what no page may show."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterable, Iterator
from typing import Self

from agents import Agent, Metrics

from gpumon.clock import boot_clock

Series = tuple[str, frozenset[tuple[str, str]]]


class Scrapes:
    """Scrapes several times a second until stopped, and keeps every page: no moment goes unseen."""

    def __init__(self, agent: Agent) -> None:
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

    @property
    def age(self) -> float:
        """Seconds between the first and the last page."""
        return self.pages[-1][0] - self.pages[0][0] if self.pages else 0.0

    def _scrape(self) -> None:
        while not self._stop.wait(0.3):
            try:
                self.pages.append((boot_clock(), self._agent.metrics()))
            except (OSError, AssertionError, http.client.HTTPException) as error:
                self.failed.append(error)


def longest_standstill(pages: list[tuple[float, Metrics]], gpu: str) -> float:
    """Longest time for which this GPU's energy did not grow, in seconds."""
    grown_at, last, longest = pages[0][0], -1.0, 0.0
    for at, page in pages:
        energy = page.gpus("gpumon_gpu_energy_joules_total").get(gpu, last)
        if energy > last:
            grown_at, last = at, energy
        longest = max(longest, at - grown_at)
    return longest


def falls(pages: Iterable[Metrics]) -> Iterator[tuple[Series, float, float]]:
    """Counters that fell from one page to the next on which they are, with both values."""
    last: dict[Series, float] = {}
    for page in pages:
        for series, value in page.values.items():
            if series[0].endswith("_total"):
                if value < last.get(series, value):
                    yield series, last[series], value
                last[series] = value
