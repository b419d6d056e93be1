"""A fleet of eight simulated nodes with known faults, scraped by a real Prometheus, for the dashboards."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from agents import AgentProcess, eventually, free_port, running
from servers import alertmanager, http_inbox, prometheus, query, write_yaml

from gpumon.clock import boot_clock
from gpumon.fleet.alert_rules import DAILY_SECONDS
from gpumon.fleet.recording_rules import BUSBW, FAILED, HELD, IDLE, POWER
from gpumon.fleet.recording_rules import BUSY as BUSY_GPUS

ROOT = Path(__file__).parents[1]
HOUR = 3600
FAILED_IN = (6, 14)
"""Hours of the last day in which `faulty` failed."""
SIMULATED = 4
"""Number of nodes without a fault, sim-1 to sim-4."""
BUSY: Mapping[str, Any] = {"busy": True, "gpus": {0: {"set": {"utilization": 2}}}}
"""Scenario of the node named faulty at first: a process on each GPU, and one that nearly always waits."""
FAULTS: Mapping[str, Any] = {
    "busy": True,
    "gpus": {
        0: {"set": {"utilization": 2}, "xids": [48], "fabric": {"status": 999}},
        1: {"remap": {"uncorrectable": 1, "pending": 1, "failed": 1}},
        2: {
            "set": {"pcie_width": 8, "pcie_replays": {"value": 5, "rate": 2}},
            "nvlinks": {3: {"state": "down"}, 9: {"crc": {"value": 10, "rate": 5}}},
            "ecc": {"corrected_dram": {"value": 3, "rate": 1}},
            "xids": [13],
        },
        3: {"lost": True},
        4: {"set": {"temperature": 95, "utilization": 100, "fan_speed": 70}},
        5: {"hang": ["nvmlDeviceGetTemperature*"]},
        6: {"fail": {"nvmlDeviceGetUtilizationRates": "UNKNOWN"}, "fabric": {"state": 2}},
        7: {"mig": ["3g.40gb", "3g.40gb"]},
    },
    "ports": {
        "mlx5_3": {"state": "down", "counters": {"link_downed": {"value": 1, "rate": 0.2}}},
        "mlx5_4": {"counters": {"symbol_error": {"value": 0, "rate": 12}}},
    },
}
"""Scenario of the node named faulty."""
JOB = 1000
"""Number of the Slurm job of the busy nodes, which also holds GPUs 0 and 1 of the rack."""


def _job(number: int, gpu: int, **phase: str) -> Mapping[str, Any]:
    return {"gpus": [gpu], "cgroup": f"/slurm/uid_1000/job_{number}/step_0", "phases": [phase]}


MOVING: Mapping[str, Any] = {"jobs": [_job(JOB, 0, do="work"), _job(JOB, 1, do="work")]}
"""Scenario of the node named rack at first."""
RACK: Mapping[str, Any] = {
    "services": {"imex": "stopped"},
    "gpus": {0: {"nvlinks": {2: {"recovered": {"value": 0, "rate": 0.5}}}}},
    "jobs": [
        _job(JOB, 0, do="spin"),
        _job(JOB, 1, do="idle", process="T"),
        _job(71, 2, do="idle"),
        _job(72, 3, do="spin"),
    ],
}
"""Scenario of the node named rack. The rank of the job on GPU 1 is stopped, and the one on GPU 0 waits for it.

