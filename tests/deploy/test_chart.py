"""The Helm chart, rendered by Helm's own library and checked against the schemas of Kubernetes."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from deploy_tools import tool
from each_case import each_case

from gpumon import DEFAULT_PORT, JOB, __version__
from gpumon.cli.main import command_parser
from gpumon.config.default_paths import RUNTIME_DIRECTORY
from gpumon.config.jobs_section import JobsSection
from gpumon.model.reading import Page

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "gpumon"
pytestmark = pytest.mark.slow


@functools.cache
def _results() -> dict[str, Any]:
    """Return what the chart renders for each of VALUES and MISSPELT, from one process, because it starts slowly."""
    script, values = Path(__file__).parent / "render_chart.py", [*VALUES, *MISSPELT]
    more = [str(ROOT / "deploy" / "kubernetes" / name) for name in ("autoscaler.yaml", "keda.yaml")]
    command = [tool("python"), str(script), json.dumps(values), *more]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=150)
    assert ran.returncode == 0, ran.stderr
    return dict(zip(map(json.dumps, values), json.loads(ran.stdout), strict=True))


def render(**values: Any) -> Any:
    return _results()[json.dumps(values)]


def rendered_resources(kind: str, **values: Any) -> list[Any]:
    return [resource for resource in render(**values)["rendered"] if resource["kind"] == kind]


LEAN = [{"sourceLabels": ["__name__"], "regex": "gpumon_.*", "action": "keep"}]
TLS: dict[str, Any] = {
    "tls": True,
    "config": {"web": {"config_file": "/etc/gpumon-web/web.yml"}},
    "extraVolumes": [{"name": "web", "secret": {"secretName": "gpumon-web"}}],
    "extraVolumeMounts": [{"name": "web", "mountPath": "/etc/gpumon-web", "readOnly": True}],
    "podMonitor": {"endpoint": {"tlsConfig": {"ca": {"secret": {"name": "gpumon-web", "key": "ca.crt"}}}}},
}
PODS: dict[str, Any] = {
    "podResources": {"enabled": True, "directory": "/var/snap/microk8s/common/var/lib/kubelet/pod-resources"}
}
GATE: dict[str, Any] = {"schedulerGate": {"enabled": True}, "config": {"probe": {"enabled": True}}}
ACCOUNT: dict[str, Any] = {
    "serviceAccount": {"create": True, "annotations": {"a": "b"}},
    "seLinuxOptions": {"type": "spc_t"},
    "extraEnv": [{"name": "LD_LIBRARY_PATH", "value": "/usr/local/nvidia/lib64"}],
}
VALUES: list[dict[str, Any]] = [
    {},
    {"kernelLog": {"enabled": True}, "hostNetwork": False, "runtimeClassName": "", "tolerations": []},
    PODS,
    {"podMonitor": {"metricRelabelings": LEAN, "labels": {"release": "stack"}, "links": {"enabled": False}}},
    {"imagePullSecrets": [{"name": "registry"}], "podLabels": {"team": "x"}, "podAnnotations": {"a": "b"}},
    {"podMonitor": {"enabled": False}, "prometheusRule": {"enabled": False}, "dashboards": {"enabled": False}},
    {"config": {"gpus": {"expected_count": 8}}, "port": 9400, "nodeSelector": {}, "priorityClassName": ""},
    TLS,
    GATE,
    ACCOUNT,
]
MISSPELT: list[dict[str, Any]] = [
    {"prometheusRules": {}},
    {"port": 0},
    {"podMonitor": {"interval": "15"}},
    {"image": {"repository": ""}},
    {"schedulerGate": {"create": True}},
]


@each_case("values", VALUES)
def test_helm_and_kubernetes_accept_the_chart(values: dict[str, Any]) -> None:
    """Helm's lint, the schema of the values, and every object in three versions of Kubernetes; the autoscalers too."""
    assert render(**values)["problems"] == []


@each_case("values", MISSPELT)
def test_misspelt_values_are_refused(values: dict[str, Any]) -> None:
    problems = render(**values)["problems"]
    assert any(name in problems[0] for name in re.findall(r"\w+", str(values))), problems


def test_the_rules_and_dashboards_are_those_of_the_repository() -> None:
    """The chart has links to them, not a second copy."""
    [rule] = rendered_resources("PrometheusRule")
    assert rule["spec"] == yaml.safe_load((ROOT / "alert_rules" / "gpumon.yml").read_text(encoding="utf-8"))
    boards = {name: text for board in rendered_resources("ConfigMap") for name, text in board["data"].items()}
    files = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "dashboards").glob("*.json")}
    assert {name: json.loads(boards[name]) for name in files} == {name: json.loads(files[name]) for name in files}
    assert not [path for path in CHART.rglob("*") if path.is_file() and path.suffix == ".json" and path.name in files]


def test_the_agent_has_no_rights_in_the_cluster_and_writes_two_folders() -> None:
    """No account, role or token; the rest of the host is mounted read-only; no capability, no root."""
    assert {each["kind"] for each in render()["rendered"]} == {"ConfigMap", "DaemonSet", "PodMonitor", "PrometheusRule"}
    [daemon] = rendered_resources("DaemonSet")
    pod = daemon["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    host = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume}
    [agent] = pod["containers"]
    written = {
        host[each["name"]] for each in agent["volumeMounts"] if each["name"] in host and not each.get("readOnly")
    }
    assert written == {"/var/lib/gpumon", RUNTIME_DIRECTORY}
    security = agent["securityContext"]
    assert (security["runAsNonRoot"], security["capabilities"]) == (True, {"drop": ["ALL"]})
    assert security["readOnlyRootFilesystem"] is True


def test_the_readers_of_the_host_find_its_files_in_the_pod() -> None:
    """Below links.root, devices, processes and units are at their paths of the host, the kubelet at its usual one."""
    [daemon] = rendered_resources("DaemonSet", **PODS)
    pod = daemon["spec"]["template"]["spec"]
    host = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume}
    mounts = {each["mountPath"]: host.get(each["name"]) for each in pod["containers"][0]["volumeMounts"]}
    below = {path.removeprefix("/host"): at for path, at in mounts.items() if path.startswith("/host/")}
    assert below.pop(str(JobsSection().kubelet_socket.parent)) == PODS["podResources"]["directory"]
    assert {path for path, at in below.items() if path == at} >= {"/proc", "/sys", "/etc/systemd/system"}


