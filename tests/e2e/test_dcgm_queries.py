"""/metrics/dcgm on a real Prometheus: public dashboards and rules for dcgm-exporter return data."""

from __future__ import annotations

import contextlib
import json
import math
import platform
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from agents import AgentProcess, eventually, free_port
from dcgm_queries import PublicQuery, public_queries
from servers import prometheus, write_yaml

from gpumon.outputs.dcgm import FIELDS

pytestmark = pytest.mark.slow
NODE = platform.node()
TARGET = {
    "cluster": "slurm",
    "cluster_name": "c1",
    "region": "r1",
    "product": "cks",
    "vendor": "nvidia",
    "oci_name": "o1",
    "instance_shape": "s1",
    "slurm_nodeset_name": "rack1",
}
"""Labels that the operators of these dashboards add when they scrape."""
VALUES = {"job": "dcgm", "jobid": "1", "region": "r1", "cluster": "slurm"} | dict.fromkeys(
    ("hostname", "Hostname", "node"), NODE
)
FAULTS = {"busy": True, "seed": 1, "gpus": {0: {"xids": [48]}, 4: {"set": {"temperature": 95, "utilization": 100}}}}
NODES: Mapping[str, tuple[str, Mapping[str, str]]] = {
    f"{NODE}:9400": ("h100x8", {}),
    f"{NODE}:9401": ("h100x8", {"GPUMON_METRICS__DCGM_HOST_LABEL": "hostname"}),
    f"{NODE}:9402": ("h100x1", {"GPUMON_METRICS__DCGM_NAMES": "canonical"}),
}
"""Profile and settings of each node by its label `instance`. One has faults."""
MIN_SHARE = 0.95


class DcgmFleet:
    """Nodes whose /metrics/dcgm a Prometheus scrapes each second."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._port = folder, free_port()
        self._url = f"http://127.0.0.1:{self._port}"
        self._agents = {}
        for number, (instance, (profile, settings)) in enumerate(NODES.items()):
            own = folder / str(number)
            own.mkdir()
            self._agents[instance] = AgentProcess(own, profile=profile, environment=settings)
            self._agents[instance].simulate({"busy": True, "seed": number})

    @contextlib.contextmanager
    def up(self) -> Iterator[DcgmFleet]:
        """Run the nodes and Prometheus. Yield when each node has rates and one has its faults."""
        with contextlib.ExitStack() as stack:
            for agent in self._agents.values():
                agent.start()
                stack.callback(agent.stop)
            self._configure()
            stack.enter_context(prometheus(self._folder, self._port))
            eventually(lambda: urllib.request.urlopen(f"{self._url}/-/ready", timeout=30).status)
            eventually(lambda: len(self.ask("count_over_time(up[1m]) >= 5")) == len(NODES))
            self._agents[f"{NODE}:9401"].simulate(FAULTS)
            eventually(lambda: self.ask("DCGM_FI_DEV_XID_ERRORS == 48"))
            # The rates of NVLink need two readings of its counters, which are read every 15 s.
            rates = "{__name__=~'DCGM_FI_DEV_NVLINK_(BANDWIDTH_TOTAL|THROUGHPUT_BYTES_PER_SECOND)'}"
            eventually(lambda: len(self.ask(f"count by (instance) ({rates})")) == len(NODES))
            yield self

    def _configure(self) -> None:
        targets = [
            {"targets": [f"127.0.0.1:{agent.port}"], "labels": {"instance": instance, **TARGET}}
            for instance, agent in self._agents.items()
        ]
        job: dict[str, Any] = {"job_name": VALUES["job"], "metrics_path": "/metrics/dcgm", "scrape_interval": "1s"}
        job |= {"static_configs": targets}
        write_yaml(self._folder / "prometheus.yml", {"scrape_configs": [job]})

    def ask(self, query: str) -> list[Any]:
        """Return the series of an instant query. Raise ValueError if Prometheus cannot parse it."""
        url = f"{self._url}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                data = json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise ValueError(f"{query}: {json.load(error)['error']}") from error
        series = [{"value": data["result"]}] if data["resultType"] in {"scalar", "string"} else data["result"]
        return [each for each in series if not math.isnan(float(each["value"][1]))]

    def answers(self, query: PublicQuery) -> bool:
        """Return whether a query has data. A filter without a result has it if each of its selectors has.

        A comparison removes everything while nothing is wrong; then the codes of Xids that it selects do not count.
        """
        found = self.ask(query.text)
        if query.label:
            return any(each["metric"].get(query.label) for each in found)
        if found or not query.is_filter:
            return bool(found)
        return all(self.ask(name + ("" if "err_code" in matchers else matchers)) for name, matchers in query.selectors)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DcgmFleet]:
    with DcgmFleet(tmp_path_factory.mktemp("fleet")).up() as fleet:
        yield fleet


def is_parsed(fleet: DcgmFleet, query: PublicQuery) -> bool:
    try:
        fleet.ask(query.text)
    except ValueError as error:
        return "parse error" not in str(error)
    return True


def test_public_queries_return_data(fleet: DcgmFleet) -> None:
    """At least 95 % of those that need nothing but dcgm-exporter's names; the only one without data asks for a fan."""
    own = [query for query in public_queries(VALUES) if not query.foreign]
    parsed = [query for query in own if is_parsed(fleet, query)]
    needed = [query for query in parsed if not query.needs_owner]
    silent = [query for query in needed if not fleet.answers(query)]
    assert len(needed) - len(silent) >= MIN_SHARE * len(needed)
    assert [query.selectors[0][0] for query in silent] == ["DCGM_FI_DEV_FAN_SPEED"]
    assert (len(needed), len(parsed) - len(needed)) == (163, 10), "docs/dcgm.md states these numbers"


def test_public_queries_return_data_under_the_names_of_4_9(fleet: DcgmFleet) -> None:
    """Each of them, with its metrics renamed, has data from the node with these names."""
    names = {field.legacy: field.canonical for field in FIELDS}
    own = [query for query in public_queries(VALUES) if not query.foreign and not query.needs_owner]
    renamed = [
        replace(
            query,
            text=re.sub(r"DCGM_\w+", lambda match: names[match[0]], query.text)
            .replace("Hostname", "hostname")
            .replace(":9400", ":9402"),
            label=query.label.replace("Hostname", "hostname"),
        )
        for query in own
        if is_parsed(fleet, query)
    ]
    silent = [query.text for query in renamed if not fleet.answers(query)]
    assert [text.partition("{")[0] for text in silent] == ["DCGM_FI_DEV_FAN_SPEED_RATIO"]


def test_queries_of_jobs_and_pods_return_nothing(fleet: DcgmFleet) -> None:
    """The page has no owner of a GPU, so a query for one shows no data rather than that of another one."""
    owned = [query for query in public_queries(VALUES) if not query.foreign and query.needs_owner]
    assert owned
    assert [query.text for query in owned if fleet.ask(query.text)] == []


def test_prometheus_scrapes_the_names_of_4_9(fleet: DcgmFleet) -> None:
    """The node with these names has no series with an older one."""
    instance = f'instance="{NODE}:9402"'
    (utilization,) = fleet.ask(f"DCGM_FI_DEV_GPU_UTIL_RATIO{{{instance}}}")
    assert 0 <= float(utilization["value"][1]) <= 1
    assert fleet.ask(f"DCGM_FI_DEV_GPU_UTIL{{{instance}}}") == []
