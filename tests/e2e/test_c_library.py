"""The agent on a compiled C library that the dynamic linker loads, written from NVML's interface alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import small_nvml
from agents import AgentProcess, eventually

from gpumon.collectors.sampler.node_reader import place
from gpumon.model.snapshot import CONTAINER

pytestmark = pytest.mark.slow

BUS = ("0000:1b:00.0", "0000:43:00.0")


def make_bus(folder: Path) -> Path:
    """Create a sysfs with two NVIDIA GPUs, an NVSwitch and an audio function."""
    functions = {BUS[0]: "0x030200", BUS[1]: "0x030200", "0000:05:00.0": "0x068000", "0000:1b:00.1": "0x040300"}
    driver = folder / "bus/pci/drivers/nvidia"
    driver.mkdir(parents=True)
    for address, kind in functions.items():
        device = folder / "bus/pci/devices" / address
        device.mkdir(parents=True)
        (device / "vendor").write_text("0x10de\n", encoding="ascii")
        (device / "class").write_text(f"{kind}\n", encoding="ascii")
        (device / "driver").symlink_to(driver)
    return folder


class CLibraryAgent:
    """An agent that uses the library as the driver of real GPUs."""

    def __init__(self, folder: Path) -> None:
        self.library = folder / "lib"
        self.library.mkdir()
        self.faults = folder / "faults"
        self.faults.touch()
        sysfs = make_bus(folder / "sys")
        (folder / "gpumon.yml").write_text(f"pci: {{sysfs: {sysfs}}}\nprobe: {{enabled: false}}\n", encoding="utf-8")
        environment = {"LD_LIBRARY_PATH": str(self.library), small_nvml.FAULTS: str(self.faults)}
        self.agent = AgentProcess(folder, profile=None, environment=environment)
        self.started = False

    def start(self, *flags: str) -> None:
        self.started = True
        self.agent.start("--config.file", str(self.agent.folder / "gpumon.yml"), *flags)

    def restarts(self) -> dict[str, float]:
        """Return the replacements of the sampler by reason."""
        page = self.agent.metrics().values.items()
        return {dict(labels)["reason"]: n for (name, labels), n in page if name == "gpumon_sampler_restarts_total"}

    @staticmethod
    def command(*arguments: str, environment: Mapping[str, str] | None = None, code: int = 0) -> str:
        """Return the output of `gpumon`, or of `gpumon-sim record`, which must exit with this code."""
        module = "gpumon_sim" if arguments[0] == "record" else "gpumon"
        command = [sys.executable, "-m", module, *arguments]
        ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120, env=environment)
        assert ended.returncode == code, ended.stderr
        return ended.stdout

    def suffer(self, *lines: str) -> None:
        self.faults.write_text("".join(f"{line}\n" for line in lines), encoding="ascii")


@pytest.fixture
def host(tmp_path: Path) -> Iterator[CLibraryAgent]:
    one = CLibraryAgent(tmp_path)
    yield one
    if one.started:
        one.agent.stop()


def test_structs_of_a_compiled_library_are_read_correctly(host: CLibraryAgent) -> None:
    """Getters, structs and batches of fields return the values that the library holds."""
    small_nvml.build(host.library)
    host.start()
    page = host.agent.metrics()

    assert page.gpus("gpumon_gpu_up") == {"0": 1, "1": 1}
    assert page.value("gpumon_simulated") == 0
    assert page.value("gpumon_gpus_on_pci_bus", driver="nvidia") == 2
    gpu = host.agent.get("/api/v1/gpus/0")
    assert gpu["uuid"] == "GPU-00000000-0000-4000-8000-000000000000"
    assert gpu["pci_bus_id"] == "00000000:1B:00.0"
    assert (
        gpu["memory_total_bytes"] == gpu["memory_used_bytes"] + gpu["memory_free_bytes"] + gpu["memory_reserved_bytes"]
    )
    assert gpu["energy_joules_total"] is not None
    assert gpu["performance_state"] is None  # the library has no such function


IN_A_CONTAINER = place(sysfs=Path("/sys"), procfs=Path("/proc"), root=Path("/"), environment=os.environ) == CONTAINER
"""Whether the tests run in a container, where the PCI bus is the host's and does not show which GPUs to expect."""


def test_the_agent_waits_for_a_missing_library(host: CLibraryAgent) -> None:
    """Without the library NVML is down and the log names it. After its installation the GPUs are read."""
    host.start()
    page = host.agent.metrics()
    assert page.value("gpumon_nvml_up") == 0
    assert page.value("gpumon_gpus_expected") == (0 if IN_A_CONTAINER else 2)
    assert host.agent.status("/-/healthy") == 200
    assert "libnvidia-ml.so.1" in host.agent.log.read_text(encoding="utf-8")

    small_nvml.build(host.library)
    eventually(lambda: host.agent.metrics().gpus("gpumon_gpu_up") == {"0": 1, "1": 1})


