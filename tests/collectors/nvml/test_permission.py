"""An agent without root privileges reports what is denied, at no extra cost."""

from __future__ import annotations

import ctypes
import struct
from pathlib import Path

import pytest
from gpumon_sim.profiles import PROFILES
from overlay import overlaid
from polled import open_poll

from gpumon.collectors.nvml.gpu_reader import Extent
from gpumon.collectors.nvml.table_reader import ProcessNames
from gpumon.model.gpu import Gpu
from gpumon.model.reading import SLOW, rows

NOT_ROOT = "root: false"
PROCESS = struct.Struct("<I4xQII")  # nvmlProcessInfo_t: pid, memory, GPU instance, compute instance
UNKNOWN, UNKNOWN_INSTANCE = 2**64 - 1, 2**32 - 1


def test_privileged_calls_are_denied_and_not_errors(tmp_path: Path) -> None:
    with open_poll("h100x1", NOT_ROOT, folder=tmp_path) as poll:
        first = poll.poll()
        before = poll.simulation.node.library._trace._calls["nvmlDeviceGetSramEccErrorStatus"]
        poll.node._due[SLOW] = 0.0
        slow = poll.poll_later()
        after = poll.simulation.node.library._trace._calls["nvmlDeviceGetSramEccErrorStatus"]

    assert "ecc_sram_threshold_exceeded" in first.denied
    assert slow.denied == first.denied
    assert (first.errors, slow.errors, after) == ({}, {}, before)


def readings_of(profile: str, text: str, folder: Path) -> set[str]:
    """Return the names of the series that the GPUs of a simulated node have."""
    with open_poll(profile, text, folder=folder) as poll:
        gpus = [poll.poll_all_tiers().gpus, poll.poll_later(all_tiers=True).gpus]
    tables = [gpu.gpu for poll in gpus for gpu in poll if gpu.gpu is not None]
    return {f"gpumon_gpu_{name}" for table in tables for name in rows(Gpu) if getattr(table, name) is not None}


def test_what_only_root_can_read_is_documented(tmp_path: Path) -> None:
    """docs/install.md names each series of a GPU that root has and another user lacks, on every kind of node."""
    lacking: set[str] = set()
    for profile in PROFILES:
        folder = tmp_path / profile
        folder.mkdir()
        lacking |= readings_of(profile, "", folder) - readings_of(profile, NOT_ROOT, folder)
    table = (Path(__file__).parents[3] / "docs" / "install.md").read_text(encoding="utf-8")
    documented = {line.split("`")[1] for line in table.splitlines() if "| root | `gpumon_gpu_" in line}
    assert lacking == documented != set()


def test_a_denied_batch_is_reported_by_its_rows(tmp_path: Path) -> None:
    with open_poll("h100x1", "fail: {nvmlDeviceGetFieldValues: NO_PERMISSION}", folder=tmp_path) as poll:
        snapshot = poll.poll()

    assert {"power_instant_watts", "ecc_errors_total", "energy_joules_total"} <= set(snapshot.denied)
    assert snapshot.errors == {}


def test_instances_without_permission_are_denied(tmp_path: Path) -> None:
    text = "gpus: {0: {mig: [7g.80gb], fail: {nvmlDeviceGetMigDeviceHandleByIndex: NO_PERMISSION}}}"
    with open_poll("h100x1", text, folder=tmp_path) as poll:
        denied = poll.poll()
        poll.simulation.edit("gpus: {0: {mig: [7g.80gb]}}")
        allowed = poll.poll_all_tiers()

    assert (denied.denied, denied.gpus[0].migs, denied.errors) == (("mig_instances",), (), {})
    assert (allowed.denied, len(allowed.gpus[0].migs)) == ((), 1)


def processes(tmp_path: Path, largest: int, scenario: str = "") -> dict[str, float]:
    """Return the named processes on GPU 0; this host has the second PID."""
    text = f"jobs: [{{memory: 0.1}}, {{memory: 0.3}}, {{memory: 0.2}}]\n{scenario}"
    extent = Extent(processes=ProcessNames(largest, tmp_path))
    with open_poll("h100x1", text, folder=tmp_path, extent=extent) as poll:
        poll.poll()
        pids = sorted(poll.simulation.node._node.gpus.state(0).processes, key=lambda process: -process.memory)
        (tmp_path / str(pids[1].pid)).mkdir(exist_ok=True)
        (tmp_path / str(pids[1].pid) / "comm").write_text('py,th"on\n')
        gpu = poll.poll_all_tiers().gpus[0].gpu
    assert gpu is not None
    assert gpu.processes == 3
    return gpu.process_memory_bytes or {}


def test_processes_are_not_named_by_default(tmp_path: Path) -> None:
    assert processes(tmp_path, 0) == {}


def test_the_largest_processes_are_named(tmp_path: Path) -> None:
    """Processes have PID and name, the largest first; a name has no separator, and an unknown name is empty."""
    named = processes(tmp_path, 2)

    assert [key.partition(",")[2] for key in named] == ["", 'py_th"on']
    assert list(named.values()) == sorted(named.values(), reverse=True)


@pytest.mark.parametrize("driver", ["535.54.03", "535.86.10", "535.104.05", "530.41.03"])
def test_process_lists_of_the_early_535_drivers_have_longer_rows(tmp_path: Path, driver: str) -> None:
    """Drivers 535.54 to 535.86 return rows of 32 bytes in place of 24."""
    newest = processes(tmp_path, 3)
    assert processes(tmp_path, 3, f'driver_version: "{driver}"') == newest


def test_a_process_without_a_memory_size_is_omitted(tmp_path: Path) -> None:
    """A process whose memory size is all ones is counted, but not named."""

    def running(_handle: int, count: int, out: int) -> int:
        ctypes.memmove(out, PROCESS.pack(17, UNKNOWN, UNKNOWN_INSTANCE, UNKNOWN_INSTANCE), PROCESS.size)
        ctypes.memmove(count, struct.pack("<I", 1), 4)
        return 0

    functions = {"nvmlDeviceGetComputeRunningProcesses_v3": running}
    with open_poll("h100x1", extent=Extent(processes=ProcessNames(5, tmp_path))) as poll, overlaid(functions):
        gpu = poll.poll().gpus[0].gpu

    assert gpu is not None
    assert (gpu.processes, gpu.process_memory_bytes) == (1, None)


def test_more_processes_than_usual_are_all_counted(tmp_path: Path) -> None:
    jobs = ", ".join("{memory: 0.001}" for _ in range(100))
    with open_poll("h100x1", f"jobs: [{jobs}]", folder=tmp_path) as poll:
        snapshot = poll.poll()

    assert snapshot.gpus[0].gpu is not None
    assert snapshot.gpus[0].gpu.processes == 100
    assert snapshot.errors == {}
