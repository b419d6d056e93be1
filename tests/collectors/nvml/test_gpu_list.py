"""GPUs on the PCI bus, and where the agent runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from each_case import each_case

from gpumon.collectors.nvml import gpu_list
from gpumon.collectors.sampler.node_reader import excluded_gpus, place
from gpumon.model.snapshot import CONTAINER, GUEST, HOST


def add(sysfs: Path, place: str, vendor: str, kind: str) -> None:
    """Add a function at this path below its root complex, with its link in sysfs."""
    folder = sysfs / "devices" / place
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vendor").write_text(f"{vendor}\n")
    (folder / "class").write_text(f"{kind}\n")
    devices = sysfs / "bus" / "pci" / "devices"
    devices.mkdir(parents=True, exist_ok=True)
    (devices / folder.name).symlink_to(folder)


def test_the_port_above_a_gpu_is_found_by_its_sysfs_link(tmp_path: Path) -> None:
    """The upstream port is a port of the switch; a GPU on the root bus of a guest has none."""
    add(tmp_path, "pci0000:15/0000:15:01.0", "0x8086", "0x060400")
    add(tmp_path, "pci0000:15/0000:15:01.0/0000:16:00.0", "0x1000", "0x060400")
    add(tmp_path, "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:02.0", "0x1000", "0x060400")
    add(tmp_path, "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:02.0/0000:1b:00.0", "0x10de", "0x030200")
    add(tmp_path, "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:03.0/0000:1c:00.0", "0x15b3", "0x020700")
    add(tmp_path, "pci0000:00/0000:00:05.0", "0x10de", "0x030200")

    assert gpu_list.ports(tmp_path) == {"00000000:1B:00.0": "00000000:17:02.0"}


def test_the_lanes_of_a_slot_are_those_of_the_port_above(tmp_path: Path) -> None:
    """A slot of eight lanes limits a GPU of sixteen; 255 lanes, the kernel's word for unknown, are left out."""
    for bus, lanes in (("16", "8"), ("17", "255")):
        add(tmp_path, f"pci0000:15/0000:15:{bus}.0", "0x8086", "0x060400")
        (tmp_path / f"devices/pci0000:15/0000:15:{bus}.0/max_link_width").write_text(f"{lanes}\n")
        add(tmp_path, f"pci0000:15/0000:15:{bus}.0/0000:{bus}:00.0", "0x10de", "0x030200")
    add(tmp_path, "pci0000:00/0000:00:05.0", "0x10de", "0x030200")

    assert gpu_list.slot_lanes(tmp_path) == {"00000000:16:00.0": 8}


def test_nvswitches_are_bridges_of_nvidia(tmp_path: Path) -> None:
    """GPUs and bridges of other vendors do not count."""
    add(tmp_path, "pci0000:00/0000:00:05.0", "0x10de", "0x030200")
    add(tmp_path, "pci0000:00/0000:00:06.0", "0x10de", "0x068000")
    add(tmp_path, "pci0000:00/0000:00:07.0", "0x10de", "0x068000")
    add(tmp_path, "pci0000:00/0000:00:08.0", "0x8086", "0x068000")
    assert gpu_list.nvswitches(tmp_path) == 2


def test_an_excluded_name_without_a_gpu_is_told_apart_from_one_with_an_unread_uuid() -> None:
    """An index counts the GPUs of this host in PCI order; a uuid is without a GPU once all uuids have been read."""
    gpus = {"00000000:1B:00.0": "nvidia", "00000000:2B:00.0": "vfio-pci", "00000000:3B:00.0": ""}
    first, last = "00000000:1B:00.0", "00000000:3B:00.0"
    names = ("1", "42", "0000:1b:00.0", "0000:ff:00.0", "GPU-a", "GPU-x")
    found = {"1": last, "42": "", "0000:1b:00.0": first, "0000:ff:00.0": "00000000:FF:00.0", "GPU-a": first}
    assert excluded_gpus(names, gpus, {first: "GPU-a"}) == {**found, "GPU-x": None}
    assert excluded_gpus(names, gpus, {first: "GPU-a", last: "GPU-b"}) == {**found, "GPU-x": ""}


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
