"""Writes every file that is made from code: `python -m scripts.generate`, or with --check says which are stale."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from dashboards.generate import dashboards
from gpumon.health.alert_rules import render, rules
from gpumon.outputs.catalogue import markdown
from gpumon.sim import reference as reference_of_simulation
from scripts.docs import health_page, probe_page, xid_page
from scripts.docs.alerts_page import alerts_page
from scripts.docs.configuration_page import reference, sample
from scripts.reference import findings

ROOT = Path(__file__).parents[1]
_SECTION = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def generated() -> Mapping[str, str]:
    """Contents by path."""
    table = rules()
    return {
        "docs/metrics.md": markdown(findings()),
        "docs/xids.md": xid_page.markdown(),
        "docs/health.md": health_page.markdown(),
        "docs/configuration.md": reference(),
        "docs/alerts.md": alerts_page(table),
        "docs/simulation.md": filled("docs/simulation.md", reference_of_simulation.sections()),
        "docs/probe.md": filled("docs/probe.md", probe_page.sections()),
        "deploy/gpumon.yml": sample(),
        "alert_rules/gpumon.yml": render(table),
        **{f"dashboards/{name}": text for name, text in dashboards().items()},
    }


def filled(path: str, sections: Mapping[str, str]) -> str:
    """A page of which parts are made, by the name that the page gives them."""
    page = (ROOT / path).read_text(encoding="utf-8")
    return _SECTION.sub(lambda found: found[1] + sections[found[2]] + found[3], page)


def write(files: Mapping[str, str]) -> None:
    for path, text in files.items():
        (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / path).write_text(text, encoding="utf-8")


def stale(files: Mapping[str, str]) -> list[str]:
    """Differences, a line each, between what is committed and what the code makes."""
    return [line for path, text in files.items() for line in _difference(path, text)]


def _difference(path: str, text: str) -> list[str]:
    there = (ROOT / path).read_text(encoding="utf-8") if (ROOT / path).exists() else ""
    return list(difflib.unified_diff(there.splitlines(), text.splitlines(), path, "generated", n=0, lineterm=""))


def main(arguments: list[str]) -> int:
    """Returns the exit code: 1 when --check finds something stale."""
    if arguments != ["--check"]:
        write(generated())
        return 0
    differences = stale(generated())
    if differences:
        sys.stderr.write("\n".join(differences[:40]))
        sys.stderr.write("\nGenerated files are stale: run `make generate` and commit what it writes.\n")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
