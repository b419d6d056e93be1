"""The release script: what it refuses, and what it writes."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from scripts.release import CHART, ROOT, git, pack_chart, problems, write_bill, write_sums

VERSION = "9.8.7"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a checkout that is ready to be released."""
    chart = tmp_path / CHART
    chart.mkdir(parents=True)
    (chart / "Chart.yaml").write_text(f"name: gpumon\nversion: {VERSION}\nappVersion: {VERSION}\n")
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n## [{VERSION}] - 2026-11-23\n")
    git(tmp_path, "init", "--quiet")
    commit(tmp_path)
    git(tmp_path, "tag", f"v{VERSION}")
    return tmp_path


def commit(checkout: Path) -> None:
    git(checkout, "add", ".")
    git(checkout, "-c", "user.name=a", "-c", "user.email=a@example.com", "commit", "--quiet", "-m", "a")


def test_a_tagged_checkout_is_released(checkout: Path) -> None:
    assert list(problems(checkout, VERSION)) == []


def test_each_obstacle_is_named(checkout: Path) -> None:
    """Uncommitted changes, a missing tag, an undated changelog and another version of the chart."""
    (checkout / "CHANGELOG.md").write_text(f"## [{VERSION}] - Unreleased\n")
    (checkout / CHART / "Chart.yaml").write_text("version: 1.0.0\nappVersion: 1.0.0\n")
    changed, undated, chart = problems(checkout, VERSION)
    assert "not committed" in changed
    assert "CHANGELOG.md has no line" in undated
    assert "version 1.0.0" in chart
    commit(checkout)
    untagged, *_ = problems(checkout, VERSION)
    assert f"no tag v{VERSION}" in untagged


REQUIREMENTS = ("requirements/constraints.txt", "requirements/deploy.txt")
RECORD = """\
#!/bin/sh
case "$2" in scripts.release) exec {python} "$@" ;; esac
echo "$*" >> calls
"""


def test_the_arguments_of_the_release_are_not_those_of_the_packages(checkout: Path) -> None:
    """`make release ARGS=--tested` builds the packages without `--tested`, whatever else is in dist/."""
    for name in ("Makefile", "scripts/release.py", "pyproject.toml", "simulator/pyproject.toml", *REQUIREMENTS):
        (checkout / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(ROOT / name, checkout / name)
    python = checkout / ".venv" / "bin" / "python"
    for path in (python, checkout / "gpumon" / "__init__.py"):
        path.parent.mkdir(parents=True)
    (checkout / "gpumon" / "__init__.py").write_text(f'__version__ = "{VERSION}"\n')
    python.write_text(RECORD.format(python=sys.executable))
    python.chmod(0o755)
    for stamp in ("made", "run", "test", "packages", "deploy"):
        (checkout / ".venv" / f".{stamp}").touch()
    (checkout / ".gitignore").write_text(".venv\ndist\ncalls\n__pycache__\n")
    commit(checkout)
    git(checkout, "tag", "--force", f"v{VERSION}")
    ran = subprocess.run(
        ["make", "release", "ARGS=--tested"], cwd=checkout, capture_output=True, text=True, check=False
    )
    calls = (checkout / "calls").read_text().splitlines()
    builds = ["-m build --no-isolation", "-m build --no-isolation --outdir dist simulator"]
    assert calls == [*builds, "-m scripts.packages"], ran.stderr


def test_the_chart_is_complete(tmp_path: Path) -> None:
    """Rules and dashboards are in it as files, although they are links in the checkout."""
    with tarfile.open(pack_chart(ROOT / CHART, VERSION, tmp_path, 1_700_000_000)) as archive:
        entries = {entry.name: entry for entry in archive}
    assert {"gpumon/Chart.yaml", "gpumon/values.yaml", "gpumon/files/alert_rules/gpumon.yml"} <= set(entries)
    assert all(entry.isfile() or entry.isdir() for entry in entries.values())
    assert {entry.mtime for entry in entries.values()} == {1_700_000_000}


def test_the_bill_of_materials_names_every_dependency_with_its_hashes(tmp_path: Path) -> None:
    """As requirements/packages.txt has them; it is that of this version of gpumon."""
    if shutil.which("cyclonedx-py", path=str(Path(sys.executable).parent)) is None:
        pytest.skip("cyclonedx-py is installed by `make packages` and `make release` only")
    bill = json.loads(write_bill(tmp_path, VERSION).read_text())
    assert (bill["metadata"]["component"]["name"], bill["metadata"]["component"]["version"]) == ("gpumon", VERSION)
    named = {f"{each['name']}=={each['version']}": each for each in bill["components"]}
    lines = (ROOT / "requirements" / "packages.txt").read_text().splitlines()
    pinned = {line.split()[0] for line in lines if not line.startswith(" ")}
    assert set(named) == pinned
    assert all(each["externalReferences"][0]["hashes"] for each in named.values())


def test_sha256sum_accepts_the_sums(tmp_path: Path) -> None:
    """Each file is in it, and itself it is not."""
    for name in ("a.deb", "b.rpm"):
        (tmp_path / name).write_text(name)
    assert write_sums(tmp_path).read_text().startswith(f"{hashlib.sha256(b'a.deb').hexdigest()}  a.deb\n")
    checked = subprocess.run(["sha256sum", "--check", "SHA256SUMS"], cwd=tmp_path, capture_output=True, check=True)
    assert checked.stdout.decode().splitlines() == ["a.deb: OK", "b.rpm: OK"]
