"""The health file is found, read only if it can be trusted, and believed only while it is current."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
import sample_reports

from gpumon.cli import check
from gpumon.cli.health_file import MAX_AGE_SECONDS, MAX_BYTES, CheckError, read_health
from gpumon.cli.main import main
from gpumon.clock import boot_clock, boot_id
from gpumon.config import default_paths
from gpumon.config.settings_table import FLAGS, settings
from gpumon.services.health_file import AgentIdentity, HealthFileContent, replace_file
from gpumon.state.report import Report

AGENT = AgentIdentity(
    running=True, pid=1, version="0", socket="/run/gpumon/gpumon.sock", store="/var/lib/gpumon/gpumon.db"
)


def content(report: Report, **values: Any) -> dict[str, Any]:
    """Return what an agent writes now, with these members in place of its own."""
    now = {"boot_id": boot_id(), "evaluated_boottime_seconds": boot_clock()}
    return HealthFileContent.from_report(report, AGENT).document() | now | values


def write(path: Path, values: Mapping[str, Any]) -> Path:
    replace_file(path, json.dumps(values))
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "health.json"


def test_what_the_agent_writes_is_read(path: Path) -> None:
    report = sample_reports.lost()
    health = read_health(write(path, content(report)))
    assert [verdict["check"] for verdict in health.verdicts] == [each.check for each in report.health.primary]
    assert [(gpu.number, gpu.uuid) for gpu in health.gpus] == [(state.index, state.uuid) for state in report.gpus]
    assert health.gpus[3].unwatched == "it does not answer (lost)"
    assert (health.level.word, health.stale, health.maintenance) == ("fail", "", None)


def test_a_file_that_is_not_current_is_stale(path: Path) -> None:
    """The age counts by the boot clock alone; what the wall clock shows changes nothing."""
    now = boot_clock()
    cases: dict[str, tuple[dict[str, Any], str]] = {
        "current": ({"evaluated_boottime_seconds": now - MAX_AGE_SECONDS / 2}, ""),
        "wall clock stepped": ({"evaluated": "2099-01-01T00:00:00.000Z"}, ""),
        "old": ({"evaluated_boottime_seconds": now - 100}, "has not evaluated its checks for 1"),
        "of the future": ({"evaluated_boottime_seconds": now + 100}, "in the future"),
        "started": ({"evaluated_boottime_seconds": None}, "has just started"),
        "stopped": ({"agent": AGENT.document() | {"running": False}}, "was stopped"),
        "earlier boot": ({"boot_id": "before"}, "was rebooted"),
    }
    wrong = {}
    for name, (values, words) in cases.items():
        stale = read_health(write(path, content(sample_reports.healthy(), **values))).stale
        if (words not in stale) or bool(words) != bool(stale):
            wrong[name] = stale
    assert not wrong
    aged = content(sample_reports.healthy(), evaluated_boottime_seconds=now - 100)
    assert not read_health(write(path, aged), max_age=1000.0).stale


def test_maintenance_is_active_until_its_end(path: Path) -> None:
    """By the boot clock, which no step of the wall clock moves; after a reboot by the wall clock."""
    past, future = (datetime.fromtimestamp(wall, timezone.utc).isoformat() for wall in (1e9, 4e9))
    window = {"until": past, "until_boottime_seconds": boot_clock() + 100, "reason": "new DIMMs", "by": "api"}
    cases = {
        "active": (window, boot_id(), True),
        "over": (window | {"until": future, "until_boottime_seconds": boot_clock() - 1}, boot_id(), False),
        "active over a reboot": (window | {"until": future}, "before", True),
        "over after a reboot": (window, "before", False),
    }
    for name, (values, boot, active) in cases.items():
        written = content(sample_reports.healthy(), maintenance=values, boot_id=boot)
        maintenance = read_health(write(path, written)).maintenance
        assert (maintenance is not None) is active, name
        assert maintenance is None or maintenance.endswith(" UTC: new DIMMs")


INJECTED = "x}\n---\nkind: Pod"
HOSTILE_VERDICT = {"check": INJECTED, "device": ["x"], "reason": 1, "action_text": {}, "level": [], "repair": []}
HOSTILE_GPU = {"uuid": INJECTED, "gpu": INJECTED, "minor": INJECTED}


def test_what_is_no_health_file_is_refused(path: Path) -> None:
    """Another program's file, half a file, another version of the schema, a forged one."""
    whole = content(sample_reports.lost())
    verdict = whole["verdicts"][0]
    cases: dict[str, Any] = {
        "empty": "",
        "torn": "{",
        "list": "[]",
        "no members": "{}",
        "no verdict": whole | {"verdicts": [{}]},
        "no level": whole | {"level": "fine"},
        "no level of a verdict": whole | {"verdicts": [{**verdict, "level": "fine"}]},
        "no agent": whole | {"agent": None},
        "deep": "[" * 100_000,
        "400 digits": whole | {"evaluated_boottime_seconds": 10**400},
        "5,000 digits": '{"version": ' + "9" * 5000 + "}",
        "infinite maintenance": whole | {"maintenance": {"until": "", "until_boottime_seconds": 10**400}},
        **{
            f"{name} {value!r}": whole | {"verdicts": [verdict | {name: value}]}
            for name, value in (*HOSTILE_VERDICT.items(), ("device", {}))
        },
        **{
            f"{name} {value!r}": whole | {"gpus": [whole["gpus"][0] | {name: value}]}
            for name, value in HOSTILE_GPU.items()
        },
    }
    accepted: dict[str, object] = {}
    for name, values in cases.items():
        path.write_text(values if isinstance(values, str) else json.dumps(values))
        try:
            accepted[name] = read_health(path)
        except CheckError as error:
            if "not a health file of this version" not in str(error):
                accepted[name] = error
    assert not accepted
    with pytest.raises(CheckError, match="schema version 99, not 1"):
        read_health(write(path, whole | {"version": 99}))