@pytest.mark.parametrize("installed", [True, False], ids=["driver", "no driver"])
def test_the_fallback_simulates_only_if_no_driver_loads(host: CLibraryAgent, *, installed: bool) -> None:
    if installed:
        small_nvml.build(host.library)
    host.start("--simulate.fallback=h100x1")
    assert host.agent.metrics().value("gpumon_simulated") == (0 if installed else 1)


def test_a_getter_that_hangs_in_c_affects_its_gpu_only(host: CLibraryAgent) -> None:
    """The other GPU is read while the call hangs, and the GPU is readmitted when calls return again."""
    small_nvml.build(host.library)
    host.start()
    host.suffer("hang nvmlDeviceGetUtilizationRates 1")
    eventually(lambda: host.agent.metrics().gpus("gpumon_gpu_up") == {"0": 1, "1": 0})
    before = host.agent.metrics().value("gpumon_gpu_observed_seconds_total", gpu="0") or 0
    eventually(lambda: (host.agent.metrics().value("gpumon_gpu_observed_seconds_total", gpu="0") or 0) > before)
    assert host.agent.metrics().value("gpumon_gpu_fault", gpu="1", fault="stuck") == 1

    host.suffer()
    eventually(lambda: host.agent.metrics().gpus("gpumon_gpu_up") == {"0": 1, "1": 1})


def test_a_library_that_crashes_on_one_gpu_affects_that_gpu_only(host: CLibraryAgent) -> None:
    """After two crashes in calls on a GPU it is quarantined, and the other one is read."""
    small_nvml.build(host.library)
    host.start()
    host.suffer("crash nvmlDeviceGetUtilizationRates 1")
    eventually(lambda: host.agent.metrics().gpus("gpumon_gpu_up") == {"0": 1, "1": 0})
    eventually(lambda: "crashes in nvmlDeviceGetUtilizationRates" in host.agent.get("/api/v1/gpus/1")["detail"])
    assert (host.agent.metrics().value("gpumon_sampler_restarts_total", reason="crash") or 0) >= 2

    host.suffer()
    eventually(lambda: host.agent.metrics().gpus("gpumon_gpu_up") == {"0": 1, "1": 1})


def test_a_reloaded_and_an_upgraded_driver_are_reopened(host: CLibraryAgent, tmp_path: Path) -> None:
    """The same sampler reads a reloaded driver, and a new sampler an upgraded one, because it needs another library."""
    small_nvml.build(host.library)
    host.start()
    host.suffer("module 580.173.02 1")
    eventually(lambda: host.agent.metrics().gpus("gpumon_gpu_up") == {"0": 0, "1": 0})
    eventually(lambda: host.agent.metrics().gpus("gpumon_gpu_up") == {"0": 1, "1": 1})
    assert not any(host.restarts().values())

    installed = tmp_path / "installed"
    installed.mkdir()
    small_nvml.build(installed, {"DRIVER": "580.200.01"})
    host.suffer("module 580.200.01 2")
    (installed / small_nvml.NAME).rename(host.library / small_nvml.NAME)
    eventually(lambda: host.agent.metrics().value("gpumon_driver_info", driver="580.200.01") == 1)
    eventually(lambda: host.agent.metrics().gpus("gpumon_gpu_up") == {"0": 1, "1": 1})
    assert {reason: n for reason, n in host.restarts().items() if n} == {"mismatch": 1}


def test_a_recording_of_a_compiled_library_replays_without_it(host: CLibraryAgent, tmp_path: Path) -> None:
    """A file of `gpumon-sim record` shows the same GPUs on a host without the library."""
    small_nvml.build(host.library)
    path, config = tmp_path / "host.capture", str(tmp_path / "gpumon.yml")
    record = ["record", str(path), "--for", "1s", "--unmasked", "--config.file", config]
    printed = host.command(*record, environment=host.agent.environment)
    once = json.loads(host.command("once", "--simulate", str(path), "--json"))

    assert "2 GPUs" in printed
    assert "NOT masked" in printed
    assert [gpu["uuid"][:12] for gpu in once["gpus"]] == ["GPU-00000000", "GPU-11111111"]
    assert [gpu["pci_bus_id"] for gpu in once["gpus"]] == ["00000000:1B:00.0", "00000000:43:00.0"]
    assert once["gpus"][0]["energy_joules_total"] is not None
    assert once["gpus"][0]["performance_state"] is None


def test_a_crash_ends_a_recording_and_keeps_what_was_recorded(host: CLibraryAgent, tmp_path: Path) -> None:
    """The command survives a crash of the library, names the call and writes the file."""
    small_nvml.build(host.library)
    host.suffer("crash nvmlDeviceGetTemperatureV 1")
    path = tmp_path / "host.capture"
    config = ["--config.file", str(tmp_path / "gpumon.yml")]
    printed = host.command("record", str(path), *config, environment=host.agent.environment, code=1)

    assert "crashed" in printed
    assert "nvmlDeviceGetTemperatureV" in printed
    assert "Temperature" in host.command("record", str(path), "--summary")
