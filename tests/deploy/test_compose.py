"""docker-compose.yml and the configuration of its services, each checked by the program that reads it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml
from agents import AgentProcess, eventually
from each_case import each_case

from gpumon import JOB
from gpumon.model.reading import Page

ROOT = Path(__file__).parents[2]
GRAFANA = ROOT / "deploy" / "grafana" / "provisioning"


def _yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


SERVICES = _yaml(ROOT / "docker-compose.yml")["services"]
NODES = ("node-1", "node-2", "node-3")


def _mounts(service: str) -> dict[str, Path]:
    """Return the mounted files and folders of this repository by their path in the container."""
    parts = (volume.split(":") for volume in SERVICES[service].get("volumes", ()))
    return {inside: ROOT / outside for outside, inside, *_ in parts if outside.startswith("./")}


def _check(*arguments: str) -> None:
    ran = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_compose_accepts_the_file() -> None:
    _check("docker-compose", "--file", "docker-compose.yml", "config", "--quiet")


def test_ports_are_published_on_loopback_only() -> None:
    assert set(SERVICES) == {*NODES, "rules", "prometheus", "alertmanager", "grafana", "mailbox"}
    for name, service in SERVICES.items():
        assert bool(service.get("ports")) == (name != "rules"), name
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ())), name
        assert re.search(r":v?\d+\.\d+\.\d+$", service["image"]), name


def test_every_mounted_path_exists() -> None:
    """No path is misspelt: Docker would create an empty folder."""
    paths = [path for service in SERVICES for path in _mounts(service).values()]
    assert paths
    assert [path for path in paths if not path.exists()] == []


def test_agent_answers_to_the_name_that_prometheus_uses() -> None:
    """Targets are the container's host name, because the agent rejects others; one job is that of the rules."""
    job, links, *_ = _yaml(ROOT / "deploy" / "prometheus" / "prometheus.yml")["scrape_configs"]
    assert job["job_name"] == JOB != links["job_name"]
    assert links["metrics_path"] == Page.LINKS.value
    assert job["static_configs"] == [{"targets": [f"{SERVICES[node]['hostname']}:17400" for node in NODES]}]
    assert links["static_configs"] == job["static_configs"]


def test_a_node_that_is_down_fires_once() -> None:
    """The rules select `up` of the job of /metrics, so that the second job of the same node adds no alert."""
    text = (ROOT / "alert_rules" / "gpumon.yml").read_text(encoding="utf-8")
    selected = re.findall(r"\bup\{([^}]*)\}", text)
    assert selected
    assert all(f'job="{JOB}"' in matchers for matchers in selected)


def test_prometheus_accepts_its_configuration(tmp_path: Path) -> None:
    """Promtool accepts configuration and rules, laid out as in the container."""
    for inside, path in _mounts("prometheus").items():
        place = tmp_path / Path(inside).relative_to("/etc/prometheus")
        shutil.copytree(path, place) if path.is_dir() else shutil.copy(path, place)
    shell, flag, command = SERVICES["rules"]["entrypoint"]
    (tmp_path / "rules").mkdir()
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    subprocess.run([shell, flag, command.replace("/rules/", f"{tmp_path}/rules/")], env=environment, check=True)
    assert "rules:/etc/prometheus/rules:ro" in SERVICES["prometheus"]["volumes"]
    assert SERVICES["rules"]["volumes"] == ["rules:/rules"]
    _check("promtool", "check", "config", str(tmp_path / "prometheus.yml"))


def test_the_runbooks_of_the_demonstration_open_on_the_host() -> None:
    """Their links lead to the port at which node-1 is published."""
    [address] = re.findall(r"--runbooks http://(\S+)/runbooks ", SERVICES["rules"]["entrypoint"][-1])
    assert any(port.startswith(f"{address}:") for port in SERVICES["node-1"]["ports"])


