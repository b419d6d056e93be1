"""Reads the health file that the agent writes, and determines whether it is current."""

from __future__ import annotations

import errno
import json
import os
import re
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from gpumon import trusted_file
from gpumon.clock import boot_clock, boot_id
from gpumon.config.default_paths import HEALTH_FILE_VERSION, StrPath
from gpumon.health.verdict import Level

Document = Mapping[str, Any]
"""A JSON object in the health file, such as a verdict. docs/check.md documents the file."""
LEVELS = {level.word: level for level in Level}
MAX_AGE_SECONDS = 30.0
"""Age in seconds above which the health file is stale. The agent evaluates its checks every 5 s."""
MAX_BYTES = 4_000_000
VERDICT_KEYS = frozenset({"check", "level", "device", "gpu", "reason", "action", "action_text", "since"})
CHECK_NAME = re.compile(r"[a-z0-9_]{1,63}")
"""Pattern of the name of a check, which is also valid as a value of a taint in Kubernetes."""
START = "start the agent (systemctl start gpumon)"
RESTART = "restart the agent (systemctl restart gpumon)"


class CheckError(Exception):
    """Raised if the health of the node or the GPUs of a job cannot be determined. The message states what to do."""


class GpuHealth(NamedTuple):
    """A GPU in the health file: its indexes, uuid, PCI address and MIG instances, and why it is not read."""

    number: int | None
    """Index that the agent shows, which does not change until the next boot; None if the GPU has none."""
    uuid: str
    bus_id: str
    nvml_index: int | None = None
    """Current NVML index, which CUDA and nvidia-smi use; None if the driver does not list the GPU."""
    minor: str | None = None
    """Number of the GPU's device node; None if it was never read."""
    migs: tuple[str, ...] = ()
    """The uuids of the GPU's MIG instances."""
    gpu_instances: tuple[int, ...] = ()
    """The GPU instance ids of `migs`; none if the agent is older."""
    unwatched: str = ""
    """Why the current state of the GPU is unknown; empty if the GPU is read."""

    @property
    def moved(self) -> bool:
        """Return True if the current NVML index differs from the index that the agent shows."""
        return self.nvml_index is not None and self.nvml_index != self.number

    @property
    def name(self) -> str:
        return self.uuid if self.number is None else f"GPU {self.number}"


class NodeHealth(NamedTuple):
    """The content of a health file: the verdicts, GPUs and maintenance of the node."""

    level: Level = Level.OK
    """Worst level of the node's verdicts; UNKNOWN before the agent's first evaluation of its checks."""
    verdicts: tuple[Document, ...] = ()
    """The verdicts that no other verdict inhibits, with those that they inhibit as the member `consequences`."""
    gpus: tuple[GpuHealth, ...] = ()
    missing_gpus: int = 0
    """Number of expected GPUs that the driver does not count. Soon after boot, no verdict reports them yet."""
    maintenance: str | None = None
    """The maintenance in force as text, with its end and reason; None without one."""
    stale: str = ""
    """Why the content may be out of date, such as "the agent was stopped"; empty if it is current."""


def read_health(path: StrPath, max_age: float = MAX_AGE_SECONDS) -> NodeHealth:
    """Return the content of the health file. Raise CheckError if the file cannot be read or is invalid."""
    document = _document(path)
    try:
        this_boot = document["boot_id"] == boot_id() or _is_in_memory(path)
        return NodeHealth(
            level=LEVELS[document["level"]],
            verdicts=tuple(map(_check_verdict, document["verdicts"])),
            gpus=tuple(map(_gpu, document["gpus"])),
            missing_gpus=int(document["gpus_missing"]),
            maintenance=_maintenance(document["maintenance"], this_boot=this_boot),
            stale=_stale(document, max_age) if this_boot else f"the node was rebooted since the agent ran: {START}.",
        )
    except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise _invalid_file(path) from error


