"""The deb and the rpm in a clean Debian with a systemd of its own: installed, upgraded, removed and purged."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path

import pytest
import yaml
from agents import eventually
from clean_root import SEARCHED, CleanRoot, make_root, make_ubuntu, missing_tools
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from wheels import agent_wheel, simulator_wheel

ROOT = Path(__file__).parents[2]
SCRAPE = """
import urllib.request
print(urllib.request.urlopen("http://127.0.0.1:17400/metrics", timeout=10).read().decode())
"""
SCRAPER = (
    "/usr/bin/python3",
    "-c",
    """
import sys, time, urllib.request
while True:
    try:
        urllib.request.urlopen("http://127.0.0.1:17400/metrics", timeout=10).read()
        print("answered", flush=True)
    except OSError as error:
        print("failed", error, flush=True)
    time.sleep(0.1)
""",
)
STORE = "/var/lib/gpumon/gpumon.db"
NEWER_SCHEMA = """
import sqlite3, sys
with sqlite3.connect(sys.argv[1]) as store:
    store.execute("INSERT INTO migrations VALUES (99, 0)")
"""
AARCH64 = 183
"""Number of the processor in the header of an ELF file."""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(missing_tools()), reason=f"needs root and {missing_tools()}: make test-slow installs them"),
]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the wheels of the agent and of the simulator."""
    folder = tmp_path_factory.mktemp("wheels")
    return agent_wheel(folder), simulator_wheel(folder / "simulator")


def build(wheels: tuple[Path, Path], out: Path, release: str, *options: str) -> None:
    """Build packages as `make packages` does."""
    of = (*map(str, wheels), "--release", release, "--out", str(out))
    command = (sys.executable, "-m", "scripts.packages", *of, *options)
    subprocess.run(command, check=True, cwd=ROOT, capture_output=True, timeout=300)


