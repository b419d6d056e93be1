"""Detect whether the agent runs on the host, in a virtual machine or in a container.

This needs no driver call, only files and environment variables.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from gpumon.model.snapshot import CONTAINER, GUEST, HOST

_MARKS = ("run/.containerenv", ".dockerenv")
"""Files by which a container is detected: Podman and Docker create them in its root folder."""
_VARIABLES = frozenset({"KUBERNETES_SERVICE_HOST", "NVIDIA_VISIBLE_DEVICES"})
"""Environment variables of Kubernetes pods and of containers with GPUs."""
_GROUPS = re.compile(r"kubepods|docker[-/]|libpod|crio-|/lxc")
_VENDORS = re.compile(
    r"QEMU|KVM|VMware|Xen|innotek|Parallels|Virtual Machine|Compute Engine|Alibaba Cloud ECS|OpenStack"
)
"""DMI vendors and products of virtual machines. Amazon's name is left out, because its bare-metal machines have it too.
"""


def place(*, sysfs: Path, procfs: Path, root: Path, environment: Mapping[str, str]) -> str:
    """Return where the agent runs: CONTAINER, also in a virtual machine, else GUEST (virtual machine) or HOST."""
    if _is_contained(procfs, root, environment):
        return CONTAINER
    return GUEST if is_virtual(sysfs, procfs) else HOST


def _is_contained(procfs: Path, root: Path, environment: Mapping[str, str]) -> bool:
    marked = any((root / mark).exists() for mark in _MARKS) or bool(_VARIABLES & environment.keys())
    started = re.search(r"(^|\0)container=[^\0]", _text(procfs / "1/environ")) is not None  # by systemd's convention
    return marked or started or _GROUPS.search(_text(procfs / "self/cgroup")) is not None


def is_virtual(sysfs: Path, procfs: Path) -> bool:
    """Return True in a virtual machine.

    It is detected by the CPU flag `hypervisor` or, on Arm, which has no CPU flags, by vendor and product name in DMI.
    """
    for line in _text(procfs / "cpuinfo").splitlines():
        if line.startswith("flags"):
            return "hypervisor" in line.split()
    firmware = " ".join(_text(sysfs / "class/dmi/id" / name).strip() for name in ("sys_vendor", "product_name"))
    return _VENDORS.search(firmware) is not None


def _text(path: Path) -> str:
    """Return the content of a file; "" if the file is missing or not readable."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
