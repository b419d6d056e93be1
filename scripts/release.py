"""Builds a release from a tag: `make release` checks the checkout, runs all tests, and writes every file to dist/.

dist/ then has the wheel, the source archive, a deb and an rpm for each processor, the Helm chart, a bill of materials
of the dependencies (CycloneDX) and the SHA-256 of all of them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import yaml

from gpumon import __version__

ROOT = Path(__file__).parents[1]
CHART = Path("deploy") / "helm" / "gpumon"
SUMS = "SHA256SUMS"


def problems(root: Path, version: str) -> Iterator[str]:
    """Yield what must be corrected in the checkout before this version can be released, each with its remedy."""
    if git(root, "status", "--porcelain"):
        yield "there are changes that are not committed: commit or remove them"
    if f"v{version}" not in git(root, "tag", "--points-at", "HEAD").split():
        yield f"HEAD has no tag v{version}: git tag -a v{version}, or change gpumon/__init__.py"
    dated = re.compile(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", re.MULTILINE)
    if dated.search((root / "CHANGELOG.md").read_text()) is None:
        yield f"CHANGELOG.md has no line `## [{version}] - YYYY-MM-DD`"
    chart = yaml.safe_load((root / CHART / "Chart.yaml").read_text())
    if (chart["version"], chart["appVersion"]) != (version, version):
        yield f"{CHART}/Chart.yaml is of version {chart['version']}"


def git(root: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True, text=True).stdout


def pack_chart(chart: Path, version: str, dist: Path, committed: int) -> Path:
    """Write the Helm chart as `helm package` does. `committed`: time of all files in it, in seconds since the epoch."""

    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = "root"
        entry.mtime = committed
        return entry

    path = dist / f"gpumon-chart-{version}.tgz"
    with tarfile.open(path, "w:gz", dereference=True) as archive:
        archive.add(chart, arcname="gpumon", filter=plain)
    return path


def write_bill(dist: Path, version: str) -> Path:
    """Write the dependencies of the packages, with their hashes, as CycloneDX."""
    path, requirements = dist / f"gpumon-{version}.cdx.json", ROOT / "requirements" / "packages.txt"
    tool = Path(sys.executable).with_name("cyclonedx-py")
    options = ("--output-reproducible", "--pyproject", str(ROOT / "pyproject.toml"), "-o", str(path))
    subprocess.run([str(tool), "requirements", *options, str(requirements)], check=True, capture_output=True)
    bill = json.loads(path.read_text())
    bill["metadata"]["component"]["version"] = version  # pyproject.toml has none
    path.write_text(json.dumps(bill, indent=2) + "\n")
    return path


def write_sums(dist: Path) -> Path:
    """Write the SHA-256 of each file, in the format of sha256sum."""
    path = dist / SUMS
    files = sorted(each for each in dist.iterdir() if each.is_file() and each.name != SUMS)
    path.write_text("".join(f"{hashlib.sha256(each.read_bytes()).hexdigest()}  {each.name}\n" for each in files))
    return path


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="make release", description="Build a release from a tag.")
    parser.add_argument("--tested", action="store_true", help="run no tests, because CI has run them on this commit")
    chosen = parser.parse_args(arguments)
    found = list(problems(ROOT, __version__))
    if found:
        sys.exit("\n".join(f"make release: {problem}" for problem in found))
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    targets = ("packages",) if chosen.tested else ("check", "test", "test-slow", "packages")
    # Without the ARGS of this command: they are not the ones of these targets.
    environment = {name: value for name, value in os.environ.items() if name not in {"MAKEFLAGS", "MAKEOVERRIDES"}}
    subprocess.run(["make", *targets, "ARGS="], cwd=ROOT, env=environment, check=True)
    pack_chart(ROOT / CHART, __version__, dist, int(git(ROOT, "log", "-1", "--format=%ct")))
    write_bill(dist, __version__)
    write_sums(dist)


if __name__ == "__main__":
    main()
