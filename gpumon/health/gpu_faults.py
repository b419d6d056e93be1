"""TABLE: the meaning of each GPU fault and the operator's action, for the status page and the runbook."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Advice:
    """The meaning of a fault and what an operator does about it."""

    meaning: str
    action: str


FAULTS: Mapping[str, Advice] = {
    "lost": Advice(
        "It fell off the bus: the driver can no longer reach it.",
        "Drain the node and reboot it; a power cycle helps where a warm reboot does not. Look for Xid 79 in the kernel "
        "log. "
        "If it falls off again, reseat or replace the GPU.",
    ),
    "missing": Advice(
        "It was present before, and the driver no longer lists it.",
        "Compare `lspci -d 10de:` with the GPUs expected and look for Xid 79 in the kernel log, then drain the node "
        "and power-cycle it.",
    ),
    "reset_required": Advice(
        "It does not work until it is reset.",
        "Drain the GPU, then `nvidia-smi --gpu-reset -i <uuid>`; if that is refused, drain the node and reboot it.",
    ),
    "no_permission": Advice(
        "The agent has no permission to open it; its state is unknown.",
        "Check the permissions of /dev/nvidia* and the unit's DeviceAllow and groups.",
    ),
    "stuck": Advice(
        "A driver call on it does not return. The other GPUs are still monitored.",
        "A reset of the GPU is worth a try before the reboot only after Xid 119 or 120. Do not `kill -9` what runs on "
        "this GPU: it may never end, and hold the driver.",
    ),
    "init_failed": Advice(
        "The driver could not start it.",
        "Look for NVRM lines in the kernel log (`journalctl -k -g NVRM`), then drain and reset the GPU, or reboot.",
    ),
    "unknown": Advice(
        "It cannot be read, and the driver reports no reason.",
        "Look for NVRM lines in the kernel log (`journalctl -k -g NVRM`), then drain and reset the GPU, or reboot.",
    ),
}
