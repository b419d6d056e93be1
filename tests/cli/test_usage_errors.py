"""Commands refuse invalid arguments with a message."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from gpumon.cli.main import main


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


def test_other_commands_print_errors_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    """Standard output stays empty."""
    with pytest.raises(SystemExit) as ended:
        main(["status", "--bogus"])
    assert (ended.value.code, capsys.readouterr().out) == (2, "")


@pytest.mark.parametrize(
    "arguments",
    [
        ["maintenance", "start", "--for", "-5m", "--reason", "new fans"],
        ["probe", "hold", "--for", "-5m"],
        ["release", "--for", "-5m"],
    ],
)
def test_duration_below_zero_is_named_with_the_remedy(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """It begins like a flag: the message names what to write instead."""
    assert main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search("-5m' is not a duration: write ", line)


def test_a_test_of_notifications_needs_a_receiver(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Without any the message names the section of the configuration."""
    (tmp_path / "gpumon.yml").write_text("{}\n")
    assert main(["notify", "test", f"--config.file={tmp_path / 'gpumon.yml'}"]) == 2
    assert "no receiver is configured: see `notifications`" in capsys.readouterr().err


def test_files_that_do_not_exist_are_a_warning(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The configuration is valid, because it may be checked on another host."""
    file = tmp_path / "gpumon.yml"
    file.write_text(
        "probe: {python: /no/python, scheduler_gate: [/no/gate, --all]}\nnotifications:\n  apprise_urls: [/no/slack, 'slack://a/b/c']\n"
        "  webhook_url_file: https://h.example/s3cret\n  nvsentinel_socket: /no/sock\nkernel_log: {path: /no/log}\n"
    )
    assert main(["config", "check", f"--config.file={file}"]) == 0
    output = capsys.readouterr()
    assert output.out == "the configuration is valid\n"
    assert output.err.splitlines() == [
        f"warning: {file}:1: probe.python: /no/python: No such file or directory",
        f"warning: {file}:1: probe.scheduler_gate: /no/gate: No such file or directory",
        f"warning: {file}:6: kernel_log.path: /no/log: No such file or directory",
        f"warning: {file}:4: notifications.webhook_url_file: <redacted>: No such file or directory",
        f"warning: {file}:5: notifications.nvsentinel_socket: /no/sock: No such file or directory",
        f"warning: {file}:3: notifications.apprise_urls: /no/slack: No such file or directory",
    ]


def test_a_program_in_the_path_is_no_warning(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The gate of the scheduler is started without a shell, but found as a shell finds it."""
    file = tmp_path / "gpumon.yml"
    file.write_text("probe: {scheduler_gate: [env, 'false']}\n")
    assert main(["config", "check", f"--config.file={file}"]) == 0
    assert capsys.readouterr().err == ""


def test_a_file_that_cannot_be_reached_is_a_warning(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The operating system refuses to look for it, here because of the length of its name."""
    file, name = tmp_path / "gpumon.yml", "x" * 300
    file.write_text(f"probe: {{python: /{name}}}\n")
    assert main(["config", "check", f"--config.file={file}"]) == 0
    assert capsys.readouterr().err == f"warning: {file}:1: probe.python: /{name}: File name too long\n"


def test_an_agent_with_too_few_open_files_ends_with_the_remedy() -> None:
    """It could start no HTTP server and no child process."""
    command = ["prlimit", "--nofile=20", sys.executable, "-m", "gpumon", "serve", "--simulate", "t4x1"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 2
    assert "at most 20 open files are allowed, and the agent needs 64: raise LimitNOFILE=" in ended.stderr
    assert "Traceback" not in ended.stderr
