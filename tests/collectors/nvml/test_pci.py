"""The PCI bus as sysfs shows it."""

from __future__ import annotations

from pathlib import Path

from gpumon.collectors.nvml import pci


def add(sysfs: Path, place: str, vendor: str, kind: str) -> None:
    """A function at this path below its root complex, and the link by which it is found."""
    folder = sysfs / "devices" / place
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vendor").write_text(f"{vendor}\n")
    (folder / "class").write_text(f"{kind}\n")
    devices = sysfs / "bus" / "pci" / "devices"
    devices.mkdir(parents=True, exist_ok=True)
    (devices / folder.name).symlink_to(folder)


def test_the_port_above_a_gpu_is_the_one_that_its_link_leads_to(tmp_path: Path) -> None:
    """Behind a switch that of the switch; a GPU that a guest has on its root bus has none."""
    add(tmp_path, "pci0000:15/0000:15:01.0", "0x8086", "0x060400")
    add(tmp_path, "pci0000:15/0000:15:01.0/0000:16:00.0", "0x1000", "0x060400")
    add(tmp_path, "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:02.0", "0x1000", "0x060400")
    add(tmp_path, "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:02.0/0000:1b:00.0", "0x10de", "0x030200")
    add(tmp_path, "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:03.0/0000:1c:00.0", "0x15b3", "0x020700")
    add(tmp_path, "pci0000:00/0000:00:05.0", "0x10de", "0x030200")

    assert pci.ports(tmp_path) == {"00000000:1B:00.0": "00000000:17:02.0"}
