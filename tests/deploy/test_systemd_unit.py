"""The systemd unit is valid, hardened, and hides nothing that the agent must read."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from gpumon import DEFAULT_PORT
from gpumon.config.default_paths import RUNTIME_DIRECTORY

SYSTEMD = Path(__file__).parents[2] / "deploy" / "systemd"
UNIT = SYSTEMD / "gpumon.service"
SOCKET = SYSTEMD / "gpumon.socket"
DEVICES = SYSTEMD / "gpumon.service.d" / "devices.conf"
PROCESSES = SYSTEMD / "gpumon.service.d" / "processes.conf"
KUBELET = SYSTEMD / "gpumon.service.d" / "kubelet.conf"
EXPOSURE = 40
"""Maximum exposure of 100, from `systemd-analyze security`. The unit gives the reason for each missing directive."""

BLINDING = {
    *("PrivateDevices", "ProtectClock", "DeviceAllow", "DevicePolicy", "ProtectProc", "ProcSubset"),
    *("ProtectKernelLogs", "ProtectControlGroups", "MemoryDenyWriteExecute", "PrivateUsers", "PrivateNetwork"),
}


def directives(path: Path) -> Mapping[str, list[str]]:
    """Return the values by directive; none of them occurs in two sections."""
    found: dict[str, list[str]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


def test_each_documented_stop_of_the_agent_names_its_socket() -> None:
    """Without it the socket starts the agent again, if the service was stopped while its configuration was invalid."""
    pages = [path.read_text(encoding="utf-8") for path in (SYSTEMD.parents[1] / "docs").glob("*.md")]
    stops = re.findall(r"systemctl stop ([^`;&\n]*\bgpumon\b[^`;&\n]*)", "\n".join(pages))
    assert len(stops) > 2, "the pages were not read"
    assert set(stops) == {"gpumon.socket gpumon"}


def test_the_unit_hides_nothing_from_the_agent() -> None:
    """No directive hides GPUs, processes or the kernel log, revokes the delegated cgroup, or prevents CUDA."""
    assert not BLINDING & set(directives(UNIT))
    for drop_in in (DEVICES, PROCESSES, KUBELET):
        assert not directives(drop_in), "disabled until an operator enables it"


def test_the_agent_runs_without_root() -> None:
    """It runs as its own user in the groups of the device nodes, with only the capability to read the kernel log."""
    unit = directives(UNIT)
    assert unit["User"] == ["gpumon"]
    assert unit["SupplementaryGroups"] == ["video render"]
    assert unit["AmbientCapabilities"] == unit["CapabilityBoundingSet"] == ["CAP_SYSLOG"]
    assert unit["NoNewPrivileges"] == ["yes"]


def test_the_unit_uses_the_watchdog_and_stops_all_children() -> None:
    """Readiness and watchdog are enabled, and a stop has a timeout and ends the children."""
    unit = directives(UNIT)
    assert unit["Type"] == ["notify"]
    assert int(unit["WatchdogSec"][0]) >= 10
    assert unit["TimeoutStopSec"] == ["10"]
    assert unit["KillMode"] == ["control-group"]
    assert unit["Delegate"] == ["yes"]
    assert unit["OOMPolicy"] == ["continue"]
    assert unit["LimitMEMLOCK"] == ["infinity"]
    assert unit["ExecReload"] == ["/bin/kill -HUP $MAINPID"]


def test_the_unit_limits_memory_and_tasks_and_is_always_restarted() -> None:
    """A leak and a fork bomb do not take the host with them; no number or kind of failures ends the restarts."""
    unit = directives(UNIT)
    assert re.fullmatch(r"\d+%", unit["MemoryMax"][0])
    assert int(unit["TasksMax"][0]) <= 4096
    assert (unit["StartLimitIntervalSec"], unit["Restart"]) == (["0"], ["on-failure"])
    assert int(unit["RestartSec"][0]) >= 5
    assert "RestartPreventExitStatus" not in unit


def test_the_socket_has_the_default_address() -> None:
    """The agent uses the socket only if it has the port of web.listen_address."""
    assert directives(SOCKET)["ListenStream"] == [f"127.0.0.1:{DEFAULT_PORT}"]


def test_every_user_can_read_the_health_file() -> None:
    """The runtime directory is kept over a restart and is readable for every user."""
    unit = directives(UNIT)
    assert unit["RuntimeDirectory"] == [Path(RUNTIME_DIRECTORY).name]
    assert unit["RuntimeDirectoryMode"] == ["0755"]
    assert unit["RuntimeDirectoryPreserve"] == ["yes"]


def test_systemd_accepts_the_unit_and_its_drop_ins(tmp_path: Path) -> None:
    """The installed systemd knows every directive, including those of enabled drop-ins."""
    text = UNIT.read_text(encoding="utf-8").replace("/opt/gpumon/bin/gpumon", "/bin/true")
    (tmp_path / UNIT.name).write_text(text, encoding="utf-8")
    shutil.copy(SOCKET, tmp_path)
    (tmp_path / "gpumon.service.d").mkdir()
    for drop_in in (DEVICES, PROCESSES, KUBELET):
        enabled = re.sub(r"(?m)^#(?=\w+=)", "", drop_in.read_text(encoding="utf-8"))
        (tmp_path / "gpumon.service.d" / drop_in.name).write_text(enabled, encoding="utf-8")
    ran = _ran("systemd-analyze", "verify", "--man=no", str(tmp_path / UNIT.name), str(tmp_path / SOCKET.name))
    assert (ran.returncode, ran.stderr) == (0, "")


def test_the_unit_is_hardened(tmp_path: Path) -> None:
    """The exposure that systemd computes stays below the maximum."""
    shutil.copy(UNIT, tmp_path)
    ran = _ran(
        "systemd-analyze",
        "security",
        "--offline=true",
        f"--threshold={EXPOSURE}",
        "--no-pager",
        f"{tmp_path / UNIT.name}",
    )
    assert ran.returncode == 0, ran.stdout[-200:]


def test_users_and_groups_are_created() -> None:
    """systemd-sysusers creates the user and adds it to the groups of the unit."""
    path = SYSTEMD / "sysusers.conf"
    ran = _ran("systemd-sysusers", "--dry-run", str(path))
    assert ran.returncode == 0, ran.stderr
    lines = {tuple(line.split()[:3]) for line in path.read_text(encoding="utf-8").splitlines()}
    assert {("m", "gpumon", group) for group in directives(UNIT)["SupplementaryGroups"][0].split()} <= lines


def _ran(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
