"""`make hardware`: measure the agent on the GPUs of this host, and write docs/hardware.md and a masked recording.

It records the driver idle and under load, asks what the manuals leave open, runs the agent for an hour through phases
of load, and measures the step time of a training loop with and without the agent. `--simulate PROFILE` runs the same
on a simulated node, where the load is on the CPU: it then proves that the script works, and nothing about hardware.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path

from agents import AgentProcess, cpu_seconds
from gpumon_sim.capture import read
from gpumon_sim.recording.summary import summary

from gpumon.model.durations import from_rfc3339

MINUTES, STEP_MINUTES, RECORD_SECONDS = 60.0, 10.0, 60.0
SCRAPE_SECONDS = 1.0
NOBODY = 65534
PAGE = Path(__file__).parents[1] / "docs" / "hardware.md"
SRAM = "gpumon_gpu_ecc_sram_threshold_exceeded"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredHost:
    """Where it is measured, and for how long."""

    folder: Path
    simulated: str | None
    minutes: float
    """Time of all phases of the agent together."""
    step_minutes: float
    """Time of each of the training loops, of which one runs beside the agent and one without it."""
    record_seconds: float

    def agent(self, name: str) -> AgentProcess:
        """Return an agent with its own folder, not yet started."""
        folder = self.folder / name
        folder.mkdir()
        return AgentProcess(folder, profile=self.simulated)

    @contextlib.contextmanager
    def load(self, kind: str, seconds: float) -> Iterator[subprocess.Popen[str]]:
        """Run a load during the block; it is killed at the end of the block if it still runs."""
        command = [sys.executable, "-m", "benchmarks.hardware_load", kind, f"--seconds={seconds}"]
        command += ["--cpu"] if self.simulated else []
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=PAGE.parents[1]) as process:
            try:
                yield process
                if process.poll() not in {None, 0, -signal.SIGKILL}:
                    raise RuntimeError(
                        f"the load {kind!r} ended with exit code {process.returncode}: see its error above"
                    )
            finally:
                process.kill()

    def record(self, path: Path) -> str:
        """Record the driver for a time, and return the summary of the recording. Raises CalledProcessError."""
        command = [sys.executable, "-m", "gpumon_sim", "record", str(path), f"--for={self.record_seconds:g}s"]
        command += [f"--simulate={self.simulated}"] if self.simulated else []
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return summary(read(path))


# What the driver does


def recordings(host: MeasuredHost) -> Iterator[str]:
    """Record the driver idle and in training, and yield both summaries as sections of the page."""
    yield section("The driver, idle", text(host.record(host.folder / "idle.capture")).rstrip())
    with host.load("train", 3600):
        yield section("The driver beside a training loop", text(host.record(host.folder / "loaded.capture")).rstrip())


def rights(host: MeasuredHost) -> str:
    """Return which series an agent without root lacks, SRAM threshold named, as a section of the page."""
    if os.geteuid() != 0:
        return section("Without root", "Not measured: run `make hardware` as root.")
    # setpriv itself starts Python with the rights of root; a child of that Python has those of the user.
    again = "import subprocess, sys; subprocess.run([sys.executable, '-c', ''], check=True)"
    if subprocess.run([*as_user(NOBODY), sys.executable, "-c", again], check=False, capture_output=True).returncode:
        return section("Without root", f"Not measured: no other user may run {sys.executable}. Move the clone to /opt.")
    by_user = {user: series_names(host, user) for user in (0, NOBODY)}
    lacking = sorted(by_user[0] - by_user[NOBODY])
    sram = {user: SRAM in names for user, names in by_user.items()}
    rows = [f"- `{SRAM}`: root {yes(sram[0])}, another user {yes(sram[NOBODY])}."]
    rows += [f"- Only root has: {', '.join(f'`{name}`' for name in lacking) or 'nothing more'}."]
    return section("Without root", "\n".join(rows))


def series_names(host: MeasuredHost, user: int) -> set[str]:
    """Return the names of the series that an agent of this user exports."""
    agent = host.agent(f"user-{user}")
    os.chown(agent.folder, user, user)
    agent.launcher = [*as_user(user), *agent.launcher]
    agent.start()
    try:
        time.sleep(2 * SCRAPE_SECONDS)
        return {name for name, _ in agent.metrics().values}
    finally:
        agent.stop()


def as_user(user: int) -> list[str]:
    return ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]


# The agent for an hour


@dataclass(frozen=True, slots=True)
class LoadPhase:
    """What the agent did during one kind of load."""

    name: str
    polls: Sequence[float]
    """Durations of the polls that the scrapes found, in seconds."""
    cpu: float
    """CPU seconds a minute of all processes of the agent, the driver's share included."""
    verdicts: Sequence[str]
    """Changes of verdicts in this time, each as text. On a healthy host there are none."""

    @property
    def row(self) -> str:
        """Return this phase as a row of the page's table."""
        milliseconds = [1e3 * poll for poll in self.polls]
        figures = (statistics.median(milliseconds), nearest(milliseconds, 99), max(milliseconds), self.cpu)
        return row(self.name, *(f"{figure:.1f}" for figure in figures), "; ".join(self.verdicts) or "none")