@pytest.fixture(scope="module")
def packages(wheels: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two releases of each package."""
    folder = tmp_path_factory.mktemp("packages")
    for release in ("1", "2"):
        build(wheels, folder, release, "--arch", "amd64")
    return folder


@pytest.fixture(scope="module")
def root(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CleanRoot]:
    """A clean Debian with the packages in /srv."""
    folder = tmp_path_factory.mktemp("clean") / "root"
    make_root(folder, "rpm")
    shutil.copytree(packages, folder / "srv", dirs_exist_ok=True)
    with CleanRoot(folder) as running:
        yield running


@pytest.mark.parametrize(("suite", "python"), [("jammy", "3.10"), ("noble", "3.12")])
def test_the_deb_runs_on_ubuntu(suite: str, python: str, packages: Path, tmp_path: Path) -> None:
    """On a clean Ubuntu 22.04 and 24.04 one command installs a scraped agent, and a purge removes it."""
    make_ubuntu(tmp_path / "root", suite)
    shutil.copy(packages / "gpumon_0.1.0-1_amd64.deb", tmp_path / "root" / "srv")
    with CleanRoot(tmp_path / "root") as ubuntu:
        install(ubuntu, "1")
        eventually(lambda: "gpumon_gpu_up{" in scrape(ubuntu))
        assert ubuntu.run("/opt/gpumon/bin/python", "--version").startswith(f"Python {python}.")
        assert "1 of 1 GPUs up" in ubuntu.run("gpumon", "status")
        ubuntu.run("apt-get", "purge", "--yes", "gpumon")
        assert ubuntu.run("sh", "-c", "ls -d /etc/gpumon /var/lib/gpumon /opt/gpumon 2>/dev/null", check=False) == ""


def install(root: CleanRoot, release: str) -> None:
    root.run("apt-get", "install", "--yes", f"/srv/gpumon_0.1.0-{release}_amd64.deb")


def scrape(root: CleanRoot) -> str:
    return root.run("python3", "-c", SCRAPE)


def main_pid(root: CleanRoot) -> str:
    return root.run("systemctl", "show", "--property=MainPID", "--value", "gpumon.service")


def test_one_command_installs_a_scraped_agent_until_it_is_purged(root: CleanRoot) -> None:
    """An upgrade costs at most one scrape and keeps the configuration; a removal keeps the state, a purge nothing."""
    inside = root.folder / "etc" / "gpumon" / "gpumon.yml"
    install(root, "1")
    eventually(lambda: "gpumon_gpu_up{" in scrape(root))
    assert "1 of 1 GPUs up" in root.run("gpumon", "status")
    first = main_pid(root)
    inside.write_text(inside.read_text() + "\n# edited\n")

    root.run("systemd-run", "--quiet", "--unit=scraper", "--property=StandardOutput=file:/srv/scrapes", *SCRAPER)
    install(root, "2")
    eventually(lambda: "gpumon_gpu_up{" in scrape(root))
    root.run("systemctl", "stop", "scraper")
    results = (root.folder / "srv" / "scrapes").read_text().splitlines()
    assert sum(not result.startswith("answered") for result in results) <= 1, results
    assert results.count("answered") > 10
    assert main_pid(root) not in {first, "0"}
    assert inside.read_text().endswith("# edited\n")

    root.run("apt-get", "remove", "--yes", "gpumon")
    assert root.run("systemctl", "is-active", "gpumon.service", "gpumon.socket", check=False) == "inactive\ninactive"
    assert not (root.folder / "opt" / "gpumon").exists()
    assert inside.exists()
    assert root.run("test", "-s", STORE) == ""

    install(root, "2")
    eventually(lambda: "gpumon_gpu_up{" in scrape(root))
    root.run("apt-get", "purge", "--yes", "gpumon")
    for path in ("/etc/gpumon", "/var/lib/gpumon", "/opt/gpumon", "/usr/share/gpumon", "/run/gpumon"):
        assert root.run("ls", path, check=False) == "", path


def test_a_store_of_a_newer_schema_is_refused_with_a_sentence(root: CleanRoot) -> None:
    """After a downgrade the agent runs without history, and names the version problem and the remedy."""
    install(root, "1")
    eventually(lambda: "gpumon_gpu_up{" in scrape(root))
    root.run("systemctl", "stop", "gpumon")
    root.run("python3", "-c", NEWER_SCHEMA, STORE)
    root.run("systemctl", "start", "gpumon")
    eventually(lambda: "install that gpumon again" in root.run("journalctl", "--unit=gpumon", "--output=cat"))
    assert "gpumon_gpu_up{" in scrape(root)


def test_the_rpm_installs_upgrades_and_is_erased(root: CleanRoot) -> None:
    """It finds the Python of the AppStream, also after that is replaced; the scripts start and restart the agent."""
    root.run("apt-get", "purge", "--yes", "gpumon", check=False)
    refused = root.run("sh", "-c", f"rpm --force-debian --install {rpm('1')} 2>&1", check=False)
    assert "(python3.12 or python3.11 or (python3 >= 3.10 with python3 < 3.14)) is needed by gpumon" in refused
    write_stand_ins(root.folder / "srv", "systemd", "python3.11")
    root.run("rpm", "--force-debian", "--install", "/srv/systemd.rpm", "/srv/python3.11.rpm")
    root.run("rpm", "--force-debian", "--install", rpm("1"))
    eventually(lambda: "gpumon_gpu_up{" in scrape(root))
    root.run("mv", "/usr/bin/python3.11", "/usr/bin/python3.12")
    assert "0.1.0" in root.run("gpumon", "version")
    root.run("mv", "/usr/bin/python3.12", "/usr/bin/python3.11")
    first = main_pid(root)

    root.run("rpm", "--force-debian", "--upgrade", rpm("2"))
    eventually(lambda: "gpumon_gpu_up{" in scrape(root))
    assert main_pid(root) not in {first, "0"}
    assert root.run("rpm", "--query", "--configfiles", "gpumon") == "/etc/gpumon/gpumon.yml"

    root.run("rpm", "--force-debian", "--erase", "gpumon")
    assert root.run("systemctl", "is-active", "gpumon.service", "gpumon.socket", check=False) == "inactive\ninactive"
    assert not (root.folder / "opt" / "gpumon").exists()
    assert root.run("test", "-s", STORE) == ""


def rpm(release: str) -> str:
    return f"/srv/gpumon-0.1.0-{release}.x86_64.rpm"


def write_stand_ins(folder: Path, *names: str) -> None:
    """Write empty packages, because Debian's own are unknown to the database of rpm."""
    for name in names:
        recipe = folder / f"{name}.yml"
        recipe.write_text(yaml.safe_dump({"name": name, "arch": "amd64", "version": "3.11.2"}))
        command = ("nfpm", "package", "--config", str(recipe), "--target", str(folder / f"{name}.rpm"))
        subprocess.run(command, check=True, capture_output=True, env={"PATH": SEARCHED})


def test_the_package_for_arm64_has_modules_for_each_python(wheels: tuple[Path, Path], tmp_path: Path) -> None:
    """Each compiled module is one of this Python and processor, and no requirement of a package is missing."""
    build(wheels, tmp_path, "1", "--arch", "arm64", "--format", "deb")
    [package] = tmp_path.glob("*_arm64.deb")
    subprocess.run(["dpkg-deb", "-x", str(package), str(tmp_path / "files")], check=True)
    for python in ("3.10", "3.11", "3.12", "3.13"):
        site = tmp_path / "files" / "opt" / "gpumon" / "lib" / f"python{python}" / "site-packages"
        modules = list(site.rglob("*.so"))
        tags = (f".cpython-{python.replace('.', '')}-aarch64-linux-gnu.so", ".abi3.so")
        named = {module.name.partition(".")[0] for module in modules}
        assert named == {"_bcrypt", "_yaml", "_speedups", "_pydantic_core", "cd", "md"}
        assert all(module.name.endswith(tags) and module.read_bytes()[18] == AARCH64 for module in modules)
        assert missing_requirements(site, python) == set()


def missing_requirements(site: Path, python: str) -> set[str]:
    """Return the packages that an installed package requires on this Python and that are not installed."""
    paths = [str(site), str(site.parents[1] / "agent")]
    installed = {canonicalize_name(each.metadata["Name"]): each for each in distributions(path=paths)}
    required = [Requirement(text) for each in installed.values() for text in each.requires or ()]
    environment = {"python_version": python, "python_full_version": f"{python}.0", "extra": ""}
    used = [each for each in required if each.marker is None or each.marker.evaluate(environment)]
    return {name for each in used if (name := canonicalize_name(each.name)) not in installed}
