"""The wheel is complete and runs in an empty environment."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from wheels import agent_wheel, simulator_wheel

from gpumon import __version__
from gpumon.probe.core.plan import make_plans
from gpumon.probe.core.probes import PROBES

pytestmark = pytest.mark.slow


ROOT = Path(__file__).parents[2]
REVISION = "0123456789ab"
PROBE = PROBES["allreduce"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return agent_wheel(tmp_path_factory.mktemp("source"), revision=REVISION)


@pytest.fixture(scope="module")
def simulator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return simulator_wheel(tmp_path_factory.mktemp("simulator") / "source")


def test_every_file_of_the_package_is_in_it(wheel: Path) -> None:
    """The wheel has the code, templates, style sheets, profiles and rules of the checkout."""
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("gpumon/")}
    there = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "gpumon").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert packed == there | {"gpumon/REVISION"}


def test_the_wheels_run_in_an_empty_environment(wheel: Path, simulator: Path, tmp_path: Path) -> None:
    """With the locked dependencies only, the agent runs; it simulates as soon as the simulator is installed."""
    empty, constraints = tmp_path / "empty", ROOT / "requirements" / "constraints.txt"
    _run(sys.executable, "-m", "venv", "--without-pip", str(empty))
    pip = (sys.executable, "-m", "pip", "--python", str(empty / "bin" / "python"), "install", "--quiet", "--no-compile")
    _run(*pip, "--constraint", str(constraints), str(wheel))
    gpumon = str(empty / "bin" / "gpumon")

    assert _run(gpumon, "--version", cwd=tmp_path) == f"gpumon {__version__} ({REVISION})\n"
    assert "gpumon_gpu_up{gpu, uuid}" in _run(gpumon, "metrics", cwd=tmp_path)
    for command in (["once", "--simulate", "t4x1"], ["serve", "--simulate.fallback", "t4x1"]):
        assert "needs the simulator: install the wheel gpumon_sim" in _run(gpumon, *command, cwd=tmp_path, code=2)
    _run(*pip, "--no-deps", str(simulator))
    page = _run(gpumon, "once", "--simulate", "t4x1", "--prometheus", cwd=tmp_path)
    assert 'name="Tesla T4"' in page
    assert "gpumon_simulated 1" in page
    count = (str(empty / "bin" / "python"), "-c", "import pynvml as n; n.nvmlInit(); print(n.nvmlDeviceGetCount())")
    assert _run(f"{gpumon}-sim", "h100x8", "--", *count, cwd=tmp_path) == "8\n"


def _run(*arguments: str, cwd: Path | None = None, code: int = 0) -> str:
    """Return standard output, and standard error if this exit code is that of an error."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "GPUMON_"))}
    ran = subprocess.run(arguments, cwd=cwd, env=environment, capture_output=True, text=True, timeout=170, check=False)
    assert ran.returncode == code, ran.stderr[-2000:]
    return ran.stderr if code else ran.stdout


def test_the_ranks_of_a_probe_run_from_it_by_their_path(wheel: Path, tmp_path: Path) -> None:
    """An interpreter without gpumon and torch starts a rank, which reports what is missing and writes no file."""
    zipfile.ZipFile(wheel).extractall(tmp_path)
    before = set(tmp_path.rglob("*"))
    worker = tmp_path / PROBE.worker.relative_to(ROOT)
    plan = make_plans(PROBE, (), python=sys.executable)[0]
    orders = plan.orders(0, parent=os.getpid(), result=1, rendezvous=0)
    command = [sys.executable, "-I", "-S", "-B", str(worker)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={}) as rank:
        assert rank.stdin is not None
        assert rank.stdout is not None
        rank.stdin.write(orders)
        rank.stdin.flush()  # and stays open: the rank would end with it
        assert rank.stdout.readlines()[-1] == b'{"absent": "torch"}\n'
    assert set(tmp_path.rglob("*")) == before
