"""Unmodified nvitop, gpustat and nvitop-exporter run on a simulated node."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from agents import Metrics, eventually, free_port, running
from others import on_the_node, program

pytestmark = pytest.mark.slow

GPUS = range(8)
LOST = 3
HEALTHY = """
idle: true
gpus:
  "*": {set: {temperature: 61, power: 432, utilization: 77}}
"""
WITH_A_LOST_GPU = HEALTHY + "  3: {lost: true}\n"


@pytest.fixture
def healthy(tmp_path: Path) -> Path:
    return _scenario(tmp_path, HEALTHY)


@pytest.fixture
def one_lost(tmp_path: Path) -> Path:
    return _scenario(tmp_path, WITH_A_LOST_GPU)


def _scenario(folder: Path, text: str) -> Path:
    path = folder / "scenario.yml"
    path.write_text(text)
    return path


def output(scenario: Path, name: str, *arguments: str) -> str:
    """Return the output of the program on an h100x8. It must exit with 0."""
    command = on_the_node("h100x8", program(name), *arguments, scenario=scenario)
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    assert "Traceback" not in ended.stderr
    return ended.stdout


def gpustat_rows(text: str) -> list[str]:
    return re.findall(r"^\[\d\] .*$", text, re.MULTILINE)


def test_gpustat_shows_eight_gpus(healthy: Path) -> None:
    """The output has temperature, utilization, power and memory of the scenario."""
    rows = gpustat_rows(output(healthy, "gpustat", "--no-color", "--show-power"))

    assert len(rows) == len(GPUS)
    for row in rows:
        assert re.search(r"NVIDIA H100 80GB HBM3 \| 61°C, +77 %, +432 / 700 W \| +0 / 81559 MB", row), row


def test_gpustat_shows_a_lost_gpu_as_lost(one_lost: Path) -> None:
    rows = gpustat_rows(output(one_lost, "gpustat", "--no-color", "--show-power"))

    assert ["GPU is lost" in row for row in rows] == [gpu == LOST for gpu in GPUS]
    assert ["61°C" in row for row in rows] == [gpu != LOST for gpu in GPUS]


def test_nvitop_shows_eight_gpus(healthy: Path) -> None:
    """The output has name, bus, persistence, MIG, ECC and the readings of the scenario."""
    text = output(healthy, "nvitop", "-1", "--ascii")

    assert len(re.findall(r"\d +H100 80GB HBM3 +On \| 00000000:\w\w:00.0 Off \| Disabled +0 \|", text)) == len(GPUS)
    assert len(re.findall(r"61C +P0 +432W / 700W \| +0B / 79.65GiB \| +77%", text)) == len(GPUS)
    assert "Driver Version: 580.173.02" in text


def test_nvitop_shows_a_lost_gpu_as_lost(one_lost: Path) -> None:
    text = output(one_lost, "nvitop", "-1", "--ascii")

    assert len(re.findall(r"3 +ERROR: GPU is Lost", text)) == 1
    assert text.count("432W") == len(GPUS) - 1


def test_nvitop_shows_the_instances_of_a_partitioned_gpu() -> None:
    """The output has the MIG devices of a node with MIG."""
    command = on_the_node("h100migx8", program("nvitop"), "-1", "--ascii")
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)

    assert ended.returncode == 0, ended.stderr
    assert "Enabled" in ended.stdout
    assert re.search(r"\d:\d+ +\S*g\.\d+gb", ended.stdout)


@pytest.mark.parametrize("lost", [False, True])
def test_nvitop_exporter_exports_eight_gpus(lost: bool, tmp_path: Path) -> None:  # noqa: FBT001 - a parameter of the test
    """The exporter has the temperature of every GPU except a lost one, and ends on SIGTERM."""
    scenario, port = _scenario(tmp_path, WITH_A_LOST_GPU if lost else HEALTHY), free_port()
    command = on_the_node("h100x8", program("nvitop-exporter"), "--port", str(port), scenario=scenario)

    with running(command, tmp_path / "exporter.log") as process:

        def temperatures() -> list[float]:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
                metrics = Metrics(page.read().decode())
            found = {
                dict(labels)["index"]: value for (name, labels), value in metrics.values.items() if name == TEMPERATURE
            }
            assert len(found) == len(GPUS)
            return [found[str(gpu)] for gpu in GPUS]

        values = eventually(temperatures)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == -signal.SIGTERM

    assert [value == 61 for value in values] == [not (lost and gpu == LOST) for gpu in GPUS]


TEMPERATURE = "gpu_temperature_C"


def test_other_clients_run_on_a_recording(tmp_path: Path) -> None:
    """A recording has the calls that other NVML clients make."""
    path = tmp_path / "node.capture"
    record = [sys.executable, "-m", "gpumon_sim", "record", str(path), "--for", "1s", "--simulate", "h100pciex2"]
    subprocess.run(record, check=True, capture_output=True, timeout=120)

    for name, arguments in (("gpustat", ["--no-color"]), ("nvitop", ["-1", "--ascii"])):
        command = on_the_node(str(path), program(name), *arguments)
        ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout.count("H100 PCIe") == 2
