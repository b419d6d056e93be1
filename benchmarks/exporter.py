"""Cost of the unmodified nvitop-exporter on the same simulated node, through `gpumon-sim`."""

from __future__ import annotations

import contextlib
import http.client
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml
from agents import Metrics, cpu_seconds, eventually, free_port

from benchmarks.measures import neighbours_read, percentiles, resident_megabytes, scrape_times, total_calls
from gpumon.clock import boot_clock

NAME = "nvitop-exporter"
PROGRAM = Path(os.environ.get("GPUMON_PEERS", Path(sys.prefix) / "peers")) / "bin" / NAME
WATCH_SECONDS = 30.0
HUNG_SECONDS = 5.0
"""Time after which a hanging call has an effect."""


@dataclass
class ExporterRun:
    """One exporter on one profile."""

    process: subprocess.Popen[bytes]
    port: int
    gpus: int
    scenario: Path
    trace: Path
    started: float


def version() -> list[str]:
    result = subprocess.run([PROGRAM, "--version"], check=True, capture_output=True, text=True)
    return result.stdout.split()


@contextlib.contextmanager
def exporter_on(profile: str, gpus: int) -> Iterator[ExporterRun]:
    with tempfile.TemporaryDirectory() as folder:
        scenario, trace, port = Path(folder) / "scenario.yml", Path(folder) / "trace", free_port()
        scenario.write_text("busy: true\n")
        command = [sys.executable, "-m", "gpumon_sim", "--scenario", str(scenario), profile, "--"]
        began = boot_clock()
        process = subprocess.Popen(
            [*command, str(PROGRAM), "--port", str(port)],
            env={**os.environ, "GPUMON_SIMULATION_TRACE": str(trace)},
            stderr=subprocess.DEVNULL,
        )
        try:
            eventually(lambda: len(temperatures(port)) == gpus, every=0.02)
            yield ExporterRun(process, port, gpus, scenario, trace, boot_clock() - began)
        finally:
            process.kill()  # a hanging driver call blocks every other way to end it
            process.wait()


def page(port: int) -> Metrics:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", "/metrics")
        return Metrics(connection.getresponse().read().decode())
    finally:
        connection.close()


def temperatures(port: int) -> dict[str, float]:
    """Return temperatures by GPU index."""
    samples = page(port).values.items()
    return {dict(labels)["index"]: value for (name, labels), value in samples if name == "gpu_temperature_C"}


def measure(run: ExporterRun) -> Iterator[tuple[str, str]]:
    """Yield the measurements that are also made of the agent, under the same names."""
    yield "start to first complete scrape", f"{run.started:.2f} s"
    time.sleep(3.0)  # after the start
    before, cpu, began = total_calls(run.trace), cpu_seconds(run.process.pid), boot_clock()
    time.sleep(WATCH_SECONDS)
    elapsed, after = boot_clock() - began, total_calls(run.trace)
    used = cpu_seconds(run.process.pid) - cpu
    yield "driver calls a second", f"{(after.calls - before.calls) / elapsed:.1f}"
    yield "CPU without driver", f"{(used - (after.cpu_seconds - before.cpu_seconds)) * 60 / elapsed:.2f} s/min"
    yield "resident, all", f"{resident_megabytes(run.process.pid):.0f} MB"
    yield "series", f"{len(page(run.port).values)}"
    yield "scrape, idle", percentiles(scrape_times(run.port))
    hang = {"busy": True, "gpus": {run.gpus - 1: {"hang": ["nvmlDeviceGetTemperature*"]}}}
    run.scenario.write_text(yaml.safe_dump(hang))
    time.sleep(HUNG_SECONDS)
    yield "scrape, a driver call hangs", percentiles(scrape_times(run.port))
    yield "neighbours read, a call hangs", neighbours_read(lambda: page(run.port), "index", run.gpus - 1, run.gpus)
