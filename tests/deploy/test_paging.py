"""What a real Alertmanager with the shipped routes sends to the pager when several devices or nodes fail."""

from __future__ import annotations

import re
import shlex
import subprocess
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from agents import eventually, free_port
from servers import alertmanager, http_server, write_yaml

from benchmarks.pages.stack import ALERTMANAGER, Notified, routes, webhook
from gpumon.fleet.alert_rules import rules
from gpumon.fleet.recording_rules import JOIN_SECONDS
from gpumon.health.check_row import MINUTE
from gpumon.services.delivery import DeliveryError, post

pytestmark = pytest.mark.slow

RULES = {rule.name: rule for rule in rules()}


class PagerReceiver:
    """An Alertmanager that waits less than the shipped one, and what its receiver `pager` got."""

    def __init__(self, url: str, received: list[Notified], file: Path) -> None:
        self.url, self._received, self._file = url, received, file

    def fire(self, name: str, *instances: str, **labels: str) -> None:
        """Send an alert of a port for each of these nodes, as Prometheus does."""
        body = [
            {"labels": {"alertname": name, "cluster": "a", "instance": node, **RULES[name].labels, **labels}}
            for node in instances
        ]
        post(f"{self.url}/api/v2/alerts", [each | {"annotations": {"summary": name}} for each in body])

    def answers(self) -> bool:
        """Return whether Alertmanager accepts alerts."""
        try:
            self.fire("GpumonWatchdog", "")
        except DeliveryError:
            return False
        return True

    def reload(self, change: Callable[[str], str]) -> None:
        """Change the text of the configuration, which Alertmanager then reads."""
        self._file.write_text(change(self._file.read_text(encoding="utf-8")), encoding="utf-8")
        request = urllib.request.Request(f"{self.url}/-/reload", method="POST")
        urllib.request.urlopen(request, timeout=30).close()

    def pages(self, receiver: str = "pager") -> list[tuple[str, list[str]]]:
        """Return the alert and the nodes of each notification to the receiver, sorted."""
        by_number: dict[int, list[Notified]] = {}
        for one in list(self._received):
            if one.receiver == receiver:
                by_number.setdefault(one.notification, []).append(one)
        return sorted(
            (each[0].labels["alertname"], sorted(one.labels.get("instance", "") for one in each))
            for each in by_number.values()
        )


FAULT = re.compile(r"group_by: &fault \[.*\]")


def _each_device(text: str) -> str:
    """Return the configuration with the line of receivers.yml for an incident per device."""
    [line] = FAULT.findall(ALERTMANAGER.with_name("receivers.yml").read_text(encoding="utf-8"))
    return FAULT.sub(line, text)


