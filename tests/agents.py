"""Runs the real agent, Prometheus and Alertmanager for tests, on free ports and in new folders, and stops them."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import yaml
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from gpumon.clock import SIMULATED, boot_clock

T = TypeVar("T")
PATIENCE = 60.0
REST, LONGEST_REST = 3.0, 0.5
"""Pause between two attempts: a multiple of the duration of the attempt, and the maximum in seconds. Other tests
need the cores.
"""


PORTS = range(10_500, 32_000)
"""Ports below those that the kernel assigns, so that no outgoing connection takes a free port before it is used."""


def free_port() -> int:
    while True:
        port = secrets.choice(PORTS)
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port


def eventually(ask: Callable[[], T | None], *, within: float = PATIENCE, every: float = 0.1) -> T:
    """Return the first true result.

    AssertionError and OSError are retried; the last one is reported after `within` seconds.
    """
    deadline = boot_clock() + within
    while True:
        last: object = None
        asked_at = boot_clock()
        try:
            if last := ask():
                return last
        except (OSError, AssertionError, http.client.HTTPException) as error:
            last = error
        if (now := boot_clock()) > deadline:
            raise AssertionError(f"condition not met within {within:g} s; last result: {last!r}")
        time.sleep(max(every, min(REST * (now - asked_at), LONGEST_REST)))


class AgentProcess:
    """An agent on a simulated node, in a folder that survives its restarts."""

    def __init__(
        self, folder: Path, *, profile: str | None = "h100x8", environment: Mapping[str, str] | None = None
    ) -> None:
        self.folder = folder
        self.scenario = folder / "scenario.yml"
        self.log = folder / "agent.log"
        self.port = free_port()
        self.profile = profile
        simulated = {} if profile is None else {SIMULATED: profile}  # allows GPUMON_BOOT_ID
        self.environment = {**os.environ, "PYTHONUNBUFFERED": "1", **simulated, **(environment or {})}
        self.inherited: tuple[int, ...] = ()
        self.launcher = [sys.executable, "-m", "gpumon"]
        self.process: subprocess.Popen[bytes]
        self.simulate({})

    def simulate(self, scenario: Mapping[str, Any]) -> None:
        """Replace the scenario atomically."""
        written = self.scenario.with_suffix(".new")
        written.write_text(yaml.safe_dump(dict(scenario)), encoding="utf-8")
        written.rename(self.scenario)

    def start(self, *flags: str) -> AgentProcess:
        """Start the agent and wait until it has polled its GPUs."""
        self.launch(*flags)
        eventually(self._has_polled)
        return self

    def launch(self, *flags: str) -> None:
        """Start the agent without waiting for it."""
        arguments = [*self.launcher, "serve", f"--web.listen-address=127.0.0.1:{self.port}"]
        arguments += [f"--store.path={self.folder / 'gpumon.db'}", f"--web.token-file={self.folder / 'token'}"]
        if self.profile is not None:
            arguments += [f"--simulate={self.profile}", f"--simulate.scenario={self.scenario}"]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*arguments, *flags],
                env=self.environment,
                stderr=log,
                stdin=subprocess.DEVNULL,
                pass_fds=self.inherited,
            )

    def _has_polled(self) -> bool:
        """Return whether the first poll is done. Readiness alone may also mean that the first poll took too long."""
        if self.process.poll() is not None:
            raise RuntimeError(f"the agent ended: {self.log.read_text(encoding='utf-8')[-2000:]}")
        page = self.metrics()
        polled = page.value("gpumon_snapshot_timestamp_seconds") is not None
        released = page.value("gpumon_release_end_timestamp_seconds") is not None
        return self.status("/-/ready") == 200 and (polled or released or page.value("gpumon_nvml_up") == 0)

    def ask(self, path: str, *, method: str = "GET", headers: Mapping[str, str] | None = None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, headers=dict(headers or {}))
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def status(self, path: str) -> int:
        return self.ask(path)[0]

    def get(self, path: str) -> Any:
        """Return the JSON document at this path."""
        return json.loads(self.ask(path)[1])

    def post(self, path: str, *, method: str = "POST") -> tuple[int, Any]:
        token = (self.folder / "token").read_text(encoding="ascii").strip()
        status, body = self.ask(path, method=method, headers={"Authorization": f"Bearer {token}"})
        return status, json.loads(body)

    def metrics(self) -> Metrics:
        status, body = self.ask("/metrics")
        assert status == 200
        return Metrics(body.decode())

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command of gpumon that asks this agent through its socket."""
        command = [sys.executable, "-m", "gpumon", *arguments, f"--socket={self.folder / 'gpumon.db.sock'}"]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=150)

    def children(self, named: str = "") -> set[int]:
        """Return the pids of all descendants of the agent with this text in their command line."""
        return {pid for pid in descendants(self.process.pid) if named.encode() in command_line(pid)}

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Stop all processes of the agent meanwhile, as on a suspended host. The daemon continues first."""
        self.process.send_signal(signal.SIGSTOP)
        pids = [self.process.pid, *self.children()]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)

    def kill(self) -> None:
        """Send SIGKILL to the daemon only."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> int:
        """Send SIGTERM, as systemd does, and return the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            self.kill()
            raise


class Metrics:
    """A scrape, parsed by the Prometheus client library.

    Only the requested series are parsed, because pages are long.
    """

    def __init__(self, text: str) -> None:
        self._text = text

    @cached_property
    def families(self) -> dict[str, Metric]:
        return {family.name: family for family in text_string_to_metric_families(self._text)}

    @cached_property
    def values(self) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        """Return the values by name and labels."""
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in self.families.values()
            for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float | None:
        """Return the value of the one series with this name and these labels; None if there is none."""
        found = [value for own, value in self._series(name) if labels.items() <= own.items()]
        assert len(found) <= 1, f"{name} {labels} is not one series"
        return found[0] if found else None

    def gpus(self, name: str) -> dict[str, float]:
        """Return the values by GPU index."""
        return {own["gpu"]: value for own, value in self._series(name)}

    def _series(self, name: str) -> Iterator[tuple[Mapping[str, str], float]]:
        """Yield labels and value of each series of this name."""
        lines = [line for line in self._text.split("\n") if line.startswith((name + "{", name + " "))]
        for family in text_string_to_metric_families("\n".join([*lines, ""])):
            for sample in family.samples:
                yield sample.labels, sample.value


def descendants(pid: int) -> set[int]:
    """Return all running descendants of this process."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = entry.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            if fields[0] not in "ZX":
                parents[int(entry.parent.name)] = int(fields[1])
    found: set[int] = set()
    grown = {pid}
    while grown:
        grown = {child for child, parent in parents.items() if parent in grown} - found
        found |= grown
    return found


def unreaped_children() -> set[int]:
    """Return the children of this process that run, or have ended and are not reaped."""
    found = set[int]()
    for children in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # a thread has ended meanwhile
            found |= {int(pid) for pid in children.read_text(encoding="ascii").split()}
    return found


def command_line(pid: int) -> bytes:
    """Return the arguments of a process, separated by NUL; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def alive(pids: set[int]) -> set[int]:
    """Return the pids that still run. A zombie does not run."""
    living = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            state = (
                Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
            )
            if state not in "ZX":
                living.add(pid)
    return living


@contextlib.contextmanager
def all_cores_busy() -> Iterator[None]:
    """Load every core, at a lower priority than an agent, because other tests run meanwhile."""
    command = ["nice", "-n", "5", sys.executable, "-c", "while True: pass"]
    burners = [subprocess.Popen(command) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def running(arguments: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server during the block."""
    with log.open("wb") as output:
        process = subprocess.Popen(arguments, stdout=output, stderr=output, stdin=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
