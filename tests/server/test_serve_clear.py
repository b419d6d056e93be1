"""/api/v1/clear and `gpumon clear`: what is latched and over is cleared, what is so stays."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import example_parts
import pytest
import sample_reports as samples
from each_case import each_case
from serving import BEARER, TOKEN, ServedNode, ask, is_problem

from gpumon.cli.main import main
from gpumon.health.node_health import Health
from gpumon.health.verdict import FAIL, Action, Verdict
from gpumon.model.instant import Instant, Now

PATH = "/api/v1/clear"


def verdict(check: str, index: int, *, active: bool = False) -> Verdict:
    return Verdict(
        check=check,
        device=example_parts.uuid(index),
        level=FAIL,
        reason=f"Something with GPU {index}.",
        action=Action.RESET,
        raised=Instant("", 0.0, samples.STAMP.wall - 60),
        last_active=Instant("", samples.STAMP.boot - 60, samples.STAMP.wall - 60),
        active=active,
    )


@pytest.fixture
def sick(node: ServedNode, tmp_path: Path) -> ServedNode:
    """Two latched Xids, one of a GPU that was lost and one of a GPU that is lost; a link that is down."""
    found = (
        verdict("gpu_xid_critical", 1),
        verdict("gpu_xid_critical", 2),
        verdict("gpu_lost", 2, active=True),
        verdict("nvlink_down", 3)._replace(ok_seconds=5.0),  # the check has seen it up since
    )
    known = {each.key: each for each in found}
    node.report = replace(samples.healthy(), health=Health(open=known, evaluated=Now(at=0.0, wall=0.0, uptime=0.0)))
    node.store = tmp_path / "gpumon.db"
    return node


def flags(port: int, folder: Path) -> list[str]:
    (folder / "token").write_text(TOKEN, encoding="ascii")
    return [f"--url=http://127.0.0.1:{port}", f"--token-file={folder / 'token'}"]


def test_clearing_needs_the_token(sick: ServedNode, port: int) -> None:
    """A request from this host needs it too."""
    assert is_problem(ask(port, f"{PATH}?all=true", "POST"), 401)
    assert len(sick.report.health.open) == 4


def test_latched_verdict_is_cleared(sick: ServedNode, port: int) -> None:
    """Only the verdict of this GPU is cleared; the note is stored on one line."""
    answer = ask(port, f"{PATH}?check=gpu_xid_critical&gpu=1&note=board%0Areplaced", "POST", BEARER)
    assert answer.status == 200
    assert [(each["check"], each["gpu"]) for each in answer.document["cleared"]] == [("gpu_xid_critical", 1)]
    assert answer.document["stored"]
    assert sick.asked[-1][0].note == "board replaced"  # type: ignore[attr-defined]
    assert ("gpu_xid_critical", example_parts.uuid(1)) not in sick.report.health.open
    assert ("gpu_xid_critical", example_parts.uuid(2)) in sick.report.health.open


def test_active_verdict_is_refused(sick: ServedNode, port: int) -> None:
    """The answer shows the verdict and the remedy."""
    answer = ask(port, f"{PATH}?check=gpu_lost", "POST", BEARER)
    assert is_problem(answer, 409)
    assert "gpu_lost of GPU 2: Something with GPU 2. This fault is still active" in answer.document["detail"]
    assert "drain the node and reset the GPU" in answer.document["remedy"]
    assert is_problem(ask(port, f"{PATH}?check=nvlink_down", "POST", BEARER), 409), "it ends by itself"
    assert len(sick.report.health.open) == 4


@each_case(
    ("query", "status", "words"),
    [
        ("check=nonsense", 404, "There is no check 'nonsense'; valid names"),
        ("check=gpu_xid_critcal", 404, "did you mean gpu_xid_critical?"),
        ("check=gpu_row_remap_failed", 404, "There is no verdict of check 'gpu_row_remap_failed'."),
        ("check=gpu_xid_critical&gpu=3", 404, "There is no verdict of check 'gpu_xid_critical' and of device"),
        ("gpu=17", 404, "There is no GPU '17'"),
        ("", 400, "No verdict is selected"),
        ("all=true&gpu=1", 400, "together with"),
        ("gpu=1&device=x", 400, "both"),
    ],
)
def test_invalid_selection_is_refused(sick: ServedNode, port: int, query: str, status: int, words: str) -> None:
    """The answer lists the existing verdicts."""
    answer = ask(port, f"{PATH}?{query}", "POST", BEARER)
    assert is_problem(answer, status)
    assert words in answer.document["detail"]
    if "verdicts" in answer.document:
        assert "gpu_lost of GPU 2" in answer.document["remedy"]
    assert len(sick.report.health.open) == 4


def test_command_prints_what_was_cleared(
    sick: ServedNode, port: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It clears what can be cleared and lists the rest; a refusal exits 1."""
    at = flags(port, tmp_path)
    assert main(["clear", "--all", "--note", "looked at it", *at]) == 0
    output = capsys.readouterr().out
    assert "cleared: gpu_xid_critical of GPU 1: Something with GPU 1." in output
    assert "not cleared: gpu_lost of GPU 2" in output
    assert set(sick.report.health.open) == {("gpu_lost", example_parts.uuid(2)), ("nvlink_down", example_parts.uuid(3))}

    assert main(["clear", "gpu_lost", *at]) == 1
    assert "is still active and cannot be cleared. To do: " in capsys.readouterr().err
    assert main(["clear", *at]) == 2
    assert main(["clear", "nonsense", *at]) == 2
    assert "gpu_lost of GPU 2" in capsys.readouterr().err


def test_failed_store_is_reported(
    sick: ServedNode, port: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The verdict is cleared, and the answer shows that this is not stored."""
    sick.store = None
    assert main(["clear", "gpu_xid_critical", *flags(port, tmp_path)]) == 0
    assert "The store cannot be written now" in capsys.readouterr().out
