from __future__ import annotations

from pathlib import Path

from gpumon.runner.gather_facts import available_bytes

KIB = 1024


def write_files(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_available_memory_is_the_minimum_of_host_and_cgroups(tmp_path: Path) -> None:
    write_files(tmp_path, {"proc/meminfo": "MemTotal: 9000 kB\nMemAvailable:    5000 kB\n"})
    assert available_bytes(tmp_path) == 5000 * KIB
    groups = {
        "proc/self/cgroup": "1:cpu:/old\n0::/pod/agent\n",
        "sys/fs/cgroup/pod/agent/memory.max": "max\n",
        "sys/fs/cgroup/pod/agent/memory.current": "100\n",
        "sys/fs/cgroup/pod/memory.max": f"{4000 * KIB}\n",
        "sys/fs/cgroup/pod/memory.current": f"{1000 * KIB}\n",
    }
    write_files(tmp_path, groups)
    assert available_bytes(tmp_path) == 3000 * KIB


def test_inactive_file_pages_count_as_available(tmp_path: Path) -> None:
    """Inactive file pages count as available, because the kernel reclaims them at once."""
    files = {
        "proc/self/cgroup": "0::/agent\n",
        "sys/fs/cgroup/agent/memory.max": f"{8000 * KIB}\n",
        "sys/fs/cgroup/agent/memory.current": f"{7500 * KIB}\n",
        "sys/fs/cgroup/agent/memory.stat": f"anon {400 * KIB}\ninactive_file {7000 * KIB}\nactive_file {100 * KIB}\n",
    }
    write_files(tmp_path, files)
    assert available_bytes(tmp_path) == 7500 * KIB
    (tmp_path / "sys/fs/cgroup/agent/memory.stat").write_text(f"inactive_file {9000 * KIB}\n")
    assert available_bytes(tmp_path) == 8000 * KIB


def test_available_memory_is_unknown_without_proc_files(tmp_path: Path) -> None:
    assert available_bytes(tmp_path) is None
