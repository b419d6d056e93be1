"""`make scale`: how many simulated nodes one Prometheus on this machine scrapes with all rules. Writes docs/scale.md.

A real Prometheus takes the shipped scrape jobs and rules at 15 s from `gpumon-sim fleet`. The number of nodes
grows step by step until scrapes or evaluations are lost or the memory limit is reached.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from agents import cpu_seconds, eventually, free_port, running

from benchmarks import scale_page
from benchmarks.scale_page import INTERVAL, LINKS_INTERVAL, ScaleStep
from dashboards.answers import Source
from dashboards.generate import DASHBOARDS
from gpumon.health.last_verdicts import JOB
from gpumon.model.reading import Page

ROOT = Path(__file__).parents[1]
STEPS = (100, 250, 500, 1000, 1500, 2000, 3000, 4000)
BROKEN = 10
HOST = "127.0.0.2"
"""Address of the fleet. Programs that listen on 127.0.0.1 cannot take its ports."""
START_SECONDS = 180.0
SETTLE_SECONDS = LINKS_INTERVAL + INTERVAL
"""Time until every node has been scraped for both jobs after a step."""
MEASURE_SECONDS = 60.0
BOARD_SECONDS = 600.0
"""Range of the dashboards' queries."""
QUERY_SECONDS = 60.0
PRIORITY = -10
"""Nice value of Prometheus and the fleet, so that other programs on this machine disturb less. It needs root."""
GIB = 1 << 30


