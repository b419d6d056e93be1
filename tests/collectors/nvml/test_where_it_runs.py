"""Detection of a host, a guest or a container from system files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from each_case import each_case

from gpumon.collectors.nvml import gpu_list
from gpumon.collectors.sampler.node_reader import place
from gpumon.model.snapshot import CONTAINER, GUEST, HOST

INTEL = "processor\t: 0\nflags\t\t: fpu vme sse2"


def make_root(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


@each_case(
    ("files", "environment", "expected"),
    [
        ({"proc/cpuinfo": INTEL}, {}, HOST),
        ({"proc/cpuinfo": f"{INTEL} hypervisor lm\n"}, {}, GUEST),
        ({"proc/cpuinfo": INTEL, "sys/class/dmi/id/sys_vendor": "Amazon EC2\n"}, {}, HOST),
        ({"proc/cpuinfo": "processor\t: 0\nFeatures\t: fp asimd\n"}, {}, HOST),
        ({"proc/cpuinfo": "Features\t: fp\n", "sys/class/dmi/id/sys_vendor": "QEMU\n"}, {}, GUEST),
        ({"proc/cpuinfo": "Features\t: fp\n", "sys/class/dmi/id/sys_vendor": "NVIDIA\n"}, {}, HOST),
        ({"proc/cpuinfo": INTEL, ".dockerenv": ""}, {}, CONTAINER),
        ({"proc/cpuinfo": INTEL, "run/.containerenv": ""}, {}, CONTAINER),
        ({"proc/cpuinfo": f"{INTEL} hypervisor\n", "proc/1/environ": "PATH=/bin\0container=lxc\0"}, {}, CONTAINER),
        ({"proc/cpuinfo": INTEL, "proc/1/environ": "MYcontainer=x\0container=\0"}, {}, HOST),
        ({"proc/cpuinfo": INTEL, "proc/self/cgroup": "0::/kubepods.slice/pod1\n"}, {}, CONTAINER),
        ({"proc/cpuinfo": INTEL, "proc/self/cgroup": "0::/system.slice/gpumon.service\n"}, {}, HOST),
        ({"proc/cpuinfo": INTEL}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, CONTAINER),
        ({"proc/cpuinfo": INTEL}, {"NVIDIA_VISIBLE_DEVICES": "0,1"}, CONTAINER),
        ({}, {}, HOST),
    ],
)
def test_the_place_is_detected_by_files(
    tmp_path: Path, files: Mapping[str, str], environment: Mapping[str, str], expected: str
) -> None:
    """A container in a guest is a container; a cloud's bare-metal machine is a host."""
    root = make_root(tmp_path, files)

    assert place(sysfs=root / "sys", procfs=root / "proc", root=root, environment=environment) == expected


def test_a_virtual_function_is_not_counted_as_a_gpu(tmp_path: Path) -> None:
    devices = "bus/pci/devices"
    gpu = {"vendor": "0x10de\n", "class": "0x030200\n"}
    files = {f"{devices}/{name}/{key}": text for name in ("0000:1b:00.0", "0000:1b:00.4") for key, text in gpu.items()}
    make_root(tmp_path, files)
    (tmp_path / devices / "0000:1b:00.4" / "physfn").symlink_to("../0000:1b:00.0")

    assert set(gpu_list.functions(tmp_path)) == {"00000000:1B:00.0"}
