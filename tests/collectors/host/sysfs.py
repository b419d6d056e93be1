"""Write ports in the format of sysfs, for tests that read real files."""

from __future__ import annotations

from pathlib import Path

IDLE = {"symbol_error": "0", "link_downed": "0", "port_rcv_data": "1000", "port_xmit_data": "2000"}
ACTIVE = {"state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": "400 Gb/sec (4X NDR)", "link_layer": "InfiniBand"}


def write(folder: Path, files: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text + "\n")


def add_port(
    sysfs: Path,
    device: str = "mlx5_0",
    port: str = "1",
    *,
    files: dict[str, str] | None = None,
    counters: dict[str, str] | None = None,
    hardware: dict[str, str] | None = None,
) -> Path:
    """Add a port, active and without traffic by default, and return its folder."""
    folder = sysfs / "class" / "infiniband" / device / "ports" / port
    write(folder, ACTIVE | (files or {}))
    write(folder / "counters", IDLE if counters is None else counters)
    if hardware is not None:
        write(folder / "hw_counters", hardware)
    return folder
