"""The plug-in of node-problem-detector and the manifests have documented fields and exit codes."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from agents import AgentProcess, eventually
from schedulers import SlurmHost

from gpumon.clock import boot_clock, boot_id
from gpumon.config.default_paths import RUNTIME_DIRECTORY

ROOT = Path(__file__).parents[2] / "deploy"
NPD = ROOT / "node-problem-detector"
SCRIPT = NPD / "gpumon-npd.sh"
TAINTS = sorted((ROOT / "kubernetes").glob("*-taint.yaml"))
MONITORS = sorted(NPD.glob("*.json"))
DURATION = re.compile(r"([0-9]+)(s|m|h)")
SECONDS = {"s": 1, "m": 60, "h": 3600}

# Of pkg/custompluginmonitor/types in kubernetes/node-problem-detector.
MONITOR = {"plugin", "pluginConfig", "source", "conditions", "rules", "metricsReporting"}
PLUGIN = {
    *("invoke_interval", "timeout", "max_output_length", "concurrency"),
    *("enable_message_change_based_condition_update", "skip_initial_status"),
}
RULE = {"type", "condition", "reason", "path", "args", "timeout"}
CONDITION = {"type", "reason", "message"}
OK, PROBLEM, UNKNOWN = range(3)


def seconds(duration: str) -> int:
    number, unit = DURATION.fullmatch(duration).groups()  # type: ignore[union-attr]
    return int(number) * SECONDS[unit]


def documents(path: Path) -> list[Any]:
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("path", MONITORS, ids=lambda path: path.name)
def test_node_problem_detector_accepts_its_configuration(path: Path) -> None:
    """The files have documented fields of the right types that pass its validation."""
    monitor = json.loads(path.read_text(encoding="utf-8"))
    assert set(monitor) <= MONITOR
    assert set(monitor["pluginConfig"]) <= PLUGIN
    assert monitor["plugin"] == "custom"
    declared = {condition["type"] for condition in monitor["conditions"]}
    assert all(set(condition) == CONDITION for condition in monitor["conditions"])
    assert monitor["rules"]
    for rule in monitor["rules"]:
        assert set(rule) <= RULE
        assert seconds(rule["timeout"]) <= seconds(monitor["pluginConfig"]["timeout"])
        assert seconds(rule["timeout"]) < seconds(monitor["pluginConfig"]["invoke_interval"])
        assert re.fullmatch("[A-Z][A-Za-z]+", rule["reason"])
        assert rule["type"] in ("permanent", "temporary")
        assert (rule["type"] == "permanent") == (rule.get("condition") in declared)


def test_every_named_file_exists() -> None:
    """Script and monitors are at their mounts, and the taint is for the condition that is set."""
    [kustomization] = documents(NPD / "kustomization.yaml")
    [generated] = kustomization["configMapGenerator"]
    assert {path.name for path in (SCRIPT, *MONITORS)} == set(generated["files"])
    account, binding, daemon = documents(NPD / "daemonset.yaml")
    pod = daemon["spec"]["template"]["spec"]
    [container] = pod["containers"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert account["metadata"]["name"] == pod["serviceAccountName"] == binding["subjects"][0]["name"]
    assert volumes["config"]["configMap"] == {"name": generated["name"], "defaultMode": 0o555}
    [root] = [variable["value"] for variable in container["env"] if variable["name"] == "GPUMON_ROOT"]
    assert {f"{root}/opt/gpumon", f"{root}{RUNTIME_DIRECTORY}"} <= set(mounts.values())
    [given] = [word.partition("=")[2] for word in container["command"] if "custom-plugin-monitor" in word]
    assert given.split(",") == [f"{mounts['config']}/{path.name}" for path in MONITORS]
    rules = [rule for path in MONITORS for rule in json.loads(path.read_text())["rules"]]
    assert {rule["path"] for rule in rules} == {f"{mounts['config']}/{SCRIPT.name}"}
    taints = [taint for path in TAINTS for taint in documents(path)]
    tainted = {each["type"] for taint in taints for each in taint["spec"]["conditions"]}
    assert tainted == {rule.get("condition") for rule in rules} - {None}


def test_the_plugin_cannot_read_the_secrets_of_the_host() -> None:
    """Of the host it mounts programs, gpumon and the folder of the health file only, read-only."""
    _, _, daemon = documents(NPD / "daemonset.yaml")
    pod = daemon["spec"]["template"]["spec"]
    paths = {volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume}
    assert paths == {"/usr", "/lib", "/lib64", "/opt/gpumon", RUNTIME_DIRECTORY}
    assert all(mount["readOnly"] for container in pod["containers"] for mount in container["volumeMounts"])


@pytest.mark.parametrize("path", TAINTS, ids=lambda path: path.stem)
def test_nothing_is_tainted_by_default(path: Path) -> None:
    """A rule is a dry run by default, and evicts no pod when enabled."""
    [rule] = documents(path)
    assert rule["spec"]["dryRun"] is True
    assert rule["spec"]["taint"]["effect"] == "NoSchedule"
    assert rule["spec"]["taint"]["key"].startswith("readiness.k8s.io/")
    assert all(set(each) <= {"type", "requiredStatus", "defaultStatus"} for each in rule["spec"]["conditions"])
    bootstrap = rule["spec"]["enforcementMode"] == "bootstrap-only"
    assert not bootstrap or not any("defaultStatus" in each for each in rule["spec"]["conditions"]), (
        "the CRD refuses it"
    )
    assert set(rule["spec"]) == {"dryRun", "enforcementMode", "nodeSelector", "conditions", "taint"}


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[AgentProcess]:
    agent = AgentProcess(tmp_path)
    try:
        yield agent
    finally:
        agent.stop()


@pytest.mark.parametrize(("evaluated", "ready"), [("{now}.5", PROBLEM), ("{now}9", UNKNOWN), ("9" * 20, UNKNOWN)])
def test_a_health_file_with_a_time_in_the_future_is_stale(evaluated: str, ready: int, tmp_path: Path) -> None:
    """As for `gpumon check`. An end of maintenance without a number suppresses no event. A FIFO blocks nothing."""
    host, file = SlurmHost(tmp_path / "host"), tmp_path / "root" / "run" / "gpumon" / "health.json"
    file.parent.mkdir(parents=True)
    members = {"boot_id": boot_id(), "level": "ok", "agent": {"running": True}}
    maintenance = {"until_boottime_seconds": "soon"}
    text = json.dumps({**members, "evaluated_boottime_seconds": 0, "maintenance": maintenance}, indent=1)
    file.write_text(text.replace('seconds": 0', 'seconds": ' + evaluated.format(now=int(boot_clock()))))
    helm_only = {"GPUMON_ROOT": str(tmp_path / "root"), "GPUMON": "/opt/gpumon/bin/gpumon"}
    assert host.run(SCRIPT, "ready", store=tmp_path / "none.db", environment=helm_only).code == ready
    unknown = host.run(SCRIPT, "unknown", store=tmp_path / "none.db", environment=helm_only)
    assert unknown.code == (PROBLEM if ready == UNKNOWN else OK)
    assert "number" not in unknown.output
    file.unlink()
    os.mkfifo(file)
    assert host.run(SCRIPT, "ready", store=tmp_path / "none.db", environment=helm_only).code == UNKNOWN


@pytest.mark.slow
def test_exit_codes_are_those_of_a_custom_plugin(agent: AgentProcess) -> None:
    """The plug-in exits with 0 False, 1 True, 2 Unknown, and prints the line as message."""
    host, store = SlurmHost(agent.folder / "host"), agent.folder / "gpumon.db"

    (agent.folder / "root" / "run" / "gpumon").mkdir(parents=True)
    (agent.folder / "root" / "run" / "gpumon" / "health.json").symlink_to(f"{store}.health.json")
    helm_only = {"GPUMON_ROOT": str(agent.folder / "root"), "GPUMON": "/opt/gpumon/bin/gpumon"}

    def codes() -> dict[str, int]:
        """Return the codes of the command, which are those for the health file alone."""
        rules = ("fail", "ready", "warn", "unknown")
        by_file = {rule: host.run(SCRIPT, rule, store=store, environment=helm_only).code for rule in rules}
        by_command = {rule: host.run(SCRIPT, rule, store=store).code for rule in rules}
        return by_command if by_command == by_file else {}

    configuration = agent.folder / "gpumon.yml"
    configuration.write_text("{}\n")
    agent.start(f"--config.file={configuration}")
    eventually(lambda: agent.get("/api/v1/health")["level"] == "ok")
    eventually(lambda: codes() == {"fail": OK, "ready": PROBLEM, "warn": OK, "unknown": OK})

    configuration.write_text("nonsense: 1\n")
    agent.process.send_signal(signal.SIGHUP)
    eventually(lambda: agent.get("/api/v1/health")["level"] == "warn")
    eventually(lambda: codes() == {"fail": OK, "ready": PROBLEM, "warn": PROBLEM, "unknown": OK})
    assert host.run(SCRIPT, "warn", store=store).output.startswith("GPU WARN: The configuration is not reloaded")
    agent.post("/api/v1/windows?kind=maintenance&for_seconds=600&reason=DIMMs")
    eventually(lambda: codes() == {"fail": OK, "ready": PROBLEM, "warn": OK, "unknown": OK})

    agent.simulate({"gpus": {3: {"lost": True}}})
    eventually(lambda: agent.get("/api/v1/health")["level"] == "fail")
    eventually(lambda: codes() == {"fail": PROBLEM, "ready": OK, "warn": OK, "unknown": OK})

    assert agent.get("/api/v1/health")["gpus"][3]["minor"] == "3", "a device taint needs it when the GPU is lost"
    assert codes()["fail"] == PROBLEM, "a maintenance makes no GPU fit for work"
    assert codes()["ready"] == OK
    assert host.run(SCRIPT, "fail", store=store, environment=helm_only).output.startswith(
        "GPU FAIL: GPU 3: It fell off"
    )
    agent.stop()
    assert codes() == {"fail": PROBLEM, "ready": OK, "warn": OK, "unknown": OK}, "a failure outlives the agent"
    file = Path(f"{store}.health.json")
    file.write_text(file.read_text().replace(' "level": "fail",\n "score"', ' "level": "ok",\n "score"'))
    assert host.run(SCRIPT, "ready", store=store, environment=helm_only).code == UNKNOWN, "it is stale"
    for rule in ("fail", "ready"):
        assert host.run(SCRIPT, rule, store=agent.folder / "none.db").code == UNKNOWN
    assert host.run(SCRIPT, "unknown", store=agent.folder / "none.db").code == PROBLEM
    missing = {"GPUMON": "/nonexistent/gpumon"}
    assert host.run(SCRIPT, "fail", store=store, environment=missing).code == UNKNOWN
    assert host.run(SCRIPT, "unknown", store=store, environment=missing).code == PROBLEM
    for code in range(3):  # without a result: an old version, or one that does not start
        for rule in ("fail", "ready"):
            assert host.run(SCRIPT, rule, store=store, environment=host.answering("", code)).code == UNKNOWN
        assert host.run(SCRIPT, "unknown", store=store, environment=host.answering("", code)).code == PROBLEM
    assert host.run(SCRIPT, store=store).code == UNKNOWN
