"""`make soak`: an agent on a simulated h100x8 with random faults; ends with figures and a result.

Turmoil and calm alternate. In a turmoil faults begin and end, processes are killed and stopped, the configuration is
reloaded, and GPUs are released. In a calm all faults are removed, and all GPUs must recover. The seed determines the
sequence.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import queue
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TextIO

from agents import AgentProcess, alive, descendants

from benchmarks.measures import resident_megabytes
from benchmarks.stage import GPUS, HEALED_SECONDS, Stage
from benchmarks.witness import READING, Scraper, Size, Witness, verdict
from gpumon.clock import boot_clock

TURMOIL_SECONDS, CALM_SECONDS = 45.0, 10.0
RECOVERY_SECONDS = 2 * HEALED_SECONDS
"""Max time in a calm until all GPUs have recovered."""
PAUSE_SECONDS = 60.0
WEIGH_SECONDS = 5.0


@dataclass
class Soak:
    """One soak run."""

    agent: AgentProcess
    seed: int
    journal: TextIO
    chance: Random = field(default_factory=Random)
    sizes: list[Size] = field(default_factory=list)
    restarts: int = 0
    failures: list[str] = field(default_factory=list)
    seen: set[int] = field(default_factory=set)
    """Pids of all processes that the agent has had."""
    asleep: list[tuple[float, float]] = field(default_factory=list)
    """Intervals in which a process was stopped."""
    down: list[tuple[float, float]] = field(default_factory=list)
    """Intervals in which no daemon may have answered."""

    def __post_init__(self) -> None:
        self.began = boot_clock()
        self.stage = Stage(self.agent, self.chance, self.note)
        self.start()
        self.witness = Witness(self.stage, _uuids(self.agent))
        self.scraper = Scraper(self.agent.port)

    def note(self, words: str) -> None:
        self.journal.write(f"{boot_clock() - self.began:7.1f} {words}\n")
        self.journal.flush()

    # Actions

    def run(self, seconds: float) -> None:
        """Alternate turmoil and calm for this time; do not restart the daemon in the second half."""
        end, half = boot_clock() + seconds, boot_clock() + seconds / 2
        self.calm("the beginning")
        if seconds >= 5 * PAUSE_SECONDS:
            self.sleep(PAUSE_SECONDS)
            self.calm(f"a pause of {PAUSE_SECONDS:g} s")
        for number in itertools.count():
            if boot_clock() > end or self.failures:
                break
            self.chance.seed(f"{self.seed}/{number}")  # independent of the duration of earlier rounds
            self.turmoil(min(boot_clock() + TURMOIL_SECONDS, end), with_restarts=boot_clock() < half)
            self.calm("a turmoil")
        self.scraper.stop()
        self.watch(0.0)

    def turmoil(self, end: float, *, with_restarts: bool) -> None:
        weights: dict[Callable[[], None], float] = {
            lambda: self.stage.harm(node=False): 12,
            lambda: self.stage.harm(node=True): 1,
            self.stage.heal: 5,
            self.stage.send_xid: 3,
            lambda: self.kill("gpumon.collectors.sampler"): 1,
            lambda: self.kill("gpumon.collectors.host"): 0.5,
            self.stop_sampler: 0.5,
            lambda: self.sleep(self.chance.uniform(1, 12)): 0.5,
            self.reload: 1,
            self.release: 1,
            self.probe: 0.5,
            lambda: self.restart(signal.SIGKILL): 0.7 * with_restarts,
            lambda: self.restart(signal.SIGTERM): 0.4 * with_restarts,
        }
        while boot_clock() < end:
            self.chance.choices(list(weights), list(weights.values()))[0]()
            self.watch(self.chance.uniform(0.3, 3))

    def calm(self, after: str) -> None:
        """Remove all faults; all GPUs must recover in time and remain healthy."""
        self.stage.heal(everything=True)
        self.agent.post("/api/v1/windows?kind=release", method="DELETE")
        began, wrong = boot_clock(), ["not polled yet"]
        while wrong and boot_clock() < began + RECOVERY_SECONDS:
            self.watch(1.0)
            wrong = self.problems()
        if wrong:
            self.failures.append(f"not recovered {RECOVERY_SECONDS:g} s after {after}: {'; '.join(wrong)}")
        self.stage.settle()
        self.note(f"calm after {after}: recovered after {boot_clock() - began:.0f} s")
        self.watch(CALM_SECONDS)

    def problems(self) -> list[str]:
        """Return descriptions of what has not recovered."""
        page = self.agent.metrics()
        up, readings = page.gpus("gpumon_gpu_up"), page.gpus(READING)
        wrong = [f"GPU {gpu} is not up" for gpu, is_up in up.items() if not is_up]
        wrong += [f"{len(up)} GPUs are reported"] if len(up) != GPUS else []
        wrong += [f"{len(readings)} GPUs have a temperature"] if len(readings) != GPUS else []
        wrong += ["NVML is down"] if page.value("gpumon_nvml_up") != 1 else []
        wrong += [f"{n} {name} run" for name in ("sampler", "host") if (n := len(self.children(name))) != 1]
        return wrong

    def start(self) -> None:
        self.agent.start("--config.file", str(self.configure(interval=1.0)))

    def restart(self, how: signal.Signals) -> None:
        """Kill only the daemon, or stop it as systemd does."""
        self.note(f"daemon: {how.name}")
        began = boot_clock()
        children = self.agent.children()
        if how == signal.SIGKILL:
            self.agent.kill()
        elif (code := self.agent.stop()) != 0:
            self.failures.append(f"a stop ended with code {code}")
        self.watch(0.0)
        self.watch(1.0)
        if left := alive(children):
            self.failures.append(f"{len(left)} children outlived the daemon by a second")
        self.witness.forget_counters()
        self.restarts += 1
        self.start()
        self.down.append((began, boot_clock()))
        self.stage.unsettle(HEALED_SECONDS)

    def kill(self, module: str) -> None:
        for pid in self.children(module):
            self.note(f"{module} {pid}: SIGKILL")
            os.kill(pid, signal.SIGKILL)
            self.stage.unsettle(HEALED_SECONDS)

    def stop_sampler(self) -> None:
        """Stop the sampler for a few seconds; this must not be reported as a fault of the driver."""
        pids = self.children("gpumon.collectors.sampler")
        self.note(f"sampler: stopped {pids}")
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        self.watch(self.chance.uniform(1, 8))
        for pid in pids & alive(pids):
            os.kill(pid, signal.SIGCONT)
        self.stage.unsettle(HEALED_SECONDS)

    def sleep(self, seconds: float) -> None:
        """Stop all processes of the agent, as on a paused host."""
        self.note(f"agent: asleep for {seconds:.1f} s")
        self.watch(0.0)
        restarts, began = self.agent.metrics(), boot_clock()
        with self.agent.pause():
            time.sleep(seconds)
        self.asleep.append((began, boot_clock() + 1.0))
        self.stage.slept(seconds)
        if seconds == PAUSE_SECONDS:
            self.watch(CALM_SECONDS)
            after = self.agent.metrics()
            changed = {
                series: n - restarts.values.get(series, 0.0)
                for series, n in after.values.items()
                if series[0] == "gpumon_sampler_restarts_total" and n != restarts.values.get(series)
            }
            alerts = [each["rule"] for each in self.agent.get("/api/v1/alerts?state=firing")["alerts"]]
            if changed or alerts or self.problems():
                self.failures.append(
                    f"a pause of {seconds:g} s: restarts {changed}, alerts {alerts}, {self.problems()}"
                )

    def reload(self) -> None:
        interval = self.chance.choice((0.5, 1.0, 1.0))
        self.note(f"daemon: SIGHUP, interval {interval}")
        self.configure(interval=interval)
        self.agent.process.send_signal(signal.SIGHUP)
        self.stage.unsettle(HEALED_SECONDS)

    def configure(self, *, interval: float) -> Path:
        path = self.agent.folder / "gpumon.yml"
        settings = {
            "poll": {"interval_seconds": interval},
            "probe": {"initial_delay_seconds": 100_000},
            "release": {"marker": str(self.agent.folder / "release")},
            "log": {"level": self.chance.choice(("info", "debug", "warning"))},
        }
        path.write_text(json.dumps(settings), encoding="utf-8")
        return path

    def release(self) -> None:
        """Release one GPU or the node for a few seconds, sometimes with an early end."""
        gpu = self.chance.choice(("", f"&gpu={self.chance.randrange(GPUS)}"))
        seconds = self.chance.randint(3, 12)
        self.stage.unsettle(seconds + HEALED_SECONDS)
        status, _ = self.agent.post(f"/api/v1/windows?kind=release&for_seconds={seconds}{gpu}")
        self.note(f"release of {gpu or 'the node'} for {seconds} s: {status}")
        if self.chance.random() < 0.5:
            self.watch(self.chance.uniform(0, 5))
            self.agent.post("/api/v1/windows?kind=release", method="DELETE")
        self.stage.unsettle(HEALED_SECONDS)

    def probe(self) -> None:
        status, _ = self.agent.post("/probe/allreduce")
        self.note(f"probe requested: {status}")

    # Observation

    def watch(self, seconds: float) -> None:
        """Wait, and evaluate the scrapes made in that time."""
        end = boot_clock() + seconds
        while True:
            self.seen |= descendants(self.agent.process.pid)
            self.weigh()
            try:
                scrape = self.scraper.scrapes.get(timeout=max(0.0, end - boot_clock()))
            except queue.Empty:
                return
            span = scrape.at, scrape.at + scrape.seconds
            down = any(_overlap(span, other) for other in self.down) or self.agent.process.poll() is not None
            self.witness.take(scrape, down=down, asleep=any(_overlap(span, other) for other in self.asleep))

    def children(self, name: str) -> set[int]:
        return self.agent.children(f"gpumon.collectors.{name.removeprefix('gpumon.')}")

    def weigh(self) -> None:
        """Record the size of each process, at most every few seconds."""
        if self.sizes and boot_clock() - self.sizes[-1].at < WEIGH_SECONDS:
            return
        roles = {
            "daemon": {self.agent.process.pid},
            "sampler": self.children("sampler"),
            "host": self.children("host"),
        }
        for role, pids in roles.items():
            for pid in pids:
                with contextlib.suppress(OSError, IndexError):  # the process is ending
                    descriptors = len(list(Path(f"/proc/{pid}/fd").iterdir()))
                    self.sizes.append(Size(boot_clock(), role, pid, resident_megabytes(pid), descriptors))


def _uuids(agent: AgentProcess) -> list[str]:
    """Return uuids by index; all GPUs of the node are present at the start."""
    found = [dict(labels) for name, labels in agent.metrics().values if name == "gpumon_gpu_up"]
    return [each["uuid"] for each in sorted(found, key=lambda each: int(each["gpu"]))]


def _overlap(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return one[0] <= other[1] and other[0] <= one[1]


def main() -> int:
    parser = argparse.ArgumentParser(prog="make soak ARGS=...", description=__doc__)
    parser.add_argument("--minutes", type=float, default=float(os.environ.get("SOAK_MINUTES", "10")))
    parser.add_argument("--seed", type=int, default=int(time.time()))
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # so that the agent is stopped
    folder = Path(tempfile.mkdtemp(prefix="gpumon-soak-"))
    print(f"{chosen.minutes:g} minutes on a simulated h100x8, seed {chosen.seed}; log of events: {folder}/journal")
    with (folder / "journal").open("w", encoding="utf-8") as journal:
        agent = AgentProcess(folder)
        try:
            soak = Soak(agent, chosen.seed, journal)
            soak.run(60 * chosen.minutes)
        finally:
            agent.stop()
    log = agent.log.read_text(encoding="utf-8")
    figures, failed = verdict(soak.witness, soak.sizes, alive(soak.seen), log)
    figures.append(("restarts of the daemon", str(soak.restarts)))
    failed += soak.failures
    for name, words in figures:
        print(f"  {name:34}{words}")
    print("\n".join(f"FAILED: {reason}" for reason in failed) or "passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
