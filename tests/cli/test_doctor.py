"""`gpumon doctor`: its answers about hosts of many kinds, and the command on this host."""

from __future__ import annotations

import copy
import json
import os
import re
import shlex
import shutil
import socket
import sqlite3
import stat
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from agents import AgentProcess
from each_case import each_case
from job_reports import POD, SLURM, claim, owners
from reduced_reports import healthy
from sample_events import error_event

from gpumon import __version__
from gpumon.cli.config_arguments import web_problem
from gpumon.cli.doctor import CHECKS, diagnose, document, table
from gpumon.cli.readiness.hardware_checks import runs_on
from gpumon.cli.readiness.host_facts import HostFacts, run_bounded, torch_report
from gpumon.cli.support_bundle import fill, new_bundle
from gpumon.config.load import load
from gpumon.config.model import Configuration
from gpumon.config.redact import redact_text
from gpumon.model.allocation import Owner
from gpumon.outputs.responses.jobs import JobsResponse
from gpumon.store import error_events
from gpumon.store.store import Store

TORCH = {
    "torch": "2.9.1+cu128",
    "cuda": "12.8",
    "gpus": 8,
    "gpu_error": None,
    "architectures": "sm_80 sm_90 sm_100 compute_120",
    "nccl": "2.27.5",
    "nccl_file": "/opt/torch/lib/libnccl.so.2",
    "packages": {"nvidia-nccl-cu12": "2.27.5"},
}
UNIT = {
    "ActiveState": "active",
    "User": "gpumon",
    "SupplementaryGroups": "",
    "LimitMEMLOCK": "infinity",
    "Delegate": "yes",
    "AmbientCapabilities": "cap_syslog",
}


@cache
def reading() -> Any:
    """Return the report of a simulated node, read as on a host with these GPUs."""
    command = [sys.executable, "-m", "gpumon", "once", "--simulate", "h100x8", "--json"]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)


def facts(node: dict[str, Any] | None = None, gpu: dict[str, Any] | None = None, **changes: Any) -> HostFacts:
    """Return the facts of a healthy host with eight H100. `node` and `gpu` change the report, of the node and GPU 3."""
    report = copy.deepcopy(reading())
    report["node"] |= {"simulated": 0, "kernel_log_up": 1, "store_up": 1} | (node or {})
    report["gpus"][3] |= gpu or {}
    healthy: dict[str, Any] = {"python": "/opt/torch/bin/python", "torch": TORCH, "unit": UNIT, "kernel_log": True}
    return HostFacts(**healthy | {"configuration": load(None, {}, {}), "report": report} | changes)


def size(total: float, free: float) -> Any:
    return SimpleNamespace(f_blocks=int(total * 1024), f_bavail=int(free * 1024), f_frsize=1 << 20)


DRIVER = {"driver": {"driver": "560.35.05", "nvml": "12.560.35.05", "cuda": "12.6"}}
OLD_DRIVER = {"driver": {"driver": "520.61.05", "nvml": "11.520.61.05", "cuda": "11.8"}}
DOWN = {"nvml_up": 0, "gpus_visible": None, "notices": [{"subject": "driver", "message": "DriverNotLoaded."}]}
FULL = {"store_up": 0, "notices": [{"subject": "store", "message": "disk full"}]}
STORE = load(None, {}, {}).store.path
NEWER = {"store_up": 0, "notices": [{"subject": "store", "message": f"{STORE}: a newer gpumon has written it."}]}
UNINITIALIZED = TORCH | {"gpus": 0, "gpu_error": "Error 802: system not yet initialized"}
TWO_NCCLS = TORCH | {"packages": {"nvidia-nccl-cu12": "2.27.5", "nvidia-nccl-cu13": "2.28.9"}}
NO_GPU = {"nvml_up": None, "gpus_visible": None, "gpus_on_pci_bus": {"nvidia": 0, "none": 0}}
STOPPED = {"agent": "Connection refused"}


LOOPBACK = ("127.0.0.1:17400",)


def listening(address: str) -> Configuration:
    return load(None, {"--web.listen-address": address}, {})


