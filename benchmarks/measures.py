"""Measurements of an agent: scrapes, memory, calls into the simulated library, GPUs whose readings change."""

from __future__ import annotations

import http.client
import json
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

from agents import AgentProcess

SCRAPES = 300
BETWEEN_SECONDS = 5.0
"""Time between two compared pages: more than one polling interval."""


@dataclass(frozen=True)
class Traced:
    """Calls into the simulated library, and the time spent inside it."""

    calls: float
    seconds: float
    cpu_seconds: float


def total_calls(trace: Path) -> Traced:
    """Return the sum over all processes that count their calls in files beside this path."""
    counts = [json.loads(path.read_text()) for path in trace.parent.glob(f"{trace.name}-*.json")]
    calls, seconds, cpu = (sum(count[name] for count in counts) for name in ("total", "seconds", "cpu_seconds"))
    return Traced(calls, seconds, cpu)


def scrape_times(port: int) -> list[float]:
    """Return sorted durations of scrapes with gzip over one connection, spread over several polls."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    times = []
    for _ in range(SCRAPES):
        times.append(scrape(connection)[0])
        time.sleep(0.02)
    connection.close()
    return sorted(times)


def scrape_each_second(port: int, seconds: float) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    for _ in range(round(seconds)):
        time.sleep(1 - scrape(connection)[0])
    connection.close()


def scrape(connection: http.client.HTTPConnection) -> tuple[float, bytes]:
    """Return the duration of a scrape and its body."""
    began = time.perf_counter()
    connection.request("GET", "/metrics", headers={"Accept-Encoding": "gzip"})
    page = connection.getresponse().read()
    return time.perf_counter() - began, page


def percentiles(times: list[float]) -> str:
    return f"p50 {statistics.median(times) * 1e3:.1f} ms, p99 {times[int(len(times) * 0.99)] * 1e3:.1f} ms"


def resident_megabytes(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1e3


def neighbours_read(agent: AgentProcess, hung: int, gpus: int) -> str:
    """Return how many other GPUs have a changing value while one hangs."""
    before = agent.metrics().values
    time.sleep(BETWEEN_SECONDS)
    after = agent.metrics().values
    moved = {dict(key[1]).get("gpu") for key, value in after.items() if abs(value - before.get(key, value)) > 0}
    return f"{len(moved - {None, str(hung)})} of {gpus - 1}"
