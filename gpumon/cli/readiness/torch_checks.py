"""READINESS CHECKS of PyTorch, CUDA and NCCL for probes: their versions, and whether they fit the driver and GPUs."""

from __future__ import annotations

import re
import sys

from gpumon.cli.readiness.host_facts import ABSENT, RELEASED, HostFacts, Readiness, ReadinessCheck, count
from gpumon.health.verdict import FAIL, OK, WARN
from gpumon.probe.core.remedies import TORCH, numbers, remedy, torch_installation

MIN_DRIVERS = {11: 450, 12: 525, 13: 580}
"""Oldest driver branch that runs programs built with a major version of CUDA, by that version. See SOURCE."""
SOURCE = "docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html"
WHEELS = {11: "cu118", 12: "cu126", 13: "cu130"}
"""Name of PyTorch's wheel index, by the major CUDA version that the driver supports."""
ENVIRONMENT = "CUDA_VISIBLE_DEVICES"


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
    ReadinessCheck("torch", "Has `probe.python` a PyTorch that the probe supports?", torch),
    ReadinessCheck("cuda", "Does PyTorch's CUDA run on this driver and these GPUs?", cuda),
    ReadinessCheck("torch_gpus", "Does PyTorch list every GPU?", torch_gpus),
    ReadinessCheck("visible_devices", "Is `CUDA_VISIBLE_DEVICES` unset?", visible_devices),
    ReadinessCheck("nccl", "Is the NCCL that came with PyTorch the one that is loaded?", nccl),
    ReadinessCheck("pynvml", "Is nvidia-ml-py installed without the package pynvml?", pynvml),
)