def quick(configuration: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the configuration with waits of a second."""
    text = yaml.safe_dump(configuration)
    shortened: dict[str, Any] = yaml.safe_load(re.sub(r"(group_wait|group_interval): \w+", r"\1: 1s", text))
    return shortened


@pytest.fixture
def pager(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[PagerReceiver]:
    """Run Alertmanager with the shipped routes. A parameter is a function that changes their text."""
    received, port = list[Notified](), free_port()
    text = getattr(request, "param", str)(ALERTMANAGER.read_text(encoding="utf-8"))
    with http_server(webhook(received)) as hooks:
        write_yaml(tmp_path / "alertmanager.yml", quick(routes(hooks, text)))
        with alertmanager(tmp_path, port):
            pager = PagerReceiver(f"http://127.0.0.1:{port}", received, tmp_path / "alertmanager.yml")
            eventually(pager.answers)
            yield pager


def test_each_switch_and_each_single_port_is_a_page_of_its_own(pager: PagerReceiver) -> None:
    """A dead switch is one page, a second dead switch another, and a port that fails beside them one more."""
    port = {"device": "mlx5_3", "port": "1"}
    first, second = ["n0", "n1", "n2", "n3"], ["n5", "n6", "n7"]
    pager.fire("IbManyPortsDown", *first, since="100", **port)
    pager.fire("IbPortDown", *first, "alone", **port)
    expected = [("IbManyPortsDown", first), ("IbPortDown", ["alone"])]
    eventually(lambda: pager.pages() == expected)

    pager.fire("IbManyPortsDown", *second, since="900", **port)
    pager.fire("IbPortDown", *second, "other", **port)
    expected += [("IbManyPortsDown", second), ("IbPortDown", ["other"])]
    eventually(lambda: pager.pages() == sorted(expected))


def test_nodes_that_brake_together_are_one_page(pager: PagerReceiver) -> None:
    """The alert about the feed inhibits those of its nodes, and not those of another cluster."""
    pager.fire("GpuManyPowerBrakes", "", job="gpumon")
    pager.fire("GpuPowerBrake", "n0", "n1", "n2", job="gpumon", uuid="GPU-1")
    pager.fire("GpuPowerBrake", "other", job="gpumon", uuid="GPU-1", cluster="b")
    eventually(lambda: pager.pages("tickets") == [("GpuPowerBrake", ["other"])])
    eventually(lambda: pager.pages() == [("GpuManyPowerBrakes", [""])])


def test_ports_that_join_an_outage_are_one_further_notification() -> None:
    """The second notification about an outage leaves when no more ports can join it."""
    routes = yaml.safe_load(ALERTMANAGER.read_text(encoding="utf-8"))["route"]["routes"]
    [many] = [each for route in routes for each in route.get("routes", ()) if "since" in each["group_by"]]
    assert MINUTE * int(many["group_interval"].removesuffix("m")) > JOIN_SECONDS


def fail_two_devices_each(pager: PagerReceiver) -> None:
    """Lose two GPUs of a node, and two ports of another."""
    for device in ("3", "5"):
        pager.fire("GpuLost", "n1", uuid=f"GPU-{device}", gpu=device)
        pager.fire("IbPortDown", "n2", device=f"mlx5_{device}", port="1")


def test_one_cause_on_a_node_is_one_page_however_many_devices_it_has(pager: PagerReceiver) -> None:
    """A page names all GPUs, or ports, of the node with the same alert."""
    fail_two_devices_each(pager)
    expected = {"GpuLost": ["n1", "n1"], "IbPortDown": ["n2", "n2"]}
    eventually(lambda: dict(pager.pages()) == expected)


@pytest.mark.parametrize("pager", [_each_device], indirect=True)
def test_each_device_is_an_incident_if_the_operator_wants_it(pager: PagerReceiver) -> None:
    """With the line of receivers.yml each GPU and each port has a group, which PagerDuty takes for an incident."""
    fail_two_devices_each(pager)
    expected = [("GpuLost", ["n1"])] * 2 + [("IbPortDown", ["n2"])] * 2
    eventually(lambda: pager.pages() == expected)


def test_a_second_outage_of_agents_is_a_second_page(pager: PagerReceiver) -> None:
    """Each outage of agents is an alert of its own, by the time of its start."""
    pager.fire("GpumonManyDown", "", since="100")
    eventually(lambda: len(pager.pages()) == 1)
    pager.fire("GpumonManyDown", "", since="900")
    eventually(lambda: len(pager.pages()) == 2)


def test_the_drill_of_the_documentation_reaches_the_pager(pager: PagerReceiver) -> None:
    """The command of docs/xids.md sends an alert that the shipped routes take for one at night."""
    page = (ALERTMANAGER.parents[2] / "docs" / "xids.md").read_text(encoding="utf-8")
    [command] = re.findall(r"^amtool alert add (?:.*\\\n)*.*$", page, re.MULTILINE)
    words = shlex.split(command.replace("\\\n", " ").replace("http://alertmanager:9093", pager.url))
    subprocess.run(words, check=True, timeout=60)
    eventually(lambda: pager.pages() == [("GpuXidCritical", ["drill"])])


def _no_working_hours(text: str) -> str:
    """Return the configuration with its lines for working hours, which are only in the year 2000."""
    return re.sub(r"time_intervals: \[\{weekdays.*", "time_intervals: [{years: ['2000']}]", text.replace("#h ", ""))


@pytest.mark.parametrize("pager", [_no_working_hours], indirect=True)
def test_a_ticket_of_the_night_arrives_when_the_working_day_begins(pager: PagerReceiver) -> None:
    """Tickets wait for the hours if the lines for them are active, those about the network too. A page does not."""
    pager.fire("GpuEccCorrectedHigh", "n1", uuid="GPU-1", gpu="1")
    pager.fire("IbErrorRates", "n1", device="mlx5_0", port="1")
    pager.fire("GpuLost", "n2", uuid="GPU-2", gpu="2")
    eventually(lambda: pager.pages() == [("GpuLost", ["n2"])])
    assert pager.pages("tickets") == []

    pager.reload(lambda text: text.replace("2000", "2000:2100"))
    eventually(lambda: pager.pages("tickets") == [("GpuEccCorrectedHigh", ["n1"]), ("IbErrorRates", ["n1"])])
