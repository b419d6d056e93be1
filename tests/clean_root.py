"""A clean Debian in a folder, with a systemd in namespaces of its own."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from agents import eventually
from typing_extensions import Self

NAMESPACES = ("--pid", "--mount", "--uts", "--ipc", "--net", "--cgroup")
TOOLS = ("mmdebstrap", "nsenter", "rpm", "uv", "nfpm")
"""Commands that the tests of packages need; `make test-slow` installs them."""
SEARCHED = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
UBUNTU = "https://archive.ubuntu.com/ubuntu"
KEYRING = "pool/main/u/ubuntu-keyring/ubuntu-keyring_2021.03.26_all.deb"
KEYRING_SHA256 = "0d0e7ed6b112f5d03eabf3c7eb01ebdacf9c57714b279e90495cfc58c8c4520f"
BOOT = """
mount --make-rprivate / && mount --bind "$1" "$1" && cd "$1" || exit 1
mount --rbind /dev dev && mount --rbind /sys sys && mount -t proc proc proc && mount -t tmpfs tmpfs run || exit 1
pivot_root . mnt && umount -l mnt || exit 1
export container=lxc
exec /lib/systemd/systemd --system --unit=multi-user.target --log-target=null --show-status=no
"""


def missing_tools() -> list[str]:
    """Return the tools that this host does not have. Without root all are missing."""
    return [tool for tool in TOOLS if os.geteuid() != 0 or shutil.which(tool, path=SEARCHED) is None]


def make_root(folder: Path, *packages: str) -> None:
    """Create a minimal Debian with systemd and these packages from Debian's archive."""
    bootstrap(folder, "bookworm", *packages)


def make_ubuntu(folder: Path, suite: str) -> None:
    """Create a minimal Ubuntu with systemd. Skip the test if Ubuntu's archive does not answer."""
    keyring = folder.with_name("keyring")
    try:
        with urllib.request.urlopen(f"{UBUNTU}/{KEYRING}", timeout=30) as answer:
            package = answer.read()
    except OSError as error:
        pytest.skip(f"{UBUNTU} does not answer ({error}): the deb is not tried on {suite}")
    assert hashlib.sha256(package).hexdigest() == KEYRING_SHA256
    folder.with_name("keyring.deb").write_bytes(package)
    subprocess.run(["dpkg-deb", "-x", str(folder.with_name("keyring.deb")), str(keyring)], check=True)
    keys = keyring / "usr" / "share" / "keyrings" / "ubuntu-archive-keyring.gpg"
    bootstrap(folder, suite, options=(f"--keyring={keys}",), mirror=(UBUNTU,))


def bootstrap(
    folder: Path, suite: str, *packages: str, options: tuple[str, ...] = (), mirror: tuple[str, ...] = ()
) -> None:
    names = ",".join(("systemd", "python3", "apt", *packages))
    command = ("mmdebstrap", "--quiet", "--variant=minbase", f"--include={names}", *options)
    subprocess.run([*command, suite, str(folder), *mirror], check=True, timeout=500)
    # The simulated node stands for the driver, which a clean root does not have.
    (folder / "etc" / "default" / "gpumon").write_text("GPUMON_SIMULATE__PROFILE=t4x1\n")


class CleanRoot:
    """A running systemd in this folder. It ends, with all processes of the root, when the block ends."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        command = ("unshare", *NAMESPACES, "--fork", "--kill-child", "sh", "-c", BOOT, "sh", str(folder))
        self._outside = subprocess.Popen(command)  # ended by close()

    def __enter__(self) -> Self:
        eventually(lambda: self.run("systemctl", "is-system-running", check=False) in {"running", "degraded"})
        return self

    def __exit__(self, *_: object) -> None:
        self._outside.kill()
        self._outside.wait()

    def command(self, *arguments: str) -> list[str]:
        """Return the command that runs `arguments` in the root."""
        children = Path(f"/proc/{self._outside.pid}/task/{self._outside.pid}/children").read_text().split()
        return ["nsenter", *(f"--target={pid}" for pid in children), *NAMESPACES, "--root", "--wd=/", *arguments]

    def run(self, *arguments: str, check: bool = True) -> str:
        """Run a command in the root and return what it prints."""
        ran = subprocess.run(
            self.command(*arguments), capture_output=True, text=True, timeout=120, check=False, env=environment()
        )
        assert not check or ran.returncode == 0, f"{arguments}: {ran.stdout[-2000:]}{ran.stderr[-2000:]}"
        return ran.stdout.strip()


def environment() -> dict[str, str]:
    return {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}
