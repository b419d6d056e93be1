"""What a command says to arguments that it does not understand."""

from __future__ import annotations

import pytest

from gpumon.cli import main


@pytest.mark.parametrize("arguments", [["check", "--bogus"], ["check", "--gpu"]])
def test_nagios_gets_a_line_when_check_is_not_understood(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """One line on standard output, and the exit code of UNKNOWN."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    (line,) = capsys.readouterr().out.splitlines()
    assert ended.value.code == 3
    assert line.startswith("GPU UNKNOWN: ")
    assert arguments[-1] in line


def test_other_commands_print_nothing_but_what_was_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    """Their errors are for standard error alone."""
    with pytest.raises(SystemExit) as ended:
        main(["status", "--bogus"])
    assert (ended.value.code, capsys.readouterr().out) == (2, "")
