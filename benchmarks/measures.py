"""Measurements of an agent: scrapes, memory, calls into the simulated library."""

from __future__ import annotations

import http.client
import json
import statistics
import time
from pathlib import Path
from typing import NamedTuple

SCRAPES = 300


class TracedCalls(NamedTuple):
    """Calls into the simulated library, and the CPU time that it took for them."""

    calls: float
    cpu_seconds: float


def total_calls(trace: Path) -> TracedCalls:
    """Return the sum over all processes that count their calls in files beside this path."""
    counts = [json.loads(path.read_text()) for path in trace.parent.glob(f"{trace.name}-*.json")]
    return TracedCalls(sum(count["total"] for count in counts), sum(count["cpu_seconds"] for count in counts))


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
