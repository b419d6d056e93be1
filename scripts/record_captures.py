"""Records the captures of the tests from the simulation: `make captures`. It takes as long as the captures are."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parents[1] / "tests" / "captures"


class CaptureRow(NamedTuple):
    """A capture: a profile with its scenario, and the scenario of its second half."""

    profile: str
    scenario: str = "{}"
    then: str | None = None


CAPTURES = {
    "h100x8-lost": CaptureRow("h100x8", "{busy: true}", "{busy: true, gpus: {3: {lost: true, xids: [79]}}}"),
    "h100migx8": CaptureRow("h100migx8", "{busy: true}"),
    "gb200x4": CaptureRow("gb200x4", "{busy: true}"),
    "t4x1": CaptureRow("t4x1", "{jobs: [{start: 5, end: 15}]}"),
}
SECONDS = 20


def record(name: str, capture: CaptureRow) -> None:
    """Run `gpumon-sim record` and change the scenario in the middle. Raises CalledProcessError."""
    with tempfile.TemporaryDirectory() as folder:
        scenario = Path(folder) / "scenario.yml"
        scenario.write_text(capture.scenario)
        file = str(FOLDER / f"{name}.capture")
        command = [sys.executable, "-m", "gpumon_sim", "record", file, f"--for={SECONDS}s"]
        recorder = subprocess.Popen([*command, "--simulate", capture.profile, "--simulate.scenario", str(scenario)])
        if capture.then is not None:
            time.sleep(SECONDS / 2)
            new = scenario.with_suffix(".new")
            new.write_text(capture.then)
            new.rename(scenario)
        if recorder.wait():
            raise subprocess.CalledProcessError(recorder.returncode, command)


if __name__ == "__main__":
    for name, capture in CAPTURES.items():
        record(name, capture)
