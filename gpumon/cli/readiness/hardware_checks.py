"""READINESS CHECKS of driver, GPUs, network ports and kernel, and of the PyTorch, CUDA and NCCL of the probes."""

from __future__ import annotations

import re
import sys

from gpumon.cli.readiness.host_facts import ABSENT, RELEASED, HostFacts, Readiness, ReadinessCheck, count
from gpumon.health.verdict import FAIL, OK, UNKNOWN, WARN
from gpumon.probe.core.remedies import TORCH, numbers, remedy, torch_installation

GIB = 1 << 30
MIN_SHARED_MEMORY, MIN_FREE_SHARED_MEMORY = GIB, GIB >> 2
"""Minimum size and free space of /dev/shm in bytes. NCCL's documentation recommends 1 GiB for containers."""
MAX_CLOCK_ERROR = 16.0
"""Clock error in seconds (the kernel's estimate) from which the clock counts as unsynchronized, as in timedatectl."""
DRIVER_LOG = "sudo dmesg | grep -iE 'nvrm|nvidia|nouveau' | tail -n 20"
START = "sudo systemctl enable --now nvidia-fabricmanager; sudo journalctl -u nvidia-fabricmanager -n 20"
WAITING = (1, 2)
"""NVML's fabric states (not started, in progress) in which a GPU waits for its registration by the fabric manager."""
MIN_DRIVERS = {11: 450, 12: 525, 13: 580}
"""Oldest driver branch that runs programs built with a major version of CUDA, by that version. See SOURCE."""
SOURCE = "docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html"
WHEELS = {11: "cu118", 12: "cu126", 13: "cu130"}
"""Name of PyTorch's wheel index, by the major CUDA version that the driver supports."""
ENVIRONMENT = "CUDA_VISIBLE_DEVICES"


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


def torch(facts: HostFacts) -> Readiness:
    version, python, error = facts.torch.get("torch"), facts.python, facts.errors.get("torch")
    if error == RELEASED:
        return Readiness(ABSENT, f"It was not loaded, because {RELEASED}.")
    if error:
        repeat = f"namei -l {python}" if "denied" in error else f"{python} -I -c 'import torch'"
        return Readiness(FAIL, f"{python} has failed: {error}.", repeat)
    install = torch_installation(python)
    if version is None:
        detail = f"{python} cannot import it, so no probe runs: {facts.torch['import_error']}."
        return Readiness(WARN, detail, f"{install}  # and set probe.python to the interpreter that has it")
    old = numbers(version)[:2] < TORCH
    return Readiness(WARN if old else OK, f"{python} has PyTorch {version}.", install if old else "")


def cuda(facts: HostFacts) -> Readiness:
    if reason := inapplicable(facts):
        return Readiness(ABSENT, reason)
    version, built = facts.torch["torch"], facts.torch["cuda"]
    driver, supported = facts.node["driver"]["driver"] or "0", facts.node["driver"]["cuda"] or "0"
    install = f"{facts.python} -m pip install --upgrade torch --index-url https://download.pytorch.org/whl/"
    install += WHEELS.get(numbers(supported)[0], "cu126")
    if built is None:
        return Readiness(WARN, f"PyTorch {version} is built without CUDA, so no probe uses the GPUs.", install)
    min_driver = MIN_DRIVERS.get(numbers(built)[0], 0)
    too_old = numbers(driver)[0] < min_driver
    if too_old and not facts.torch["gpus"]:
        detail = f"CUDA {built} of PyTorch {version} needs driver {min_driver} or later, this is {driver} ({SOURCE})."
        return Readiness(FAIL, detail, install)
    capabilities = sorted({gpu["compute_capability"] for gpu in facts.gpus} - {None})
    if lacking := [each for each in capabilities if not runs_on(facts.torch["architectures"] or "", each)]:
        detail = f"PyTorch {version} has no code for GPUs of compute capability {', '.join(lacking)}."
        return Readiness(FAIL, detail, install)
    how = f", by minor version compatibility ({SOURCE})" if numbers(built)[:2] > numbers(supported)[:2] else ""
    how = ", with the forward compatibility package" if too_old else how
    return Readiness(OK, f"CUDA {built} of PyTorch runs on driver {driver}, which supports CUDA {supported}{how}.")


def torch_gpus(facts: HostFacts) -> Readiness:
    if reason := inapplicable(facts) or ("" if facts.torch["cuda"] else "PyTorch is built without CUDA."):
        return Readiness(ABSENT, reason)
    listed, visible, error = facts.torch["gpus"], int(facts.node["gpus_visible"] or 0), facts.torch["gpu_error"]
    detail = f"PyTorch lists {listed} of {count(visible)}"
    if listed < visible and facts.visible_devices is not None:
        return Readiness(WARN, f"{detail}, because {ENVIRONMENT} is set.", f"unset {ENVIRONMENT}")
    if listed >= visible or (listed and any(gpu["mig_mode"] for gpu in facts.gpus)):
        return Readiness(OK, f"{detail}.")
    hint = re.search(r"`(.+)`", remedy(error or ""))
    repeat = f"nvidia-smi; {facts.python} -I -c 'import torch; torch.cuda.init()'"
    return Readiness(FAIL, f"{detail}{f': {error}' if error else ''}.", hint[1] if hint else repeat)


