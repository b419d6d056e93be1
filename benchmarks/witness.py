"""Scrapes an agent every second as Prometheus does, verifies each page against the active faults, and concludes."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import queue
import re
import statistics
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.measures import scrape
from benchmarks.stage import Stage
from gpumon.clock import boot_clock

SCRAPE_LIMIT = 0.1
PRESSURE = Path("/proc/pressure/cpu")
DURABLE = (
    *("gpumon_gpu_xid_errors_total", "gpumon_nvswitch_errors_total"),
    *("gpumon_probe_allreduce_runs_total", "gpumon_probe_allreduce_skips_total"),
)
"""Counters that survive a restart of the daemon."""
LIMITS: Mapping[str, tuple[float, float]] = {
    "_ratio": (0.0, 1.2),
    "_celsius": (-100.0, 200.0),
    "_watts": (0.0, 5000.0),
    "_hertz": (0.0, 1e10),
    "_up": (0.0, 1.0),
}
"""Valid range of a gauge, by the end of its name."""
READING = "gpumon_gpu_temperature_celsius"
"""A reading that every GPU that answers has, unless the scenario garbles it."""
_LABEL = re.compile(r'(\w+)="([^"]*)"')

Page = dict[str, float]
"""Values by series."""


@dataclass(frozen=True)
class Scrape:
    """One scrape: its time, its duration and its page; no page if the scrape was refused."""

    at: float
    seconds: float
    starved: float
    """Seconds of the scrape in which a process on this machine waited for a CPU."""
    page: Page | None


class Scraper:
    """Scrapes every second in a separate thread over one connection."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="scraper")
        self.scrapes: queue.Queue[Scrape] = queue.Queue()
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=120)
        while not self._stop.wait(1.0):
            at, waited = boot_clock(), waited_for_processors()
            try:
                seconds, page = scrape(connection)
            except (OSError, http.client.HTTPException):
                connection.close()
                self.scrapes.put(Scrape(at, 0.0, 0.0, None))
            else:
                self.scrapes.put(Scrape(at, seconds, waited_for_processors() - waited, parse(page)))
        connection.close()


def parse(page: bytes) -> Page:
    lines = gzip.decompress(page).decode().splitlines()
    values = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {series: float(value) for series, _, value in values}


def waited_for_processors() -> float:
    """Return the total time in which a process waited for a CPU; 0 if the kernel does not report it."""
    with contextlib.suppress(OSError):
        return int(PRESSURE.read_text().splitlines()[0].rpartition("total=")[2]) / 1e6
    return 0.0


@dataclass
class Witness:
    """Results of the scrapes."""

    stage: Stage
    uuids: list[str]
    """Uuids by GPU index in the scenario."""
    problems: Counter[str] = field(default_factory=Counter)
    first: dict[str, str] = field(default_factory=dict)
    """First occurrence by problem."""
    answered: int = 0
    refused: int = 0
    slow: list[Scrape] = field(default_factory=list)
    slowest: float = 0.0
    verified_healthy: int = 0
    verified_hidden: int = 0
    """Number of times that the readings of an unreadable GPU were verified."""
    _counters: Page = field(default_factory=dict)

    def forget_counters(self) -> None:
        """Forget counters that a restart of the daemon resets."""
        self._counters = {series: n for series, n in self._counters.items() if series.startswith(DURABLE)}

    def take(self, one: Scrape, *, down: bool, asleep: bool) -> None:
        """Evaluate a scrape. `down`: the daemon was not running; `asleep`: it was stopped."""
        if one.page is None:
            self.refused += 1
            if not down:
                self._note("a scrape was refused", f"at {one.at:.1f}")
            return
        self.answered += 1
        if not asleep:
            self._judge_time(one)
        for problem, words in self._wrong(one.page, one.at):
            self._note(problem, words)

    def _judge_time(self, one: Scrape) -> None:
        self.slowest = max(self.slowest, one.seconds)
        if one.seconds > SCRAPE_LIMIT:
            self.slow.append(one)
            if one.seconds - one.starved > SCRAPE_LIMIT:
                self._note("a scrape took over 100 ms", f"{one.seconds * 1e3:.0f} ms at {one.at:.1f}")

    def _note(self, problem: str, words: str) -> None:
        if problem not in self.problems:
            self.stage.note(f"PROBLEM: {problem}: {words}")
            self.first[problem] = words
        self.problems[problem] += 1

    def _wrong(self, page: Page, at: float) -> Iterator[tuple[str, str]]:
        yield from _implausible(page)
        ups, readings = by_uuid(page, "gpumon_gpu_up"), by_uuid(page, READING)
        self._forget({uuid for gpu, uuid in enumerate(self.uuids) if gpu in self.stage.given_away and uuid not in ups})
        for gpu, uuid in enumerate(self.uuids):
            up, reading = ups.get(uuid), readings.get(uuid)
            if self.stage.is_hidden(gpu, at):
                self.verified_hidden += 1
                if up == 1:
                    yield "a GPU that cannot be read is up", f"GPU {gpu} at {at:.1f}"
                if reading is not None:
                    yield "a GPU that cannot be read has a reading", f"GPU {gpu} at {at:.1f}: {reading}"
            elif self.stage.is_healthy(gpu, at):
                self.verified_healthy += 1
                if up != 1 or reading is None:
                    yield "a healthy GPU is not read", f"GPU {gpu} at {at:.1f}: up {up}, temperature {reading}"
        yield from self._falls(page)
        yield from self._too_many_xids(page)

    def _falls(self, page: Page) -> Iterator[tuple[str, str]]:
        for series, value in page.items():
            name = series.partition("{")[0]
            if name.endswith("_total"):
                if value < self._counters.get(series, value):
                    yield f"{name} fell", f"{series} from {self._counters[series]} to {value}"
                self._counters[series] = value

    def _forget(self, gone: set[str]) -> None:
        """Forget counters of GPUs that are bound to another driver."""
        if gone:
            kept = (
                item
                for item in self._counters.items()
                if item[0].startswith(DURABLE) or not any(g in item[0] for g in gone)
            )
            self._counters = dict(kept)

    def _too_many_xids(self, page: Page) -> Iterator[tuple[str, str]]:
        sent = self.stage.sent()
        for series, count in page.items():
            if count and series.startswith("gpumon_gpu_xid_errors_total{"):
                labels = dict(_LABEL.findall(series))
                gpu = self.uuids.index(labels["uuid"]) if labels["uuid"] in self.uuids else None
                if gpu is not None and count > sent[gpu, int(labels["xid"])]:
                    yield "an Xid was counted more often than it was sent", f"{series} {count}"


