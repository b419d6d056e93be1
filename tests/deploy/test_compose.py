"""docker-compose.yml and the configuration of what it starts: each checked by the program that reads it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml

from gpumon.health.alert_rules import JOB

ROOT = Path(__file__).parents[2]
GRAFANA = ROOT / "deploy" / "grafana" / "provisioning"


def _yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


SERVICES = _yaml(ROOT / "docker-compose.yml")["services"]


def _mounts(service: str) -> dict[str, Path]:
    """Files and folders of this repository, by their place in the container."""
    parts = (volume.split(":") for volume in SERVICES[service]["volumes"])
    return {inside: ROOT / outside for outside, inside, *_ in parts if outside.startswith("./")}


def _check(*arguments: str) -> None:
    ran = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_compose_takes_the_file() -> None:
    """The file is sound, with and without the variables that it knows."""
    _check("docker-compose", "--file", "docker-compose.yml", "config", "--quiet")


def test_only_this_host_is_served() -> None:
    """Every port is published on loopback, and every image is pinned."""
    for name, service in SERVICES.items():
        assert service["ports"], name
        assert all(port.startswith("127.0.0.1:") for port in service["ports"]), name
        assert re.search(r":v?\d+\.\d+\.\d+$", service["image"]), name


def test_everything_mounted_exists() -> None:
    """No path of this repository is misspelt: an engine would make an empty folder of it."""
    assert all(path.exists() for service in SERVICES for path in _mounts(service).values())


def test_agent_answers_to_the_name_that_prometheus_uses() -> None:
    """The agent refuses names that are not its own: the target is the container's host name, the job the rules' one."""
    [job] = _yaml(ROOT / "deploy" / "prometheus" / "prometheus.yml")["scrape_configs"]
    assert job["job_name"] == JOB
    assert job["static_configs"] == [{"targets": [f"{SERVICES['gpumon']['hostname']}:17400"]}]


def test_prometheus_takes_its_configuration(tmp_path: Path) -> None:
    """Promtool finds configuration and rules sound, laid out as in the container."""
    for inside, path in _mounts("prometheus").items():
        place = tmp_path / Path(inside).relative_to("/etc/prometheus")
        shutil.copytree(path, place) if path.is_dir() else shutil.copy(path, place)
    assert list(tmp_path.glob("rules/*.yml"))
    _check("promtool", "check", "config", str(tmp_path / "prometheus.yml"))


def test_alertmanager_takes_its_configuration() -> None:
    """Amtool finds the routes sound."""
    _check("amtool", "check-config", str(ROOT / "deploy" / "alertmanager" / "alertmanager.yml"))


def test_grafana_finds_data_source_and_dashboards() -> None:
    """Dashboards are provided from where they are mounted; the home page is one of them; the source is Prometheus."""
    [provider] = _yaml(GRAFANA / "dashboards" / "gpumon.yml")["providers"]
    folder = _mounts("grafana")[provider["options"]["path"]]
    home = Path(SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert json.loads((folder / home.name).read_text(encoding="utf-8"))["uid"] == home.stem
    assert str(home.parent) == provider["options"]["path"]
    [source] = _yaml(GRAFANA / "datasources" / "prometheus.yml")["datasources"]
    assert source["type"] == "prometheus"
    assert source["url"] == "http://prometheus:9090"


def test_image_is_made_of_what_the_build_context_has() -> None:
    """What the Dockerfile copies is let through by .dockerignore."""
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    sources = {source.split("/")[0] for line in copied for source in line.split()}
    assert sources
    assert sources <= allowed
