"""Builds the deb and the rpm from the wheels that `make build` wrote to dist/: `python -m scripts.packages`.

They contain the agent, the simulator, their dependencies for each Python of the supported distributions, the units and
the files for Prometheus, Grafana, schedulers and shells. /opt/gpumon is a virtual environment whose bin/python is the
Python of the distribution, which finds its own dependencies in lib/pythonX.Y.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import gpumon_sim

import gpumon
from scripts import shell_files

ROOT = Path(__file__).parents[1]
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
PLATFORMS = {"amd64": "x86_64-manylinux_2_28", "arm64": "aarch64-manylinux_2_28"}
FORMATS = ("deb", "rpm")
SHARED = (ROOT / "alert_rules", ROOT / "dashboards", *(ROOT / "deploy").iterdir())
"""What is installed below /usr/share/gpumon."""
UNUSED = shutil.ignore_patterns("*.py", "__pycache__", "*.service", "*.socket", "sysusers.conf")
NOT_SHARED = ("demo", "packages")
"""Folders of deploy/ that no installed host needs."""
COMMAND = """\
#!/opt/gpumon/bin/python -I
import sys

from {module} import main

sys.exit(main())
"""
SAME_FOR_EACH_PYTHON = ("apprise", "certifi", "oauthlib", "requests", "requests_oauthlib", "urllib3")
"""Packages of one version without compiled code. Those of Apprise have 20 MB."""
COMMANDS = {"gpumon": "gpumon.cli.main", "gpumon-sim": "gpumon_sim.command"}
"""Module of each command."""


def make_tree(tree: Path, wheels: Iterable[Path], arch: str) -> None:
    """Write the files of a package to `tree`, as they are installed."""
    prefix = tree / "opt" / "gpumon"
    install(prefix / "lib" / "agent", arch, PYTHONS[0], "--no-deps", *map(str, wheels))
    for python in PYTHONS:
        site = prefix / "lib" / f"python{python}" / "site-packages"
        requirements = ROOT / "requirements" / "packages.txt"
        install(site, arch, python, "--no-deps", "--require-hashes", "--requirement", str(requirements))
        (site / "gpumon.pth").write_text("../../agent\n")
        share(site, prefix / "lib" / "agent")
    (prefix / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
    write_commands(prefix / "bin")
    copy_files(tree / "usr")
    shell_files.write(tree / "usr" / "share")


def install(folder: Path, arch: str, python: str, *requirements: str) -> None:
    """Install wheels for another Python and processor into a folder, without their commands."""
    target = ("--target", str(folder), "--python-version", python, "--python-platform", PLATFORMS[arch])
    only_wheels = ("--no-build", "--link-mode", "copy", "--python", sys.executable)
    run("uv", "pip", "install", "--quiet", *target, *only_wheels, *requirements)
    shutil.rmtree(folder / "bin", ignore_errors=True)
    (folder / ".lock").unlink(missing_ok=True)


def share(site: Path, shared: Path) -> None:
    """Move the packages that are the same for each Python to the folder that each Python reads."""
    for name in SAME_FOR_EACH_PYTHON:
        if (shared / name).exists():
            shutil.rmtree(site / name)
        else:
            (site / name).rename(shared / name)


def write_commands(folder: Path) -> None:
    folder.mkdir()
    for name, module in COMMANDS.items():
        (folder / name).write_text(COMMAND.format(module=module))
        (folder / name).chmod(0o755)


def copy_files(usr: Path) -> None:
    """Copy units, documents and the files for Prometheus, Grafana and schedulers."""
    systemd = ROOT / "deploy" / "systemd"
    for name in ("gpumon.service", "gpumon.socket"):
        copy(systemd / name, usr / "lib" / "systemd" / "system" / name)
    copy(systemd / "sysusers.conf", usr / "lib" / "sysusers.d" / "gpumon.conf")
    for folder in SHARED:
        if folder.is_dir() and folder.name not in NOT_SHARED:
            shutil.copytree(folder, usr / "share" / "gpumon" / folder.name, ignore=UNUSED)
    for document in (*ROOT.glob("docs/*.md"), ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "LICENSE"):
        copy(document, usr / "share" / "doc" / "gpumon" / document.name)


def copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)


def run(*command: str, **variables: str) -> None:
    """Run a tool of this virtual environment, or of the PATH."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    subprocess.run(command, check=True, cwd=ROOT, env={**os.environ, "PATH": path, **variables})


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Build the deb and the rpm.")
    built = [ROOT / "dist" / f"{each.__name__}-{each.__version__}-py3-none-any.whl" for each in (gpumon, gpumon_sim)]
    parser.add_argument("wheels", type=Path, nargs="*", default=built, help="wheels; those of `make build`")
    parser.add_argument("--arch", action="append", choices=PLATFORMS, help="processor; all if not given")
    parser.add_argument("--format", action="append", choices=FORMATS, help="kind of package; all if not given")
    parser.add_argument("--release", default="1", help="number of this package of the same version of gpumon")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder for the packages")
    chosen = parser.parse_args(arguments)
    os.umask(0o022)  # of the installed files
    for arch in chosen.arch or PLATFORMS:
        with tempfile.TemporaryDirectory() as folder:
            make_tree(Path(folder), [wheel.resolve() for wheel in chosen.wheels], arch)
            variables = {"TREE": folder, "ARCH": arch, "VERSION": gpumon.__version__, "RELEASE": chosen.release}
            for kind in chosen.format or FORMATS:
                to = ("--packager", kind, "--target", str(chosen.out.resolve()))
                run("nfpm", "package", "--config", "deploy/packages/nfpm.yml", *to, **variables)


if __name__ == "__main__":
    main()
