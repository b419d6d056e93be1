"""Writes job mapping files: which Slurm jobs hold which GPUs. model/job_mapping.py has their format.

Root writes into a directory that may belong to another user, who could place symbolic links in it: each file is opened
in an open directory, and none is followed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from gpumon.cli.health_file import CheckError, NodeHealth
from gpumon.cli.job_gpus import GpuNames, resolve
from gpumon.clock import boot_clock
from gpumon.model.job_mapping import DEVICE, SIDE_FILES, SUFFIX

MAX_BYTES = 65536
PUBLIC, PRIVATE = 0o644, 0o640
"""Modes of a mapping file, and of a side file, which has the name of a user."""


class MappedDevice(NamedTuple):
    """A GPU or MIG instance of a job. `file`: name of its mapping file; None if the driver does not list it."""

    uuid: str
    file: str | None


def devices(job: GpuNames, health: NodeHealth) -> list[MappedDevice]:
    """Return the GPUs and MIG instances of the job. Raise CheckError if a name does not match exactly one."""
    return list(dict.fromkeys(_device(name, job, health) for name in job.names))


def _device(name: str, job: GpuNames, health: NodeHealth) -> MappedDevice:
    [gpu] = resolve(GpuNames(job.origin, (name,)), health)
    index = None if gpu.nvml_index is None else str(gpu.nvml_index)
    if not name.lower().startswith("mig-"):
        return MappedDevice(gpu.uuid, index)
    matching = [number for number, mig in enumerate(gpu.migs) if mig.lower().startswith(name.lower())]
    if len(matching) != 1:
        raise CheckError(f"{job.origin}: {name!r} is not exactly one MIG instance of {gpu.name}.")
    instances = gpu.gpu_instances[matching[0] : matching[0] + 1]
    return MappedDevice(gpu.migs[matching[0]], f"{index}.{instances[0]}" if index and instances else None)


def begin(directory: str, job: str, files: Iterable[str], document: Mapping[str, Any], group: int) -> None:
    """Add the job to the mapping files, and write its side file, which `group` may read. Raise OSError on failure."""
    Path(directory).mkdir(parents=True, exist_ok=True)
    with _locked(directory, group) as (folder, side):
        _remove(folder, side, job)  # of an earlier run of the job, which ended without an epilog
        _replace(side, f"{job}{SUFFIX}", json.dumps(document), side, group)
        for name in files:
            _replace(side, name, f"{_read(folder, name)}{job}\n", folder)


def end(directory: str, job: str) -> None:
    """Remove the job from all mapping files, and its side file. Raise OSError on failure."""
    with contextlib.suppress(FileNotFoundError), _locked(directory) as (folder, side):
        _remove(folder, side, job)


def _remove(folder: int, side: int, job: str) -> None:
    """Remove the job from all files, and all jobs of an earlier boot, which ended without an epilog."""
    booted = time.time() - boot_clock()
    for name in filter(DEVICE.fullmatch, os.listdir(folder)):
        lines = _read(folder, name).splitlines(keepends=True)
        others = [] if _modified(folder, name) < booted else [line for line in lines if line.strip() != job]
        if others != lines:
            _replace(side, name, "".join(others), folder)
    for name in os.listdir(side):
        if _modified(side, name) < booted:
            os.unlink(name, dir_fd=side)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(f"{job}{SUFFIX}", dir_fd=side)


def _modified(folder: int, name: str) -> float:
    return os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime


@contextlib.contextmanager
def _locked(directory: str, group: int | None = None) -> Iterator[tuple[int, int]]:
    """Open the directory and its folder of side files, which is created if `group` is given, and lock the latter."""
    with contextlib.ExitStack() as stack:
        folder = _open_folder(stack, directory)
        if group is not None:
            with contextlib.suppress(FileExistsError):
                os.mkdir(SIDE_FILES, 0o750, dir_fd=folder)
        side = _open_folder(stack, SIDE_FILES, folder)
        _give(side, group)
        fcntl.flock(side, fcntl.LOCK_EX)
        yield folder, side


def _open_folder(stack: contextlib.ExitStack, path: str, folder: int | None = None) -> int:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, dir_fd=folder)
    stack.callback(os.close, descriptor)
    return descriptor


def _give(descriptor: int, group: int | None) -> None:
    if group is not None:
        with contextlib.suppress(PermissionError):
            os.fchown(descriptor, -1, group)


def _read(folder: int, name: str) -> str:
    """Return the lines in a mapping file; "" if there is none."""
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:
        return ""
    with os.fdopen(descriptor, encoding="utf-8", errors="replace") as file:
        text = file.read(MAX_BYTES)
    return text if not text or text.endswith("\n") else f"{text}\n"


def _replace(side: int, name: str, text: str, folder: int, group: int | None = None) -> None:
    """Write a file beside the side files, where dcgm-exporter reads none, and move it into its folder."""
    new, mode = f".{name}.new", PRIVATE if folder == side else PUBLIC
    with contextlib.suppress(FileNotFoundError):
        os.unlink(new, dir_fd=side)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(new, flags, mode, dir_fd=side)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        _give(descriptor, group)
        file.write(text)
    os.replace(new, name, src_dir_fd=side, dst_dir_fd=folder)
