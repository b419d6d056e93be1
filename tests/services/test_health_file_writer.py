"""The health file is replaced atomically when verdicts change, and not before the store has been read."""

from __future__ import annotations

import json
import os
import stat
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sample_reports
from changed_report import changed
from sample_windows import MAINTENANCE, window

from gpumon.services import health_file
from gpumon.services.health_file import HealthFile, replace_file
from gpumon.state.report import Report
from gpumon.supervisor.loop import Loop


class NodeWithHealthFile:
    """A Report that the test replaces, and the health file of that Report."""

    def __init__(self, path: Path, report: Report) -> None:
        self.loop = Loop()
        self.path = path
        self.report = report
        self.file = self.file_at(path)

    def file_at(self, path: Path) -> HealthFile:
        return HealthFile(
            self.loop, path, latest=lambda: self.report, store=Path("/s.db"), socket=Path("/run/gpumon/gpumon.sock")
        )

    def content(self) -> dict[str, Any]:
        self.file.update()
        content: dict[str, Any] = json.loads(self.path.read_text(encoding="utf-8"))
        return content


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NodeWithHealthFile:
    monkeypatch.setattr(health_file, "IN_MEMORY", tmp_path)
    return NodeWithHealthFile(tmp_path / "health.json", sample_reports.healthy())


def test_the_file_is_world_readable_and_no_temporary_file_remains(node: NodeWithHealthFile, tmp_path: Path) -> None:
    """The file has mode 0644 for any umask, and a leftover temporary file or link is replaced."""
    (tmp_path / ".health.json.new").symlink_to(tmp_path / "victim")
    before = os.umask(0o077)
    try:
        assert node.content()["agent"]["running"]
    finally:
        os.umask(before)
    assert list(tmp_path.iterdir()) == [node.path]
    assert stat.S_IMODE(node.path.stat().st_mode) == 0o644


def test_the_file_is_written_only_after_a_change(node: NodeWithHealthFile) -> None:
    """Changed verdicts and windows are written at once, and an unchanged Report is not written."""
    assert node.content()["level"] == "ok"
    written = node.path.stat().st_ino
    node.report = replace(node.report, started=1.0)
    node.file.update()
    assert node.path.stat().st_ino == written
    node.report = sample_reports.lost()
    assert node.content()["level"] == "fail"
    written = node.path.stat().st_ino
    node.report = replace(node.report, windows=(window(MAINTENANCE, start=1.0, start_at=1.0, seconds=9.0),))
    node.file.update()
    assert node.path.stat().st_ino != written


def test_the_previous_file_remains_until_the_store_is_read(node: NodeWithHealthFile) -> None:
    node.path.write_text("{}")
    lost = sample_reports.lost()
    health = replace(lost.health, evaluated=None)
    node.report = changed(lost, health=health, restored=False)
    restored: list[int] = []
    node.file.start(on_restored=lambda: restored.append(1))
    assert node.content() == {}
    assert not restored
    node.report = changed(node.report, restored=True)
    content = node.content()
    assert restored
    assert (content["level"], content["evaluated_boottime_seconds"]) == ("fail", None)
    assert content["verdicts"][0]["check"] == "gpu_lost"


def test_a_stopped_agent_is_not_running(node: NodeWithHealthFile) -> None:
    node.content()
    node.file.stop()
    assert not json.loads(node.path.read_text())["agent"]["running"]


def test_a_folder_that_cannot_be_written_is_reported(node: NodeWithHealthFile, tmp_path: Path) -> None:
    """The notice of a missing folder names the setting, and disappears when the file can be written."""
    node.file = node.file_at(tmp_path / "none" / "health.json")
    node.file.update()
    assert "set health.file" in str(node.file.notice)
    (tmp_path / "none").mkdir()
    node.report = sample_reports.lost()
    node.file.update()
    assert node.file.notice is None


def test_a_hung_disk_does_not_block_the_loop(node: NodeWithHealthFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread writes one file at a time, and the next update writes the changes since."""
    answers = threading.Event()

    def replace_slowly(path: Path, text: str) -> None:
        answers.wait()
        replace_file(path, text)

    monkeypatch.setattr(health_file, "IN_MEMORY", Path("/run"))
    monkeypatch.setattr(health_file, "replace_file", replace_slowly)
    node.report = changed(node.report, restored=True)
    restored: list[int] = []
    node.file.start(on_restored=lambda: restored.append(1))
    node.report = sample_reports.lost()
    node.file.update()
    assert not node.path.exists()
    assert not restored
    answers.set()
    node.loop.turn()
    assert json.loads(node.path.read_text())["level"] == "ok"
    assert restored
    node.file.update()
    node.file.stop()
    content = json.loads(node.path.read_text())
    assert (content["level"], content["agent"]["running"]) == ("fail", False)
