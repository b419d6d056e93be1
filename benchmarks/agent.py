"""`make bench`: cost of the agent on simulated nodes, with its real processes and over real HTTP.

The simulated library runs inside the sampler, in Python. It counts its own wall and CPU time, which is subtracted in
rows named "without driver". Prints the results beside their targets.
"""

from __future__ import annotations

import compileall
import contextlib
import gzip
import http.client
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from agents import AgentProcess, all_cores_busy, cpu_seconds, eventually

import gpumon
from benchmarks.measures import (
    percentiles,
    resident_megabytes,
    scrape,
    scrape_each_second,
    scrape_times,
    total_calls,
)
from gpumon.clock import boot_clock

GPUS = 8
WATCH_SECONDS = 30.0
STUCK_SECONDS = 20.0
"""Deadline for a call to hang and to be abandoned."""
STUCK = re.compile(rb"^gpumon_nvml_stuck_seconds (\S+)", re.MULTILINE)
CHECKS = 100
AIMS = {
    "scrape, idle": "p99 5 ms",
    "driver calls a second": "60",
    "CPU without driver": "0.9 s/min",
    "CPU without driver, scraped": "1.2 s/min",
    "resident, all": "95 MB",
    "start to first complete scrape": "2 s",
    "gpumon check": "p99 100 ms",
    "kernel line to own alert": "p99 1 s",
}


@dataclass
class AgentRun:
    """One agent on a simulated h100x8."""

    agent: AgentProcess
    trace: Path
    started: float

    @property
    def processes(self) -> Mapping[str, int]:
        """Return the pids of the permanent processes by name."""
        children = {name: self.agent.children(f"gpumon.collectors.{name}") for name in ("sampler", "host")}
        return {"daemon": self.agent.process.pid} | {name: pid for name, (pid,) in children.items()}


@contextlib.contextmanager
def running_agent() -> Iterator[AgentRun]:
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace"
        agent = AgentProcess(Path(folder), environment={"GPUMON_SIMULATION_TRACE": str(trace)})
        agent.simulate({"busy": True})  # no probe runs, and values change
        began = boot_clock()
        agent.start()
        eventually(lambda: sum(agent.metrics().gpus("gpumon_gpu_up").values()) == GPUS, every=0.02)
        try:
            yield AgentRun(agent, trace, boot_clock() - began)
        finally:
            agent.stop()


