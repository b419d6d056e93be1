"""README, docs and Makefile: what they name exists."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from each_case import each_case

from gpumon import DEFAULT_PORT
from gpumon.cli.main import COMMANDS
from gpumon.health.table import BY_NAME
from gpumon.outputs.metric_catalogue import catalogue

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
MADE = re.compile(r"^([a-z-]+):.*## (.+)$", re.MULTILINE)

every_page = each_case("page", PAGES, ids=[page.name for page in PAGES])


@every_page
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link is a file or folder of this repository."""
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8"))
    for link in links:
        assert re.match(r"https?://", link) or (page.parent / link).exists(), link


@every_page
def test_metrics_named_exist(page: Path) -> None:
    """A metric that a page names is in the catalogue, whole or as the beginning of some; so are checks of the agent."""
    known = {entry.name for entry in catalogue()} | set(BY_NAME)
    for name in re.findall(r"(?<!/)\bgpumon_[a-z0-9_]+", page.read_text(encoding="utf-8")):
        assert name in known or any(one.startswith(name) for one in known), name


def test_every_file_names_the_default_port() -> None:
    """Pages, container files and unit files cannot import the port: whichever they name after the loopback is ours."""
    shipped = [
        *PAGES,
        ROOT / "Dockerfile",
        ROOT / "docker-compose.yml",
        ROOT / "Makefile",
        ROOT / "deploy" / "gpumon.yml",
    ]
    named = {
        f"{page.name}: {port}"
        for page in shipped
        for port in re.findall(r"(?:127\.0\.0\.1:|EXPOSE )(\d{5})(?!\d)", page.read_text(encoding="utf-8"))
        if int(port) != DEFAULT_PORT
    }
    assert not named


@every_page
def test_commands_named_exist(page: Path) -> None:
    """A subcommand or a target that a page shows is one."""
    text = page.read_text(encoding="utf-8")
    targets = {target for target, _ in MADE.findall((ROOT / "Makefile").read_text(encoding="utf-8"))}
    assert set(re.findall(r"^(?: {4,}|\$ |.*`)make ([a-z-]+)", text, re.MULTILINE)) <= targets
    shown = set(re.findall(r"(?:^ {4}|bin/|`)gpumon ([a-z]+)\b", text, re.MULTILINE))
    assert shown <= {command.name for command in COMMANDS}


def test_make_help_lists_every_target() -> None:
    """`make help` is the whole list: every target that is not a file has its line."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    phony = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert phony is not None
    fresh = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    shown = subprocess.run(
        ["make", "help"], cwd=ROOT, env=fresh, capture_output=True, text=True, timeout=30, check=True
    ).stdout
    assert [line.split()[0] for line in shown.splitlines()] == [target for target, _ in MADE.findall(makefile)]
    assert set(phony[1].split()) == {target for target, _ in MADE.findall(makefile)}