def phases(host: MeasuredHost) -> str:
    """Run one agent through all kinds of load, and return the section of the page."""
    agent = host.agent("hour")
    agent.start()
    seconds = host.minutes * 60 / 4
    try:
        rows = [phase(agent, "idle", seconds).row]
        for kind in ("train", "allocate"):
            with host.load(kind, seconds):
                rows.append(phase(agent, kind, seconds).row)
        rows.append(phase_with_killed_process(host, agent, seconds).row)
    finally:
        agent.stop()
    logged = [line for line in agent.log.read_text(encoding="utf-8").splitlines() if "level=info" not in line]
    titles = ("load", "poll p50", "p99", "max (ms)", "CPU s/min", "changes of verdicts")
    head = [row(*titles), row(*["---"] * len(titles))]
    return section("The agent under load", "\n".join([*head, *rows, "", "Warnings and errors it logged:"])) + text(
        "\n".join(logged) or "none"
    )


def phase_with_killed_process(host: MeasuredHost, agent: AgentProcess, seconds: float) -> LoadPhase:
    """Return the phase in which a training process is killed half-way."""
    with host.load("train", 2 * seconds) as process:
        threading.Timer(seconds / 2, process.kill).start()
        return phase(agent, "train, killed half-way", seconds)


def phase(agent: AgentProcess, name: str, seconds: float) -> LoadPhase:
    """Scrape the agent once a second for a time, and return what it did."""
    before, since = cpu_by_pid(agent), datetime.now(timezone.utc)
    end, polls = time.monotonic() + seconds, list[float]()
    while time.monotonic() < end or not polls:
        polls.append(agent.metrics().value("gpumon_poll_duration_seconds", tier="fast") or 0.0)
        time.sleep(SCRAPE_SECONDS)
    spent = sum(now - before[pid] for pid, now in cpu_by_pid(agent).items() if pid in before)
    return LoadPhase(name, polls, spent * 60 / seconds, transitions(agent, since))


def cpu_by_pid(agent: AgentProcess) -> dict[int, float]:
    """Return the CPU time in seconds of each process of the agent, by pid. Ranks of a probe come and go."""
    return {pid: cpu_seconds(pid) for pid in (agent.process.pid, *agent.children())}


def transitions(agent: AgentProcess, since: datetime) -> list[str]:
    """Return the changes of verdicts after a time, oldest first, as `raised gpu_lost`."""
    changes = agent.get("/api/v1/health")["transitions"]
    new = [change for change in changes if from_rfc3339(change["time"]) >= since]
    return [f"{change['change']} {change['verdict']['check']}" for change in reversed(new)]


# The training loop


def step_times(host: MeasuredHost) -> str:
    """Return the step times of a training loop with and without the agent as a section of the page."""
    without = run_training(host)
    agent = host.agent("steps")
    agent.start()
    try:
        with_agent = run_training(host)
    finally:
        agent.stop()
    rows = [row("without", *without.values()), row("with", *with_agent.values())]
    head = [row("the agent", *without), row(*["---"] * (len(without) + 1))]
    return section("Step time of a training loop, in ms", "\n".join([*head, *rows]))


def run_training(host: MeasuredHost) -> dict[str, float]:
    """Run the training loop to its end, and return its number of steps and percentiles of their duration."""
    seconds = host.step_minutes * 60
    with host.load("train", seconds) as process:
        output, _ = process.communicate(timeout=seconds + 300)
    result: dict[str, float] = json.loads(output)
    return result


# The page


def section(title: str, body: str) -> str:
    return f"## {title}\n\n{body}\n\n"


def row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def text(body: str) -> str:
    return f"```text\n{body.rstrip()}\n```\n\n"


def yes(value: object) -> str:
    return "yes" if value else "no"


def nearest(values: Sequence[float], share: float) -> float:
    """Return the percentile of these values by the nearest rank."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share / 100))]


def head(host: MeasuredHost) -> str:
    where = f"the simulated {host.simulated}: nothing here is about hardware" if host.simulated else platform.node()
    versions = ", ".join(f"{name} {version(name)}" for name in ("gpumon", "nvidia-ml-py", "torch"))
    return (
        "# Measured on hardware\n\nWritten by `make hardware`; do not edit.\n\n"
        f"On {where}, {datetime.now(timezone.utc):%Y-%m-%d}, Linux {platform.release()}, "
        f"Python {platform.python_version()}, {versions}. The driver and the GPUs are named below. "
        f"The agent ran for {host.minutes:g} minutes in four phases; each training loop ran for {host.step_minutes:g} "
        "minutes.\n\n"
    )


def measure(host: MeasuredHost) -> Iterator[str]:
    """Yield the sections of the page, the most important first, so that an interrupted run has those."""
    yield head(host)
    yield from recordings(host)
    yield rights(host)
    yield phases(host)
    yield step_times(host)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make hardware", description=__doc__)
    parser.add_argument("--simulate", metavar="PROFILE", help="run on a simulated node")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="time of the agent under load (60)")
    parser.add_argument("--step-minutes", type=float, default=STEP_MINUTES, help="time of each training loop (10)")
    parser.add_argument("--record-seconds", type=float, default=RECORD_SECONDS, help="time of each recording (60)")
    parser.add_argument("--page", type=Path, default=PAGE, help="page to write (docs/hardware.md)")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    with tempfile.TemporaryDirectory(prefix="gpumon-hardware-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        host = MeasuredHost(
            folder=Path(folder),
            simulated=args.simulate,
            minutes=args.minutes,
            step_minutes=args.step_minutes,
            record_seconds=args.record_seconds,
        )
        with args.page.open("w", encoding="utf-8") as page:
            try:
                for part in measure(host):
                    page.write(part)
                    page.flush()
            except subprocess.CalledProcessError as error:  # it has printed why
                sys.exit(error.returncode)
        for recording in Path(folder).glob("*.capture"):
            shutil.copy(recording, args.page.parent / f"hardware-{recording.name}")
    print(f"{args.page} and {args.page.parent}/hardware-*.capture are written")


if __name__ == "__main__":
    main()