def scrape_times_while_stuck(port: int) -> list[float]:
    """Return the durations of scrapes whose page reports a hanging call, until the sampler is replaced."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    times: list[float] = []
    deadline = boot_clock() + STUCK_SECONDS
    stuck = False
    while stuck or not times:
        if boot_clock() > deadline:
            raise TimeoutError("no call hung, or a hanging call was not abandoned")
        seconds, page = scrape(connection)
        [stuck_seconds] = STUCK.findall(gzip.decompress(page))
        stuck = float(stuck_seconds) > 0
        times += [seconds] if stuck else []
        time.sleep(0.003)
    connection.close()
    return sorted(times)


def watch(run: AgentRun) -> Iterator[tuple[str, str]]:
    """Yield the cost of the processes without scrapes, and their CPU time with one scrape a second."""
    time.sleep(3.0)  # after the start, which makes additional calls
    before, began = total_calls(run.trace).calls, boot_clock()
    spent = cpu_per_minute(run, lambda: time.sleep(WATCH_SECONDS))
    yield "driver calls a second", f"{(total_calls(run.trace).calls - before) / (boot_clock() - began):.1f}"
    yield "CPU without driver", f"{spent:.2f} s/min"
    spent = cpu_per_minute(run, lambda: scrape_each_second(run.agent.port, WATCH_SECONDS))
    yield "CPU without driver, scraped", f"{spent:.2f} s/min"
    resident = {name: resident_megabytes(pid) for name, pid in run.processes.items()}
    for name, megabytes in resident.items():
        yield f"resident, {name}", f"{megabytes:.0f} MB"
    yield "resident, all", f"{sum(resident.values()):.0f} MB"


def cpu_per_minute(run: AgentRun, act: Callable[[], None]) -> float:
    """Return the CPU seconds a minute of all processes, without those of the simulated driver, while `act` runs."""

    def spent() -> float:
        return sum(map(cpu_seconds, run.processes.values())) - total_calls(run.trace).cpu_seconds

    began, before = boot_clock(), spent()
    act()
    return (spent() - before) * 60 / (boot_clock() - began)


def alert_delays() -> Iterator[tuple[str, str]]:
    """Yield the time from an Xid in the kernel log of each GPU to its alert in /api/v1/alerts."""
    with tempfile.TemporaryDirectory() as folder:
        kernel_log = Path(folder) / "kmsg"
        os.mkfifo(kernel_log)  # like /dev/kmsg, it wakes the agent
        agent = AgentProcess(Path(folder), environment={"GPUMON_KERNEL_LOG__PATH": str(kernel_log)})
        agent.start()
        try:
            eventually(lambda: agent.get("/api/v1/health")["evaluated"])
            times = sorted(alert_delay(agent, kernel_log, gpu) for gpu in range(GPUS))
        finally:
            agent.stop()
    yield "kernel line to own alert", percentiles(times)


def alert_delay(agent: AgentProcess, kernel_log: Path, gpu: int) -> float:
    """Log an Xid 79 of this GPU, and return the seconds until its alert fires."""
    domain, bus, device = agent.get("/api/v1/gpus")["gpus"][gpu]["pci_bus_id"].lower().split(":")
    xid = f"NVRM: Xid (PCI:{domain[-4:]}:{bus}:{device[:2]}): 79, GPU has fallen off the bus."
    began = boot_clock()
    kernel_log.write_text(f"4,{gpu},{int(began * 1e6)},-;{xid}\n", encoding="utf-8")
    eventually(lambda: ("firing", "GpuXidCritical", str(gpu)) in alerts(agent), every=0.005)
    return boot_clock() - began


def alerts(agent: AgentProcess) -> set[tuple[str, str, str | None]]:
    """Return state, rule and GPU of each alert."""
    return {(each["state"], each["rule"], each["labels"].get("gpu")) for each in agent.get("/api/v1/alerts")["alerts"]}


def check_times(agent: AgentProcess) -> Iterator[float]:
    """Yield durations of `gpumon check`, which schedulers often run and wait for."""
    compileall.compile_dir(Path(gpumon.__file__).parent, quiet=1)  # as pip does
    command = [str(Path(sys.executable).with_name("gpumon")), "check", f"--store.path={agent.folder / 'gpumon.db'}"]
    for _ in range(CHECKS):
        began = time.perf_counter()
        subprocess.run(command, check=False, capture_output=True)
        yield time.perf_counter() - began


def measure(run: AgentRun) -> Iterator[tuple[str, str]]:
    """Yield all measurements of one agent by name."""
    yield "start to first complete scrape", f"{run.started:.2f} s"
    yield from watch(run)
    yield "series", f"{run.agent.metrics().value('gpumon_exposed_series') or 0:.0f}"
    yield "scrape, idle", percentiles(scrape_times(run.agent.port))
    with all_cores_busy():
        yield "scrape, both cores busy", percentiles(scrape_times(run.agent.port))
    run.agent.simulate({"busy": True, "gpus": {GPUS - 1: {"hang": ["nvmlDeviceGetTemperature*"]}}})
    times = scrape_times_while_stuck(run.agent.port)
    yield "scrape, a driver call hangs", f"{percentiles(times)} ({len(times)} scrapes)"
    yield "gpumon check", percentiles(sorted(check_times(run.agent)))
    yield from alert_delays()


def main() -> None:
    print(f"\n{GPUS} GPUs with 18 links each (simulated h100x8), polled every second")
    with running_agent() as run:
        for name, figure in measure(run):
            aim = f"   aim {AIMS[name]}" if name in AIMS else ""
            print(f"  {name:32}{figure}{aim}", flush=True)


if __name__ == "__main__":
    main()
