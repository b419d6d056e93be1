"""A real systemd, in namespaces of its own, runs the shipped units: the port over restarts, a crash and a stop."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from agents import eventually, free_port

UNITS = Path(__file__).parents[2] / "deploy" / "systemd"
MANAGER = Path("/lib/systemd/systemd")
UNAVAILABLE = r"(?m)^(User|Group|SupplementaryGroups|ProtectHome|ProtectSystem|PrivateTmp)=.*\n"
"""Directives that need the installed user, or would hide the checkout."""
INIT = """
mount --make-rprivate / && mount -t tmpfs tmpfs /etc/systemd/system && cp "$1"/* /etc/systemd/system/ || exit 1
for folder in /run /tmp /var/tmp /var/log; do mount -t tmpfs tmpfs $folder || exit 1; done
export container=lxc
exec "$2" --system --unit=test.target --log-target=console --show-status=no
"""
NAMESPACES = ("unshare", "--pid", "--mount", "--uts", "--ipc", "--fork", "--mount-proc", "--kill-child")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0 or not MANAGER.exists(), reason="needs root and systemd"),
]


def write_units(folder: Path, port: int) -> None:
    """Write the shipped units for a simulated agent on this port, without the dependencies of a whole host."""
    serve = f"{sys.executable} -m gpumon serve --simulate=t4x1 --store.path=/run/gpumon.db --web.token-file=/run/token"
    values = {"ExecStart": f"{serve} --web.listen-address=127.0.0.1:{port}", "ListenStream": f"127.0.0.1:{port}"}
    for unit in (UNITS / "gpumon.service", UNITS / "gpumon.socket"):
        text = re.sub(UNAVAILABLE, "", unit.read_text())
        for name, value in values.items():
            text = re.sub(f"(?m)^{name}=.*", f"{name}={value}", text)
        (folder / unit.name).write_text(text.replace("[Unit]\n", "[Unit]\nDefaultDependencies=no\n"))
    (folder / "test.target").write_text("[Unit]\nDefaultDependencies=no\n")


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def systemctl(tmp_path: Path, port: int) -> Iterator[Callable[..., str]]:
    """Run systemctl with a systemd that has the units of gpumon only."""
    units = tmp_path / "units"
    units.mkdir()
    write_units(units, port)
    command = [*NAMESPACES, "sh", "-c", INIT, "sh", str(units), str(MANAGER)]
    with (tmp_path / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as outside:

        def run(*arguments: str) -> str:
            inside = Path(f"/proc/{outside.pid}/task/{outside.pid}/children").read_text().split()
            enter = ["nsenter", *(f"--target={pid}" for pid in inside), "--pid", "--mount", "systemctl", *arguments]
            return subprocess.run(enter, capture_output=True, text=True, timeout=60, check=False).stdout.strip()

        try:
            with contextlib.suppress(AssertionError):
                eventually(lambda: outside.poll() is not None or "test.target" in run("list-units"))
            if "test.target" not in run("list-units"):
                pytest.skip("no systemd can be started in namespaces of this host")
            yield run
        finally:
            outside.kill()


def is_answering(port: int) -> bool:
    """Return whether the port answers; a connection waits for an agent that is about to start."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", "/-/healthy")
        return connection.getresponse().status == 200
    except ConnectionRefusedError:
        return False
    finally:
        connection.close()


def main_pid(systemctl: Callable[..., str]) -> str:
    return systemctl("show", "--property=MainPID", "--value", "gpumon.service")


def restarts(systemctl: Callable[..., str]) -> int:
    """Return how often systemd has restarted the agent by itself."""
    return int(systemctl("show", "--property=NRestarts", "--value", "gpumon.service"))


def held_socket(port: int) -> str:
    """Return the inode of the listening socket; empty if none listens."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return next((row[9] for row in rows if row[1] == f"0100007F:{port:04X}" and row[3] == "0A"), "")


def test_the_port_is_held_over_restarts_and_not_after_a_stop(systemctl: Callable[..., str], port: int) -> None:
    """No other process can take it while the agent restarts or has crashed, and no scrape starts a stopped agent."""
    assert shutil.which("nsenter")
    systemctl("start", "gpumon")
    assert is_answering(port)
    held = held_socket(port)

    systemctl("restart", "gpumon")
    assert is_answering(port)
    assert held_socket(port) == held

    killed = main_pid(systemctl)
    systemctl("kill", "--signal=KILL", "gpumon")
    assert is_answering(port), "the scrape waits for the next agent"
    assert main_pid(systemctl) not in {killed, "0"}
    assert held_socket(port) == held

    systemctl("stop", "gpumon")
    eventually(lambda: not held_socket(port))
    assert not is_answering(port)
    assert main_pid(systemctl) == "0"
    assert systemctl("is-active", "gpumon.socket") == "inactive"

    systemctl("start", "gpumon")
    assert is_answering(port)


def test_the_documented_stop_holds_while_the_configuration_is_invalid(systemctl: Callable[..., str], port: int) -> None:
    """The command of docs/install.md stops a service that systemd is about to start again, and its socket."""
    page = (UNITS.parents[1] / "docs" / "install.md").read_text(encoding="utf-8")
    [command] = re.findall(r"`systemctl (stop [^`;]+)`", page)
    systemctl("start", "gpumon")
    assert is_answering(port)
    systemctl("set-environment", "GPUMON_POLL__INTERVAL_SECONDS=often")
    systemctl("restart", "gpumon")
    eventually(lambda: systemctl("show", "--property=SubState", "--value", "gpumon.service") == "auto-restart")
    systemctl(*command.split())
    assert systemctl("is-active", "gpumon.service", "gpumon.socket") == "inactive\ninactive"
    assert not is_answering(port)


def test_the_agent_returns_by_itself_once_its_configuration_is_valid_again(
    systemctl: Callable[..., str], port: int
) -> None:
    """A scrape that is pending meanwhile uses up no starts, and is answered as soon as the agent runs."""
    systemctl("start", "gpumon")
    assert is_answering(port)
    systemctl("set-environment", "GPUMON_POLL__INTERVAL_SECONDS=often")
    systemctl("restart", "gpumon")
    with socket.create_connection(("127.0.0.1", port), timeout=60) as scrape:
        scrape.sendall(b"GET /-/healthy HTTP/1.0\r\n\r\n")
        eventually(lambda: restarts(systemctl) >= 2)
        systemctl("unset-environment", "GPUMON_POLL__INTERVAL_SECONDS")
        assert b" 200 " in scrape.recv(100)
    eventually(lambda: systemctl("is-active", "gpumon.service", "gpumon.socket") == "active\nactive")  # READY is later
