"""Asks the Prometheus of the fleet now and then, in a thread: nothing waits for the answer, and none is needed."""

from __future__ import annotations

import logging
import threading
import urllib.parse
from collections.abc import Callable

from gpumon.clock import boot_clock
from gpumon.probe.core.fleet import FleetFigures, Hardware, read
from gpumon.probe.runner.fetch import fetch
from gpumon.state.report import Report
from gpumon.supervisor.loop import Loop

log = logging.getLogger("gpumon.probe.core")

LOOK_SECONDS = 30.0
ASK_SECONDS = 3600.0
"""Between two questions: medians of a fleet do not change quickly."""
AGAIN_SECONDS = 300.0
"""The same after one that was not answered."""
FRESH_SECONDS = 2.5 * ASK_SECONDS
"""For which an answer counts."""
TIMEOUT_SECONDS = 10.0
"""That Prometheus may take to evaluate it."""
ANSWER_SECONDS = 30.0
"""Until the last byte of an answer."""
ANSWER_LIMIT = 1 << 20
"""Bytes of an answer."""
TWO = 2
"""GPUs that can exchange anything."""


class Fleet:
    """Use from the loop's thread. `url`: of Prometheus; None: nobody is asked."""

    def __init__(self, loop: Loop, url: str | None, latest: Callable[[], Report]) -> None:
        self._loop = loop
        self._latest = latest
        self._figures = FleetFigures()
        self._fresh_until = 0.0
        self._due = 0.0
        self._asking = False
        self._failing = False
        self._url = url

    @property
    def figures(self) -> FleetFigures:
        """As they were told last; none where that is too long ago."""
        return self._figures if boot_clock() < self._fresh_until else FleetFigures()

    def change(self, url: str | None) -> None:
        """Ask there from now on."""
        if url != self._url:
            self._url, self._due, self._fresh_until, self._failing = url, 0.0, 0.0, False

    def start(self) -> None:
        self._loop.every(LOOK_SECONDS, self.look)

    def look(self) -> None:
        """Ask, if it is time to and there is something to ask."""
        hardware = _hardware(self._latest())
        moved = self._figures.hardware not in {None, hardware}
        if self._url is None or hardware is None or self._asking or (boot_clock() < self._due and not moved):
            return
        self._asking = True
        try:
            threading.Thread(target=self._ask, args=(self._url, hardware), name="fleet", daemon=True).start()
        except RuntimeError as error:  # no more threads
            self._failed(self._url, str(error))

    def _ask(self, url: str, hardware: Hardware) -> None:
        try:
            found = read(hardware, _fetch(url, hardware.query))
        except Exception as error:  # noqa: BLE001 - nobody knows what answers there; a question that is lost is the last
            words = f"{type(error).__name__}: {error}"
            self._loop.post(lambda: self._failed(url, words))
        else:
            self._loop.post(lambda: self._told(url, found))

    def _told(self, url: str, found: FleetFigures) -> None:
        self._asking = False
        if url != self._url:
            return
        if self._failing:
            log.info("the fleet's Prometheus answers again", extra={"url": url})
        now = boot_clock()
        self._figures, self._failing = found, False
        self._due, self._fresh_until = now + ASK_SECONDS, now + FRESH_SECONDS

    def _failed(self, url: str, words: str) -> None:
        self._asking = False
        if url != self._url:
            return
        if not self._failing:
            log.warning("the fleet's Prometheus cannot be asked", extra={"url": url, "error": words})
        self._failing = True
        self._due = boot_clock() + AGAIN_SECONDS


def _hardware(report: Report) -> Hardware | None:
    """None where there is nothing to compare: on a simulated node, a single GPU, or GPUs that differ."""
    models = {state.gpu.name for state in report.gpus}
    model = next(iter(models), None)
    if report.simulated is not None or len(report.gpus) < TWO or len(models) != 1 or model is None:
        return None
    return Hardware(model=model, gpus=len(report.gpus), uuid=report.gpus[0].uuid)


def _fetch(url: str, query: str) -> bytes:
    """The answer to an instant query, whatever its status. Raises OSError, ValueError, HTTPException."""
    form = urllib.parse.urlencode({"query": query, "timeout": f"{TIMEOUT_SECONDS:g}s"}).encode()
    return fetch(f"{url.rstrip('/')}/api/v1/query", form, seconds=ANSWER_SECONDS, limit=ANSWER_LIMIT)
