"""The page in a real browser."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import sample_reports as samples
from serving import Node, serving

from gpumon.report import Report

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--enable-logging=stderr"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run"),
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",  # asking another host fails, and is complained of
)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium")


@dataclass
class Changing(Node):
    """Shows another report at each request, then the last one again."""

    reports: list[Report | None] = field(default_factory=list)

    def latest(self) -> Report:
        return self.reports.pop(0) if len(self.reports) > 1 else self.reports[0]  # type: ignore[return-value]


@dataclass(frozen=True)
class Seen:
    """What became of a page after its scripts had run for a while."""

    html: str
    console: list[str]

    @property
    def words(self) -> str:
        return " ".join(re.sub(r"<[^>]*>", " ", self.html).split())


def look(node: Node, folder: Path, path: str = "/", seconds: int = 10) -> Seen:
    assert CHROMIUM is not None
    options = (f"--user-data-dir={folder}", f"--virtual-time-budget={seconds * 1000}", "--dump-dom")
    with serving(node) as port:
        done = subprocess.run(
            (CHROMIUM, *FLAGS, *options, f"http://127.0.0.1:{port}{path}"),
            capture_output=True,
            check=True,
            text=True,
            timeout=90,
        )
    return Seen(done.stdout, [line for line in done.stderr.splitlines() if ":CONSOLE" in line])


def test_page_shows_the_simulated_node_and_its_lost_gpu(tmp_path: Path) -> None:
    """Without a word on the console: nothing is refused by the security policy, nothing comes from another host."""
    seen = look(Node(report=replace(samples.lost(3), simulated="h100x8")), tmp_path)
    assert "Simulated node." in seen.words
    assert "GPU 3: lost" in seen.words
    assert "What to do: Drain the node" in seen.words
    assert seen.console == []


def test_page_follows_the_node(tmp_path: Path) -> None:
    """A GPU that is lost after the page was opened appears without a reload: table, verdict, title, and is spoken."""
    seen = look(Changing(reports=[samples.healthy(), samples.lost(3)]), tmp_path)
    assert "GPU 3: lost" in seen.words
    assert "Nothing is wrong." not in seen.words
    assert "<title>(1) gpu-17" in seen.html
    spoken = re.search(r'id="spoken"[^>]*>([^<]*)<', seen.html)
    assert spoken is not None
    assert spoken[1].startswith("1 problem: GPU 3: lost")
    assert seen.console == []


def test_page_that_is_cut_off_says_so(tmp_path: Path) -> None:
    """When the agent no longer answers, what is seen is called old, not left standing as if it were true."""
    seen = look(Changing(reports=[samples.healthy(), None]), tmp_path, seconds=20)
    assert re.search(r'<p id="silent"[^>]*role="alert">The agent does not answer\.', seen.html)
    assert '<body class="old">' in seen.html
    assert seen.console  # the browser complains of the failed requests: the other tests do look at its console


def test_reference_opens_without_the_internet(tmp_path: Path) -> None:
    """A GPU host has none."""
    seen = look(Node(), tmp_path, "/docs", seconds=1)
    assert "/api/v1/gpus/{gpu}" in seen.words
    assert seen.console == []