@pytest.mark.slow
def test_the_broken_node_of_the_demonstration_names_xid_and_serial_number(tmp_path: Path) -> None:
    """The GPU is lost after the agent has read it, with Xid 79."""
    agent = AgentProcess(tmp_path)
    shutil.copy(ROOT / "deploy" / "demo" / "broken.yml", agent.scenario)
    agent.start()
    try:
        firing = "/api/v1/alerts?state=firing"

        def shows_lost() -> bool:
            alerts = agent.get(firing)["alerts"]
            return [(each["rule"], "Xid 79" in each["summary"]) for each in alerts] == [("GpuLost", True)]

        eventually(shows_lost)
        assert re.search(r'gpumon_gpu_info\{[^}]*gpu="3"[^}]*serial="\d+"', agent.ask("/metrics")[1].decode())
    finally:
        agent.stop()


def test_alertmanager_accepts_the_example_receivers(tmp_path: Path) -> None:
    """The receivers of the examples replace those of the configuration, each by its name."""
    folder = ROOT / "deploy" / "alertmanager"
    whole = yaml.safe_load((folder / "alertmanager.yml").read_text())
    examples = yaml.safe_load((folder / "receivers.yml").read_text())
    assert [each["name"] for each in examples["receivers"]] == [each["name"] for each in whole["receivers"]]
    (tmp_path / "alertmanager.yml").write_text(yaml.safe_dump(whole | examples))
    shutil.copy(folder / "gpumon.tmpl", tmp_path)
    _check("amtool", "check-config", str(tmp_path / "alertmanager.yml"))


ROUTES = {
    "watchdog": {"alertname": "GpumonWatchdog", "page": "never"},
    "null": {"alertname": "GpuIdle", "page": "never"},
    "pager": {"alertname": "GpuLost", "page": "night"},
    "tickets": {"alertname": "IbErrorRates", "class": "network", "page": "day"},
}


@each_case("receiver, labels", list(ROUTES.items()))
def test_alerts_are_routed_by_when_they_page(receiver: str, labels: dict[str, str]) -> None:
    """Night to the pager, day to the tickets, information nowhere, the watchdog to its own receiver."""
    asked = [f"{name}={value}" for name, value in labels.items()]
    assert routed(ROOT / "deploy" / "alertmanager" / "alertmanager.yml", *asked) == receiver


def routed(file: Path, *labels: str) -> str:
    """Return the receiver of an alert with these labels (NAME=VALUE)."""
    command = ["amtool", "config", "routes", "test", "--config.file", str(file), *labels]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_the_routes_fit_into_an_existing_alertmanager(tmp_path: Path) -> None:
    """With the shipped lines in the route of docs/alerts.md only alerts of gpumon take the shipped routes."""
    section = (ROOT / "docs" / "alerts.md").read_text(encoding="utf-8").partition("## In an existing Alertmanager")[2]
    added = section.partition("```yaml\n")[2].partition("```")[0]
    shipped = (ROOT / "deploy" / "alertmanager" / "alertmanager.yml").read_text(encoding="utf-8")
    [route] = yaml.safe_load(added)["route"]["routes"]
    assert route | {"matchers": [], "routes": []} == yaml.safe_load(shipped)["route"] | {"matchers": [], "routes": []}
    head, routes, rest = re.split(r"^route:\n(?:  .*\n)*?  routes:\n((?: {4}.*\n)+)", shipped, flags=re.MULTILINE)
    added = added.replace("route:\n", "route:\n  receiver: own\n")
    added = re.sub(r"routes: \[\].*\n", lambda _: "routes:\n" + textwrap.indent(routes, "    "), added)
    added += "    - {matchers: ['severity=\"critical\"'], receiver: phone}\n"
    own = head + added + rest.replace("receivers:\n", "receivers:\n  - name: own\n  - name: phone\n")
    (tmp_path / "own.yml").write_text(own)
    shutil.copy(ROOT / "deploy" / "alertmanager" / "gpumon.tmpl", tmp_path)
    _check("amtool", "check-config", str(tmp_path / "own.yml"))
    for receiver, labels in ROUTES.items():
        asked = {"class": "hardware", "severity": "critical"} | labels
        assert routed(tmp_path / "own.yml", *(f"{name}={value}" for name, value in asked.items())) == receiver
    assert routed(tmp_path / "own.yml", "alertname=DiskFull", "severity=critical") == "phone"
    assert routed(tmp_path / "own.yml", "alertname=DiskFull") == "own"


