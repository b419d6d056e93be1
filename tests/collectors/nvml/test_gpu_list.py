"""The PCI bus from sysfs."""

from __future__ import annotations

from pathlib import Path

from gpumon.collectors.nvml import gpu_list


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