class Prometheus:
    """A Prometheus with the shipped scrape jobs and rules, each at its interval for a fleet."""

    def __init__(self, folder: Path) -> None:
        self.port, self.targets = free_port(), folder / "targets.json"
        self.targets.write_text("[]", encoding="utf-8")
        shipped = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))
        found = {"static_configs": [], "file_sd_configs": [{"files": [str(self.targets)]}]}
        configuration = {
            "global": {"scrape_interval": f"{INTERVAL:g}s", "evaluation_interval": f"{INTERVAL:g}s"},
            "rule_files": [str(ROOT / "alert_rules" / "gpumon.yml")],
            "scrape_configs": [job | found for job in shipped["scrape_configs"] if job["job_name"].startswith(JOB)],
        }
        (folder / "prometheus.yml").write_text(yaml.safe_dump(configuration), encoding="utf-8")
        self.arguments = [
            "prometheus",
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'tsdb'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
            f"--query.timeout={QUERY_SECONDS:g}s",
        ]

    def ask(self, path: str, **parameters: str) -> Any:
        """Return the data of its API."""
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=2 * QUERY_SECONDS) as answer:
            return json.load(answer)["data"]["result"]

    def number(self, query: str) -> float:
        """Return the value of a query, 0 if it has none."""
        return sum(float(series["value"][1]) for series in self.ask("query", query=query))

    def own(self) -> Mapping[str, float]:
        """Return its own metrics, summed over labels."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=QUERY_SECONDS) as answer:
            page = answer.read().decode()
        sums: dict[str, float] = {}
        for name, value in re.findall(r"^(\w+)(?:\{.*\})? (\S+)$", page, re.MULTILINE):
            sums[name] = sums.get(name, 0.0) + float(value)
        return sums


class Load:
    """CPU time of the machine, of Prometheus and of the fleet's processes, since the start of a measurement."""

    def __init__(self, prometheus: int, fleet: int) -> None:
        self._pids = {"prometheus": [prometheus], "fleet": tree(fleet)}
        self._began, self._before = time.monotonic(), self._read()

    def _read(self) -> dict[str, float]:
        own = {name: sum(map(cpu_seconds, pids)) for name, pids in self._pids.items()}
        user, nice, system, _, _, irq, softirq, *_ = map(int, Path("/proc/stat").read_text().split()[1:11])
        return own | {"all": (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")}

    def cores(self) -> dict[str, float]:
        """Return the mean number of cores in use, by name, and "others" for all other processes."""
        seconds = time.monotonic() - self._began
        used = {name: (value - self._before[name]) / seconds for name, value in self._read().items()}
        return used | {"others": used["all"] - used["prometheus"] - used["fleet"]}


def tree(pid: int) -> list[int]:
    """Return the process and its descendants."""
    children = " ".join(file.read_text() for file in Path(f"/proc/{pid}/task").glob("*/children")).split()
    return [pid, *(each for child in children for each in tree(int(child)))]


@contextlib.contextmanager
def fleet(folder: Path, nodes: int, profile: str) -> Iterator[tuple[int, list[Any]]]:
    """Run a simulated fleet. Yield its process id and its targets."""
    targets = folder / "fleet.json"
    command = [sys.executable, "-m", "gpumon_sim", "fleet", f"--nodes={nodes}", f"--profile={profile}"]
    command += [f"--broken={min(BROKEN, nodes)}", f"--listen-address={HOST}:20000", f"--targets={targets}"]
    with running(command, folder / "fleet.log") as process:
        eventually(targets.exists, within=START_SECONDS)
        yield process.pid, json.loads(targets.read_text(encoding="utf-8"))


def measure_step(prometheus: Prometheus, pids: tuple[int, int], nodes: int) -> ScaleStep:
    """Return what a step costs. Every node has been scraped before."""
    before, load, resident = prometheus.own(), Load(*pids), 0.0
    ends = time.monotonic() + MEASURE_SECONDS
    while time.monotonic() < ends:
        resident = max(resident, prometheus.own()["process_resident_memory_bytes"])
        time.sleep(5)
    seconds, after, cores = MEASURE_SECONDS, prometheus.own(), load.cores()
    gained = {name: after[name] - before.get(name, 0.0) for name in after}
    window = f"[{MEASURE_SECONDS:g}s]"
    wanted = nodes * MEASURE_SECONDS * (1 / INTERVAL + 1 / LINKS_INTERVAL)
    answered = prometheus.number(f"sum(sum_over_time(up{window}))")
    board = sorted(board_times(prometheus))
    return ScaleStep(
        nodes=nodes,
        series=after["prometheus_tsdb_head_series"],
        samples=gained["prometheus_tsdb_head_samples_appended_total"] / seconds,
        resident=resident,
        cores=cores["prometheus"],
        fleet_cores=cores["fleet"],
        other_cores=cores["others"],
        scrape_p99=prometheus.number('quantile(0.99, scrape_duration_seconds{job="gpumon"})'),
        lost=max(0.0, 1 - answered / wanted),
        rules=gained["prometheus_rule_group_duration_seconds_sum"] / (seconds / INTERVAL),
        missed=gained["prometheus_rule_group_iterations_missed_total"],
        board=tuple(board),
    )


def board_times(prometheus: Prometheus) -> Iterator[float]:
    """Yield the duration of each query of the shipped board, in seconds, with every node selected."""
    for panel in (panel for dashboard in DASHBOARDS for panel in dashboard.panels):
        now, began = time.time(), time.perf_counter()
        source = Source(
            url=f"http://127.0.0.1:{prometheus.port}",
            start=now - BOARD_SECONDS,
            end=now,
            step=INTERVAL,
            scrape_interval=INTERVAL,
            variables={},
        )
        source.answers(panel)
        yield (time.perf_counter() - began) / len(panel.queries)


def pages(address: str) -> tuple[int, int]:
    """Return the number of series of a node on each page."""
    texts = (urllib.request.urlopen(f"http://{address}{page.value}", timeout=30).read() for page in Page)
    on_metrics, on_links = (sum(line[:1] != b"#" for line in text.splitlines()) for text in texts)
    return on_metrics, on_links


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", default=",".join(map(str, STEPS)), help="numbers of nodes, in ascending order")
    parser.add_argument("--profile", default="h100x8")
    parser.add_argument(
        "--memory",
        type=float,
        default=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * 2 / 3 / GIB,
        help="memory of Prometheus in GiB that no step may exceed (default: two thirds of this machine's)",
    )
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "scale.md")
    args = parser.parse_args()
    with contextlib.suppress(PermissionError):
        os.nice(PRIORITY)
    numbers = [int(number) for number in args.nodes.split(",")]
    steps: list[ScaleStep] = []
    peak = 0.0
    end = "Larger fleets were not measured."
    with tempfile.TemporaryDirectory() as name, fleet(Path(name), numbers[-1], args.profile) as (pid, groups):
        prometheus = Prometheus(Path(name))
        with running(prometheus.arguments, Path(name) / "prometheus.log") as process:
            eventually(lambda: prometheus.ask("query", query="vector(1)"))
            for nodes in numbers:
                if steps and peak / steps[-1].nodes * nodes > args.memory * GIB:
                    end = f"With {nodes:,}, the dashboards' queries would need more than {args.memory:.0f} GiB."
                    break
                written = prometheus.targets.with_suffix(".new")
                written.write_text(json.dumps(groups[:nodes]), encoding="utf-8")
                written.rename(prometheus.targets)
                time.sleep(SETTLE_SECONDS)
                steps.append(measure_step(prometheus, (process.pid, pid), nodes))
                peak = prometheus.own()["process_resident_memory_bytes"]  # now with the queries of the dashboards
                print(steps[-1].line(), flush=True)
                if not steps[-1].is_sustained():
                    break
        per_node = pages(groups[-1]["targets"][0])
    args.output.write_text(scale_page.page(steps, end, per_node, args.profile, os.cpu_count() or 0), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
