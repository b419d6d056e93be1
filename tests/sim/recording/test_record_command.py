"""`gpumon record` and `--simulate FILE`: the real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from agents import Agent, Metrics, eventually

from gpumon.sim import capture
from gpumon.sim.capture import HANGS

pytestmark = pytest.mark.slow


OF_THE_KERNEL = ("gpumon_infiniband_", "gpumon_fabric_manager_up", "gpumon_service_stops_total")
"""Not told by NVML, and so in no recording."""


def gpumon(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gpumon", *map(str, arguments)]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)


def once(profile: Path, form: str) -> str:
    answer = gpumon("once", "--simulate", profile, "--format", form)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording of two seconds of an h100x8."""
    path = tmp_path_factory.mktemp("record") / "rack7.capture"
    answer = gpumon("record", path, "--for", "2s", "--simulate", "h100x8")
    assert answer.returncode == 0, answer.stderr
    assert "8 GPUs" in answer.stdout
    assert "masked" in answer.stdout
    return path


def test_a_recording_is_shown_as_what_it_is(recorded: Path) -> None:
    """Its name stands where a profile's would, and it counts as simulated."""
    page = Metrics(once(recorded, "prometheus"))
    document = json.loads(once(recorded, "json"))

    assert page.value("gpumon_simulated") == 1
    assert document["node"]["simulated_profile"] == "rack7.capture"
    assert page.gpus("gpumon_gpu_up") == {str(gpu): 1 for gpu in range(8)}
    assert recorded.stat().st_size < 300_000


def test_the_page_of_a_recording_has_the_series_of_its_host(recorded: Path) -> None:
    """What the agent exports of the recording is what it exports of the profile, to the last label but the names."""
    profile = Metrics(once(Path("h100x8"), "prometheus"))
    replay = Metrics(once(recorded, "prometheus"))

    assert series(replay) == series(profile)


def series(page: Metrics) -> set[Any]:
    """Names and labels; what a mask changes is left out."""
    masked = {"uuid", "serial"}
    return {
        (name, frozenset((label, value) for label, value in labels if label not in masked))
        for name, labels in page.values
        if not name.startswith(OF_THE_KERNEL)
    }


def test_the_summary_answers_open_questions(recorded: Path) -> None:
    """What calls cost, what is not supported, and what the manuals do not say."""
    told = gpumon("record", recorded, "--summary").stdout

    assert "the simulated h100x8: no hardware" in told
    assert "nvmlDeviceGetFieldValues" in told
    assert "nvmlDeviceGetFanSpeed" in told[told.index("not supported") :]
    assert "0x11f" in told
    assert "nvmlDeviceGetNvLinkState Not supported, the field Invalid argument" in told
    assert "on 8 of 8 GPUs" in told


def test_a_call_that_hangs_ends_the_recording_and_hangs_in_the_replay(tmp_path: Path) -> None:
    """The command ends, says which call it was, and the agent that plays the file leaves that GPU aside."""
    scenario, path = tmp_path / "scenario.yml", tmp_path / "hung.capture"
    scenario.write_text("gpus: {1: {hang_forever: [nvmlDeviceGetMemoryInfo_v2]}}")
    answer = gpumon("record", path, "--for", "30s", "--simulate", "h100pciex2", "--simulate.scenario", scenario)

    assert answer.returncode == 1
    assert "has not returned" in answer.stdout
    held = [
        given for given, line in capture.read(path).questions("nvmlDeviceGetMemoryInfo_v2") if HANGS in line.answers[-1]
    ]
    assert len(held) == 1

    agent = Agent(tmp_path, profile=None)
    try:
        agent.start("--simulate", str(path))
        eventually(lambda: agent.metrics().value("gpumon_gpu_fault", gpu="1", fault="stuck") == 1)
        assert agent.metrics().value("gpumon_gpu_up", gpu="0") == 1
    finally:
        agent.stop()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_what_is_recorded_until_it_is_interrupted_stands(how: signal.Signals, tmp_path: Path) -> None:
    """^C and the end of a batch job end a recording early: the file holds what came before, and says so."""
    path, trace = tmp_path / "short.capture", tmp_path / "trace"
    plain = ["env", "--default-signal=INT"]  # what runs in a shell's background is deaf to ^C
    command = [*plain, sys.executable, "-m", "gpumon", "record", str(path), "--for", "10m", "--simulate", "t4x1"]
    environment = {**os.environ, "GPUMON_SIMULATION_TRACE": str(trace)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as recorder:
        eventually(lambda: any("nvmlEventSetWait_v2" in one.read_text() for one in tmp_path.glob("trace-*.json")))
        recorder.send_signal(how)
        told, _ = recorder.communicate(timeout=60)

    assert recorder.returncode == 1
    assert "cut short: ended by the operator" in told
    assert capture.read(path).costs["nvmlEventSetWait_v2"].calls > 0


def test_where_nothing_can_be_recorded_the_remedy_is_told(tmp_path: Path) -> None:
    """No driver, no folder, no duration: exit code 2, and no file."""
    scenario, path = tmp_path / "scenario.yml", tmp_path / "none.capture"
    scenario.write_text("driver: not_loaded")
    without_driver = gpumon("record", path, "--simulate", "t4x1", "--simulate.scenario", scenario)
    nowhere = gpumon("record", tmp_path / "no" / "folder.capture", "--simulate", "t4x1")
    never = gpumon("record", path, "--for", "soon", "--simulate", "t4x1")

    assert [answer.returncode for answer in (without_driver, nowhere, never)] == [2, 2, 2]
    assert "DriverNotLoaded: the nvidia kernel module is not loaded" in without_driver.stderr
    assert "cannot be written" in nowhere.stderr
    assert "write 90s, 5m or 1h" in never.stderr
    assert not path.exists()


def test_a_file_that_is_no_recording_is_an_error_of_the_configuration(tmp_path: Path, recorded: Path) -> None:
    """Named with where it was configured, by every command that would use it."""
    foreign = tmp_path / "foreign.capture"
    foreign.write_text("what")
    answer = gpumon("once", "--simulate", foreign)
    with_scenario = gpumon("once", "--simulate", recorded, "--simulate.scenario", foreign)

    assert (answer.returncode, with_scenario.returncode) == (2, 2)
    assert f"--simulate: recording {foreign}: not a recording of gpumon" in answer.stderr
    assert "a recording plays what was recorded" in with_scenario.stderr
