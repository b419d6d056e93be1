"""`gpumon runbook`: the steps of an alert on the terminal, without an agent."""

from __future__ import annotations

import pytest

from gpumon.cli.main import main
from gpumon.health.table import CHECKS


def test_a_runbook_has_the_steps_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    """The name is found in any case, also that of the warning."""
    assert main(["runbook", "gpueccuncorrectablewarning"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("GpuEccUncorrectable: ")
    assert text.index("  1. ") < text.index("  2. ")


def test_all_alerts_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """One line an alert."""
    assert main(["runbook"]) == 0
    listed = {line.split()[0] for line in capsys.readouterr().out.splitlines()}
    assert {check.alert for check in CHECKS if check.levels} <= listed


def test_an_unknown_alert_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    """The error names the alert and a similar one."""
    assert main(["runbook", "GpuLots"]) == 2
    assert "there is no alert 'GpuLots': did you mean GpuLost?" in capsys.readouterr().err
