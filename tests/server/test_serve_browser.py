"""The page in a real browser."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import sample_reports as samples
from changed_report import changed
from chromium import chromium
from serving import ServedNode, serving

from gpumon.state.report import Report

pytestmark = pytest.mark.slow


@dataclass
class Changing(ServedNode):
    """Shows another report at each request, then the last one again and again."""

    reports: list[Report | None] = field(default_factory=list)

    def latest(self) -> Report:
        return self.reports.pop(0) if len(self.reports) > 1 else self.reports[0]  # type: ignore[return-value]


@dataclass(frozen=True)
class Seen:
    """What became of a page after its scripts had run for a while."""

    html: str
    console: list[str]
    foreign: list[str]
    """Requests to other hosts."""

    @property
    def words(self) -> str:
        return " ".join(re.sub(r"<[^>]*>", " ", self.html).split())


def look(node: ServedNode, folder: Path, path: str = "/", seconds: float = 5) -> Seen:
    with serving(node) as port, chromium(folder) as browser:
        here = f"http://127.0.0.1:{port}/"
        html = browser.open(here + path.removeprefix("/"), seconds)
        assert any(url.startswith(here) for url in browser.requested)
        return Seen(html, browser.console, [url for url in browser.requested if not url.startswith(here)])


def test_page_shows_the_simulated_node_and_its_lost_gpu(tmp_path: Path) -> None:
    """The console stays empty, and no other host is contacted."""
    seen = look(ServedNode(report=replace(samples.lost(3), simulated="h100x8")), tmp_path)
    assert "Simulated node." in seen.words
    assert "GPU 3: The GPU fell off the bus" in seen.words
    assert "What to do: Drain the node and reboot it. If the GPU stays" in seen.words
    assert (seen.console, seen.foreign) == ([], [])


def test_page_refreshes(tmp_path: Path) -> None:
    """A GPU that is lost after the page was opened appears without a reload and is announced."""
    seen = look(Changing(reports=[samples.healthy(), samples.lost(3)]), tmp_path)
    assert "GPU 3: The GPU fell off the bus" in seen.words
    assert "No problems." not in seen.words
    assert "<title>(1) gpu-17" in seen.html
    announced = re.search(r'id="announcement"[^>]*>([^<]*)<', seen.html)
    assert announced is not None
    assert announced[1].startswith("1 problem. GPU 3: The GPU fell off the bus")
    assert (seen.console, seen.foreign) == ([], [])


def test_page_shows_that_the_agent_is_offline(tmp_path: Path) -> None:
    """If the agent does not respond, the page shows the time of its last update."""
    seen = look(Changing(reports=[samples.healthy(), None]), tmp_path, seconds=12)
    assert re.search(r'<p id="offline"[^>]*role="alert">The agent does not respond\.', seen.html)
    assert '<body class="stale">' in seen.html
    assert seen.console  # the browser complains of the failed requests: the other tests do see its console


def test_page_recovers(tmp_path: Path) -> None:
    seen = look(Changing(reports=[samples.healthy(), *[None] * 5, samples.lost(3)]), tmp_path, seconds=20)
    assert "GPU 3: The GPU fell off the bus" in seen.words
    assert re.search(r'<p id="offline"[^>]*hidden', seen.html)
    assert "<body class=" not in seen.html.replace('<body class="">', "")


def test_page_fits_a_phone(tmp_path: Path) -> None:
    """18 links of 8 GPUs, instances, errors and figures fit 400 pixels without scrolling or cutting."""
    for name in ("troubled_node", "partitioned_node"):
        folder = tmp_path / name
        with serving(ServedNode(report=getattr(samples, name)())) as port, chromium(folder) as browser:
            browser.open(f"http://127.0.0.1:{port}/", 0.1, width=400)
            assert browser.evaluate("document.documentElement.scrollWidth") <= 400
            wider = (
                "[...document.querySelectorAll('.matrix, .figures, .list')].filter(e => e.scrollWidth > e.clientWidth)"
            )
            assert browser.evaluate(f"{wider}.length") == 0, name


def test_links_appear_without_a_reload(tmp_path: Path) -> None:
    """A page that was opened before the first poll shows the links after it."""
    seen = look(Changing(reports=[samples.without_driver(), samples.healthy()]), tmp_path)
    assert 'title="NVLink 17: up, to switch 00000000:06:00.0"' in seen.html
    assert re.search(r'<section id="links"[^>]*hidden', seen.html) is None


def test_text_from_outside_is_not_executed(tmp_path: Path) -> None:
    """This holds for updates by the script too."""
    evil = "<img src=x onerror=document.title='owned'><script>document.title='owned'</script>"
    report = samples.lost(3)
    gpus = tuple(replace(gpu, gpu=replace(gpu.gpu, name=evil)) for gpu in report.gpus)
    seen = look(Changing(reports=[report, changed(report, gpus=gpus, notices={"store": evil})]), tmp_path)
    assert "onerror" in seen.html
    assert "<title>owned" not in seen.html
    assert (seen.console, seen.foreign) == ([], [])


def test_reference_opens_without_the_internet(tmp_path: Path) -> None:
    """Many GPU hosts have no access to the internet."""
    seen = look(ServedNode(), tmp_path, "/docs", seconds=1)
    assert "/api/v1/gpus/{gpu}" in seen.words
    assert (seen.console, seen.foreign) == ([], [])
