"""Pages of many nodes from the page of one agent."""

from __future__ import annotations

import platform
import re

from gpumon_sim.fleet_pages import AgentPage, NodeIdentities

from gpumon.model.reading import Page
from gpumon.outputs.dcgm import DcgmPage
from gpumon.outputs.prometheus import Renderer
from scripts.simulated_reports import report_of


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