def test_no_inhibition_of_the_shipped_file_reaches_alerts_of_others() -> None:
    """Targets have a label that only alerts of gpumon have, or must equal a label that only its alerts set."""
    for rule in _yaml(ROOT / "deploy" / "alertmanager" / "alertmanager.yml")["inhibit_rules"]:
        own = re.search(r'(page|class|alertname)=~?"', " ".join(rule["target_matchers"]))
        assert own or "uuid" in rule["equal"], rule


def rendered_notification(folder: Path, *alerts: dict[str, Any]) -> str:
    """Return title and text of a notification with these alerts, which Alertmanager has grouped by cluster."""
    data = folder / "data.json"
    common = {name: value for name, value in alerts[0]["labels"].items() if name == "cluster"}
    data.write_text(json.dumps({"status": alerts[-1]["status"], "alerts": alerts, "commonLabels": common}))
    template = '{{ template "gpumon.title" . }}\n{{ template "gpumon.text" . }}'
    glob = str(ROOT / "deploy" / "alertmanager" / "gpumon.tmpl")
    command = ["amtool", "template", "render", f"--template.glob={glob}", f"--template.data={data}"]
    return subprocess.run(
        [*command, f"--template.text={template}"], capture_output=True, text=True, check=True, timeout=60
    ).stdout


def alert(
    instance: str, *, status: str = "firing", minute: int = 0, annotations: dict[str, str] | None = None, **labels: str
) -> Any:
    """Return an alert in a notification of Alertmanager. `minute`: when it began."""
    labels = {"alertname": "GpuLost", "instance": instance, **labels}
    texts = {
        "summary": f"{instance}: The GPU fell off the bus. Xid 79: The GPU has fallen off the bus.",
        "description": "It fell off the bus.",
    }
    more = {"annotations": texts | (annotations or {"action": "none"}), "startsAt": f"2026-01-02T03:{minute:02}:00Z"}
    return {"status": status, "labels": labels, **more}


def test_a_mail_has_reason_action_serial_number_and_runbook(tmp_path: Path) -> None:
    """For each alert in the notification; an alert without a serial number has no empty line for it."""
    more = {
        "action": "Drain the node and reboot it.",
        "serial": "1650",
        "runbook_url": "http://gpu-17:17400/runbooks/GpuLost",
    }
    text = rendered_notification(tmp_path, alert("gpu-17", annotations=more), alert("gpu-17"))
    assert "reboot it.\nSerial number: 1650\nRunbook: http://gpu-17:17400/runbooks/GpuLost\n" in text
    assert text.rstrip().endswith("Do: none")


def test_a_resolved_alert_has_no_action(tmp_path: Path) -> None:
    """What is to be done, and the reason as last evaluated, are not true any more."""
    text = rendered_notification(tmp_path, alert("gpu-17", status="resolved", annotations={"serial": "1650"}))
    assert text.endswith("the bus. (GpuLost, resolved)\nSerial number: 1650\n\n")