@each_case(
    ("name", "host", "level", "words"),
    [
        ("agent", facts(errors=STOPPED, unit=UNIT | {"ActiveState": "inactive"}), "fail", "systemctl start gpumon"),
        (
            "agent",
            facts(errors=STOPPED, unit=UNIT | {"ActiveState": "failed"}),
            "fail",
            "systemctl reset-failed gpumon gpumon.socket; sudo systemctl start gpumon",
        ),
        (
            "agent",
            facts(
                errors=STOPPED | {"configuration": "\ngpumon.yml:2: wrong"}, unit=UNIT | {"ActiveState": "activating"}
            ),
            "fail",
            "It starts within seconds after its configuration is valid.",
        ),
        ("agent", facts(errors=STOPPED, unit={}), "fail", "There is no unit gpumon.service."),
        ("agent", facts({"build": {"version": "0.0.9"}}), "warn", "systemctl restart gpumon"),
        ("port", facts(errors=STOPPED | {"port": "Address already in use"}), "fail", "ss -ltnp 'sport = :17400'"),
        (
            "agent",
            facts(errors=STOPPED | {"unit": "no bus"}, unit={}),
            "unknown",
            "does not report gpumon.service: no bus",
        ),
        ("port", facts(listeners=("10.0.0.17:17400",)), "ok", "systemd listens on 10.0.0.17:17400."),
        ("port", facts(listeners=("[::]:17400",), configuration=listening(":17400")), "ok", "listens on [::]:17400."),
        ("port", facts(listeners=LOOPBACK, configuration=listening("localhost:17400")), "ok", "systemd listens"),
        ("port", facts(listeners=LOOPBACK, configuration=listening(":17500")), "warn", "systemctl edit gpumon.socket"),
        ("port", facts(errors={"port": "Address already in use"}), "ok", "The agent listens on 127.0.0.1:17400."),
        ("port", facts(), "warn", "systemctl restart gpumon"),
        ("store", facts(FULL), "fail", "disk full"),
        ("store", facts(NEWER), "fail", f"{STORE}: a newer gpumon has written it."),
        ("store", facts(NEWER), "fail", "apt-get install --only-upgrade gpumon"),
        ("store", facts(errors=STOPPED | {"store": "this user may not read it"}), "unknown", "sudo gpumon doctor"),
        ("kernel_log", facts({"kernel_log_up": 0}), "fail", "AmbientCapabilities=CAP_SYSLOG"),
        ("kernel_log", facts({"kernel_log_up": None}), "ok", "can be read"),
        ("kernel_log", facts({"kernel_log_up": None}, unit={}, kernel_log=False), "unknown", "sudo gpumon doctor"),
        ("kernel_log", facts(kernel_log=None), "absent", "There is no /dev/kmsg."),
        ("cgroup", facts(unit=UNIT | {"Delegate": "no"}), "warn", "Delegate=yes"),
        ("cgroup", facts(cgroup2=False), "warn", "systemd.unified_cgroup_hierarchy=1  # or: /etc/default/grub"),
        ("cgroup", facts(unit={}, errors={"unit": "no bus"}), "unknown", "sudo gpumon doctor"),
        ("memlock", facts(unit=UNIT | {"LimitMEMLOCK": "8388608"}), "warn", "only 8192 KiB"),
        ("memlock", facts(unit=UNIT | {"LimitMEMLOCK": "18446744073709551615"}), "ok", "without limit"),
        ("memlock", facts(unit={}, memlock=65536), "warn", "This shell may lock only 64 KiB"),
        ("scheduler", facts(schedulers=("slurmd",)), "warn", "probe.scheduler_gate"),
        ("scheduler", facts(schedulers=("slurmd", "kubelet")), "warn", "slurmd and kubelet are on this host"),
        ("scheduler", facts({"simulated": 1.0}, schedulers=("slurmd",)), "ok", "a simulated node needs no gate"),
        ("scheduler", facts(schedulers=None), "unknown", "sudo"),
        ("driver", facts(DOWN), "fail", "The driver cannot be used: DriverNotLoaded."),
        ("driver", facts(DOWN, errors={"reading": "no GPU could be read within 60 s"}), "fail", "within 60 s"),
        ("driver", facts({"gpus_visible": 7}), "fail", "lists 7 of the 8 GPUs"),
        ("driver", facts({"gpus_on_pci_bus": {"nvidia": 7, "none": 1}, "gpus_visible": 7}), "fail", "lspci"),
        ("driver", facts(NO_GPU), "warn", "No NVIDIA GPU is on the PCI bus."),
        ("driver", facts({"releases": [{}]}), "absent", "released"),
        ("persistence", facts(gpu={"persistence_mode": 0}), "warn", "off for GPU 3"),
        ("fabric_manager", facts(fabric_manager="Fabric Manager version is : 570.1.1"), "fail", "570.1.1 and the"),
        ("fabric_manager", facts(fabric_manager="Fabric Manager version is : 580.173.02"), "ok", "version 580.173.02"),
        ("fabric_manager", facts({"fabric_manager_up": 1}), "ok", "It runs, version unknown."),
        ("fabric_manager", facts({"fabric_manager_up": 0}), "fail", "systemctl enable --now nvidia-fabricmanager"),
        ("fabric_manager", facts({"fabric_manager_up": None}, {"fabric": {"state": 2}}), "fail", "GPU 3 waits"),
        ("fabric_manager", facts({"fabric_manager_up": None}), "absent", "no GPU waits"),
        ("shared_memory", facts(shared_memory=size(0.0625, 0.05)), "warn", "docker run --shm-size"),
        ("shared_memory", facts(shared_memory=size(8, 0.1)), "warn", "ls -lhS /dev/shm"),
        ("shared_memory", facts(shared_memory=None), "fail", "There is no /dev/shm"),
        ("clock", facts(clock_error=16.0), "warn", "timedatectl set-ntp true"),
        ("clock", facts(clock_error=None), "unknown", "container"),
        ("torch", facts(torch={}, errors={"torch": "no answer within 60 s"}), "fail", "no answer within 60 s"),
        ("torch", facts(torch={"import_error": "ModuleNotFoundError: torch"}), "warn", "-m pip install 'torch>=2.6'"),
        ("torch", facts(torch=TORCH | {"torch": "2.5.1"}), "warn", "PyTorch 2.5.1"),
        ("cuda", facts(), "ok", "CUDA 12.8 of PyTorch runs on driver 580.173.02"),
        ("cuda", facts(DRIVER), "ok", "by minor version compatibility"),
        ("cuda", facts(OLD_DRIVER, torch=TORCH | {"gpus": 0}), "fail", "needs driver 525 or later, this is 520.61.05"),
        ("cuda", facts(OLD_DRIVER), "ok", "forward compatibility package"),
        ("cuda", facts(torch=TORCH | {"cuda": None}), "warn", "/whl/cu130"),
        ("cuda", facts(gpu={"compute_capability": "7.5"}), "fail", "compute capability 7.5"),
        ("cuda", facts({"simulated": 1}), "absent", "simulated"),
        ("torch_gpus", facts(torch=UNINITIALIZED), "fail", "nvidia-fabricmanager"),
        ("torch_gpus", facts(torch=TORCH | {"gpus": 7}), "fail", "lists 7 of 8 GPUs"),
        ("torch_gpus", facts(torch=TORCH | {"gpus": 1}, visible_devices="0"), "warn", "unset CUDA_VISIBLE_DEVICES"),
        ("torch_gpus", facts(gpu={"mig_mode": 1}, torch=TORCH | {"gpus": 1}), "ok", "lists 1 of 8"),
        ("visible_devices", facts(visible_devices=""), "warn", "unset CUDA_VISIBLE_DEVICES"),
        ("visible_devices", facts(agent_devices="0"), "warn", "'0' for the agent"),
        ("nccl", facts(torch=TORCH | {"nccl": "2.18.1"}), "warn", "NCCL 2.18.1 is loaded from /opt/torch"),
        ("nccl", facts(torch=TWO_NCCLS), "warn", "uninstall -y nvidia-nccl-cu13"),
        ("nccl", facts(torch=TORCH | {"packages": {}}), "ok", "2.27.5"),
        ("pynvml", facts(pynvml=True), "warn", "pip uninstall -y pynvml"),
        ("pynvml", facts(torch=TORCH | {"packages": {"pynvml": "11.5.0"}}), "warn", "/opt/torch/bin/python"),
    ],
)
def test_each_problem_has_its_answer(name: str, host: HostFacts, level: str, words: str) -> None:
    """Each check reports its level, what is wrong, and a remedy unless nothing is to be done."""
    ((check, answer),) = [row for row in diagnose(host) if row[0].name == name]
    assert answer.word == level, answer
    assert words in f"{answer.detail} {answer.remedy}", (check.name, answer)
    assert bool(answer.remedy) == (level not in {"ok", "absent"}), answer


