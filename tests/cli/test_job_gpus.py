"""The GPUs of a job are found by flags, by CUDA's variable and by Slurm's."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from each_case import each_case

from gpumon.cli.health_file import CheckError, GpuHealth, NodeHealth
from gpumon.cli.job_gpus import from_job, resolve

GPUS = (
    GpuHealth(number=0, uuid="GPU-aaaa1111-0000", bus_id="00000000:1B:00.0"),
    GpuHealth(number=1, uuid="GPU-aaaa2222-0000", bus_id="00000000:43:00.0", migs=("MIG-bbbb1111", "MIG-bbbb2222")),
    GpuHealth(number=2, uuid="GPU-cccc0000-0000", bus_id="00000000:52:00.0"),
)


def of(environ: Mapping[str, str], *given: str) -> list[int | None]:
    return [gpu.number for gpu in resolve(from_job(given, environ), NodeHealth(gpus=GPUS))]


@each_case(
    "name",
    ["2", "GPU-cccc0000-0000", "GPU-c", "gpu-CCCC", "52:00.0", "0000:52:00.0", "00000000:52:00.0"],
)
def test_every_name_of_a_gpu_is_understood(name: str) -> None:
    """Index, uuid, an unambiguous beginning of it, and PCI address in every spelling."""
    assert of({}, name) == [2]


@each_case(
    ("environ", "indices"),
    [
        ({"CUDA_VISIBLE_DEVICES": "0,2"}, [0, 2]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-aaaa1,GPU-cccc"}, [0, 2]),
        ({"CUDA_VISIBLE_DEVICES": "MIG-bbbb1111,MIG-bbbb2222"}, [1]),
        ({"CUDA_VISIBLE_DEVICES": "MIG-GPU-aaaa2222-0000/1/0"}, [1]),
        ({"CUDA_VISIBLE_DEVICES": "0,-1,2"}, [0]),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, []),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles", "SLURM_JOB_ID": "7"}, []),
        ({"CUDA_VISIBLE_DEVICES": ""}, []),
        ({"SLURM_JOB_GPUS": "1,2", "SLURM_JOB_ID": "7"}, [1, 2]),
        ({"SLURM_JOB_GPUS": "0-2"}, [0, 1, 2]),
        ({"GPU_DEVICE_ORDINAL": "1"}, [1]),
        ({"SLURM_JOB_ID": "7"}, []),
    ],
)
def test_the_environment_names_the_gpus(environ: dict[str, str], indices: list[int]) -> None:
    """As CUDA reads its variable, and as Slurm sets its own; a Slurm job without any has no GPU."""
    assert of(environ) == indices


@each_case(
    ("environ", "indices"),
    [
        ({"CUDA_VISIBLE_DEVICES": "0", "SLURM_JOB_GPUS": "2"}, [2]),
        ({"CUDA_VISIBLE_DEVICES": "1", "SLURM_STEP_GPUS": "", "SLURM_JOB_GPUS": ""}, [1]),
        ({"CUDA_VISIBLE_DEVICES": "", "SLURM_JOB_GPUS": ""}, []),
        ({"CUDA_VISIBLE_DEVICES": "0", "SLURM_STEP_GPUS": "1", "SLURM_JOB_GPUS": "1,2"}, [1]),
        ({"CUDA_VISIBLE_DEVICES": "MIG-bbbb1111", "SLURM_JOB_GPUS": "5"}, [1]),
    ],
)
def test_numbers_relative_to_a_cgroup_are_not_taken_for_indices(environ: dict[str, str], indices: list[int]) -> None:
    """Slurm's own numbers come before CUDA's; CUDA's uuids come before Slurm's numbers, which MIG makes others."""
    assert of(environ) == indices


def test_flags_come_before_the_environment() -> None:
    """--gpu, repeated or with commas, each GPU once."""
    assert of({"CUDA_VISIBLE_DEVICES": "0"}, "2,1", "GPU-cccc") == [2, 1]


@pytest.mark.parametrize("given", [[""], [","], ["-1"], ["0", ""]])
def test_a_flag_without_a_gpu_is_refused(given: list[str]) -> None:
    """An empty variable in a script must not be taken for a job without GPUs, which is always healthy."""
    with pytest.raises(CheckError, match=r"^--gpu .* names no GPU: give its index"):
        of({}, *given)


@pytest.mark.parametrize(("name", "words"), [("9", "no GPU of"), ("GPU-aaaa", "more than one"), ("MIG-x", "no GPU of")])
def test_an_unknown_gpu_is_refused_with_a_list(name: str, words: str) -> None:
    """The message names the GPU, its variable, and the GPUs of the node."""
    with pytest.raises(CheckError, match=f"SLURM_JOB_GPUS: '{name}' is {words}.*GPU-aaaa1111"):
        of({"SLURM_JOB_GPUS": name})


def test_a_job_without_any_name_is_refused() -> None:
    """Outside of a job it is unknown which GPUs are meant."""
    with pytest.raises(CheckError, match="CUDA_VISIBLE_DEVICES"):
        of({})


MOVED = (
    GpuHealth(number=0, uuid="GPU-0", bus_id="00000000:10:00.0", nvml_index=0),
    GpuHealth(number=1, uuid="GPU-1", bus_id="00000000:20:00.0"),
    GpuHealth(number=2, uuid="GPU-2", bus_id="00000000:30:00.0", nvml_index=1),
    GpuHealth(number=3, uuid="GPU-3", bus_id="00000000:40:00.0", nvml_index=2),
)
"""The driver no longer lists the second, and the host was not rebooted."""


@each_case(
    ("environ", "given", "shown"),
    [
        ({"CUDA_VISIBLE_DEVICES": "2"}, (), [3]),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, (), [0, 2]),
        ({"GPU_DEVICE_ORDINAL": "1"}, (), [2]),
        ({}, ("2",), [3]),
        ({"SLURM_JOB_GPUS": "2", "CUDA_VISIBLE_DEVICES": "0"}, (), [2]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-1"}, (), [1]),
    ],
)
def test_a_number_is_the_current_index_of_the_driver(
    environ: dict[str, str], given: tuple[str, ...], shown: list[int]
) -> None:
    """CUDA opens the GPU with that index now; Slurm counts device nodes."""
    assert [gpu.number for gpu in resolve(from_job(given, environ), NodeHealth(gpus=MOVED))] == shown


def test_a_number_that_the_driver_no_longer_has_is_refused() -> None:
    """A GPU whose index is unknown is not taken either."""
    unread = (*MOVED, GpuHealth(number=4, uuid="GPU-4", bus_id="00000000:50:00.0"))
    for number in ("3", "4"):
        with pytest.raises(CheckError, match=rf"'{number}' is no GPU of this node in the driver.*by uuid; .*GPU-4"):
            resolve(from_job((number,), {}), NodeHealth(gpus=unread))


def test_an_unlisted_gpu_keeps_its_number_while_none_has_moved() -> None:
    """The last GPU of the bus, or one that has not been read."""
    last = (*GPUS[:2], GPUS[2]._replace(nvml_index=None))
    known = tuple(gpu._replace(nvml_index=gpu.number) for gpu in last[:2]) + last[2:]
    assert resolve(from_job(("2",), {}), NodeHealth(gpus=known)) == last[2:]


def test_slurm_counts_device_nodes() -> None:
    """The minor number of a GPU need not be its index; one that was never read leaves the index at boot."""
    gpus = tuple(gpu._replace(minor=minor) for gpu, minor in zip(GPUS, ("1", "0", None), strict=True))
    for name, number in {"0": 1, "1": 0, "2": 2}.items():
        [gpu] = resolve(from_job((), {"SLURM_JOB_GPUS": name}), NodeHealth(gpus=gpus))
        assert gpu.number == number
