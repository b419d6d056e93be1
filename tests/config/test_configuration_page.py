"""Files generated from the table of settings are up to date and correct."""

from __future__ import annotations

import re
from pathlib import Path

from gpumon.config.load import load
from gpumon.config.settings_table import settings
from gpumon.probe.core.probes import PROBES
from gpumon.probe.core.timetable import parse_schedule
from scripts.docs.configuration_page import reference, sample

ROOT = Path(__file__).parents[2]


def test_generated_files_are_fresh() -> None:
    """docs/configuration.md and deploy/gpumon.yml match the table of settings."""
    assert (ROOT / "docs/configuration.md").read_text(encoding="utf-8") == reference()
    assert (ROOT / "deploy/gpumon.yml").read_text(encoding="utf-8") == sample()


def test_every_example_is_valid(tmp_path: Path) -> None:
    as_it_is, filled = tmp_path / "as_it_is.yml", tmp_path / "filled.yml"
    as_it_is.write_text(sample(), encoding="utf-8")
    xids = tmp_path / "xids.yml"
    xids.touch()
    text = re.sub(r"(?m)^  # (\w+: )", r"  \1", sample()).replace("/etc/gpumon/xids.yml", str(xids))
    filled.write_text(text, encoding="utf-8")

    plain, full = (load(path, {}, {"STATE_DIRECTORY": "/s"}) for path in (as_it_is, filled))

    assert plain == load(None, {}, {"STATE_DIRECTORY": "/s"}).with_origins(plain._origins)
    assert {name for name in settings() if full.origin(name) != "default"} == set(settings())


def test_documented_defaults_of_the_probe_are_correct() -> None:
    probe = PROBES["allreduce"]
    words = {row.key: row.default_in_words for row in settings().values() if row.section == "probe"}

    assert words["interval_seconds"] == f"{parse_schedule(probe.schedule).interval:g}"
    assert words["jitter_seconds"] == f"{probe.jitter:g}"
    assert words["initial_delay_seconds"] == (
        f"{probe.initial_delay:g}, on a simulated node {probe.initial_delay_simulated:g}"
    )
    assert words["min_idle_seconds"] == f"{probe.min_idle:g}, on a simulated node 0"
    assert words["deadline_seconds"] == f"{probe.gpu.deadline:g}, on CPU {probe.cpu.deadline:g}"