def test_a_healthy_host_is_ok() -> None:
    """Nothing warns on a host with all GPUs, ports and services."""
    answers = diagnose(facts(shared_memory=size(100, 90), listeners=LOOPBACK))
    assert {check.name: answer for check, answer in answers if answer.word not in {"ok", "absent"}} == {}
    assert document(answers)["exit_code"] == 0


def test_ports_that_are_down_are_named() -> None:
    host = facts()
    host.report["ports"][2]["port_up"] = 0
    (answer,) = [answer for check, answer in diagnose(host) if check.name == "infiniband"]
    assert "Down: mlx5_2/1" in answer.detail


@each_case(
    ("architectures", "capability", "expected"),
    [
        ("sm_80", "8.9", True),
        ("sm_86", "8.0", False),
        ("sm_90", "10.0", False),
        ("compute_90", "12.0", True),
        ("sm_90a", "9.0", True),
        ("sm_100", "10.3", True),
        ("", "9.0", False),
    ],
)
def test_which_code_runs_on_a_gpu(architectures: str, capability: str, *, expected: bool) -> None:
    """Compiled code runs on its own major compute capability, PTX on every later one too."""
    assert runs_on(architectures, capability) is expected


def test_remedies_are_commands_of_a_shell() -> None:
    """Each remedy is parsed by bash."""
    hosts = [facts(), facts(DOWN, unit={}, errors=STOPPED), facts(OLD_DRIVER, torch=TORCH | {"gpus": 0}, cgroup2=False)]
    remedies = {answer.remedy for host in hosts for _, answer in diagnose(host) if answer.remedy}
    assert remedies
    for remedy in remedies:
        subprocess.run(["bash", "-n", "-c", remedy], check=True)
        assert shlex.split(remedy, comments=True)


