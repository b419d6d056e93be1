"""The systemd unit: sound for systemd, hardened, and nothing in it that would blind the agent."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from gpumon.config.health_file import RUNTIME_DIRECTORY

SYSTEMD = Path(__file__).parents[2] / "deploy" / "systemd"
UNIT = SYSTEMD / "gpumon.service"
DEVICES = SYSTEMD / "gpumon.service.d" / "devices.conf"
PROCESSES = SYSTEMD / "gpumon.service.d" / "processes.conf"
EXPOSURE = 40
"""Of 100, as `systemd-analyze security` counts; what is missing is named in the unit, with its reason."""

BLINDING = {
    *("PrivateDevices", "ProtectClock", "DeviceAllow", "DevicePolicy", "ProtectProc", "ProcSubset"),
    *("ProtectKernelLogs", "ProtectControlGroups", "MemoryDenyWriteExecute", "PrivateUsers", "PrivateNetwork"),
}


def directives(path: Path) -> Mapping[str, list[str]]:
    """All values by directive; none of ours occurs in two sections."""
    found: dict[str, list[str]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


def test_nothing_in_it_blinds_the_agent() -> None:
    """No directive hides GPUs, processes or the kernel log, takes back the delegated cgroup, or forbids CUDA."""
    assert not BLINDING & set(directives(UNIT))
    for drop_in in (DEVICES, PROCESSES):
        assert not directives(drop_in), "off until an operator switches it on"


def test_it_runs_without_root_and_sees_what_it_can() -> None:
    """An own user in the groups of the device nodes, with the one capability that reading the kernel log needs."""
    unit = directives(UNIT)
    assert unit["User"] == ["gpumon"]
    assert unit["SupplementaryGroups"] == ["video render"]
    assert unit["AmbientCapabilities"] == unit["CapabilityBoundingSet"] == ["CAP_SYSLOG"]
    assert unit["NoNewPrivileges"] == ["yes"]


def test_it_is_watched_and_stops_in_time() -> None:
    """Readiness and watchdog are reported; a stop takes ten seconds at most and ends the children too."""
    unit = directives(UNIT)
    assert unit["Type"] == ["notify"]
    assert int(unit["WatchdogSec"][0]) >= 10
    assert unit["TimeoutStopSec"] == ["10"]
    assert unit["KillMode"] == ["control-group"]
    assert unit["Delegate"] == ["yes"]
    assert unit["OOMPolicy"] == ["continue"]
    assert unit["LimitMEMLOCK"] == ["infinity"]
    assert unit["ExecReload"] == ["/bin/kill -HUP $MAINPID"]


def test_every_user_may_read_the_health_file() -> None:
    """Its folder is kept over a restart and open to all; a file under it is readable whatever the umask."""
    unit = directives(UNIT)
    assert unit["RuntimeDirectory"] == [Path(RUNTIME_DIRECTORY).name]
    assert unit["RuntimeDirectoryMode"] == ["0755"]
    assert unit["RuntimeDirectoryPreserve"] == ["yes"]


def test_systemd_takes_unit_and_drop_ins(tmp_path: Path) -> None:
    """The installed systemd knows every directive, those of the drop-ins too once they are switched on."""
    text = UNIT.read_text(encoding="utf-8").replace("/opt/gpumon/bin/gpumon", "/bin/true")
    (tmp_path / UNIT.name).write_text(text, encoding="utf-8")
    (tmp_path / "gpumon.service.d").mkdir()
    for drop_in in (DEVICES, PROCESSES):
        switched_on = re.sub(r"(?m)^#(?=\w+=)", "", drop_in.read_text(encoding="utf-8"))
        (tmp_path / "gpumon.service.d" / drop_in.name).write_text(switched_on, encoding="utf-8")
    ran = _ran("systemd-analyze", "verify", "--man=no", str(tmp_path / UNIT.name))
    assert (ran.returncode, ran.stderr) == (0, "")


def test_it_is_hardened(tmp_path: Path) -> None:
    """The measure of systemd itself, exposure, stays below what was reached."""
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


def test_users_and_groups_are_made() -> None:
    """Sysusers makes the user, and puts it into the groups that the unit names."""
    path = SYSTEMD / "sysusers.conf"
    ran = _ran("systemd-sysusers", "--dry-run", str(path))
    assert ran.returncode == 0, ran.stderr
    lines = {tuple(line.split()[:3]) for line in path.read_text(encoding="utf-8").splitlines()}
    assert {("m", "gpumon", group) for group in directives(UNIT)["SupplementaryGroups"][0].split()} <= lines


def _ran(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