def _document(path: StrPath) -> Any:
    try:
        content = trusted_file.read(path, MAX_BYTES)
    except trusted_file.UntrustedFileError as error:
        raise CheckError(f"{path} {error.reason}: remove it, and {RESTART}.") from error
    except OSError as error:
        raise CheckError(_reason(path, error)) from error
    try:
        document = json.loads(content)
        version = document["version"]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise _invalid_file(path) from error
    if version != HEALTH_FILE_VERSION:
        raise CheckError(
            f"{path} has schema version {version!r}, not {HEALTH_FILE_VERSION}: {RESTART} after an upgrade."
        )
    return document


def _invalid_file(path: StrPath) -> CheckError:
    return CheckError(f"{path} is not a health file of this version of gpumon: {RESTART} after an upgrade.")


def _reason(path: StrPath, error: OSError) -> str:
    if error.errno in {errno.ENOENT, errno.ENOTDIR}:
        return f"there is no health file {path}: {START}, or name its file with --health.file."
    if error.errno == errno.EACCES:
        return f"uid {os.geteuid()} may not read {path}: use sudo, or join the group of its folder."
    if error.errno == errno.ELOOP:
        return f"{path} is a symbolic link: remove it, and {RESTART}."
    return f"{path} cannot be read ({error.strerror}): {RESTART}."


def _is_in_memory(path: StrPath) -> bool:
    """Return whether the file is on a tmpfs, so that it was written in this boot, whatever boot id it contains.

    In systemd-nspawn a service with ProtectKernelTunables reads the boot id of the host, not of the container.
    """
    try:
        mounts = [line.split()[1:3] for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()]
    except OSError:
        return False
    above = [(len(point), kind) for point, kind in mounts if Path(path).resolve().is_relative_to(point)]
    return max(above)[1] == "tmpfs"


def _stale(document: Any, max_age: float) -> str:
    if not document["agent"]["running"]:
        return f"the agent was stopped: {START}."
    if document["evaluated_boottime_seconds"] is None:
        return "the agent has just started, and has not evaluated its checks yet."
    age = boot_clock() - float(document["evaluated_boottime_seconds"])
    if not age >= -1:  # also for NaN
        return f"the file has a time in the future: {RESTART}."
    if age > max_age:
        return f"the agent has not evaluated its checks for {age:.0f} s, because it has ended or it hangs: {RESTART}."
    return ""


def _maintenance(window: Document | None, *, this_boot: bool) -> str | None:
    if window is None:
        return None
    until = str(window["until"])
    if this_boot:
        left = float(window["until_boottime_seconds"]) - boot_clock()
    else:
        left = datetime.fromisoformat(until.replace("Z", "+00:00")).timestamp() - time.time()
    return f"until {until[:10]} {until[11:19]} UTC: {window['reason']}" if left > 0 else None


def _check_verdict(verdict: Document) -> Document:
    """Return the verdict. Raise KeyError if it, or one that it inhibits, has a missing or invalid member."""
    for each in (verdict, *verdict["consequences"]):
        missing = VERDICT_KEYS - each.keys()
        if missing or each["level"] not in LEVELS or not CHECK_NAME.fullmatch(each["check"]):
            raise KeyError(*missing)
        optional = [text for text in (each["device"], each.get("repair")) if text is not None]
        if not all(isinstance(text, str) for text in (each["reason"], each["action_text"], *optional)):
            raise TypeError(each)
    return verdict


def _gpu(gpu: Document) -> GpuHealth:
    # The file of an older agent lacks the minor number and the GPU instance ids.
    fault, minor, instances = gpu["fault"], gpu.get("minor"), tuple(gpu.get("gpu_instance_ids", ()))
    indexes = all(isinstance(each, int | None) for each in (gpu["gpu"], gpu["nvml_index"], *instances))
    if not gpu["uuid"].isprintable() or not indexes or not (minor or "0").isdecimal():
        raise ValueError(gpu)
    return GpuHealth(
        number=gpu["gpu"],
        nvml_index=gpu["nvml_index"],
        uuid=gpu["uuid"],
        bus_id=gpu["pci_bus_id"],
        minor=minor,
        migs=tuple(gpu["migs"]),
        gpu_instances=instances,
        unwatched="it is released" if gpu["released"] else f"it does not answer ({fault})" if fault else "",
    )