def test_a_failed_check_does_not_end_the_others() -> None:
    """A report of another version lacks what a check reads: that check is unknown, and the others answer."""
    host = facts()
    del host.report["node"]["fabric_manager_up"]
    words = {check.name: answer.word for check, answer in diagnose(host)}
    assert words["fabric_manager"] == "unknown"
    assert words["driver"] == "ok"


def test_a_command_that_hangs_is_ended() -> None:
    """The child is killed at its deadline, and the error names the deadline."""
    assert run_bounded(["sleep", "600"], 0.01).error == "no answer within 0.01 s"
    assert "No such file" in run_bounded(["/no/such/program"], 5).error
    assert run_bounded(["sh", "-c", "echo why >&2; exit 3"], 5).error == "exit code 3: why"


def run(*arguments: str, errors: str = "") -> tuple[int, str]:
    """Run the command, and return its exit code and output. `errors`: the start of what it prints to standard error."""
    command = [sys.executable, "-m", "gpumon", "doctor", *arguments]
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    assert ended.stderr.startswith(errors)
    assert bool(ended.stderr) == bool(errors)
    return ended.returncode, ended.stdout


def unpack(path: Path) -> dict[str, str]:
    """Return the members of an archive by name."""
    with tarfile.open(path) as archive:
        files = {member.name.partition("/")[2]: archive.extractfile(member) for member in archive.getmembers()}
        return {name: file.read().decode() for name, file in files.items() if file is not None}


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make this process find no agent but one with its store in the returned folder."""
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(tmp_path))
    monkeypatch.setenv("GPUMON_STORE__PATH", str(tmp_path / "gpumon.db"))
    monkeypatch.setenv("GPUMON_PROBE__PYTHON", str(tmp_path / "no-python"))
    return tmp_path


def test_a_host_without_agent_and_torch(alone: Path) -> None:
    """The agent is stopped, its port is taken, its store is damaged and there is no interpreter: four failures."""
    (alone / "gpumon.db.lock").write_text("gpumon 1\n")
    (alone / "gpumon.db").write_bytes(b"no database" * 99)
    with socket.create_server(("127.0.0.1", 0)) as squatter:
        port = squatter.getsockname()[1]
        code, shown = run("--json", "--simulate", "h100x8", "--web.listen-address", f"127.0.0.1:{port}")
    answers = {each["name"]: each for each in json.loads(shown)["checks"]}
    assert code == json.loads(shown)["exit_code"] == 2
    failed = [name for name, answer in answers.items() if answer["level"] == "fail"]
    assert failed == ["agent", "port", "store", "torch"]
    assert "it is damaged" in answers["store"]["detail"]
    assert (alone / "gpumon.db").read_bytes() == b"no database" * 99
    assert list(answers) == [check.name for check in CHECKS]


def test_an_invalid_configuration_is_an_answer(alone: Path) -> None:
    """The mistake is named, and the other checks use the defaults."""
    (alone / "gpumon.yml").write_text("notifications: {webhook_token: s3cret}")
    code, shown = run("--config.file", str(alone / "gpumon.yml"))
    assert code == 2
    assert shown.startswith("fail    configuration")
    assert "webhook_token: unknown key; did you mean webhook_token_file?" in " ".join(shown.split())
    assert "s3cret" not in shown


@each_case(
    ("content", "words"),
    [
        (None, "cannot be read: [Errno 2] No such file or directory"),
        ("tls_server_config: {cert_file: no.crt, key_file: no.key}", "TLS cannot use the files of"),
        ("basic_auth_users: {kim: s3cret}", "is not a hash of bcrypt"),
    ],
)
def test_a_web_configuration_that_the_agent_refuses_is_an_answer(content: str | None, words: str) -> None:
    """It is the configuration's, for `gpumon config check` too; the other checks use the configured settings."""
    with tempfile.TemporaryDirectory() as folder:
        web = Path(folder) / "web.yml"
        if content is not None:
            web.write_text(content)
        command = [sys.executable, "-m", "gpumon", "config", "check", f"--web.config.file={web}"]
        ended = subprocess.run(command, check=False, capture_output=True, text=True)
        wrong = web_problem(load(None, {"--web.config.file": str(web)}, {}))
    assert (ended.returncode, ended.stdout) == (2, "")
    assert words in ended.stderr
    assert words in wrong
    answer = CHECKS[0].answer(facts(errors={"web": wrong}))
    assert (answer.word, answer.remedy) == ("fail", "gpumon config check")
    assert "defaults" not in answer.detail


