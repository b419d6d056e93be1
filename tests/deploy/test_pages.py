"""Names in the README, docs and Makefile: each exists."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

from each_case import each_case
from gpumon_sim.command import COMMANDS as SIMULATOR
from gpumon_sim.command import parser as simulator_parser

from gpumon import DEFAULT_PORT
from gpumon.cli.main import COMMANDS, command_parser
from gpumon.fleet.recording_rules import DAILY_RULES, OUTAGE_RULES, RECORDING_RULES
from gpumon.health.table import BY_NAME
from gpumon.outputs.metric_catalogue import catalogue

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
MADE = re.compile(r"^([a-z-]+):.*## (.+)$", re.MULTILINE)

PLACEHOLDERS = {"DURATION": "5m", "SECONDS": "5", "CODE": "79", "NAME": "allreduce"}

every_page = each_case("page", PAGES, ids=[page.name for page in PAGES])


@every_page
def test_links_have_a_target(page: Path) -> None:
    """Every relative link is a file or folder of this repository, and its anchor is a heading of that page."""
    links = re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?[^)]*\)", page.read_text(encoding="utf-8"))
    assert links or page.name != "README.md"
    for link, anchor in links:
        if not re.match(r"https?://", link):
            target = page.parent / link if link else page
            assert target.exists(), link
            assert not anchor or anchor in anchors(target), f"{link}#{anchor}"


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings of a page, as GitHub derives them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@every_page
def test_metrics_named_exist(page: Path) -> None:
    """Each metric, recorded series, check or Ansible variable that a page names exists, or is a prefix of one."""
    variables = (ROOT / "deploy" / "ansible" / "roles" / "gpumon" / "defaults" / "main.yml").read_text(encoding="utf-8")
    recorded = {name.split(":")[1] for name in (*RECORDING_RULES, *DAILY_RULES, *OUTAGE_RULES) if ":gpumon_" in name}
    known = {entry.name for entry in catalogue()} | recorded | set(BY_NAME)
    known |= set(re.findall(r"^gpumon_\w+", variables, re.MULTILINE))
    names = re.findall(r"(?<!/)\bgpumon_[a-z0-9_]+", page.read_text(encoding="utf-8"))
    assert names or page.name != "metrics.md"
    for name in names:
        assert name in known or any(full.startswith(name) for full in known), name


@each_case("page", [ROOT / "CONTRIBUTING.md", ROOT / "ARCHITECTURE.md"], ids=["CONTRIBUTING.md", "ARCHITECTURE.md"])
def test_modules_named_exist(page: Path) -> None:
    modules = [f"/{path.relative_to(ROOT).as_posix()}/" for path in ROOT.glob("[a-z]*/**/*")]
    named = set(re.findall(r"`([a-z_]+(?:/[a-z_]+)*(?:[.]py|/))`", page.read_text(encoding="utf-8")))
    assert named
    assert [name for name in named if not any(f"/{name.rstrip('/')}/" in module for module in modules)] == []


def test_every_command_named_is_valid() -> None:
    """The parser accepts each `gpumon` command line in the pages, which hold the runbooks and the README's examples."""
    invalid = [line for page in PAGES for line in commands(page.read_text(encoding="utf-8")) if not is_valid(line)]
    assert invalid == []


def test_every_command_of_the_simulator_named_is_valid() -> None:
    """The parser accepts each `gpumon-sim` command line in the pages."""
    text = "".join(page.read_text(encoding="utf-8") for page in (*PAGES, ROOT / "simulator" / "README.md"))
    shown = {line.strip() for line in re.findall(r"(?:^    |`)gpumon-sim ([^`#\n]+)", text, re.MULTILINE)}
    assert {"h100x8 -- nvitop -1", "record node.capture --for 60s"} <= shown
    for line in (line for line in shown if " -" in line):  # others may name a command only
        words = shlex.split(line.partition(" -- ")[0])
        name = words[0] if words[0] in SIMULATOR else ""
        assert simulator_parser(name).parse_args(words[len(name.split()) :])


def commands(text: str) -> set[str]:
    """Return the command lines in a page that have a value for each placeholder."""
    text = re.sub(r"\\\n\s*", "", text)
    quoted = re.findall(r"`(?:sudo )?gpumon ([^`\n]+)`", text)
    shown = re.findall(r"^(?:    |\$ |)(?:\$ )?(?:sudo )?gpumon (\w[^\n#]*)", text, re.MULTILINE)
    lines = {re.split(r" [|>&;] ?| 2>", line)[0].strip() for line in (*quoted, *shown)}
    names = {command.name for command in COMMANDS}
    return {line for line in lines if line.split()[0] in names and "-" in line}  # others may name a command only


def is_valid(line: str) -> bool:
    words = [PLACEHOLDERS.get(word, word) for word in shlex.split(line)]
    try:
        command_parser().parse_args(words[: words.index("--")] if "--" in words else words)
    except SystemExit:
        return False
    return True


def test_every_file_names_the_default_port() -> None:
    """Every port after the loopback address in pages, and after any address in shipped files, is the default port."""
    deploy = [file for file in (ROOT / "deploy").rglob("*.y*ml") if file.name != "fleet.yml"]  # `gpumon sd` has another
    shipped = [*deploy, ROOT / "Dockerfile", ROOT / "docker-compose.yml", ROOT / "Makefile"]
    pages = [page for page in PAGES if page.name != "simulation.md"]  # a simulated fleet has ports of its own
    ports = [
        (file.name, int(port))
        for files, address in ((pages, r"127\.0\.0\.1:"), (shipped, r"(?:[\w}]:|EXPOSE )"))
        for file in files
        for port in re.findall(address + r"(\d{5})(?!\d)", file.read_text(encoding="utf-8"))
    ]
    assert {"README.md", "Dockerfile", "docker-compose.yml", "gpumon.yml", "main.yml", "prometheus.yml"} <= {
        name for name, _ in ports
    }
    assert [use for use in ports if use[1] != DEFAULT_PORT] == []


@every_page
def test_commands_named_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    targets = {target for target, _ in MADE.findall((ROOT / "Makefile").read_text(encoding="utf-8"))}
    assert set(re.findall(r"^(?: {4,}|\$ |.*`)make ([a-z-]+)", text, re.MULTILINE)) <= targets
    shown = set(re.findall(r"(?:^ {4}|bin/|`)gpumon ([a-z]+)\b", text, re.MULTILINE))
    assert shown <= {command.name for command in COMMANDS}


def test_make_help_lists_every_target() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    phony = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert phony is not None
    fresh = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    shown = subprocess.run(
        ["make", "help"], cwd=ROOT, env=fresh, capture_output=True, text=True, timeout=30, check=True
    ).stdout
    assert [line.split()[0] for line in shown.splitlines()] == [target for target, _ in MADE.findall(makefile)]
    assert set(phony[1].split()) == {target for target, _ in MADE.findall(makefile)}