def test_only_a_regular_file_is_read(path: Path, tmp_path: Path) -> None:
    """A link, a pipe without a writer, a folder, a device, a file without end: each is named with its remedy."""
    real = write(tmp_path / "real.json", content(sample_reports.healthy()))
    path.symlink_to(real)
    with pytest.raises(CheckError, match="is a symbolic link"):
        read_health(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(CheckError, match="is not a regular file"):
        read_health(path)
    with pytest.raises(CheckError, match="is not a regular file"):
        read_health(tmp_path)
    path.unlink()
    with path.open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(CheckError, match="more than"):
        read_health(path)


def test_a_missing_file_is_named_with_the_remedy(path: Path) -> None:
    """How to start the agent, and how to name another file."""
    for missing in (path, path / "health.json"):
        with pytest.raises(CheckError, match=r"no health file .*systemctl start gpumon.*--health\.file"):
            read_health(missing)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_file_of_another_user_is_refused(path: Path) -> None:
    """It must belong to root, to the owner of its folder, or to the user who reads it."""
    write(path, content(sample_reports.healthy()))
    os.chown(path, 1234, -1)
    with pytest.raises(CheckError, match=rf"belongs to uid 1234, not to root, to this user \(uid {os.geteuid()}\) or"):
        read_health(path)
    os.chown(path.parent, 1234, -1)
    assert read_health(path).gpus


def test_control_characters_are_not_printed(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A name from the file cannot change the terminal."""
    whole = content(sample_reports.lost())
    whole["verdicts"][0]["reason"] = "\x1b[2Jred\nline \u202e|x"
    write(path, whole)
    assert main(["check", f"--health.file={path}"]) == 2
    assert "[2Jred line /x." in (printed := capsys.readouterr().out)
    assert printed.removesuffix("\n").isprintable()


def test_flags_are_those_of_the_table_of_settings() -> None:
    """The command does not import the table, which is slow; names are the same."""
    assert set(check.VARIABLES) <= {flag.name for flag in FLAGS}
    variables = {row.flag: row.variable for row in settings().values()}
    assert {flag: variables[flag] for flag in check.VARIABLES} == check.VARIABLES


def test_the_file_is_found_where_the_agent_writes_it(tmp_path: Path) -> None:
    """As named, beside a named store, of the systemd unit, of this user's own agent."""
    environ = {"STATE_DIRECTORY": str(tmp_path / "state"), "RUNTIME_DIRECTORY": str(tmp_path / "run")}
    unit, own = tmp_path / "run" / "health.json", tmp_path / "state" / "gpumon.db.health.json"
    store = tmp_path / "other.db"
    assert default_paths.find_health_file(Path("a.json"), store, environ) == "a.json"
    assert default_paths.find_health_file(None, store, environ) == str(tmp_path / "other.db.health.json")
    assert default_paths.find_health_file(None, None, environ) == str(unit)
    own.parent.mkdir()
    own.touch()
    assert default_paths.find_health_file(None, None, environ) == str(own)
    unit.parent.mkdir()
    unit.touch()
    assert default_paths.find_health_file(None, None, environ) == str(unit)
    assert default_paths.default_health_file(store, environ) == str(unit)
    assert default_paths.default_health_file(store, {}) == str(tmp_path / "other.db.health.json")