def test_a_web_configuration_that_this_user_may_not_read_is_unknown() -> None:
    """The agent may read it."""
    answer = CHECKS[0].answer(facts(errors={"web": "web.yml cannot be read: [Errno 13] Permission denied"}))
    assert (answer.word, answer.remedy) == ("unknown", "sudo gpumon doctor")


@pytest.mark.slow
def test_a_running_agent_is_asked(alone: Path) -> None:
    """The answers are those of the agent's own report, and its store is not opened."""
    agent = AgentProcess(alone).start()
    try:
        path = alone / "support.tar.gz"
        arguments = (f"--web.listen-address=127.0.0.1:{agent.port}", f"--bundle={path}")
        code, shown = run(*arguments, errors=f"gpumon: wrote {path}.")
    finally:
        agent.stop()
    assert f"ok      agent            It answers, version {__version__}." in shown
    assert "ok      store            The agent writes it." in shown
    assert "lists 8 GPUs" in shown
    assert code == 2  # there is no interpreter for the probe
    members = unpack(path)
    assert json.loads(members["events.json"])["complete"]
    token = (alone / "token").read_text().strip()
    assert [name for name, text in members.items() if token in text] == []


def test_a_store_is_examined_without_a_change(alone: Path) -> None:
    """A store of a newer version is named, and left as it is."""
    Store.open(alone / "gpumon.db").close()
    with sqlite3.connect(alone / "gpumon.db") as connection:
        connection.execute("INSERT INTO migrations VALUES (9999, 0)")
    connection.close()
    before = (alone / "gpumon.db").read_bytes()
    _, shown = run("--simulate", "h100x8")
    assert "a newer gpumon has written it" in " ".join(shown.split())
    assert (alone / "gpumon.db").read_bytes() == before


SYSTEMCTL = """\
#!/bin/sh
cat <<EOF
LoadState=loaded
ActiveState={state}
MainPID={pid}
User=
LimitMEMLOCK=infinity
Delegate=yes
AmbientCapabilities=cap_syslog
Environment=GPUMON_NOTIFICATIONS__WEBHOOK_URL=https://h/s3cret "CUDA_VISIBLE_DEVICES=0,1"
EnvironmentFiles={folder}/default (ignore_errors=yes)
StateDirectory=gpumon

ActiveState=active
Listen=127.0.0.1:17400 (Stream)
EOF
"""


