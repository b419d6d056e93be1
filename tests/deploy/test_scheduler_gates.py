"""The gates for Slurm and Kubernetes decide from the answers of those programs."""

from __future__ import annotations

import contextlib
import json
import ssl
import subprocess
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from certificates import Authority
from each_case import each_case
from servers import HttpRequest, http_server

ROOT = Path(__file__).parents[2] / "deploy"
SLURM, KUBERNETES = (ROOT / folder / "gpumon-gate.sh" for folder in ("slurm", "kubernetes"))


class StandInCommands:
    """Commands that print what a test sets, first in the search path."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def answer(self, command: str, text: str, code: int = 0) -> None:
        (self.folder / f"{command}.txt").write_text(text)
        path = self.folder / command
        path.write_text(f'#!/bin/sh\necho "$@" >> {path}.asked\ncat {path}.txt\nexit {code}\n')
        path.chmod(0o755)

    def recorded_arguments(self, command: str) -> str:
        return (self.folder / f"{command}.asked").read_text()

    def run(self, gate: Path) -> tuple[int, str]:
        """Return exit code and last line."""
        environment = {"PATH": f"{self.folder}:/usr/bin:/bin", "SLURMD_NODENAME": "n17", "NODE_NAME": "n17"}
        ran = subprocess.run([gate], env=environment, capture_output=True, text=True, timeout=60, check=False)
        return ran.returncode, ran.stdout.splitlines()[-1]


@pytest.fixture
def host(tmp_path: Path) -> StandInCommands:
    return StandInCommands(tmp_path)


@pytest.mark.parametrize(
    ("state", "jobs", "code", "words"),
    [
        ("IDLE", "", 0, "node n17 is IDLE, and without a job"),
        ("IDLE+DRAIN", "", 0, "IDLE+DRAIN"),
        ("MIXED", "4711\n", 1, "node n17 is MIXED"),
        ("ALLOCATED", "", 1, "ALLOCATED"),
        ("IDLE+PLANNED", "", 1, "PLANNED"),
        ("IDLE+COMPLETING", "", 1, "COMPLETING"),
        ("IDLE+MAINT+RESERVED", "", 1, "MAINT"),
        ("IDLE*", "", 1, "IDLE*"),
        ("IDLE+NOT_RESPONDING", "", 1, "NOT_RESPONDING"),
        ("IDLE", "4711\n4712\n", 1, "jobs on node n17: 4711 4712"),
        ("IDLE", "squeue: warning: a parameter is deprecated\n", 0, "node n17 is IDLE, and without a job"),
        ("IDLE", "squeue: warning: a parameter is deprecated\n4711\n", 1, "jobs on node n17: 4711"),
    ],
)
def test_an_idle_node_is_free_in_slurm(host: StandInCommands, state: str, jobs: str, code: int, words: str) -> None:
    """A drained node is free, because no job starts there; a planned or reserved node is not."""
    host.answer("scontrol", f"NodeName=n17 Arch=x86_64 CPUAlloc=0 State={state} ThreadsPerCore=1\n")
    host.answer("squeue", jobs)
    found, line = host.run(SLURM)
    assert (found, words in line) == (code, True)
    assert "show node n17" in host.recorded_arguments("scontrol")


def test_a_node_is_not_free_if_slurm_does_not_answer(host: StandInCommands) -> None:
    """The state of the node and the list of its jobs are both required."""
    host.answer("scontrol", "slurm_load_node error: Unable to contact slurm controller\n", code=1)
    assert host.run(SLURM)[0] == 2
    host.answer("scontrol", "NodeName=n17 State=IDLE ThreadsPerCore=1\n")
    host.answer("squeue", "slurm_load_jobs error: Unable to contact slurm controller\n", code=1)
    assert host.run(SLURM) == (
        2,
        "Slurm does not list the jobs on node n17: slurm_load_jobs error: Unable to contact slurm controller",
    )


@pytest.mark.slow
def test_a_command_of_slurm_that_ignores_sigterm_is_killed(host: StandInCommands) -> None:
    """The gate then answers that Slurm does not, as the health check and the prolog go on without an answer."""
    (host.folder / "scontrol").write_text("#!/bin/sh\ntrap '' TERM\ncat <>/dev/ptmx\n")
    (host.folder / "scontrol").chmod(0o755)
    assert host.run(SLURM) == (2, "Slurm does not report the state of node n17: ")


@pytest.mark.parametrize(
    ("pods", "code", "words"),
    [
        ("kube-system/dns \nmonitoring/gpumon \n", 0, "no pod on node n17 has a GPU"),
        ("", 2, "no pod at all on node n17: is that its name? Set NODE_NAME (spec.nodeName)"),
        (
            "Warning: v1/Endpoints is deprecated\n",
            2,
            "no pod at all on node n17: is that its name? Set NODE_NAME (spec.nodeName)",
        ),
        ("kube-system/dns 0\n", 0, "no pod on node n17 has a GPU"),
        ("Warning: v1/Endpoints is deprecated\nkube-system/dns \n", 0, "no pod on node n17 has a GPU"),
        ("kube-system/dns \nml/train-0 8\nml/notebook 1 1\n", 1, "pods with GPUs on node n17: ml/train-0, ml/notebook"),
    ],
)
def test_a_node_without_gpu_pods_is_free_in_kubernetes(host: StandInCommands, pods: str, code: int, words: str) -> None:
    host.answer("kubectl", pods)
    assert host.run(KUBERNETES) == (code, words)
    asked = host.recorded_arguments("kubectl")
    assert "spec.nodeName=n17,status.phase!=Succeeded,status.phase!=Failed" in asked
    assert r"resources.limits.nvidia\.com/gpu" in asked


def test_a_node_is_not_free_if_the_api_server_does_not_answer(host: StandInCommands) -> None:
    """The line contains the error of kubectl."""
    host.answer("kubectl", "Unable to connect to the server: i/o timeout\n", code=1)
    code, line = host.run(KUBERNETES)
    assert (code, line.endswith("Unable to connect to the server: i/o timeout")) == (2, True)


@contextlib.contextmanager
def api_server(folder: Path, pods: list[Any], token: str) -> Iterator[tuple[dict[str, str], list[str]]]:
    """Run an API server with TLS that lists the pods to this token. Yield a pod's environment, and the paths asked."""
    authority, asked = Authority.create(folder / "account"), []
    authority.sign("server", "IP:127.0.0.1")
    (folder / "account" / "token").write_text(f"{token}\n")

    def answer(request: HttpRequest) -> tuple[int, bytes]:
        asked.append(urllib.parse.unquote(request.path))
        status = 200 if request.headers["Authorization"] == "Bearer right" else 403
        return status, json.dumps({"items": pods}).encode()

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "account" / "server.crt", folder / "account" / "server.key")
    with http_server(answer, tls=context) as port:
        place = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(port)}
        own = {"ACCOUNT": str(folder / "account"), "NODE_NAME": "n17", "HTTPS_PROXY": "http://127.0.0.1:9"}
        yield place | own, asked