LEAF = [alert(f"n{number:02}:17400", alertname="IbPortDown", device="mlx5_0", port="1") for number in range(20)]
OUTAGE = {
    "status": "firing",
    "labels": {"alertname": "GpumonManyDown", "cluster": "b"},
    "annotations": {"summary": "Many agents cannot be scraped, such as n0."},
    "startsAt": "2026-01-02T03:00:00Z",
}
TITLES = {
    "FIRING: gpu-17: The GPU fell off the bus. Xid 79: The GPU has fallen off the bus.": [alert("gpu-17")],
    "RESOLVED: gpu-17: The GPU fell off the bus. Xid 79: The GPU has fallen off the bus.": [
        alert("gpu-17", status="resolved")
    ],
    "FIRING: gpu-18: The GPU fell off the bus. Xid 79: The GPU has fallen off the bus.": [
        alert("gpu-17", status="resolved"),
        alert("gpu-18"),
    ],
    "FIRING: 2 x GpuLost: gpu-17 GPU 3, gpu-17 GPU 5": [alert("gpu-17:17400", gpu="3"), alert("gpu-17:17400", gpu="5")],
    "FIRING: b gpu-17: The GPU fell off the bus. Xid 79: The GPU has fallen off the bus.": [
        alert("gpu-17", cluster="b")
    ],
    "FIRING: b: Many agents cannot be scraped, such as n0.": [OUTAGE],
    "FIRING: b: 2 x GpuLost: gpu-17, gpu-18": [alert("gpu-17", cluster="b"), alert("gpu-18", cluster="b")],
    f"FIRING: 20 x IbPortDown: {', '.join(f'n{number:02} mlx5_0/1' for number in range(16))} and 4 more": LEAF,
}


@each_case("title, alerts", list(TITLES.items()))
def test_the_title_names_what_fires(title: str, alerts: list[Any], tmp_path: Path) -> None:
    """One fault by its summary, several by their number and devices; what is resolved only if nothing fires."""
    assert rendered_notification(tmp_path, *alerts).splitlines()[0] == title


def test_each_alert_of_a_mail_names_its_cluster(tmp_path: Path) -> None:
    """Two clusters may have nodes of the same name."""
    text = rendered_notification(tmp_path, alert("n0", cluster="b"), alert("n0", cluster="b", status="resolved"))
    assert text.count("\nb n0: The GPU fell off the bus. Xid 79: The GPU has fallen off the bus. (GpuLost, ") == 2


def test_the_newest_alert_of_a_group_is_named_first(tmp_path: Path) -> None:
    """A mail about one more lost GPU begins with that GPU, in the subject and in the text."""
    alerts = [alert(f"gpu-{number:02}", minute=minute) for number, minute in enumerate((1, 7, 3, 7))]
    resolved = alert("gpu-99", minute=9, status="resolved")
    title, *text = rendered_notification(tmp_path, resolved, *alerts).splitlines()
    assert title == "FIRING: 4 x GpuLost: gpu-01, gpu-03, gpu-00, gpu-02"
    named = [line.partition(":")[0] for line in text if line.startswith("gpu-")]
    assert named == ["gpu-01", "gpu-03", "gpu-00", "gpu-02", "gpu-99"]


def test_alertmanager_accepts_its_configuration() -> None:
    _check("amtool", "check-config", str(ROOT / "deploy" / "alertmanager" / "alertmanager.yml"))


def test_grafana_finds_data_source_and_dashboards() -> None:
    """Dashboards are provisioned from their mount, the home page is one of them, and the source is Prometheus."""
    [provider] = _yaml(GRAFANA / "dashboards" / "gpumon.yml")["providers"]
    folder = _mounts("grafana")[provider["options"]["path"]]
    home = Path(SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert json.loads((folder / home.name).read_text(encoding="utf-8"))["uid"] == home.stem
    assert str(home.parent) == provider["options"]["path"]
    [source] = _yaml(GRAFANA / "datasources" / "prometheus.yml")["datasources"]
    assert source["type"] == "prometheus"
    assert source["url"] == "http://prometheus:9090"


def test_the_build_context_has_what_the_image_copies() -> None:
    """.dockerignore does not exclude what the Dockerfile copies."""
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    sources = {source.split("/")[0] for line in copied for source in line.split()}
    assert sources
    assert sources <= allowed
