"""`make bench`: cost of the agent on simulated nodes, with its real processes and over real HTTP.

The simulated library runs inside the sampler, in Python. It counts its own wall and CPU time, which is subtracted in
rows named "without driver". Prints the results beside the targets for 8 GPUs.
"""

from __future__ import annotations

import compileall
import contextlib
import gzip
import http.client
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agents import AgentProcess, all_cores_busy, cpu_seconds, eventually

import gpumon
from benchmarks.measures import (
    neighbours_read,
    percentiles,
    resident_megabytes,
    scrape,
    scrape_each_second,
    scrape_times,
    total_calls,
)
from gpumon.clock import boot_clock

PROFILES = {"h100x1": 1, "h100x8": 8, "h100x16": 16}
WATCH_SECONDS = 30.0
STORM_SECONDS = 10.0
STORM = {"busy": True, "gpus": {0: {"xids": [{"xid": 13, "rate": 500}]}}}
STUCK_SECONDS = 20.0
"""Deadline for a call to hang and to be abandoned."""
STUCK = re.compile(rb"^gpumon_nvml_stuck_seconds (\S+)", re.MULTILINE)
POLLS = 10
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
    """One agent on one profile."""

    agent: AgentProcess
    profile: str
    gpus: int
    trace: Path
    started: float

    @property
    def processes(self) -> Mapping[str, int]:
        """Return the pids of the permanent processes by name."""
        children = {name: self.agent.children(f"gpumon.collectors.{name}") for name in ("sampler", "host")}
        return {"daemon": self.agent.process.pid} | {name: pid for name, (pid,) in children.items()}


@contextlib.contextmanager
def agent_on(profile: str, gpus: int) -> Iterator[AgentRun]:
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace"
        agent = AgentProcess(Path(folder), profile=profile, environment={"GPUMON_SIMULATION_TRACE": str(trace)})
        agent.simulate({"busy": True})  # no probe runs, and values change
        began = boot_clock()
        agent.start()
        eventually(lambda: sum(agent.metrics().gpus("gpumon_gpu_up").values()) == gpus, every=0.02)
        try:
            yield AgentRun(agent, profile, gpus, trace, boot_clock() - began)
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
    spent, driver = cpu_per_minute(run, lambda: time.sleep(WATCH_SECONDS))
    yield "driver calls a second", f"{(total_calls(run.trace).calls - before) / (boot_clock() - began):.1f}"
    for name, seconds in spent.items():
        yield f"CPU, {name}", f"{seconds:.2f} s/min"
    yield "CPU without driver", f"{sum(spent.values()) - driver:.2f} s/min"
    spent, driver = cpu_per_minute(run, lambda: scrape_each_second(run.agent.port, WATCH_SECONDS))
    yield "CPU without driver, scraped", f"{sum(spent.values()) - driver:.2f} s/min"
    resident = {name: resident_megabytes(pid) for name, pid in run.processes.items()}
    for name, megabytes in resident.items():
        yield f"resident, {name}", f"{megabytes:.0f} MB"
    yield "resident, all", f"{sum(resident.values()):.0f} MB"


def cpu_per_minute(run: AgentRun, act: Callable[[], None]) -> tuple[dict[str, float], float]:
    """Return the CPU seconds a minute of each process, and of the simulated driver in them, while `act` runs."""
    processes = run.processes
    began, driver = boot_clock(), total_calls(run.trace).cpu_seconds
    before = {name: cpu_seconds(pid) for name, pid in processes.items()}
    act()
    minute = 60 / (boot_clock() - began)
    spent = {name: (cpu_seconds(pid) - before[name]) * minute for name, pid in processes.items()}
    return spent, (total_calls(run.trace).cpu_seconds - driver) * minute


def storm_cost(run: AgentRun) -> Iterator[tuple[str, str]]:
    """Yield the CPU time of daemon and sampler while one GPU reports 500 Xids a second."""
    run.agent.simulate(STORM)
    eventually(lambda: run.agent.metrics().value("gpumon_gpu_xid_errors_total", gpu="0", xid="13"))
    spent, _ = cpu_per_minute(run, lambda: time.sleep(STORM_SECONDS))
    yield "CPU, 500 Xids a second", f"{spent['daemon'] + spent['sampler']:.2f} s/min"
    run.agent.simulate({"busy": True})