def pod(name: str, **limits: str) -> Any:
    """Return a pod as the API server lists it. `limits`: of its only container, with gpu for nvidia.com/gpu."""
    named = {"nvidia.com/gpu" if key == "gpu" else key: value for key, value in limits.items()}
    container = {"resources": {"limits": named} if named else {}}
    return {"metadata": {"namespace": "ml", "name": name}, "spec": {"containers": [container]}}


@each_case(
    "pods, token, code, words",
    [
        ([pod("dns"), pod("train", gpu="8", cpu="4")], "right", 1, "pods with GPUs on node n17: ml/train"),
        ([pod("dns", memory="1Gi")], "right", 0, "no pod on node n17 has a GPU"),
        ([], "right", 2, "no pod at all on node n17: is that its name? Set NODE_NAME (spec.nodeName)"),
        ([pod("dns")], "wrong", 2, "the API server does not list the pods on node n17: HTTP Error 403: Forbidden"),
    ],
)
def test_the_gate_asks_the_api_server_itself_without_kubectl(
    pods: list[Any], token: str, code: int, words: str, tmp_path: Path
) -> None:
    """In the container of the agent it has python3, the token and the certificate of the service account."""
    with api_server(tmp_path, pods, token) as (environment, asked):
        ran = subprocess.run([KUBERNETES], env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stdout.splitlines()[-1]) == (code, words)
    assert asked == ["/api/v1/pods?fieldSelector=spec.nodeName=n17,status.phase!=Succeeded,status.phase!=Failed"]
