"""A fleet of simulated nodes."""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from agents import eventually, free_port
from each_case import each_case
from gpumon_sim.command import main
from gpumon_sim.fleet_pages import AgentPage, NodeIdentities

from gpumon.cli.command_parser import USAGE_ERROR
from gpumon.model.reading import Page
from gpumon.outputs.dcgm import DcgmPage
from gpumon.outputs.prometheus import Renderer
from scripts.simulated_reports import report_of

NODES, BROKEN = 4, 1


class RunningFleet:
    """A running fleet of four nodes, of which the first is broken."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "targets.json"
        flags = [f"--nodes={NODES}", f"--broken={BROKEN}", f"--targets={self.file}"]
        flags.append(f"--listen-address=127.0.0.1:{free_port()}")
        self.process = subprocess.Popen([sys.executable, "-m", "gpumon_sim", "fleet", *flags])
        groups = json.loads(eventually(lambda: self.file.read_text(encoding="utf-8") if self.file.exists() else None))
        self.targets = {group["labels"]["instance"]: group["targets"][0] for group in groups}

    def get(self, name: str, path: str = "/metrics") -> str:
        with urllib.request.urlopen(f"http://{self.targets[name]}{path}", timeout=30) as answer:
            return str(answer.read().decode())

    def agents(self) -> list[Path]:
        pids = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text(encoding="utf-8").split()
        return [Path("/proc") / pid for pid in pids]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningFleet]:
    running = RunningFleet(tmp_path_factory.mktemp("fleet"))
    yield running
    running.process.terminate()
    running.process.wait(30)


@pytest.mark.slow
def test_each_node_is_a_target_with_its_own_gpus(fleet: RunningFleet) -> None:
    """Names, addresses and uuids are distinct, also on the page of the links."""
    assert list(fleet.targets) == ["sim-1", "sim-2", "sim-3", "sim-4"]
    for path in ("/metrics", "/metrics/links"):
        uuids = [set(re.findall(r'uuid="([^"]+)"', fleet.get(name, path))) for name in fleet.targets]
        assert [len(found) for found in uuids] == [8] * NODES
        assert len(set.union(*uuids)) == 8 * NODES


@pytest.mark.slow
def test_the_first_nodes_are_broken(fleet: RunningFleet) -> None:
    """The verdict is that of a real agent; the other nodes are healthy, and their values are live."""
    eventually(lambda: 'gpumon_health_check{check="gpu_lost"' in fleet.get("sim-1"))
    eventually(lambda: "gpumon_node_health 0" in fleet.get("sim-4").splitlines())
    before = re.search(r"gpumon_driver_calls_total (\d+)", fleet.get("sim-4"))
    eventually(lambda: re.search(r"gpumon_driver_calls_total (\d+)", fleet.get("sim-4"))[1] != before[1])  # type: ignore[index]


@pytest.mark.slow
def test_the_agents_end_with_the_fleet(tmp_path: Path) -> None:
    """SIGTERM leaves no process and no file."""
    fleet = RunningFleet(tmp_path)
    agents = fleet.agents()
    assert len(agents) == 1 + BROKEN
    fleet.process.terminate()
    fleet.process.wait(30)
    assert not [agent for agent in agents if agent.exists()]


@each_case(
    ("flags", "message"),
    [
        ([], "--nodes is missing"),
        (["--nodes=2", "--broken=3"], "--broken 3 is not between 0 and --nodes 2"),
        (["--nodes=2", "--profile=h100x9"], "'h100x9' is no profile; did you mean"),
        (["--nodes=2", "--listen-address=127.0.0.1"], "names no first port"),
        (["--nodes=2", "--listen-address=127.0.0.1:0"], "names no first port"),
        (["--nodes=9", "--listen-address=127.0.0.1:65530"], "ports above 65535"),
        (["--nodes=6", "--listen-address=127.0.0.1:65530", "--scenario=/no/scenario"], "/no/scenario"),
    ],
)
def test_invalid_arguments_name_the_remedy(capsys: pytest.CaptureFixture[str], flags: list[str], message: str) -> None:
    """Each is an error before any process starts."""
    assert main(["fleet", *flags]) == USAGE_ERROR
    assert message in capsys.readouterr().err


def identities(page: str) -> set[str]:
    return set(re.findall(r'uuid="([^"]+)"', page)) | set(re.findall(r'serial="([^"]+)"', page))


def test_nodes_share_no_identity_and_differ_in_nothing_else() -> None:
    """Uuids of GPUs and MIG instances and serial numbers are those of the node; everything else is the agent's."""
    report = report_of("h100migx8")
    agent = Renderer(lambda: report, Page.METRICS).render(report)
    nodes = [AgentPage(agent.encode()).of_node(NodeIdentities(number, "sim-1")).decode() for number in range(2)]
    found = [identities(page) for page in (agent, *nodes)]
    assert len(set.union(*found)) == sum(map(len, found))
    assert len({re.sub(r'(uuid|serial)="[^"]+"', "", page) for page in (agent, *nodes)}) == 1


def test_the_host_on_the_page_of_dcgm_is_the_node() -> None:
    """Both labels of the host, Hostname and hostname."""
    for canonical in (False, True):
        page = DcgmPage(host=platform.node(), canonical=canonical).render(report_of("h100x8")).encode()
        found = re.findall(r'ostname="([^"]+)"', AgentPage(page).of_node(NodeIdentities(2, "sim-3")).decode())
        assert set(found) == {"sim-3"}


def test_a_node_has_the_same_identities_on_every_page() -> None:
    """A GPU has one uuid on /metrics and /metrics/links, also after a restart of the fleet."""
    report = report_of("h100x8")
    pages = [Renderer(lambda: report, page).render(report).encode() for page in Page]
    first, second = (AgentPage(page).of_node(NodeIdentities(7, "sim-7")).decode() for page in pages)
    assert set(re.findall(r'uuid="([^"]+)"', first)) == set(re.findall(r'uuid="([^"]+)"', second))