def visible_devices(facts: HostFacts) -> Readiness:
    if facts.agent_devices is not None:
        detail = f"{ENVIRONMENT} is {facts.agent_devices!r} for the agent, which hides the other GPUs from its probes."
        return Readiness(WARN, detail, "sudoedit /etc/default/gpumon && sudo systemctl restart gpumon")
    if facts.visible_devices is None:
        return Readiness(OK, f"{ENVIRONMENT} is not set.")
    detail = f"{ENVIRONMENT} is {facts.visible_devices!r}, which hides the other GPUs from what this shell starts."
    return Readiness(WARN, detail, f"unset {ENVIRONMENT}")


def nccl(facts: HostFacts) -> Readiness:
    loaded = facts.torch.get("nccl")
    if (reason := inapplicable(facts)) or loaded is None:
        return Readiness(ABSENT, reason or "PyTorch is built without NCCL.")
    own = f"nvidia-nccl-cu{numbers(facts.torch['cuda'])[0]}"
    wheels = {name: str(version) for name, version in facts.torch["packages"].items() if "nccl" in name}
    if foreign := " ".join(wheels.keys() - {own}):
        detail = f"{foreign} is installed, but PyTorch {facts.torch['torch']} uses {own}: with the same files."
        pip, right = f"{facts.python} -m pip", f"{own}=={wheels[own]}" if own in wheels else own
        return Readiness(
            WARN, detail, f"{pip} uninstall -y {foreign}; {pip} install --force-reinstall --no-deps {right}"
        )
    if wheels and loaded != wheels[own]:
        detail = f"NCCL {loaded} is loaded from {facts.torch['nccl_file']}, but PyTorch came with {wheels[own]}."
        return Readiness(WARN, detail, "unset LD_LIBRARY_PATH LD_PRELOAD; gpumon doctor")
    return Readiness(OK, f"NCCL {loaded} is loaded from {facts.torch['nccl_file'] or 'PyTorch itself'}.")


def pynvml(facts: HostFacts) -> Readiness:
    wrong = [sys.executable] if facts.pynvml else []
    wrong += [facts.python] if "pynvml" in facts.torch.get("packages", ()) and facts.python not in wrong else []
    if not wrong:
        return Readiness(OK, "Only nvidia-ml-py is installed.")
    fix = "{0} -m pip uninstall -y pynvml && {0} -m pip install --force-reinstall nvidia-ml-py"
    detail = f"The package pynvml is installed for {' and '.join(wrong)}: it replaces or wraps files of nvidia-ml-py."
    return Readiness(WARN, detail, "; ".join(fix.format(python) for python in wrong))


def runs_on(architectures: str, capability: str) -> bool:
    """Return whether code for one of these architectures runs on a GPU of this compute capability.

    According to NVIDIA's CUDA programming guide, sm_80 runs on 8.0 to 8.9, and compute_80 (PTX) on 8.0 and all later.
    """
    gpu = numbers(capability)[:2]
    built = [
        (kind, (int(major), int(minor))) for kind, major, minor in re.findall(r"(sm|compute)_(\d+)(\d)", architectures)
    ]
    return any(code <= gpu and (kind == "compute" or code[0] == gpu[0]) for kind, code in built)


def inapplicable(facts: HostFacts) -> str:
    """Return why the checks that compare PyTorch with the GPUs do not apply to this host; empty if they do."""
    if "torch" not in facts.torch:
        return "PyTorch was not loaded."
    simulated = "The GPUs are simulated." if facts.node["simulated"] else ""
    return simulated if simulated or facts.has_gpus else "There is no GPU."


CHECKS = (
    ReadinessCheck("driver", "Does the driver answer, and list every GPU on the PCI bus?", driver),
    ReadinessCheck("persistence", "Is persistence mode on?", persistence),
    ReadinessCheck("fabric_manager", "Does the fabric manager run, in the version of the driver?", fabric_manager),
    ReadinessCheck("infiniband", "Are the InfiniBand and RoCE ports of the fabric up?", infiniband),
    ReadinessCheck("shared_memory", "Is `/dev/shm` large enough for NCCL?", shared_memory),
    ReadinessCheck("clock", "Is the clock synchronized?", clock),
    ReadinessCheck("torch", "Has `probe.python` a PyTorch that the probe supports?", torch),
    ReadinessCheck("cuda", "Does PyTorch's CUDA run on this driver and these GPUs?", cuda),
    ReadinessCheck("torch_gpus", "Does PyTorch list every GPU?", torch_gpus),
    ReadinessCheck("visible_devices", "Is `CUDA_VISIBLE_DEVICES` unset?", visible_devices),
    ReadinessCheck("nccl", "Is the NCCL that came with PyTorch the one that is loaded?", nccl),
    ReadinessCheck("pynvml", "Is nvidia-ml-py installed without the package pynvml?", pynvml),
)
