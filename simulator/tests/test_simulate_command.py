"""`gpumon-sim` runs an unmodified Python program with pynvml in its own environment."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path

import pynvml
import pytest

pytestmark = pytest.mark.slow


READS = """
import pynvml
pynvml.nvmlInit()
for index in range(pynvml.nvmlDeviceGetCount()):
    print(pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(index)))
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the interpreter of an environment that has pynvml only."""
    folder = tmp_path_factory.mktemp("theirs")
    venv.create(folder, symlinks=True)
    packages = next(folder.glob("lib/python3*/site-packages"))
    (packages / "pynvml.py").symlink_to(pynvml.__file__)
    return folder / "bin" / "python"


def script(folder: Path, first: str, text: str) -> Path:
    path = folder / "theirs"
    path.write_text(f"{first}\n{text}")
    path.chmod(0o755)
    return path


def simulate(*arguments: str | Path, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gpumon_sim", *map(str, arguments)]
    return subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=60, env={**os.environ, **(environment or {})}
    )


@pytest.mark.parametrize("form", ["#!{python}", "#!{python} -E", "#!/bin/sh\n'''exec' {python} \"$0\" \"$@\"\n' '''"])
def test_a_program_of_another_environment_reads_the_simulated_gpus(form: str, python: Path, tmp_path: Path) -> None:
    """A program runs with every form of its first line."""
    answer = simulate("h100pciex2", "--", script(tmp_path, form.format(python=python), READS))

    assert answer.stdout.splitlines() == ["NVIDIA H100 PCIe"] * 2, answer.stderr
    assert answer.returncode == 0


def test_children_of_the_program_read_the_simulated_gpus(python: Path, tmp_path: Path) -> None:
    """A child inherits the simulated node and cannot import gpumon's dependencies."""
    text = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {READS!r}], check=True)\nimport pydantic\n"
    answer = simulate("t4x1", "--", script(tmp_path, f"#!{python}", text))

    assert answer.stdout == "Tesla T4\n"
    assert "No module named 'pydantic'" in answer.stderr


def test_the_program_keeps_its_arguments_and_exit_code(python: Path, tmp_path: Path) -> None:
    """The program replaces the process of the command, so that it gets signals and is no child of gpumon."""
    (tmp_path / "sitecustomize.py").write_text("print('theirs')")
    text = "import os, sys\nprint(sys.argv[1:], os.getppid())\nsys.exit(7)\n"
    environment = {"PYTHONPATH": str(tmp_path)}
    answer = simulate("t4x1", "--", script(tmp_path, f"#!{python}", text), "-x", "--", "y", environment=environment)

    assert answer.returncode == 7
    assert answer.stdout.splitlines()[-2:] == ["theirs", f"['-x', '--', 'y'] {os.getpid()}"]


def test_a_scenario_and_a_time_can_be_given(python: Path, tmp_path: Path) -> None:
    scenario = tmp_path / "scenario.yml"
    scenario.write_text("gpus: {0: {set: {temperature: {value: 40, rate: 1, from: 0}}}}")
    text = READS + "print(pynvml.nvmlDeviceGetTemperature(pynvml.nvmlDeviceGetHandleByIndex(0), 0))\n"
    program = script(tmp_path, f"#!{python}", text)
    answer = simulate("t4x1", "--scenario", scenario, "--at", "2m", "--", program)

    assert int(answer.stdout.splitlines()[-1]) >= 40 + 120


def test_errors_of_simulate_are_reported(python: Path, tmp_path: Path) -> None:
    """A missing program, profile or pynvml, or an invalid scenario or time, is reported with its remedy."""
    shell = script(tmp_path, "#!/bin/sh", "echo hello\n")
    bare = tmp_path / "bare"
    venv.create(bare, symlinks=True)
    errors: Mapping[str, Sequence[str | Path]] = {
        "no such program": ("t4x1", "--", "no-such-program"),
        "is not a Python program": ("t4x1", "--", shell),
        "is not a Python": ("t4x1", "--", "/bin/true"),
        "has no pynvml": ("t4x1", "--", bare / "bin" / "python", "-c", READS),
        "did you mean t4x1?": ("t4x2", "--", python),
        "cannot be read": ("t4x1", "--scenario", tmp_path / "none.yml", "--", python),
        "not a recording": (shell, "--", python),
        "name a program behind --": ("t4x1",),
        "is not a duration": ("t4x1", "--at", "soon", "--", python),
    }
    for words, arguments in errors.items():
        answer = simulate(*arguments)
        assert answer.returncode == 2, words
        assert words in answer.stderr
        assert answer.stderr.startswith("gpumon-sim: ")