def test_the_gate_can_run_in_the_pod() -> None:
    """With schedulerGate the pod has the script, its node's name, and a token that may list pods and nothing else."""
    [daemon] = rendered_resources("DaemonSet", **GATE)
    pod = daemon["spec"]["template"]["spec"]
    [agent] = pod["containers"]
    variables = {each["name"]: each for each in agent["env"]}
    assert variables["NODE_NAME"]["valueFrom"] == {"fieldRef": {"fieldPath": "spec.nodeName"}}
    folder, _, script = variables["GPUMON_PROBE__SCHEDULER_GATE"]["value"].rpartition("/")
    [mount] = [each["name"] for each in agent["volumeMounts"] if each["mountPath"] == folder]
    [volume] = [each["configMap"] for each in pod["volumes"] if each["name"] == mount]
    assert volume["defaultMode"] == 0o555
    [texts] = [
        each["data"] for each in rendered_resources("ConfigMap", **GATE) if each["metadata"]["name"] == volume["name"]
    ]
    assert texts[script] == (ROOT / "deploy" / "kubernetes" / "gpumon-gate.sh").read_text(encoding="utf-8")
    assert pod["automountServiceAccountToken"] is True
    [account], [role] = rendered_resources("ServiceAccount", **GATE), rendered_resources("ClusterRole", **GATE)
    [binding] = rendered_resources("ClusterRoleBinding", **GATE)
    assert pod["serviceAccountName"] == account["metadata"]["name"] == binding["subjects"][0]["name"]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert role["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]


def test_an_account_alone_gives_no_token() -> None:
    """It is for a security context constraint. SELinux options hold for both containers; variables reach the agent."""
    [daemon] = rendered_resources("DaemonSet", **ACCOUNT)
    pod = daemon["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["serviceAccountName"] == rendered_resources("ServiceAccount", **ACCOUNT)[0]["metadata"]["name"]
    assert pod["securityContext"] == {"seLinuxOptions": ACCOUNT["seLinuxOptions"]}
    assert ACCOUNT["extraEnv"][0] in pod["containers"][0]["env"]


@each_case("values", VALUES)
def test_the_agent_accepts_its_configuration_and_arguments(values: dict[str, Any], tmp_path: Path) -> None:
    """`gpumon config check` with the file and the variables of the pod; the parser with its arguments."""
    [daemon] = rendered_resources("DaemonSet", **values)
    [agent] = daemon["spec"]["template"]["spec"]["containers"]
    configs = [config for config in rendered_resources("ConfigMap", **values) if "gpumon.yml" in config["data"]]
    (tmp_path / "web.yml").write_text("{}\n")  # in the pod, it is mounted from a secret
    text = configs[0]["data"]["gpumon.yml"].replace("/etc/gpumon-web", str(tmp_path))
    (tmp_path / "gpumon.yml").write_text(text)
    variables = {variable["name"]: variable.get("value", "n1") for variable in agent["env"]}
    command = [sys.executable, "-m", "gpumon", "config", "check", f"--config.file={tmp_path / 'gpumon.yml'}"]
    ran = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=False, timeout=60)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    command_parser().parse_args(agent["args"])


def test_prometheus_gets_the_labels_that_the_rules_select() -> None:
    """The job of /metrics is that of the rules; the name of the pod, which an upgrade changes, is no label."""
    metrics, links = [monitor["spec"]["podMetricsEndpoints"][0] for monitor in rendered_resources("PodMonitor")]
    assert {"targetLabel": "job", "replacement": JOB} in metrics["relabelings"]
    assert any(rule["targetLabel"] == "instance" for rule in metrics["relabelings"] if "targetLabel" in rule)
    assert {"regex": "pod|container|endpoint", "action": "labeldrop"} in metrics["relabelings"]
    assert links["path"] == Page.LINKS.value
    assert links["relabelings"][-1]["replacement"] != JOB == links["metricRelabelings"][0]["replacement"]


def test_tls_is_used_by_probes_and_prometheus() -> None:
    """The web configuration is mounted, and each request uses https."""
    [daemon] = rendered_resources("DaemonSet", **TLS)
    pod = daemon["spec"]["template"]["spec"]
    [agent] = pod["containers"]
    assert {one["httpGet"]["scheme"] for name, one in agent.items() if name.endswith("Probe")} == {"HTTPS"}
    assert TLS["extraVolumeMounts"][0] in agent["volumeMounts"]
    assert TLS["extraVolumes"][0] in pod["volumes"]
    endpoints = [monitor["spec"]["podMetricsEndpoints"][0] for monitor in rendered_resources("PodMonitor", **TLS)]
    assert [one["scheme"] for one in endpoints] == ["https", "https"]
    assert all(one["tlsConfig"] == TLS["podMonitor"]["endpoint"]["tlsConfig"] for one in endpoints)


def test_chart_and_package_have_one_version_and_port() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    assert (chart["version"], chart["appVersion"], values["port"]) == (__version__, __version__, DEFAULT_PORT)
