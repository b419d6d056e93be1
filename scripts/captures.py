"""Records the shipped captures anew, from the simulation: `make captures`. It takes as long as they are."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parents[1] / "tests" / "captures"


class Shown(NamedTuple):
    """What one of them shows: a profile and its scenario, and another scenario from the middle on."""

    profile: str
    scenario: str = "{}"
    then: str | None = None


CAPTURES = {
    "h100x8-lost": Shown("h100x8", "{busy: true}", "{busy: true, gpus: {3: {lost: true, xids: [79]}}}"),
    "h100migx8": Shown("h100migx8", "{busy: true}"),
    "gb200x4": Shown("gb200x4", "{busy: true}"),
    "t4x1": Shown("t4x1", "{jobs: [{start: 5, end: 15}]}"),
}
SECONDS = 20


def record(name: str, shown: Shown) -> None:
    """Run `gpumon record`, and change the scenario while it runs. Raises CalledProcessError."""
    with tempfile.TemporaryDirectory() as folder:
        scenario = Path(folder) / "scenario.yml"
        scenario.write_text(shown.scenario)
        command = [sys.executable, "-m", "gpumon", "record", str(FOLDER / f"{name}.capture"), "--for", f"{SECONDS}s"]
        recorder = subprocess.Popen([*command, "--simulate", shown.profile, "--simulate.scenario", str(scenario)])
        if shown.then is not None:
            time.sleep(SECONDS / 2)
            new = scenario.with_suffix(".new")
            new.write_text(shown.then)
            new.rename(scenario)
        if recorder.wait():
            raise subprocess.CalledProcessError(recorder.returncode, command)


if __name__ == "__main__":
    for each, what in CAPTURES.items():
        record(each, what)
