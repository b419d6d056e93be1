"""`make hardware` on a simulated node: its page and its recordings. On GPUs it was never run by a test."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from gpumon_sim.capture import read

from benchmarks.hardware import MeasuredHost

ROOT = Path(__file__).parents[2]
SHORT = ("--minutes=0.1", "--step-minutes=0.02", "--record-seconds=2")


def hardware(page: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.hardware", f"--page={page}", *SHORT, *flags]
    return subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)


@pytest.mark.slow
def test_the_page_has_every_measurement(tmp_path: Path) -> None:
    """All sections are written, each kind of load has figures, and both recordings can be replayed."""
    page = tmp_path / "hardware.md"
    ran = hardware(page, "--simulate=h100guestx2")
    assert ran.returncode == 0, ran.stderr
    text = page.read_text(encoding="utf-8")
    assert "nothing here is about hardware" in text
    titles = [line.removeprefix("## ") for line in text.splitlines() if line.startswith("## ")]
    assert titles == [
        "The driver, idle",
        "The driver beside a training loop",
        "Without root",
        "The agent under load",
        "Step time of a training loop, in ms",
    ]
    rows = {line.split("|")[1].strip(): line.split("|")[2:-1] for line in text.splitlines() if line.startswith("| ")}
    for load in ("idle", "train", "allocate", "train, killed half-way"):
        assert all(float(figure) >= 0 for figure in rows[load][:4]), rows[load]
        assert rows[load][4].strip() == "none"
    assert all(float(rows[agent][0]) > 0 for agent in ("without", "with"))
    for name in ("idle", "loaded"):
        assert read(tmp_path / f"hardware-{name}.capture").header.simulated == "h100guestx2"


def test_an_unknown_profile_is_refused(tmp_path: Path) -> None:
    """The command fails with the name that is wrong."""
    ran = hardware(tmp_path / "hardware.md", "--simulate=h100")
    assert ran.returncode == 2
    assert "unknown name 'h100'" in ran.stderr


@pytest.mark.slow
def test_a_load_that_ends_early_is_an_error(tmp_path: Path) -> None:
    """A training loop that finds no GPU makes no figures of a loaded host."""
    host = MeasuredHost(folder=tmp_path, simulated=None, minutes=1, step_minutes=1, record_seconds=1)
    with pytest.raises(RuntimeError, match="'train' ended with exit code 1"), host.load("train", 60) as process:
        process.wait()