Job 71 runs no kernel, and job 72 waits for a peer.
"""
STALLS_SOON = "{min_moving_seconds: 1, min_stall_seconds: 30}"
"""Thresholds of the node named rack."""
USES: Mapping[str, tuple[str, Mapping[str, float]]] = {
    "faulty": (
        'job_id="slurm/70",account="physics",user="ann"',
        {HELD: 8, BUSY_GPUS: 2, "no_process": 1, "no_kernel": 3, "cold": 2, POWER: 3000},
    ),
    "rack": (
        'job_id="pod/ml/train",pod_namespace="ml"',
        {HELD: 4, BUSY_GPUS: 3, "no_process": 0.25, "no_kernel": 0.5, "cold": 0.125, POWER: 4000},
    ),
}
"""Labels of an owner of the last day by node, and its use: GPUs by recorded series or level, and watts."""
DETAILED = {"GPUMON_METRICS__DETAILED": "true", "GPUMON_PROCESSES__MAX_PER_GPU": "2"}
SXID = (
    "4,1,{microseconds},-;nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32 egress error (First)\n"
)


class DashboardFleet:
    """Eight nodes: sim-1 to sim-4, faulty, driverless, rack (GB200 without IMEX) and silent, whose agent was killed.

    sim-1 and sim-2 are busy. sim-3 and sim-4 have run the all-reduce.
    """

    def __init__(self, folder: Path, interval: int, *, broken: bool = True) -> None:
        """`interval`: seconds between two scrapes. `broken`: False for a fleet without faults, now and before."""
        self.folder, self.interval, self.broken, self.port = folder, interval, broken, free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._targets, self._alertmanager, self._kernel_log = folder / "fleet.json", free_port(), folder / "kmsg"
        self._kernel_log.touch()
        self._results = free_port()
        self.started = time.time()
        self.agents = {name: self._agent(name) for name in ("faulty", "driverless", "rack", "silent")}
        at_first = {"faulty": BUSY, "rack": MOVING} if broken else {}
        for name in self.agents:
            self._simulate(name, at_first.get(name, {}))

    def _agent(self, name: str) -> AgentProcess:
        folder = self.folder / name
        folder.mkdir()
        agent = AgentProcess(folder, profile="gb200x4" if name == "rack" else "h100x8")
        if name in {"faulty", "rack"}:
            agent.environment |= DETAILED
        if name == "rack":
            agent.environment |= {"GPUMON_JOBS__LABELS": "slurm_job_id,user", "GPUMON_HEALTH__THRESHOLDS": STALLS_SOON}
        if name != "faulty":
            agent.environment["GPUMON_PROBE__ENABLED"] = "false"
        else:
            agent.environment["GPUMON_KERNEL_LOG__PATH"] = str(self._kernel_log)
            if self.broken:
                agent.environment["GPUMON_NOTIFICATIONS__WEBHOOK_URL"] = f"http://127.0.0.1:{free_port()}/"
        return agent

    def _simulate(self, name: str, scenario: Mapping[str, Any]) -> None:
        """Replace the scenario of an agent, whose GPUs have uuids of their own."""
        self.agents[name].simulate({"seed": 1 + list(self.agents).index(name), **scenario})

    def _backfill(self) -> None:
        """Write the last day of the nodes into Prometheus: all were healthy, but `faulty` failed twice for an hour."""
        text: list[str] = []
        now = int(time.time())
        for name in (*self.agents, *(f"sim-{number}" for number in range(1, SIMULATED + 1))):
            gpus = 4 if name == "rack" else 8
            for state, number in {"expected": gpus, "healthy": gpus, "busy": gpus // 2}.items():
                text += _samples(f"instance:gpumon_gpus:{state}", name, now, [number] * 24)
            failed_in = FAILED_IN if name == "faulty" and self.broken else ()
            text += _samples(FAILED, name, now, [int(hour in failed_in) for hour in range(24)])
        for name, (owner, uses) in USES.items():
            for use, value in uses.items():
                metric, labels = (use, owner) if ":" in use else (IDLE, f'{owner},level="{use}"')
                text += _samples(metric, name, now, [value] * 24, f",{labels}")
        file = self.folder / "history"
        file.write_text("\n".join([*sorted(text, key=_metric), "# EOF\n"]), encoding="utf-8")
        command = ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(file), str(self.folder / "tsdb")]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    @contextlib.contextmanager
    def up(self) -> Iterator[DashboardFleet]:
        """Run the nodes, Prometheus and Alertmanager. Yield when all nodes were scraped twice and have their faults."""
        busy = self.folder / "busy.yml"
        busy.write_text("busy: true\n", encoding="utf-8")
        flags = [f"--nodes={SIMULATED}", f"--targets={self._targets}", f"--listen-address=127.0.0.1:{free_port()}"]
        fleet = [sys.executable, "-m", "gpumon_sim", "fleet", *flags, "--broken=2", f"--scenario={busy}"]
        with contextlib.ExitStack() as stack:
            stack.enter_context(running(fleet, self.folder / "fleet.log"))
            for agent in self.agents.values():
                agent.start()
                stack.callback(agent.stop)
            eventually(self._targets.exists)
            self._backfill()
            self._publish_results(runs=0)
            serve = [sys.executable, "-m", "http.server", f"--directory={self.folder}", "--bind=127.0.0.1"]
            stack.enter_context(running([*serve, str(self._results)], self.folder / "results.log"))
            self._configure_prometheus()
            stack.enter_context(prometheus(self.folder, self.port))
            self._configure_alertmanager(stack)
            stack.enter_context(alertmanager(self.folder, self._alertmanager))
            nodes = SIMULATED + len(self.agents)
            eventually(lambda: len(self.ask("count_over_time(gpumon_build_info[5m]) >= 2")) == nodes)
            if self.broken:
                self._break()
            yield self

    def _break(self) -> None:
        self.agents["faulty"].post("/probe/allreduce")  # skipped: it is busy
        self._simulate("faulty", FAULTS)
        self._simulate("driverless", {"driver": "not_loaded"})
        self._simulate("rack", RACK)
        self.agents["rack"].post(f"/api/v1/windows?kind=maintenance&for_seconds={HOUR}&reason=new+cables")
        self._publish_results(runs=1)
        self.agents["silent"].kill()
        with self._kernel_log.open("a", encoding="utf-8") as log:
            log.write(SXID.format(microseconds=int(boot_clock() * 1e6)))

    def _publish_results(self, *, runs: int) -> None:
        """Replace the results of NCCL. `runs`: number of failed runs of sim-2 in a broken fleet."""
        written = self.folder / "results.new"
        written.write_text(_probe_results(broken=self.broken, runs=runs), encoding="utf-8")
        written.rename(self.folder / "results")

    def ask(self, promql: str) -> list[Any]:
        return query(self.port, promql)

    def _configure_prometheus(self) -> None:
        shipped = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))
        nodes = {
            "static_configs": [
                {"targets": [f"127.0.0.1:{agent.port}"], "labels": {"instance": name}}
                for name, agent in self.agents.items()
            ],
            "file_sd_configs": [{"files": [str(self._targets)]}],
        }
        own = {"prometheus": _only(self.port), "alertmanager": _only(self._alertmanager)}
        results: dict[str, Any] = {
            "job_name": "results",
            "metrics_path": "/results",
            "honor_labels": True,
            **_only(self._results),
        }
        own["results"] = {}
        configuration = {
            "global": {"scrape_interval": f"{self.interval}s", "evaluation_interval": f"{self.interval}s"},
            "rule_files": [str(self._rules())],
            "alerting": {"alertmanagers": [{"static_configs": [{"targets": [f"127.0.0.1:{self._alertmanager}"]}]}]},
            "scrape_configs": [
                job | {"scrape_interval": f"{self.interval}s"} | own.get(job["job_name"], nodes)
                for job in (*shipped["scrape_configs"], results)
            ],
        }
        write_yaml(self.folder / "prometheus.yml", configuration)

    def _rules(self) -> Path:
        """Return the file of the rules. Those over a day are evaluated as often as the others."""
        text = (ROOT / "alert_rules" / "gpumon.yml").read_text(encoding="utf-8")
        file = self.folder / "rules.yml"
        file.write_text(text.replace(f"interval: {DAILY_SECONDS}s", f"interval: {self.interval}s"), encoding="utf-8")
        return file

    def _configure_alertmanager(self, stack: contextlib.ExitStack) -> None:
        """For a broken fleet the receiver of night pages accepts notifications, and that of the others refuses them."""
        route: dict[str, Any] = {"receiver": "tickets", "group_wait": "1s"}
        receivers: list[dict[str, Any]] = [{"name": "tickets"}]
        if self.broken:
            pager = stack.enter_context(http_inbox())
            route["routes"] = [{"receiver": "pager", "matchers": ['page="night"']}]
            receivers = [
                {"name": "tickets", "webhook_configs": [{"url": self.url}]},
                {"name": "pager", "pagerduty_configs": [{"url": pager.url, "routing_key": "key"}]},
            ]
        write_yaml(self.folder / "alertmanager.yml", {"route": route, "receivers": receivers})


def _samples(metric: str, node: str, now: int, hours: Sequence[float], labels: str = "") -> list[str]:
    """Return a sample each minute of the last day but for the last ten minutes. `hours`: the value in each hour."""
    first = now - 24 * HOUR
    times = range(first, now - HOUR // 6, 60)
    return [f'{metric}{{instance="{node}",job="gpumon"{labels}}} {hours[(at - first) // HOUR]} {at}' for at in times]


def _probe_results(*, broken: bool, runs: int) -> str:
    """Return results of NCCL, which a simulated node cannot measure.

    `broken`: sim-1 is slower than it was and than others. The `runs` of sim-2 failed, the last with wrong elements.
    """
    run, hardware = 'backend="nccl"', 'bytes="1073741824",name="NVIDIA H100 80GB HBM3",ranks="8"'
    results = (
        ("gpumon_probe_allreduce_baseline_ratio", run, 1.0, 0.8),
        ("gpumon_probe_allreduce_expected_ratio", run, 1.0, 0.6),
        (BUSBW, hardware, 300e9, 210e9),
    )
    lines = [
        f'{metric}{{algorithm="default",{labels},instance="sim-{number}"}} {slow if number == 1 and broken else good:g}'
        for metric, labels, good, slow in results
        for number in range(1, SIMULATED + 1)
    ]
    if broken:
        lines.append(f'gpumon_probe_allreduce_runs_total{{instance="sim-2",outcome="failed"}} {runs}')
        lines.append(f'gpumon_probe_allreduce_wrong_elements{{instance="sim-2",backend="nccl"}} {3 * runs}')
    return "\n".join([*lines, ""])


def _metric(line: str) -> str:
    return line.partition("{")[0]


def _only(port: int) -> dict[str, Any]:
    return {"static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}
