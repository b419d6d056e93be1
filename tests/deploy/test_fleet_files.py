"""The samples for a fleet: Prometheus, remote_write, federation, OpenTelemetry Collector and autoscalers."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from agents import AgentProcess, eventually, free_port, running
from each_case import each_case
from servers import prometheus, query, write_yaml

from gpumon import JOB
from gpumon.outputs.metric_catalogue import catalogue

ROOT = Path(__file__).parents[2]
PROMETHEUS = ROOT / "deploy" / "prometheus"
KUBERNETES = ROOT / "deploy" / "kubernetes"
RULES = yaml.safe_load((ROOT / "alert_rules" / "gpumon.yml").read_text())
RECORDED = {rule["record"] for group in RULES["groups"] for rule in group["rules"] if "record" in rule}
SCRAPED, KEPT = "scrape_samples_scraped", "scrape_samples_post_metric_relabeling"
METRICS = {entry.name for entry in catalogue()}


def _yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def _fleet() -> Any:
    return _yaml(PROMETHEUS / "fleet.yml")


def _with_lists() -> Any:
    """Return the fleet's configuration with every list and remote_write in its place."""
    whole = _fleet() | _yaml(PROMETHEUS / "remote-write.yml")
    whole["scrape_configs"][0]["metric_relabel_configs"] = _yaml(PROMETHEUS / "lean.yml")
    whole["remote_write"].append(
        {"url": "http://other/", "write_relabel_configs": _yaml(PROMETHEUS / "aggregates.yml")}
    )
    return whole


def _with_http_sd() -> Any:
    text = (PROMETHEUS / "fleet.yml").read_text()
    changed = re.sub(r"file_sd_configs: &nodes\n.*\n", "http_sd_configs: &nodes\n", text).replace(
        "    # http_sd_configs:\n    #   - url", "      - url"
    )
    whole = yaml.safe_load(
        re.sub(r"    # Instead of .*\n", "", changed).replace("file_sd_configs: *", "http_sd_configs: *")
    )
    assert whole["scrape_configs"][1]["http_sd_configs"] == [{"url": "http://127.0.0.1:17401/"}]
    return whole


def _collector_scrape() -> Any:
    return _yaml(ROOT / "deploy" / "otel" / "collector.yml")["receivers"]["prometheus"]["config"]


