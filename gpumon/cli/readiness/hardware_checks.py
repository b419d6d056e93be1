"""READINESS CHECKS of driver, GPUs, fabric manager, network ports and the kernel of the host."""

from __future__ import annotations

import re

from gpumon.cli.readiness.host_facts import ABSENT, HostFacts, Readiness, ReadinessCheck, count
from gpumon.health.verdict import FAIL, OK, UNKNOWN, WARN

GIB = 1 << 30
MIN_SHARED_MEMORY, MIN_FREE_SHARED_MEMORY = GIB, GIB >> 2
"""Minimum size and free space of /dev/shm in bytes. NCCL's documentation recommends 1 GiB for containers."""
MAX_CLOCK_ERROR = 16.0
"""Clock error in seconds (the kernel's estimate) from which the clock counts as unsynchronized, as in timedatectl."""
DRIVER_LOG = "sudo dmesg | grep -iE 'nvrm|nvidia|nouveau' | tail -n 20"
START = "sudo systemctl enable --now nvidia-fabricmanager; sudo journalctl -u nvidia-fabricmanager -n 20"
WAITING = (1, 2)
"""NVML's fabric states (not started, in progress) in which a GPU waits for its registration by the fabric manager."""


def driver(facts: HostFacts) -> Readiness:
    node, version, bus = facts.node, facts.node["driver"]["driver"], facts.node["gpus_on_pci_bus"] or {}
    visible, present = int(node["gpus_visible"] or 0), int(sum(bus.values()))
    if node["releases"]:
        return Readiness(ABSENT, "The GPUs are released: the agent has closed the driver.")
    if not node["nvml_up"] and not present:
        return Readiness(WARN, "No NVIDIA GPU is on the PCI bus.", "lspci -d 10de:")
    if not node["nvml_up"]:
        cause = facts.errors.get("reading") or facts.notice("driver") or "NVML does not answer"
        detail = f"On the PCI bus: {count(present)}. The driver cannot be used: {cause}."
        return Readiness(FAIL, detail, f"sudo modprobe nvidia; nvidia-smi; {DRIVER_LOG}")
    if bus.get("none") or visible < bus.get("nvidia", 0):
        detail = f"Driver {version} lists {visible} of the {count(present)} on the PCI bus."
        return Readiness(FAIL, detail, f"lspci -k -d 10de:; {DRIVER_LOG}")
    return Readiness(OK, f"Driver {version} lists {count(visible)} and supports CUDA {node['driver']['cuda']}.")


def persistence(facts: HostFacts) -> Readiness:
    modes = {gpu["gpu"]: gpu["persistence_mode"] for gpu in facts.gpus if gpu["persistence_mode"] is not None}
    off = ", ".join(str(gpu) for gpu, mode in modes.items() if not mode)
    if off:
        detail = f"It is off for GPU {off}: the driver initialises the GPU again for each first process."
        return Readiness(WARN, detail, "sudo systemctl enable --now nvidia-persistenced || sudo nvidia-smi -pm 1")
    return Readiness(OK, f"It is on for {count(len(modes))}.") if modes else Readiness(ABSENT, "No GPU reports it.")


def fabric_manager(facts: HostFacts) -> Readiness:
    up, version = facts.node["fabric_manager_up"], facts.node["driver"]["driver"]
    waiting = ", ".join(str(gpu["gpu"]) for gpu in facts.gpus if (gpu["fabric"] or {}).get("state") in WAITING)
    if up is None and not waiting:
        return Readiness(ABSENT, "It is not installed, and no GPU waits for it.")
    if not up:
        who = f" GPU {waiting} waits for it." if waiting else ""
        return Readiness(FAIL, f"It does not run, so CUDA does not start on GPUs behind NVSwitches.{who}", START)
    installed = re.search(r"\d+\.[\d.]*\d", "" if facts.node["simulated"] else facts.fabric_manager)
    if installed is None or installed[0] == version or version is None:
        return Readiness(OK, f"It runs, version {installed[0] if installed else 'unknown'}.")
    apt, dnf = f"nvidia-fabricmanager-{version.partition('.')[0]}", f"nvidia-fabricmanager-{version}"
    restart = "sudo systemctl restart nvidia-fabricmanager"
    return Readiness(
        FAIL,
        f"It has version {installed[0]} and the driver {version}: it needs the driver's.",
        f"(sudo apt-get install {apt} || sudo dnf install {dnf}) && {restart}",
    )


def infiniband(facts: HostFacts) -> Readiness:
    ports = facts.report["ports"]
    fabric = [port for port in ports if port["role"] == "fabric"]
    down = [f"{port['device']}/{port['port']}" for port in fabric if port["port_up"] == 0]
    if not ports:
        return Readiness(ABSENT, "There is no InfiniBand or RoCE port.")
    if down:
        detail = f"Down: {', '.join(down)}, of {count(len(fabric), 'port')} of the fabric."
        return Readiness(WARN, detail, f"ibstat {down[0].partition('/')[0]}; gpumon inventory")
    return Readiness(OK, f"{count(len(fabric), 'port')} of the fabric, all up; {len(ports) - len(fabric)} others.")


def shared_memory(facts: HostFacts) -> Readiness:
    if (size := facts.shared_memory) is None:
        return Readiness(FAIL, "There is no /dev/shm, which NCCL needs.", "sudo mount -t tmpfs tmpfs /dev/shm")
    total, free = size.f_blocks * size.f_frsize, size.f_bavail * size.f_frsize
    detail = f"It has {total / GIB:.1f} GiB, of which {free / GIB:.1f} GiB are free."
    if total < MIN_SHARED_MEMORY:
        larger = "sudo mount -o remount,size=8G /dev/shm  # of a container: docker run --shm-size=8g"
        return Readiness(WARN, f"{detail} NCCL needs 1 GiB.", larger)
    full = free < MIN_FREE_SHARED_MEMORY
    return Readiness(WARN, detail, "sudo ls -lhS /dev/shm | head") if full else Readiness(OK, detail)


def clock(facts: HostFacts) -> Readiness:
    if facts.clock_error is None:
        return Readiness(UNKNOWN, "The kernel does not answer in this container.", "timedatectl  # on the host")
    if facts.clock_error >= MAX_CLOCK_ERROR:
        detail = "No service synchronizes it, so the times of events do not match those of other hosts."
        return Readiness(WARN, detail, "sudo timedatectl set-ntp true; timedatectl")
    return Readiness(OK, f"It is synchronized to within {facts.clock_error * 1e3:.0f} ms.")


CHECKS = (
    ReadinessCheck("driver", "Does the driver answer, and list every GPU on the PCI bus?", driver),
    ReadinessCheck("persistence", "Is persistence mode on?", persistence),
    ReadinessCheck("fabric_manager", "Does the fabric manager run, in the version of the driver?", fabric_manager),
    ReadinessCheck("infiniband", "Are the InfiniBand and RoCE ports of the fabric up?", infiniband),
    ReadinessCheck("shared_memory", "Is `/dev/shm` large enough for NCCL?", shared_memory),
    ReadinessCheck("clock", "Is the clock synchronized?", clock),
)
