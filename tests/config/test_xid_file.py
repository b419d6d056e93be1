"""An operator's Xid file is read completely or refused with file, line and remedy."""

from __future__ import annotations

from pathlib import Path

import pytest
from each_case import each_case

from gpumon.config import xid_file
from gpumon.config.component_settings import reducer_settings, xid_catalogue
from gpumon.config.configuration_error import ConfigurationError
from gpumon.config.load import load
from gpumon.health.catalogue import SHIPPED
from gpumon.health.xids import XIDS, Class, Severity

GOOD = """
79:
  severity: warning
  action: page the hardware team
13: {severity: critical}
901: {name: "Firmware of our own", severity: critical, class: firmware, action: reset the GPU, if_it_recurs: call us}
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "xids.yml"


def test_rows_replace_and_extend_the_shipped_table(path: Path) -> None:
    """Omitted values keep their defaults, a new code is added, and the critical Xids change accordingly."""
    path.write_text(GOOD)
    rows, problems = xid_file.read(path)
    catalogue = SHIPPED.with_rows(rows)

    assert problems == []
    fallen = catalogue.xid(79)
    assert (fallen.severity, fallen.action) == (Severity.WARNING, "page the hardware team")
    assert (fallen.name, fallen.ordered) == (XIDS[79].name, frozenset({"severity", "action"}))
    assert (catalogue.xid(901).name, catalogue.xid(901).kind) == ("Firmware of our own", Class.FIRMWARE)
    assert catalogue.critical == (SHIPPED.critical - {79}) | {13, 901}


def test_the_configured_file_takes_effect(path: Path) -> None:
    """Counters at 0 and texts follow the configured file."""
    path.write_text(GOOD)
    configuration = load(None, {}, {"GPUMON_XIDS__FILE": str(path)})

    assert xid_catalogue(configuration).critical == reducer_settings(configuration).catalogue.critical
    assert 901 in reducer_settings(configuration).catalogue.critical


def test_an_empty_file_changes_nothing(path: Path) -> None:
    path.write_text("# nothing yet\n")
    assert xid_file.read(path) == ({}, [])


@each_case(
    ("text", "problem"),
    [
        (
            "79: {severity: fatal}",
            "{path}:1: 79.severity: unknown value 'fatal'; valid values: critical, warning, info",
        ),
        ("\n79:\n  serverity: info", "{path}:3: 79.serverity: unknown key; did you mean severity?"),
        ("79: {class: wetware}", "{path}:1: 79.class: unknown value 'wetware'; valid values: application,"),
        ("79: {action: 7}", "{path}:1: 79.action: must be text, not 7; for example action:"),
        ('79: {name: " "}', "{path}:1: 79.name: must be text, not ' '; for example name:"),
        ("xid79: {severity: info}", "{path}:1: xid79: is not an Xid code; for example 79"),
        ("1000000: {severity: info}", "{path}:1: 1000000: is not an Xid code; for example 79"),
        ("79: critical", "{path}:1: 79: must be a mapping of keys to values; valid keys: name, severity,"),
        ("79: {severity: info}\n79: {severity: info}", "{path}:2: 79: is already set in line 1; delete one of them"),
        ("- 79", "{path}:1: must be a mapping of Xid codes to rows; for example 79:"),
        ("79: [", "{path}:1: is not YAML"),
        ('79:\n  name: "\\UFFFFFFFF"', "{path}:2: is not YAML"),
        (f"? {'9' * 5000}\n: {{severity: warning}}", "is not an Xid code"),
    ],
)
def test_an_invalid_file_is_reported_with_line_and_remedy(path: Path, text: str, problem: str) -> None:
    path.write_text(text)
    with pytest.raises(ConfigurationError) as refused:
        load(None, {}, {"GPUMON_XIDS__FILE": str(path)})

    assert problem.format(path=path) in str(refused.value)
    assert xid_file.read(path)[0] == {}


def test_all_errors_are_reported_at_once(path: Path) -> None:
    path.write_text("79: {severity: fatal}\n80: {sevreity: info}\n81: {severity: info}\n")
    assert len(xid_file.read(path)[1]) == 2


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    missing, binary = (xid_file.read(tmp_path / name)[1][0] for name in ("missing", "binary"))

    assert str(missing) == f"{tmp_path}/missing: cannot be read (No such file or directory); correct xids.file"
    assert str(binary) == f"{tmp_path}/binary: is not UTF-8 at byte 0; save it as UTF-8"
