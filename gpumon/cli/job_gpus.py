"""Determines the GPUs of a job from flags, or from environment variables that CUDA and Slurm set.

A number is the current NVML index of a GPU; in Slurm's variables it is the minor number of its device node, or its
index at boot if the minor number was never read. If a cgroup confines a job to some GPUs, CUDA_VISIBLE_DEVICES numbers
only these GPUs, from 0, but Slurm's own variables number all GPUs of the node. Therefore Slurm's variables take
precedence over numbers in CUDA_VISIBLE_DEVICES. uuids in CUDA_VISIBLE_DEVICES take precedence over both.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from gpumon.cli.health_file import CheckError, GpuHealth, NodeHealth
from gpumon.model.bus_id import parse_bus_id

CUDA = "CUDA_VISIBLE_DEVICES"
SLURM = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS")
ORDINAL = "GPU_DEVICE_ORDINAL"
SLURM_JOB = "SLURM_JOB_ID"
NO_DEVICE = ("-1", "NoDevFiles")
"""Values that end a list of GPUs: CUDA ignores what follows "-1"; Slurm writes "NoDevFiles" without GPUs."""


class GpuNames(NamedTuple):
    """The indexes, uuids or PCI addresses of a job's GPUs. `origin`: the flag or environment variable with the list."""

    origin: str
    names: tuple[str, ...]


def from_job(flags: Sequence[str], environ: Mapping[str, str]) -> GpuNames:
    """Return the names of the job's GPUs from `flags` (values of --gpu), else from variables; CheckError without."""
    if flags:
        names = {text: tuple(_split(text)) for text in flags}
        for text, own in names.items():
            if not own:  # a mistake in a script, not a job without GPUs
                raise CheckError(f"--gpu {text!r} names no GPU: give its index, its uuid or its PCI address.")
        return GpuNames("--gpu", tuple(name for own in names.values() for name in own))
    cuda = environ.get(CUDA)
    if cuda is not None and "-" in cuda and not cuda.startswith(NO_DEVICE):
        return GpuNames(CUDA, tuple(_split(cuda)))
    variables = {name: environ[name] for name in (*SLURM, CUDA, ORDINAL) if name in environ}
    if variables:  # an empty variable is skipped if another one names GPUs
        origin = next((name for name, text in variables.items() if text), next(iter(variables)))
        return GpuNames(origin, tuple(_split(variables[origin])))
    if SLURM_JOB in environ:
        return GpuNames(SLURM_JOB, ())
    raise CheckError(f"--for-job: none of --gpu, {CUDA}, {', '.join(SLURM)} names the GPUs of the job.")


def _split(text: str) -> Iterator[str]:
    """Yield the GPU names in a list separated by commas, up to a name in NO_DEVICE. 0-2 yields 0, 1 and 2."""
    for name in filter(None, (part.strip() for part in text.split(","))):
        if name in NO_DEVICE:
            return
        first, dash, last = name.partition("-")
        if dash and first.isdigit() and last.isdigit() and int(first) <= int(last) < int(first) + 1000:
            yield from (str(number) for number in range(int(first), int(last) + 1))
        else:
            yield name


def resolve(job: GpuNames, health: NodeHealth) -> tuple[GpuHealth, ...]:
    """Return the GPUs of the job. Raise CheckError, which lists the GPUs, if a name does not match exactly one GPU."""
    try:
        return tuple(dict.fromkeys(_gpu(name, job.origin, health.gpus) for name in job.names))
    except CheckError as error:
        raise CheckError(f"{error} {health.stale[:1].upper()}{health.stale[1:]}".strip()) from error


def _gpu(name: str, origin: str, gpus: Collection[GpuHealth]) -> GpuHealth:
    matching = list(dict.fromkeys(_candidates(name, origin, gpus)))
    if len(matching) == 1:
        return matching[0]
    wrong = "is more than one GPU" if matching else "is no GPU of this node"
    candidates = matching or gpus
    if name.isdigit() and origin not in SLURM and any(gpu.moved for gpu in gpus):
        wrong = f"{wrong} in the driver, which has renumbered the GPUs since boot: name it by uuid"
        candidates = [gpu._replace(number=gpu.nvml_index) for gpu in candidates]
    raise CheckError(f"{origin}: {name!r} {wrong}; there are: {_list_names(candidates) or 'none'}.")


def _candidates(name: str, origin: str, gpus: Collection[GpuHealth]) -> Iterable[GpuHealth]:
    if not name.isdigit():
        return (gpu for gpu in gpus if _matches(name, gpu))
    if origin in SLURM:
        return (gpu for gpu in gpus if int(name) == (gpu.number if gpu.minor is None else int(gpu.minor)))
    matching = [gpu for gpu in gpus if gpu.nvml_index == int(name)]
    if matching or any(gpu.moved for gpu in gpus):
        return matching
    return (gpu for gpu in gpus if gpu.number == int(name))  # the driver has not renumbered the GPUs since boot


def _matches(name: str, gpu: GpuHealth) -> bool:
    lower = name.lower()
    if lower.startswith("gpu-"):
        return gpu.uuid.lower().startswith(lower)
    if lower.startswith("mig-gpu-"):  # drivers before 470 write MIG-GPU-<uuid>/<instance>/<instance>
        return gpu.uuid.lower() == lower.removeprefix("mig-").partition("/")[0]
    if lower.startswith("mig-"):
        return any(mig.lower().startswith(lower) for mig in gpu.migs)
    return parse_bus_id(name) == gpu.bus_id


def _list_names(gpus: Iterable[GpuHealth]) -> str:
    return ", ".join(gpu.uuid if gpu.number is None else f"{gpu.number} ({gpu.uuid})" for gpu in gpus)