def _implausible(page: Page) -> Iterator[tuple[str, str]]:
    for series, value in page.items():
        name = series.partition("{")[0]
        limits = next((limits for end, limits in LIMITS.items() if name.endswith(end)), None)
        if value != value or value in {float("inf"), float("-inf")}:  # noqa: PLR0124 - only NaN is not itself
            yield f"{name} is no number", f"{series} {value}"
        elif limits is not None and not limits[0] <= value <= limits[1]:
            yield f"{name} cannot be", f"{series} {value}"


def by_uuid(page: Page, name: str) -> dict[str, float]:
    """Return the values of a metric with one series per GPU, by uuid."""
    return {dict(_LABEL.findall(series))["uuid"]: n for series, n in page.items() if series.startswith(name + "{")}


# The result

WARM_SECONDS, MIN_SIZES = 120.0, 12
"""Age from which the sizes of a process are compared, and how many of them it takes."""
MAX_GROWTH = 1.0
"""MB a minute. The daemon remembers an hour of what rules look back on, and so grows for an hour."""
MAX_DESCRIPTORS = 4
"""More than at the beginning: a connection or two, and a child that is just being started."""

Figure = tuple[str, str]


@dataclass(frozen=True)
class Size:
    """Memory and descriptors of a process."""

    at: float
    role: str
    pid: int
    megabytes: float
    descriptors: int


def verdict(witness: Witness, sizes: Sequence[Size], left: set[int], log: str) -> tuple[list[Figure], list[str]]:
    """`left`: processes of the agent that outlived it; `log`: the log of the agent and its children."""
    figures = [
        ("scrapes", f"{witness.answered}, slowest {witness.slowest * 1e3:.1f} ms; {witness.refused} refused"),
        ("scrapes over 100 ms", _slow(witness)),
        ("readings of healthy GPUs verified", f"{witness.verified_healthy} times"),
        ("unreadable GPUs verified", f"{witness.verified_hidden} times"),
    ]
    failed = [f"{problem}, {n} times, first: {witness.first[problem]}" for problem, n in witness.problems.items()]
    for role in dict.fromkeys(size.role for size in sizes):
        mine = [size for size in sizes if size.role == role]
        figures.append((role, _held(mine)))
        failed += (f"the {role} {reason}" for reason in _grown(mine))
    tracebacks = [line for line in log.splitlines() if "Traceback" in line or "exception=" in line]
    figures += [("processes left", str(len(left))), ("unhandled exceptions", str(len(tracebacks)))]
    failed += [f"processes left: {sorted(left)}"] if left else []
    failed += [f"an exception: {tracebacks[0][:300]}"] if tracebacks else []
    return figures, failed


def _slow(witness: Witness) -> str:
    starved = sum(scrape.seconds - scrape.starved <= SCRAPE_LIMIT for scrape in witness.slow)
    return f"{len(witness.slow)}" + (f", {starved} of them during CPU starvation" if witness.slow else "")


def _held(sizes: Sequence[Size]) -> str:
    slope = growth(sizes)
    words = "run too short for a growth rate" if slope is None else f"{slope:+.2f} MB a minute"
    descriptors = [size.descriptors for size in sizes]
    return f"{sizes[-1].megabytes:.0f} MB, {words}; {descriptors[0]} descriptors, then {descriptors[-1]}"


def _grown(sizes: Sequence[Size]) -> Iterable[str]:
    slope = growth(sizes)
    if slope is not None and slope > MAX_GROWTH:
        yield f"grew by {slope:.2f} MB a minute"
    if sizes[-1].descriptors > sizes[0].descriptors + MAX_DESCRIPTORS:
        yield f"ended with {sizes[-1].descriptors} descriptors, and began with {sizes[0].descriptors}"


def growth(sizes: Sequence[Size]) -> float | None:
    """Return the growth per minute, the median over all long-lived processes of a role; None without one."""
    slopes = []
    for pid in {size.pid for size in sizes}:
        mine = [size for size in sizes if size.pid == pid]
        warm = [size for size in mine if size.at - mine[0].at >= WARM_SECONDS]
        if len(warm) >= MIN_SIZES:
            slopes.append(
                statistics.linear_regression([size.at / 60 for size in warm], [size.megabytes for size in warm]).slope
            )
    return statistics.median(slopes) if slopes else None
