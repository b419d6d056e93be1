"""A copy of this host in an overlay, with a systemd of its own: nothing that is installed there reaches the host."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from agents import eventually
from typing_extensions import Self

NAMESPACES = ("--pid", "--mount", "--uts", "--ipc", "--net", "--cgroup")
MASKED = ("systemd-sysctl", "systemd-modules-load", "systemd-binfmt", "systemd-udevd", "postgresql", "prometheus")
"""Services that would change the host's kernel, or that only take time."""
BOOT = """
mount --make-rprivate / || exit 1
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/changes,workdir=$1/work" "$1/root" && cd "$1/root" || exit 1
mount --rbind /dev dev && mount --rbind /sys sys && mount -t proc proc proc || exit 1
mount -t tmpfs tmpfs run || exit 1
case $3 in # a checkout below /tmp must be there, also after systemd-tmpfiles
/tmp/*) mkdir -p etc/tmpfiles.d && ln -sf /dev/null etc/tmpfiles.d/tmp.conf ;;
*) mount -t tmpfs tmpfs tmp ;;
esac || exit 1
for unit in $2; do ln -sf /dev/null "etc/systemd/system/$unit.service"; done
pivot_root . mnt && umount -l mnt && cd / || exit 1
export container=lxc
exec /lib/systemd/systemd --system --unit=multi-user.target --log-target=null --show-status=no
"""


class ClonedRoot:
    """A running systemd in the overlay. It ends, with all its processes, when the block ends."""

    def __init__(self, folder: Path) -> None:
        if os.geteuid() != 0 or not Path("/lib/systemd/systemd").exists():
            pytest.skip("needs root and systemd")
        for name in ("changes", "work", "root"):
            (folder / name).mkdir(parents=True)
        command = (
            "unshare",
            *NAMESPACES,
            "--fork",
            "--kill-child",
            "sh",
            "-c",
            BOOT,
            "sh",
            str(folder),
            " ".join(MASKED),
            __file__,
        )
        self._outside = subprocess.Popen(command)  # ended by __exit__

    def __enter__(self) -> Self:
        eventually(self._has_booted)
        return self

    def __exit__(self, *_: object) -> None:
        self._outside.kill()
        self._outside.wait()

    def _has_booted(self) -> bool:
        if Path(f"/proc/{self.pid}/comm").read_text() != "systemd\n":
            return False
        state = self.run("systemctl", "is-system-running", check=False).stdout.strip()
        return state in {"running", "degraded"}

    @property
    def pid(self) -> int:
        """Process id of its systemd."""
        outside = self._outside.pid
        children = Path(f"/proc/{outside}/task/{outside}/children").read_text().split()
        assert children, "it has not started, or has ended"
        return int(children[0])

    def run(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command in the root."""
        command = ("nsenter", f"--target={self.pid}", *NAMESPACES, "--root", "env", "--chdir=/", *arguments)
        return subprocess.run(command, capture_output=True, text=True, check=check, timeout=120)
