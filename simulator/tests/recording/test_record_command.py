"""`gpumon-sim record` and `--simulate FILE` with real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from agents import AgentProcess, Metrics, eventually
from gpumon_sim import capture
from gpumon_sim.capture import HANGS

pytestmark = pytest.mark.slow


OF_THE_KERNEL = ("gpumon_infiniband_", "gpumon_fabric_manager_up", "gpumon_service_stops_total")
"""Values that NVML does not report, and that no recording has."""


def gpumon(*arguments: str | Path, module: str = "gpumon") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", module, *map(str, arguments)]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)


def record(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return gpumon("record", *arguments, module="gpumon_sim")


def once(profile: Path, form: str) -> str:
    answer = gpumon("once", "--simulate", profile, f"--{form}")
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


@pytest.fixture(scope="module")
def short_recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording of two seconds of an h100x8."""
    path = tmp_path_factory.mktemp("record") / "rack7.capture"
    answer = record(path, "--for", "2s", "--simulate", "h100x8")
    assert answer.returncode == 0, answer.stderr
    assert "8 GPUs" in answer.stdout
    assert "masked" in answer.stdout
    return path


def test_a_recording_is_reported_as_simulated(short_recording: Path) -> None:
    """The name of the recording is reported in place of a profile, and the node counts as simulated."""
    page = Metrics(once(short_recording, "prometheus"))
    document = json.loads(once(short_recording, "json"))

    assert page.value("gpumon_simulated") == 1
    assert document["node"]["simulated_profile"] == "rack7.capture"
    assert page.gpus("gpumon_gpu_up") == {str(gpu): 1 for gpu in range(8)}
    assert short_recording.stat().st_size < 300_000


def test_the_page_of_a_recording_has_the_series_of_its_host(short_recording: Path) -> None:
    """Except for identifiers the series of a replay are those of the profile."""
    profile = Metrics(once(Path("h100x8"), "prometheus"))
    replay = Metrics(once(short_recording, "prometheus"))

    assert series(replay) == series(profile)


def series(page: Metrics) -> set[Any]:
    """Return names and labels of the series, without masked labels."""
    masked = {"uuid", "serial"}
    return {
        (name, frozenset((label, value) for label, value in labels if label not in masked))
        for name, labels in page.values
        if not name.startswith(OF_THE_KERNEL)
    }


def test_the_summary_answers_open_questions(short_recording: Path) -> None:
    """The summary has the cost of calls, unsupported calls, and undocumented values."""
    output = record(short_recording, "--summary").stdout

    assert "the simulated h100x8: no hardware" in output
    assert "nvmlDeviceGetFieldValues" in output
    assert "nvmlDeviceGetFanSpeed" in output[output.index("not supported") :]
    assert "0xff9f" in output
    assert "nvmlDeviceGetNvLinkState Not supported, the field Invalid argument" in output
    assert "on 8 of 8 GPUs" in output


def test_a_call_that_hangs_ends_the_recording_and_hangs_in_the_replay(tmp_path: Path) -> None:
    """The recording ends and names the hung call; in a replay the agent quarantines that GPU."""
    scenario, path = tmp_path / "scenario.yml", tmp_path / "hung.capture"
    scenario.write_text("gpus: {1: {hang_forever: [nvmlDeviceGetMemoryInfo_v2]}}")
    answer = record(path, "--for", "30s", "--simulate", "h100pciex2", "--simulate.scenario", scenario)

    assert answer.returncode == 1
    assert "has not returned" in answer.stdout
    held = [
        given for given, line in capture.read(path).questions("nvmlDeviceGetMemoryInfo_v2") if HANGS in line.answers[-1]
    ]
    assert len(held) == 1

    agent = AgentProcess(tmp_path, profile=None)
    try:
        agent.start("--simulate", str(path))
        eventually(lambda: agent.metrics().value("gpumon_gpu_fault", gpu="1", fault="stuck") == 1)
        assert agent.metrics().value("gpumon_gpu_up", gpu="0") == 1
    finally:
        agent.stop()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_recording_is_complete_so_far(how: signal.Signals, tmp_path: Path) -> None:
    """After SIGINT or SIGTERM the file has all previous calls and a note about the early end."""
    path, trace = tmp_path / "short.capture", tmp_path / "trace"
    plain = ["env", "--default-signal=INT"]  # a background process of a shell ignores SIGINT
    command = [*plain, sys.executable, "-m", "gpumon_sim", "record", str(path), "--for", "10m", "--simulate", "t4x1"]
    environment = {**os.environ, "GPUMON_SIMULATION_TRACE": str(trace)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as recorder:
        eventually(lambda: any("nvmlEventSetWait_v2" in each.read_text() for each in tmp_path.glob("trace-*.json")))
        recorder.send_signal(how)
        output, _ = recorder.communicate(timeout=60)

    assert recorder.returncode == 1
    assert "cut short: ended by the operator" in output
    assert capture.read(path).costs["nvmlEventSetWait_v2"].calls > 0


def test_a_recording_error_has_a_remedy(tmp_path: Path) -> None:
    """Without a driver, a folder or a duration the exit code is 2 and there is no file."""
    scenario, path = tmp_path / "scenario.yml", tmp_path / "none.capture"
    scenario.write_text("driver: not_loaded")
    without_driver = record(path, "--simulate", "t4x1", "--simulate.scenario", scenario)
    nowhere = record(tmp_path / "no" / "folder.capture", "--simulate", "t4x1")
    never = record(path, "--for", "soon", "--simulate", "t4x1")

    assert [answer.returncode for answer in (without_driver, nowhere, never)] == [2, 2, 2]
    assert "DriverNotLoaded: the nvidia kernel module is not loaded" in without_driver.stderr
    assert "cannot be written" in nowhere.stderr
    assert "write 90s, 5m or 1h" in never.stderr
    assert not path.exists()


def test_an_invalid_recording_is_a_configuration_error(tmp_path: Path, short_recording: Path) -> None:
    """Every command that uses the file reports the error with the source of the setting."""
    foreign = tmp_path / "foreign.capture"
    foreign.write_text("what")
    answer = gpumon("once", "--simulate", foreign)
    with_scenario = gpumon("once", "--simulate", short_recording, "--simulate.scenario", foreign)

    assert (answer.returncode, with_scenario.returncode) == (2, 2)
    assert f"--simulate: recording {foreign}: not a recording of gpumon" in answer.stderr
    assert "a recording plays what was recorded" in with_scenario.stderr
