"""Resolve the names of GPUs and MIG instances that device plugins, DRA drivers and prologs of schedulers use."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from gpumon.model.gpu_state import GpuState
from gpumon.model.snapshot import MigReading


@dataclass(frozen=True, slots=True)
class Place:
    """A GPU or, with `mig_uuid`, a MIG instance of this GPU."""

    uuid: str
    mig_uuid: str = ""


_OLD_MIG = re.compile(r"MIG-(?P<parent>GPU-[^/]+)/(?P<gi>[0-9]+)/(?P<ci>[0-9]+)")
"""Matches the names of MIG instances of drivers before 470."""
_BY_MINOR = re.compile(
    r"(?:nvidia|gpu-)(?P<minor>[0-9]+)(?:/vgpu[0-9]+|/gi(?P<gi>[0-9]+)|-mig-(?P<profile>.+)-[0-9]+-[0-9]+)?"
)
"""Matches the names of GKE's device plugin and of NVIDIA's DRA driver."""
_BY_INDEX = re.compile(r"(?P<index>[0-9]+)(?:\.(?P<gi>[0-9]+))?")
"""Matches the file names of dcgm-exporter's job mapping. DCGM numbers GPUs like NVML, which is not the device minor."""


def resolve(name: str, gpus: Iterable[GpuState]) -> Place | None:
    """Return the place that a device name means; None if unknown.

    If the name of a MIG instance matches none or several of its GPU, the place is the GPU.
    """
    gpus = tuple(gpus)
    if name.startswith(("GPU-", "MIG-")):
        return _by_uuid(name.partition("::")[0], gpus)
    if match := _BY_MINOR.fullmatch(name):
        gpu = next((gpu for gpu in gpus if gpu.gpu.minor == match["minor"]), None)
        return None if gpu is None else _instance(gpu, gi=match["gi"], profile=match["profile"])
    if match := _BY_INDEX.fullmatch(name):
        gpu = next((gpu for gpu in gpus if str(gpu.nvml_index) == match["index"]), None)
        return None if gpu is None else _instance(gpu, gi=match["gi"])
    return None


def _by_uuid(name: str, gpus: Iterable[GpuState]) -> Place | None:
    old = _OLD_MIG.fullmatch(name)
    for gpu in gpus:
        if name == gpu.uuid:
            return Place(gpu.uuid)
        if old and old["parent"] == gpu.uuid:
            return _instance(gpu, gi=old["gi"], ci=old["ci"])
        if any(mig.uuid == name for mig in gpu.migs):
            return Place(gpu.uuid, name)
    return None


def _instance(gpu: GpuState, *, gi: str | None = None, ci: str | None = None, profile: str | None = None) -> Place:
    """Return the MIG instance of the GPU that alone has these ids or this profile; else, or without them, the GPU."""

    def matches(mig: MigReading) -> bool:
        names = ((gi, str(mig.gpu_instance_id)), (ci, str(mig.compute_instance_id)), (profile, _dra_profile(mig)))
        return all(wanted in {None, actual} for wanted, actual in names)

    matching = [mig.uuid for mig in gpu.migs if matches(mig)] if gi or profile else []
    return Place(gpu.uuid, matching[0] if len(matching) == 1 else "")


def _dra_profile(mig: MigReading) -> str:
    """Return the profile as it is in names of DRA devices: 1g10gb-me for 1g.10gb+me."""
    return re.sub(r"[^a-z0-9-]", "-", mig.profile.lower().replace(".", ""))
