"""FAULTS: the meaning of each GPU fault and the operator's action, for the status page and the runbook."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Advice:
    """The check of a fault, its meaning and what an operator does about it."""

    check: str
    meaning: str
    action: str


FAULTS: Mapping[str, Advice] = {
    "lost": Advice(
        "gpu_lost",
        "It fell off the bus: the driver can no longer reach it.",
        "Drain the node and reboot it. If the GPU stays lost, power-cycle the node. Look for Xid 79 in the kernel log. "
        "If it falls off again, reseat or replace the GPU.",
    ),
    "missing": Advice(
        "gpu_missing",
        "It was present before, and the driver no longer lists it.",
        "Drain the node and reboot it. If `lspci -d 10de:` does not list the GPU, power-cycle the node instead.",
    ),
    "reset_required": Advice(
        "gpu_reset_required",
        "It does not work until it is reset.",
        "Drain the GPU and reset it. If `nvidia-smi --gpu-reset -i <uuid>` is refused, drain the node and reboot it.",
    ),
    "no_permission": Advice(
        "gpu_denied",
        "The agent has no permission to open it; its state is unknown.",
        "Check the permissions of /dev/nvidia* and the unit's DeviceAllow and groups.",
    ),
    "stuck": Advice(
        "gpu_stuck",
        "A driver call on it does not return. The other GPUs are still monitored.",
        "Drain the node and reboot it. After Xid 119 or 120, first try a GPU reset. Do not `kill -9` processes on this "
        "GPU: they may not exit, and keep the driver open.",
    ),
    "init_failed": Advice(
        "gpu_init_failed",
        "The driver could not start it.",
        "Drain the GPU and reset it. If a reset fails, reboot the node. `journalctl -k -g NVRM` shows the cause.",
    ),
    "unknown": Advice(
        "gpu_unreadable",
        "It cannot be read, and the driver reports no reason.",
        "Drain the GPU and reset it. If a reset fails, reboot the node. `journalctl -k -g NVRM` shows the cause.",
    ),
}