def alert_delays(profile: str, gpus: int) -> Iterator[tuple[str, str]]:
    """Yield the time from an Xid in the kernel log of each GPU to its alert in /api/v1/alerts."""
    with tempfile.TemporaryDirectory() as folder:
        kernel_log = Path(folder) / "kmsg"
        os.mkfifo(kernel_log)  # like /dev/kmsg, it wakes the agent
        agent = AgentProcess(Path(folder), profile=profile, environment={"GPUMON_KERNEL_LOG__PATH": str(kernel_log)})
        agent.start()
        try:
            eventually(lambda: agent.get("/api/v1/health")["evaluated"])
            times = sorted(alert_delay(agent, kernel_log, gpu) for gpu in range(gpus))
        finally:
            agent.stop()
    yield "kernel line to own alert", percentiles(times)


def alert_delay(agent: AgentProcess, kernel_log: Path, gpu: int) -> float:
    """Log an Xid 79 of this GPU, and return the seconds until its alert fires."""
    domain, bus, device = agent.get("/api/v1/gpus")["gpus"][gpu]["pci_bus_id"].lower().split(":")
    xid = f"NVRM: Xid (PCI:{domain[-4:]}:{bus}:{device[:2]}): 79, GPU has fallen off the bus."
    began = boot_clock()
    kernel_log.write_text(f"4,{gpu},{int(began * 1e6)},-;{xid}\n", encoding="utf-8")
    fires = {"state": "firing", "rule": "GpuXidCritical", "gpu": str(gpu)}
    eventually(lambda: any(fires.items() <= flat(alert).items() for alert in alerts(agent)), every=0.005)
    return boot_clock() - began


def alerts(agent: AgentProcess) -> list[dict[str, Any]]:
    return list(agent.get("/api/v1/alerts")["alerts"])


def flat(alert: Mapping[str, Any]) -> dict[str, Any]:
    return {**alert, **alert["labels"]}


def poll_times(run: AgentRun) -> Iterator[tuple[str, str]]:
    """Yield the duration of a fast poll without the time of the simulated driver, and with it."""
    inside = total_calls(run.trace).seconds
    before = run.agent.metrics().value("gpumon_polls_total", tier="fast") or 0.0
    durations = []
    for _ in range(POLLS):
        time.sleep(1.0)
        durations.append(run.agent.metrics().value("gpumon_poll_duration_seconds", tier="fast") or 0.0)
    polls = (run.agent.metrics().value("gpumon_polls_total", tier="fast") or 0.0) - before
    whole, driver = statistics.mean(durations), (total_calls(run.trace).seconds - inside) / polls
    yield "fast poll without driver", f"{max(0.0, whole - driver) * 1e3:.2f} ms of {whole * 1e3:.2f} ms"


def check_times(agent: AgentProcess) -> Iterator[tuple[str, str]]:
    """Yield times of `gpumon check`, which schedulers often run and wait for, and of the start of Python alone."""
    compileall.compile_dir(Path(gpumon.__file__).parent, quiet=1)  # as pip does
    program = Path(sys.executable).with_name("gpumon")
    yield "gpumon check", command_times(str(program), "check", f"--store.path={agent.folder / 'gpumon.db'}")
    yield "python's own start", command_times(sys.executable, "-c", "pass")


def command_times(*command: str) -> str:
    times = []
    for _ in range(CHECKS):
        began = time.perf_counter()
        subprocess.run(command, check=False, capture_output=True)
        times.append(time.perf_counter() - began)
    return percentiles(sorted(times))


def measure(run: AgentRun) -> Iterator[tuple[str, str]]:
    """Yield all measurements of one agent by name."""
    yield "start to first complete scrape", f"{run.started:.2f} s"
    yield from watch(run)
    yield from poll_times(run)
    yield "series", f"{run.agent.metrics().value('gpumon_exposed_series') or 0:.0f}"
    yield "scrape, idle", percentiles(scrape_times(run.agent.port))
    with all_cores_busy():
        yield "scrape, both cores busy", percentiles(scrape_times(run.agent.port))
    yield from storm_cost(run)
    run.agent.simulate({"busy": True, "gpus": {run.gpus - 1: {"hang": ["nvmlDeviceGetTemperature*"]}}})
    times = scrape_times_while_stuck(run.agent.port)
    yield "scrape, a driver call hangs", f"{percentiles(times)} ({len(times)} scrapes)"
    if run.gpus > 1:
        yield "neighbours read, a call hangs", neighbours_read(run.agent, run.gpus - 1, run.gpus)
    yield from check_times(run.agent)
    yield from alert_delays(run.profile, run.gpus)


def main() -> None:
    for profile, gpus in PROFILES.items():
        print(f"\n{gpus} GPU{'s' * (gpus > 1)} with 18 links each (simulated {profile}), polled every second")
        with agent_on(profile, gpus) as run:
            for name, figure in measure(run):
                aim = f"   aim {AIMS[name]}" if gpus == 8 and name in AIMS else ""
                print(f"  {name:32}{figure}{aim}", flush=True)


if __name__ == "__main__":
    main()