@pytest.mark.parametrize("running", [False, True])
def test_the_environment_of_the_agent_counts(alone: Path, monkeypatch: pytest.MonkeyPatch, *, running: bool) -> None:
    """The configuration is that of the running agent, else of its unit; secrets of files named there are redacted."""
    (alone / "hook").write_text("s3cret-hook\n")
    variable = f"GPUMON_NOTIFICATIONS__WEBHOOK_TOKEN_FILE={alone}/hook"
    (alone / "default").write_text("" if running else f'# see docs\n{variable}\nGPUMON_METRICS__DETAILED="true"\n')
    given = {"PATH": "/usr/bin:/bin"} | (dict([variable.split("=")]) if running else {})
    with subprocess.Popen(["sleep", "600"], env=given) as agent:
        try:
            pid = agent.pid if running else 0
            text = SYSTEMCTL.format(state="active" if running else "inactive", pid=pid, folder=alone)
            (alone / "systemctl").write_text(text)
            (alone / "systemctl").chmod(0o755)
            monkeypatch.setenv("PATH", f"{alone}:/usr/bin:/bin")
            path = alone / "support.tar.gz"
            _, shown = run("--simulate", "h100x8", "--bundle", str(path), errors=f"gpumon: wrote {path}.")
        finally:
            agent.kill()
    written = unpack(path)["configuration.yml"]
    assert f"webhook_token_file: {alone}/hook  # GPUMON_NOTIFICATIONS__WEBHOOK_TOKEN_FILE" in written
    assert "s3cret" not in str(unpack(path))
    assert ("detailed: true  # GPUMON_METRICS__DETAILED" in written) is not running
    assert ("CUDA_VISIBLE_DEVICES is '0,1' for the agent" in " ".join(shown.split())) is not running


def test_the_text_of_an_invalid_configuration_is_archived(alone: Path) -> None:
    """Without its secrets, which the answers do not quote either."""
    text = "notifications:\n  webhook_url: hooks.example.com/s3cret\nbogus: 1"
    (alone / "gpumon.yml").write_text(text)
    path = alone / "support.tar.gz"
    run("--config.file", str(alone / "gpumon.yml"), "--bundle", str(path), errors=f"gpumon: wrote {path}.")
    members = unpack(path)
    assert members["configuration.yml"] == text.replace("hooks.example.com/s3cret", "<redacted>")
    assert "bogus: unknown key" in " ".join(members["doctor.txt"].split())
    assert [name for name, text in members.items() if "s3cret" in text] == []


SECRETS = """\
notifications:
  alertmanagers: ["http://am-1:9093/s3cret-am-path", "https://am-2/s3cret-am-path"]
  alertmanager_token_file: {folder}/am.token
  webhook_url: "https://events.example.com/hooks/s3cret-path/x?token=s3cret-query"
  webhook_token_file: {folder}/hook.token
  apprise_urls:
    - {folder}/slack.url
    - slack://s3cret-a/s3cret-b/s3cret-c
    - "mailtos://kim:s3cret-p@smtp.example.com?to=s3cret@example.com"
web: {{token_file: "{folder}/web.token", read_token_file: "{folder}/read.token"}}
probe:
  nccl_environment: {{NCCL_API_KEY: s3cret-nccl}}
  scheduler_gate: [/bin/gate, --token, s3cret-gate, "--password=s3cret-gate-2", "Authorization: Bearer s3cret-gate-3"]
"""
SECRET_FILES = ("am.token", "hook.token", "slack.url", "web.token", "read.token")


def test_no_secret_is_in_the_archive(alone: Path) -> None:
    """With every receiver configured, no secret of the file or of a file that it names is in any member."""
    (alone / "gpumon.yml").write_text(SECRETS.format(folder=alone))
    for name in SECRET_FILES:
        (alone / name).write_text(f"https://hooks.example.com/s3cret/{name}\n" if "url" in name else f"s3cret-{name}\n")
    path = alone / "support.tar.gz"
    arguments = ["--config.file", str(alone / "gpumon.yml"), "--simulate", "h100x8", "--bundle", str(path)]
    code, shown = run(*arguments, errors=f"gpumon: wrote {path}.")
    members = unpack(path)
    assert code == 2
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert members["doctor.txt"] == shown.rstrip("\n")
    assert f"[{alone}/slack.url, 'slack://<redacted>', 'mailtos://<redacted>']" in members["configuration.yml"]
    assert "https://events.example.com/<redacted>" in members["configuration.yml"]
    assert len(json.loads(members["report.json"])["gpus"]) == 8
    assert "NVIDIA H100 80GB HBM3" in members["gpus.txt"]
    assert json.loads(members["versions.json"])["gpumon"] == __version__
    assert {"journal.txt", "events.json", "doctor.json"} <= members.keys()
    assert [name for name, text in members.items() if "s3cret" in text] == []


