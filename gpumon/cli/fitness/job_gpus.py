"""Which GPUs a job has: as it is told, or as CUDA and Slurm put it into the environment. Pure.

A number is the GPU's index: the driver's of now, and in Slurm's variables that of the boot, as are the numbers of the
device nodes that Slurm counts. Where a cgroup confines a job's GPUs, CUDA_VISIBLE_DEVICES counts from 0 among them, so
Slurm's own variables, which do not, come before its numbers; its uuids come before all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from gpumon.cli.fitness.node_health import GpuRecord, Unknowable
from gpumon.model.bus_id import parsed

CUDA = "CUDA_VISIBLE_DEVICES"
SLURM = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS")
ORDINAL = "GPU_DEVICE_ORDINAL"
SLURM_JOB = "SLURM_JOB_ID"
NO_DEVICE = ("-1", "NoDevFiles")
"""Ends the list: CUDA sees nothing behind it; Slurm writes the second for a job without GPUs."""


class Named(NamedTuple):
    """What a job's GPUs are called, and by whom."""

    origin: str
    names: tuple[str, ...]


def named(given: Sequence[str], environ: Mapping[str, str]) -> Named:
    """Raises Unknowable when nothing says which."""
    if given:
        return Named("--gpu", tuple(name for one in given for name in _given(one)))
    cuda = environ.get(CUDA)
    if cuda is not None and "-" in cuda and not cuda.startswith(NO_DEVICE):
        return Named(CUDA, tuple(_split(cuda)))
    said = {one: environ[one] for one in (*SLURM, CUDA, ORDINAL) if one in environ}
    if said:  # an empty one says nothing while another names GPUs
        variable = next((one for one, text in said.items() if text), next(iter(said)))
        return Named(variable, tuple(_split(said[variable])))
    if SLURM_JOB in environ:
        return Named(SLURM_JOB, ())
    raise Unknowable(f"--for-job: neither --gpu nor {CUDA} nor {' nor '.join(SLURM)} says which GPUs the job has.")


def _given(text: str) -> tuple[str, ...]:
    """An empty variable in somebody's script is no job without GPUs: that would be well whatever the GPU is."""
    names = tuple(_split(text))
    if not names:
        raise Unknowable(f"--gpu {text!r} names no GPU: give its index, its uuid or its PCI address.")
    return names


def _split(text: str) -> Iterator[str]:
    """Single names: 0-2 is 0, 1 and 2."""
    for name in filter(None, (part.strip() for part in text.split(","))):
        if name in NO_DEVICE:
            return
        first, dash, last = name.partition("-")
        if dash and first.isdigit() and last.isdigit() and int(first) <= int(last) < int(first) + 1000:
            yield from (str(number) for number in range(int(first), int(last) + 1))
        else:
            yield name


def chosen(asked: Named, gpus: Collection[GpuRecord]) -> tuple[GpuRecord, ...]:
    """Those of the job. Raises Unknowable, which names those that there are."""
    found = dict.fromkeys(_one(name, asked.origin, gpus) for name in asked.names)
    return tuple(found)


def _one(name: str, origin: str, gpus: Collection[GpuRecord]) -> GpuRecord:
    matching = list(dict.fromkeys(_found(name, origin, gpus)))
    if len(matching) == 1:
        return matching[0]
    wrong = "is more than one GPU" if matching else "is not known here"
    there = matching or gpus
    if name.isdigit() and origin not in SLURM and any(gpu.moved for gpu in gpus):
        wrong = f"{wrong} by the driver, which numbers the GPUs otherwise than before: name it by uuid"
        there = [gpu._replace(number=gpu.nvml_index) for gpu in there]
    raise Unknowable(f"{origin}: {name!r} {wrong}; there are: {_listed(there) or 'none'}.")


def _found(name: str, origin: str, gpus: Collection[GpuRecord]) -> Iterable[GpuRecord]:
    if not name.isdigit():
        return (gpu for gpu in gpus if _matches(name, gpu))
    if origin in SLURM:
        return (gpu for gpu in gpus if gpu.number == int(name))
    return _indexed(int(name), gpus)


def _indexed(number: int, gpus: Collection[GpuRecord]) -> Iterable[GpuRecord]:
    """By the driver. One whose index nobody knows has the number that it is shown by, while no other has moved."""
    listed = [gpu for gpu in gpus if gpu.nvml_index == number]
    if listed or any(gpu.moved for gpu in gpus):
        return listed
    return (gpu for gpu in gpus if gpu.number == number)


def _matches(name: str, gpu: GpuRecord) -> bool:
    lower = name.lower()
    if lower.startswith("gpu-"):
        return gpu.uuid.lower().startswith(lower)
    if lower.startswith("mig-gpu-"):  # as drivers before 470 named them: MIG-GPU-<uuid>/<instance>/<instance>
        return gpu.uuid.lower() == lower.removeprefix("mig-").partition("/")[0]
    if lower.startswith("mig-"):
        return any(mig.lower().startswith(lower) for mig in gpu.migs)
    return parsed(name) == gpu.bus_id


def _listed(gpus: Iterable[GpuRecord]) -> str:
    """As they may be written."""
    return ", ".join(gpu.uuid if gpu.number is None else f"{gpu.number} ({gpu.uuid})" for gpu in gpus)