@each_case(
    "configuration",
    [_fleet(), _with_lists(), _with_http_sd(), _yaml(PROMETHEUS / "federation.yml"), _collector_scrape()],
    ids=["fleet", "lists", "http_sd", "federation", "collector"],
)
def test_promtool_accepts_each_configuration(configuration: Any, tmp_path: Path) -> None:
    """With the shipped rules, and with targets that `gpumon sd` writes."""
    (tmp_path / "targets").mkdir(exist_ok=True)
    (tmp_path / "rules").mkdir(exist_ok=True)
    shutil.copy(ROOT / "alert_rules" / "gpumon.yml", tmp_path / "rules")
    command = [sys.executable, "-m", "gpumon", "sd", "gpu[001-200]", "--label", "cluster=east"]
    (tmp_path / "targets" / "gpumon.json").write_bytes(subprocess.run(command, capture_output=True, check=True).stdout)
    text = yaml.safe_dump(configuration).replace("/etc/otelcol-contrib/targets", "targets")
    (tmp_path / "prometheus.yml").write_text(text)
    ran = subprocess.run(
        ["promtool", "check", "config", str(tmp_path / "prometheus.yml")], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_rules_find_the_job_and_the_labels_of_the_fleet() -> None:
    """The first job is that of the rules; the second has its labels; each Prometheus has a cluster and a replica."""
    fleet = _fleet()
    job, links = fleet["scrape_configs"]
    assert job["job_name"] == JOB == links["metric_relabel_configs"][0]["replacement"]
    assert set(fleet["global"]["external_labels"]) == {"cluster", "replica"}
    assert fleet["alerting"]["alert_relabel_configs"] == [{"regex": "replica", "action": "labeldrop"}]


def _kept_metrics(list_name: str) -> re.Pattern[str]:
    [rule] = _yaml(PROMETHEUS / list_name)
    assert (rule["source_labels"], rule["action"]) == (["__name__"], "keep")
    return re.compile(rule["regex"])


def test_the_lean_list_keeps_what_the_rules_read() -> None:
    """So that every alert works with it, and less than half of the metrics are kept."""
    kept = {name for name in METRICS if _kept_metrics("lean.yml").fullmatch(name)}
    read = set(re.findall(r"gpumon_[a-z0-9_]+", (ROOT / "alert_rules" / "gpumon.yml").read_text())) & METRICS
    assert read
    assert read <= kept
    assert len(kept) < len(METRICS) / 2


def test_aggregates_are_what_the_rules_record() -> None:
    """Every recorded series and alert is sent, and no reading of a GPU; the sample of remote_write has this list."""
    kept = _kept_metrics("aggregates.yml")
    assert all(kept.fullmatch(name) for name in (*RECORDED, "ALERTS"))
    assert not [name for name in METRICS if name.startswith("gpumon_gpu") and kept.fullmatch(name)]
    [sample] = _yaml(PROMETHEUS / "remote-write.yml")["remote_write"]
    assert sample["write_relabel_configs"] == _yaml(PROMETHEUS / "aggregates.yml")


def test_federation_reads_recorded_series() -> None:
    """Every selector matches a recorded series, a metric or the alerts, and every series of a cluster is read."""
    [job] = _yaml(PROMETHEUS / "federation.yml")["scrape_configs"]
    patterns = [re.search(r'__name__=~"([^"]+)"', selector) for selector in job["params"]["match[]"]]
    names = [re.compile(pattern[1]) for pattern in patterns if pattern]
    assert all(any(name.fullmatch(known) for known in RECORDED) for name in names)
    assert all(any(name.fullmatch(known) for name in names) for known in RECORDED if known.startswith("cluster:"))


@each_case("name", ["prometheus-adapter.yaml", "keda.yaml"])
def test_autoscalers_read_a_recorded_series(name: str) -> None:
    """The series exists, and the query returns one value for a cluster."""
    text = (KUBERNETES / name).read_text(encoding="utf-8")
    queried = set(re.findall(r"\b[a-z]+:gpumon_\w+:\w+", text))
    assert queried
    assert queried <= RECORDED


def test_the_autoscaler_reads_the_metric_that_the_adapter_serves() -> None:
    """By its name and the label of the cluster."""
    [rule] = _yaml(KUBERNETES / "prometheus-adapter.yaml")["externalRules"]
    [metric] = _yaml(KUBERNETES / "autoscaler.yaml")["spec"]["metrics"]
    assert metric["external"]["metric"]["name"] == rule["name"]["as"]
    assert list(metric["external"]["metric"]["selector"]["matchLabels"]) == ["cluster"]
    assert "by (cluster)" in rule["metricsQuery"]


# From docs/hardware/ in open-telemetry/semantic-conventions: instruments, units and attributes.
HW_METRICS = {
    "hw.gpu.utilization": "1",
    "hw.gpu.memory.limit": "By",
    "hw.gpu.memory.usage": "By",
    "hw.gpu.io": "By",
    "hw.errors": "{error}",
    "hw.status": "1",
    "hw.power": "W",
    "hw.energy": "J",
    "hw.temperature": "Cel",
}
UP_DOWN = {"hw.gpu.memory.limit", "hw.gpu.memory.usage", "hw.status"}
ATTRIBUTES = {"hw.id", "hw.name", "hw.type", "hw.vendor", "hw.state", "error.type", "network.io.direction", "host.name"}
STATES = {"ok", "degraded", "failed"}
# Of pkg/ottl and the transform processor in open-telemetry/opentelemetry-collector-contrib.
STATEMENT = re.compile(
    r'(?:set\((?P<path>name|unit|value_double|attributes\["[\w.]+"\]), (?P<value>"[^"$]*"|[\d.]+|attributes\["[\w.]+"\]'
    r'|Concat\(\["GPU", attributes\["gpu"\]\], " "\))\)|delete_key\(attributes, "\w+"\)'
    r'|convert_gauge_to_sum\("cumulative", false\))'
    r'(?: where (?:(?:metric\.)?name == "(?P<name>\w+)"(?: and value_double == \d\.0)?'
    r'|IsMatch\(name, "\^(?P<prefix>\w+)"\)))?'
)


def _statements(context: str) -> list[re.Match[str]]:
    [group] = [
        group
        for group in _yaml(ROOT / "deploy" / "otel" / "collector.yml")["processors"]["transform/hw"][
            "metric_statements"
        ]
        if group["context"] == context
    ]
    matches = [STATEMENT.fullmatch(statement) for statement in group["statements"]]
    assert all(matches), [text for text, match in zip(group["statements"], matches, strict=True) if not match]
    return [match for match in matches if match]


def test_the_collector_names_each_metric_as_the_conventions_do() -> None:
    """Every metric that is scraped exists, and gets the name, unit and kind of the conventions in the right order."""
    [relabel] = _collector_scrape()["scrape_configs"][0]["metric_relabel_configs"]
    scraped = {name for name in METRICS if re.fullmatch(relabel["regex"], name)}
    named: dict[str, dict[str, str]] = {}
    converted = set()
    for found in _statements("metric"):
        old = {name for name in scraped if name == found["name"] or name.startswith(found["prefix"] or "-")}
        assert old, found[0]
        assert not old & set(named) or found["path"] == "name" or "name" not in named[min(old)], found[0]
        for name in old:
            if found["path"] is None:
                converted.add(name)
            else:
                named.setdefault(name, {})[found["path"]] = json.loads(found["value"])
    assert set(named) == scraped
    assert {row["name"]: row["unit"] for row in named.values()} == HW_METRICS
    assert {named[name]["name"] for name in converted} == UP_DOWN
    assert all(
        name.endswith("_total") == (named[name]["name"] in {"hw.gpu.io", "hw.errors", "hw.energy"}) for name in named
    )


def test_the_collector_sets_attributes_of_the_conventions() -> None:
    """All attributes and states have defined names, and the states are those of the levels of gpumon_gpu_health."""
    for context in ("resource", "datapoint"):
        written = {found["path"] for found in _statements(context) if found["path"] and found["path"] != "value_double"}
        assert {path.split('"')[1] for path in written} <= ATTRIBUTES
    states = [found for found in _statements("datapoint") if found["path"] == 'attributes["hw.state"]']
    assert {json.loads(found["value"]) for found in states} == STATES
    assert {found["name"] for found in _statements("datapoint") if found["name"]} <= METRICS


def test_the_collector_has_each_component_of_its_pipeline() -> None:
    """All are defined, and all that are defined are used."""
    collector = _yaml(ROOT / "deploy" / "otel" / "collector.yml")
    for kind in ("receivers", "processors", "exporters"):
        used = {name for pipeline in collector["service"]["pipelines"].values() for name in pipeline[kind]}
        assert used == set(collector[kind])


@pytest.mark.slow
def test_prometheus_scrapes_what_http_sd_serves(tmp_path: Path) -> None:
    """From a host list to a scraped agent, with the lean list: the rules evaluate, and other metrics are dropped."""
    agent, port, served = AgentProcess(tmp_path), free_port(), free_port()
    whole = _with_http_sd() | {"alerting": {}}
    [url] = whole["scrape_configs"][0]["http_sd_configs"]
    url["url"] = f"http://127.0.0.1:{served}/"
    whole["global"] |= {"scrape_interval": "1s", "evaluation_interval": "1s"}
    whole["scrape_configs"][0]["metric_relabel_configs"] = _yaml(PROMETHEUS / "lean.yml")
    (tmp_path / "rules").mkdir()
    shutil.copy(ROOT / "alert_rules" / "gpumon.yml", tmp_path / "rules")
    write_yaml(tmp_path / "prometheus.yml", whole)
    (tmp_path / "hosts").write_text(f"127.0.0.1:{agent.port} rack=r7\n")
    discovery = [sys.executable, "-m", "gpumon", "sd", "--hosts", str(tmp_path / "hosts"), "--label-from", "rack"]
    discovery += [f"--listen=127.0.0.1:{served}"]
    with contextlib.ExitStack() as stack:
        stack.callback(agent.stop)
        agent.start()
        stack.enter_context(running(discovery, tmp_path / "sd.log"))
        eventually(lambda: "serving targets" in (tmp_path / "sd.log").read_text())
        stack.enter_context(prometheus(tmp_path, port))
        [up] = eventually(lambda: query(port, "cluster:gpumon_gpus:up:sum"), within=60)
        assert up["value"][1] == "8"
        [target] = query(port, 'gpumon_build_info{job="gpumon"}')
        assert target["metric"]["rack"] == "r7"
        assert query(port, "gpumon_gpu_up")
        assert query(port, "gpumon_gpu_memory_reserved_bytes") == query(port, "gpumon_gpu_persistence_mode") == []
        [[scraped], [kept]] = [query(port, f'{name}{{job="gpumon"}}') for name in (SCRAPED, KEPT)]
        assert float(kept["value"][1]) < float(scraped["value"][1]) / 2
