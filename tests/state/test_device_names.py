"""Device names of Kubernetes and of schedulers, resolved to GPUs and MIG instances."""

from __future__ import annotations

from dataclasses import replace

import example_parts
from each_case import each_case

from gpumon.model.gpu import Gpu
from gpumon.model.gpu_state import GpuState
from gpumon.model.snapshot import MigReading
from gpumon.state.device_names import Place, resolve

GPUS = tuple(f"GPU-{number}{number}{number}" for number in range(4))
"""UUIDs by NVML index. The device minors are in the opposite order."""
HALF, ME, FIRST, SECOND, SHARED, ONLY = (f"MIG-{name}" for name in ("half", "me", "a", "b", "shared", "only"))


def mig(uuid: str, gi: int, profile: str, ci: int = 0) -> MigReading:
    return replace(example_parts.mig(), uuid=uuid, gpu_instance_id=gi, compute_instance_id=ci, profile=profile)


MIGS = {
    3: (mig(ONLY, 5, "3g.40gb"),),
    1: (mig(HALF, 1, "3g.40gb"), mig(ME, 7, "1g.10gb+me")),
    2: (
        mig(FIRST, 3, "1g.10gb"),
        mig(SECOND, 4, "1g.10gb"),
        mig(SHARED, 2, "1c.3g.40gb"),
        mig("b", 2, "1c.3g.40gb", 1),
    ),
}
NODE = tuple(
    GpuState(
        bus_id=f"bus-{index}",
        uuid=uuid,
        index=7 - index,
        nvml_index=index,
        gpu=Gpu(minor=str(3 - index)),
        migs=MIGS.get(index, ()),
    )
    for index, uuid in enumerate(GPUS)
)
LOST = GpuState(bus_id="bus-9", uuid="GPU-999", index=9)


@each_case(
    ("name", "gpu", "mig_uuid"),
    [
        ("GPU-111", 1, ""),
        ("GPU-111::3", 1, ""),
        (HALF, 1, HALF),
        (f"{HALF}::2", 1, HALF),
        ("MIG-GPU-222/3/0", 2, FIRST),
        ("MIG-GPU-222/2/1", 2, "b"),
        ("MIG-GPU-222/6/0", 2, ""),
        ("nvidia3", 0, ""),
        ("nvidia2/gi7", 1, ME),
        ("nvidia1/gi2", 2, ""),
        ("nvidia1/gi9", 2, ""),
        ("nvidia0/vgpu3", 3, ""),
        ("nvidia0/gi5", 3, ONLY),
        ("nvidia0", 3, ""),
        ("gpu-3", 0, ""),
        ("gpu-2-mig-3g40gb-9-4", 1, HALF),
        ("gpu-2-mig-1g10gb-me-20-0", 1, ME),
        ("gpu-1-mig-1g10gb-19-0", 2, ""),
        ("gpu-2-mig-9-4-4", 1, ""),
        ("3", 3, ""),
        ("2.4", 2, SECOND),
    ],
)
def test_a_device_has_its_place(name: str, gpu: int, mig_uuid: str) -> None:
    """An instance of MIG that is not unique on its GPU has the GPU as place."""
    assert resolve(name, NODE) == Place(GPUS[gpu], mig_uuid)


def test_a_gpu_that_the_driver_does_not_list_has_its_uuid_only() -> None:
    """Its index and its minor are unknown, and match no name."""
    assert resolve("GPU-999", (LOST,)) == Place("GPU-999")
    assert [resolve(name, (LOST,)) for name in ("None", "9", "nvidia9", "gpu-9")] == [None] * 4


@each_case(
    "name",
    [
        *(
            "",
            "GPU-",
            "GPU-1",
            "GPU-111-4",
            "gpu-111",
            "MIG-",
            "MIG-lost",
            "MIG-GPU-111",
            "MIG-GPU-444/1/0",
            "MIG-GPU-111/1",
        ),
        *("GPU-111/1/0", "MIG-GPU-111/1/x", "MIG-GPU-222/3/0/1"),
        *("nvidia", "nvidia4", "nvidia03", "nvidia3/", "nvidia3/gi", "nvidiactl", "nvidia-uvm", "/dev/nvidia3"),
        *(
            "gpu-4",
            "gpu-vfio-0",
            "gpu-2-mig-",
            "channel-0",
            "4",
            "03",
            "-1",
            "2.",
            "2.4.0",
            "\N{SUPERSCRIPT TWO}",
            "3\n",
        ),
        "\N{ARABIC-INDIC DIGIT THREE}",
    ],
)
def test_other_names_are_unknown(name: str) -> None:
    """A name is never resolved to a GPU that only resembles it."""
    assert resolve(name, NODE) is None
