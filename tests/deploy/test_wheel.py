"""The wheel is complete and runs in an empty environment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from gpumon import __version__
from gpumon.probe.core.plan import make_plans
from gpumon.probe.core.probes import PROBES

pytestmark = pytest.mark.slow


ROOT = Path(__file__).parents[2]
REVISION = "0123456789ab"
PROBE = PROBES["allreduce"]
JUNK = shutil.ignore_patterns("__pycache__")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel as `make build` does, from a copy, so that the checkout does not change."""
    source = tmp_path_factory.mktemp("source")
    shutil.copytree(ROOT / "gpumon", source / "gpumon", ignore=JUNK)
    (source / "gpumon" / "REVISION").write_text(REVISION + "\n", encoding="ascii")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    _run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(source / "dist"), str(source))
    [built] = (source / "dist").glob("*.whl")
    return built


def test_every_file_of_the_package_is_in_it(wheel: Path) -> None:
    """The wheel has the code, templates, style sheets, profiles and rules of the checkout."""
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("gpumon/")}
    there = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "gpumon").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert packed == there | {"gpumon/REVISION"}


def test_it_runs_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    """With the locked dependencies only, it prints its version and polls a simulated node without torch."""
    empty, constraints = tmp_path / "empty", ROOT / "requirements" / "constraints.txt"
    _run(sys.executable, "-m", "venv", "--without-pip", str(empty))
    install = ("install", "--quiet", "--no-compile", "--constraint", str(constraints), str(wheel))
    _run(sys.executable, "-m", "pip", "--python", str(empty / "bin" / "python"), *install)
    gpumon = str(empty / "bin" / "gpumon")

    assert _run(gpumon, "--version", cwd=tmp_path) == f"gpumon {__version__} ({REVISION})\n"
    assert "gpumon_gpu_up{gpu, uuid}" in _run(gpumon, "metrics", cwd=tmp_path)
    page = _run(gpumon, "once", "--simulate", "t4x1", "--prometheus", cwd=tmp_path)
    assert 'name="Tesla T4"' in page
    assert "gpumon_simulated 1" in page


def _run(*arguments: str, cwd: Path | None = None) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "GPUMON_"))}
    ran = subprocess.run(arguments, cwd=cwd, env=environment, capture_output=True, text=True, timeout=170, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    return ran.stdout


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
