"""The Ansible role, run by ansible-playbook against a copy of this host with a systemd of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from cloned_root import ClonedRoot
from deploy_tools import tool

from gpumon import __version__

ROOT = Path(__file__).parents[2]
ANSIBLE = ROOT / "deploy" / "ansible"
UNITS = ROOT / "deploy" / "systemd"
CONTROL = f"""\
Package: gpumon
Version: {__version__}-RELEASE
Architecture: all
Maintainer: gpumon <gpumon@localhost>
Description: units and configuration of gpumon, and a command that runs this checkout
"""
AFTER_INSTALL = """\
#!/bin/sh
set -e
systemd-sysusers gpumon.conf
systemctl daemon-reload
systemctl try-restart gpumon.service
"""
COMMAND = f"""\
#!/bin/sh
exec {sys.executable} -m gpumon "$@"
"""
RECAP = re.compile(r"node +: ok=(\d+) +changed=(\d+) +unreachable=0 +failed=0")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def make_package(folder: Path, release: str) -> Path:
    """Build a package with the paths of the real one, which takes minutes to build."""
    tree = folder / f"tree-{release}"
    files = {
        "DEBIAN/control": CONTROL.replace("RELEASE", release),
        "DEBIAN/conffiles": "/etc/gpumon/gpumon.yml\n",
        "DEBIAN/postinst": AFTER_INSTALL,
        "opt/gpumon/bin/gpumon": COMMAND,
        "etc/gpumon/gpumon.yml": (ROOT / "deploy" / "gpumon.yml").read_text(encoding="utf-8"),
        "usr/lib/systemd/system/gpumon.service": (UNITS / "gpumon.service").read_text(encoding="utf-8"),
        "usr/lib/systemd/system/gpumon.socket": (UNITS / "gpumon.socket").read_text(encoding="utf-8"),
        "usr/lib/systemd/system/gpumon.service.d/checkout.conf": "[Service]\nProtectHome=read-only\nPrivateTmp=no\n",
        "usr/lib/sysusers.d/gpumon.conf": (UNITS / "sysusers.conf").read_text(encoding="utf-8"),
        "etc/default/gpumon": "GPUMON_SIMULATE__PROFILE=t4x1\n",
    }
    for name, text in files.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)
        (tree / name).chmod(0o755 if text.startswith("#!") else 0o644)
    package = folder / f"gpumon_{__version__}-{release}_all.deb"
    subprocess.run(
        ["dpkg-deb", "--root-owner-group", "--build", str(tree), str(package)], check=True, capture_output=True
    )
    return package


@pytest.fixture
def root(tmp_path: Path) -> Iterator[ClonedRoot]:
    with ClonedRoot(tmp_path) as running:
        read = (ROOT, Path(sys.prefix), Path(sys.executable).resolve())
        for path in {parent for each in read for parent in each.parents}:  # of the copy only
            running.run("chmod", "a+rx", str(path), check=False)
        yield running


def play(root: ClonedRoot, folder: Path, *arguments: str, **variables: object) -> tuple[int, str]:
    """Run the shipped playbook. Return the number of changed tasks, and its output."""
    host = {
        "ansible_connection": "namespaces",
        "ansible_become": False,
        "ansible_host": root.pid,
        "ansible_python_interpreter": "/usr/bin/python3",
    }
    inventory = {"gpu_nodes": {"hosts": {"node": host}}}
    (folder / "inventory.yml").write_text(yaml.safe_dump(inventory))
    (folder / "variables.yml").write_text(yaml.safe_dump(variables))
    settings = {
        "ANSIBLE_CONNECTION_PLUGINS": str(Path(__file__).parent / "connection_plugins"),
        "ANSIBLE_LOCAL_TEMP": str(folder / "ansible"),
        "ANSIBLE_NOCOLOR": "1",
        "LC_ALL": "C.UTF-8",
    }
    command = [tool("ansible-playbook"), "-i", str(folder / "inventory.yml"), str(ANSIBLE / "site.yml"), *arguments]
    ran = subprocess.run(
        [*command, "--extra-vars", f"@{folder / 'variables.yml'}"],
        env=os.environ | settings,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    recap = RECAP.search(ran.stdout)
    journal = (
        root.run("journalctl", "--no-pager", "--unit=gpumon*", "--lines=20", check=False).stdout
        if ran.returncode
        else ""
    )
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-2000:] + journal
    assert recap, ran.stdout
    return int(recap[2]), ran.stdout


def test_the_role_installs_a_running_agent_once(root: ClonedRoot, tmp_path: Path) -> None:
    """A second run changes nothing; a changed configuration restarts the agent; an invalid one is not written.

    A name is refused as an address, --check works on a host without the package, a package restarts the agent once, and
    an older one is installed on request only.
    """
    first, second = (str(make_package(tmp_path, release)) for release in ("1", "2"))
    variables: dict[str, object] = {"gpumon_package_file": first, "gpumon_config": {"gpus": {"expected_count": 1}}}
    with pytest.raises(AssertionError, match="not a name"):
        play(root, tmp_path, **variables, gpumon_listen="gpu-17:17400")
    assert play(root, tmp_path, "--check", **variables)[0] == 1  # the copied file
    changed, output = play(root, tmp_path, **variables)
    assert changed > 3
    assert "GPU OK" in output, output[-1500:]
    assert root.run("systemctl", "is-enabled", "gpumon.socket", "gpumon.service").stdout.split() == ["enabled"] * 2
    listening = ("systemctl", "show", "--property=Listen", "--value", "gpumon.socket")
    assert root.run(*listening).stdout == "0.0.0.0:17400 (Stream)\n"  # of site.yml; this root has no network
    assert "gpumon_gpus_expected 1\n" in scrape(root, 17400)
    pid = ("systemctl", "show", "--property=MainPID", "--value", "gpumon.service")
    running = root.run(*pid).stdout

    assert play(root, tmp_path, **variables)[0] == 0
    assert play(root, tmp_path, "--check", "--diff", **variables)[0] == 0
    assert root.run(*pid).stdout == running

    variables["gpumon_config"] = {"gpus": {"expected_count": 1}, "metrics": {"detailed": True}}
    assert play(root, tmp_path, **variables)[0] == 2  # the file and the restart
    assert root.run(*pid).stdout != running
    assert "gpumon_gpu_memory_free_bytes" in scrape(root, 17400)

    variables["gpumon_listen"] = "127.0.0.1:17498"
    assert play(root, tmp_path, **variables)[0] == 2
    assert "gpumon_gpu_memory_free_bytes" in scrape(root, 17498)

    started = starts(root)
    assert (
        play(root, tmp_path, **variables | {"gpumon_package_file": second})[0] == 2
    )  # the copied file and the package
    assert starts(root) == started + 1
    with pytest.raises(AssertionError, match="later version"):
        play(root, tmp_path, **variables)
    play(root, tmp_path, **variables, gpumon_allow_downgrade=True)
    assert root.run("dpkg-query", "--show", "--showformat=${Version}", "gpumon").stdout == f"{__version__}-1"

    variables["gpumon_config"] = {"gpus": {"expected_cuont": 2}}
    with pytest.raises(AssertionError, match="expected_cuont"):
        play(root, tmp_path, **variables)
    assert "detailed: true" in root.run("cat", "/etc/gpumon/gpumon.yml").stdout


def scrape(root: ClonedRoot, port: int) -> str:
    fetch = f"import urllib.request; print(urllib.request.urlopen('http://127.0.0.1:{port}/metrics').read().decode())"
    return root.run("python3", "-c", fetch).stdout


def starts(root: ClonedRoot) -> int:
    """Return how many times the agent has started."""
    journal = root.run("journalctl", "--unit=gpumon.service", "--grep=monitors a simulated", "--output=cat")
    return len(journal.stdout.splitlines())
