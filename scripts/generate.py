"""Writes every generated file: `python -m scripts.generate`. With --check it reports which are stale."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from benchmarks.truth.page import page_of
from benchmarks.truth.work import MEASURED, ResultStore
from dashboards.generate import dashboards
from gpumon.fleet.alert_rules import render, rules
from scripts.docs import dcgm_page, doctor_page, explain_page, health_page, probe_page, simulation_page, xid_page
from scripts.docs.alerts_page import alerts_page
from scripts.docs.configuration_page import reference, sample
from scripts.docs.metrics_page import metrics_page
from scripts.scrape_lists import LEAN_BOARDS, lean

ROOT = Path(__file__).parents[1]
_SECTION = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def generated_files() -> Mapping[str, str]:
    """Return the contents of the generated files by path."""
    alert_rules, boards = render(rules()), dashboards()
    return {
        "docs/metrics.md": metrics_page(),
        "docs/xids.md": xid_page.markdown(),
        "docs/health.md": health_page.markdown(),
        "docs/configuration.md": reference(),
        "docs/alerts.md": alerts_page(),
        "docs/simulation.md": fill("docs/simulation.md", simulation_page.sections()),
        "docs/dcgm.md": fill("docs/dcgm.md", dcgm_page.sections()),
        "docs/doctor.md": fill("docs/doctor.md", doctor_page.sections()),
        "docs/explain.md": fill("docs/explain.md", explain_page.sections()),
        "docs/truth.md": page_of(ResultStore(MEASURED)),
        "docs/probe.md": fill("docs/probe.md", probe_page.sections()),
        "deploy/gpumon.yml": sample(),
        "alert_rules/gpumon.yml": alert_rules,
        **{f"dashboards/{name}": text for name, text in boards.items()},
        "deploy/prometheus/lean.yml": lean([alert_rules, *(boards[name] for name in LEAN_BOARDS)]),
    }


def fill(path: str, sections: Mapping[str, str]) -> str:
    """Return a page with its generated sections replaced, by their names in the page."""
    page = (ROOT / path).read_text(encoding="utf-8")
    return _SECTION.sub(lambda match: match[1] + sections[match[2]] + match[3], page)


def write(files: Mapping[str, str]) -> None:
    """Write the files."""
    for path, text in files.items():
        (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / path).write_text(text, encoding="utf-8")


def stale(files: Mapping[str, str]) -> list[str]:
    """Return the differences between the files and what the code generates."""
    return [line for path, text in files.items() for line in _difference(path, text)]


def _difference(path: str, text: str) -> list[str]:
    written = (ROOT / path).read_text(encoding="utf-8") if (ROOT / path).exists() else ""
    return list(difflib.unified_diff(written.splitlines(), text.splitlines(), path, "generated", n=0, lineterm=""))


def main(arguments: list[str]) -> int:
    """Return the exit code: 1 if --check finds a stale file."""
    if arguments != ["--check"]:
        write(generated_files())
        return 0
    differences = stale(generated_files())
    if differences:
        sys.stderr.write("\n".join(differences[:40]))
        sys.stderr.write("\nGenerated files are stale: run `make generate` and commit what it writes.\n")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