def test_an_archive_is_never_overwritten(alone: Path) -> None:
    """An existing file or link is left as it is, and the exit code is unknown, before the driver is read."""
    path, target = alone / "support.tar.gz", alone / "target"
    path.symlink_to(target)
    assert run("--bundle", str(path), errors=f"gpumon: cannot create {path}: File exists.")[0] == 3
    assert not target.exists()
    assert run("--bundle", str(alone / "no/folder"), errors="gpumon: cannot create")[0] == 3


def test_a_failed_archive_is_deleted(alone: Path) -> None:
    """The disk is full: the exit code is unknown, and the next command can create the file."""
    path = alone / "support.tar.gz"
    # 4 KiB are enough for the page that the agent shares with its sampler.
    command = f"ulimit -f 4; trap '' XFSZ; exec {sys.executable} -m gpumon doctor --simulate h100x8 --bundle {path}"
    ended = subprocess.run(["bash", "-c", command], check=False, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (3, f"gpumon: cannot create {path}: File too large. Name a new file.\n")
    assert not path.exists()


def test_a_secret_in_a_reading_is_redacted(tmp_path: Path) -> None:
    """Texts of other programs may contain one: JSON remains valid, and keeps its other words."""
    message = "the gate has failed: \"http://u:s3cret@s/?token=s3cret\", password: 's3cret'"
    host = facts({"notices": [{"subject": "probe", "message": message}]}, torch={"import_error": message})
    with new_bundle(tmp_path / "x.tar.gz") as archive:
        fill(archive, replace(host, errors=STOPPED), {})
    members = unpack(tmp_path / "x.tar.gz")
    assert [name for name, text in members.items() if "s3cret" in text] == []
    shown = json.loads(members["report.json"])
    assert shown["node"]["notices"][0]["message"].startswith('the gate has failed: "http://u:<redacted>@s/?')
    assert shown["gpus"] == json.loads(json.dumps(host.report["gpus"]))
    assert json.loads(members["versions.json"])["torch"]["import_error"].startswith("the gate has failed")


def test_no_name_of_an_owner_is_in_the_archive(tmp_path: Path) -> None:
    """Nor of a pod, a unit or a partition, which may name a person: a vendor needs no more than the number of a job."""
    unit, job = Owner(systemd_unit="jupyter-ann.service"), replace(SLURM, slurm_partition="ann-lab")
    named = claim(Owner(slurm_job_id="train-ann"), "GPU-2")
    jobs = owners(healthy(), mapped=(claim(unit, "GPU-0"), claim(POD, "GPU-1"), claim(job, "GPU-2"), named))
    message = 'By unit/jupyter-ann.service, "pod/ml/train-0", device=job/unit/jupyter-ann.service.'
    host = facts({"notices": [{"subject": "x", "message": message}]})
    host = replace(host, report={**host.report, "jobs": JobsResponse.from_report(jobs, everything=True).document()})
    with new_bundle(tmp_path / "x.tar.gz") as archive:
        fill(archive, replace(host, errors=STOPPED), {})
    members = unpack(tmp_path / "x.tar.gz")
    assert not [name for name, text in members.items() if re.search("jupyter|train-|ann-lab|alice|physics", text)]
    shown = json.loads(members["report.json"])
    assert [each["id"] for each in shown["jobs"]["jobs"]] == [
        "unit/<redacted>",
        "pod/<redacted>",
        "slurm/4711",
        "slurm/<redacted>",
    ]
    assert shown["node"]["notices"][0]["message"] == (
        'By unit/<redacted>, "pod/<redacted>", device=job/unit/<redacted>.'
    )


def test_a_value_of_a_secret_key_of_a_reading_is_redacted(tmp_path: Path) -> None:
    """The keys of JSON show it, as in the configuration; no other value of the report changes."""
    environment = {"NCCL_TOKEN_X": "s3cret", "NCCL_DEBUG": "INFO"}
    host = facts({}, torch={"environment": environment})
    with new_bundle(tmp_path / "x.tar.gz") as archive:
        fill(archive, replace(host, errors=STOPPED), {})
    members = unpack(tmp_path / "x.tar.gz")
    versions = json.loads(members["versions.json"])
    assert versions["torch"]["environment"] == environment | {"NCCL_TOKEN_X": "<redacted>"}
    assert any(re.fullmatch(r"pydantic \d[\d.]+", package) for package in versions["packages"])
    assert json.loads(members["report.json"]) == json.loads(json.dumps(host.report))


def test_a_configuration_file_that_cannot_be_read_is_a_problem(alone: Path) -> None:
    """The archive has the problem in its place."""
    path = alone / "support.tar.gz"
    run("--config.file", str(alone), "--bundle", str(path), errors=f"gpumon: wrote {path}.")
    assert "cannot be read (Is a directory)" in unpack(path)["configuration.yml"]


def test_the_events_of_a_stopped_agent_are_in_the_archive(alone: Path) -> None:
    """They are read from a copy of its store."""
    with Store.open(alone / "gpumon.db") as store, store.writing() as connection:
        error_events.restore(connection, [error_event(100)], [])
    run("--simulate", "h100x8", "--bundle", str(alone / "x.tar.gz"), errors="gpumon: wrote")
    assert [event["code"] for event in json.loads(unpack(alone / "x.tar.gz")["events.json"])] == [79]


def test_secrets_in_a_log_are_redacted() -> None:
    """Credentials of URLs and headers, and what follows token= or password: are replaced; other words are kept."""
    line = "GET https://u:p4ss@h/x?sig=abc Authorization: Basic dTpw password: 'hunter2' token=t0k token_file=/a"
    assert redact_text(line) == (
        "GET https://u:<redacted>@h/x?<redacted> Authorization: <redacted> password: '<redacted>' "
        "token=<redacted> token_file=/a"
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may change its user")
@each_case(
    ("unit", "groups", "error"),
    [
        ({"User": "nobody", "Group": "nogroup"}, "nogroup", ""),
        ({"User": "nobody", "Group": "", "SupplementaryGroups": "adm tty"}, "nogroup adm tty", ""),
        ({"User": "nobody", "Group": "adm", "SupplementaryGroups": ""}, "adm", ""),
        ({"User": "no-such-user"}, None, "no-such-user"),
    ],
)
def test_root_starts_pytorch_as_the_user_of_the_agent(unit: dict[str, str], groups: str | None, error: str) -> None:
    """With the groups of the unit and of the user: the interpreter may belong to another user."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        python = Path(folder) / "python"
        python.write_text('#!/bin/sh\necho "{\\"user\\": \\"$(id -un)\\", \\"groups\\": \\"$(id -Gn)\\"}"\n')
        python.chmod(0o755)
        report, wrong = torch_report(str(python), unit)
    assert (report.get("user"), report.get("groups")) == (groups and "nobody", groups)
    assert error in wrong
    assert bool(wrong) == bool(error)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may change its user")
def test_an_interpreter_that_the_agent_may_not_run_is_not_started() -> None:
    """Root may run it: the answer is that of the agent, and its remedy shows the folder that denies access."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        python = shutil.copy("/bin/echo", f"{folder}/python")
        error = torch_report(python, {"User": "nobody", "Group": "nogroup"})[1]
    assert "Permission denied" in error
    answers = diagnose(facts(torch={}, python=python, errors={"torch": error}))
    assert f"namei -l {python}" in [answer.remedy for check, answer in answers if check.name == "torch"]


def test_the_torch_of_this_environment_is_reported() -> None:
    """The program prints one line with the versions of the packages, whatever torch is installed."""
    script = Path(sys.modules["gpumon"].__file__ or "").parent / "probe/worker/torch_report.py"
    printed = subprocess.run([sys.executable, "-I", script], check=True, capture_output=True, text=True).stdout
    assert {"packages"} < json.loads(printed).keys()


def test_the_table_is_for_a_terminal() -> None:
    """A line each, remedies in one line, and a summary."""
    shown = table(diagnose(facts(DOWN)))
    assert "\n        do: sudo modprobe nvidia; nvidia-smi; sudo dmesg" in shown
    assert shown.splitlines()[-1].endswith("absent")
