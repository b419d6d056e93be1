"""What all commands share, and `gpumon xid`."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from each_case import each_case

from gpumon.cli.command_parser import CommandParser
from gpumon.cli.main import COMMANDS, command_parser, main
from gpumon.config.settings_table import FLAGS
from gpumon.health.table import CHECKS
from gpumon.health.xids import RETIRED, XIDS

CLIENTS = ("status", "jobs", "usage", "events", "clear", "maintenance", "release", "probe", "inventory")


def parsers(parser: argparse.ArgumentParser) -> Iterator[CommandParser]:
    """Yield the parser and those of its commands and actions."""
    assert isinstance(parser, CommandParser)
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for sub in action.choices.values():
                yield from parsers(sub)


EVERY = {parser.prog: parser for parser in parsers(command_parser())}


@each_case("prog", EVERY)
def test_every_command_shows_two_examples_that_parse(prog: str) -> None:
    """The examples of each command and action are accepted by the parser."""
    parser = EVERY[prog]
    assert len(parser.examples) == 2
    for example in parser.examples:
        assert f"\n  {example}\n" in parser.format_help()
        program, *words = shlex.split(example.partition(">")[0])
        assert program == "gpumon"
        command_parser().parse_args(words[: words.index("--")] if "--" in words else words)
        assert example.startswith(prog.removesuffix(" show"))


@each_case("name", CLIENTS)
def test_commands_that_ask_the_agent_show_only_their_own_flags(name: str) -> None:
    """A flag that sets up the agent means nothing to a client."""
    of_agent = {flag.name for flag in FLAGS}
    for prog, parser in EVERY.items():
        if prog.startswith(f"gpumon {name}"):
            assert not of_agent & set(re.findall(r"--[a-z.-]+", parser.format_help())), prog


def test_gpumon_alone_prints_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    """The help goes to standard output, and the exit code is 0."""
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert all(f"\n  {command.name} " in shown for command in COMMANDS)


@each_case(
    ("arguments", "message"),
    [
        (["check", "--bogus"], "usage: gpumon check "),
        (["probe", "history", "--ttl", "5m"], "usage: gpumon probe history "),
        (["maintenance", "start"], "gpumon maintenance start: error: the following arguments are required: --for, --r"),
        (["stauts"], "usage: gpumon [-h] [--version] COMMAND"),
        (["stauts"], "there is no command 'stauts'; did you mean status?"),
        (["probe", "holt"], "gpumon probe: error: there is no command 'holt'; did you mean hold?"),
        (["status", "--wacth"], "unrecognized arguments: --wacth; did you mean --watch?"),
        (["status", "--watsh=2"], "did you mean --watch?"),
        (["probe"], "gpumon probe: error: the following arguments are required: ACTION"),
        (["status", "--url", "gpu-17:17400"], "'gpu-17:17400' is not a URL: write it as http://gpu-17:"),
        (["status", "--url", "http://gpu-17:x"], "'http://gpu-17:x' is not a URL"),
        (["status", "--", "ls"], "gpumon status: error: unrecognized arguments: -- ls"),
    ],
)
def test_a_usage_error_names_its_command(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The usage is that of the command that was given, and a misspelt command names the nearest one.

    Standard output stays empty, except that of `gpumon check`.
    """
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    shown = capsys.readouterr()
    assert message in shown.err
    assert arguments[0] == "check" or (ended.value.code, shown.out) == (2, "")


def test_no_token_is_sent_to_a_port_of_this_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A program that listens on the agent's port while the agent is down receives nothing from root's commands."""
    token = tmp_path / "token"
    token.write_text("a-token-that-nobody-may-see")
    with socket.create_server(("127.0.0.1", 0)) as squatter:
        monkeypatch.setenv("GPUMON_WEB__LISTEN_ADDRESS", f"127.0.0.1:{squatter.getsockname()[1]}")
        monkeypatch.setenv("GPUMON_WEB__TOKEN_FILE", str(token))
        monkeypatch.setenv("GPUMON_STORE__PATH", str(tmp_path / "gpumon.db"))
        monkeypatch.setenv("RUNTIME_DIRECTORY", str(tmp_path))
        monkeypatch.setattr("gpumon.cli.probe.PATIENCE_SECONDS", 0)
        for command in (["status"], ["clear", "--all"], ["release", "--for", "5m"], ["maintenance", "end"]):
            assert main(command) == 2
            assert f"no agent answers at {tmp_path}/gpumon.db.sock" in capsys.readouterr().err
        assert main(["probe", "hold"]) == 1
        squatter.settimeout(0)
        with pytest.raises(BlockingIOError):
            squatter.accept()


def test_a_token_goes_only_to_a_given_url(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Reads at a URL send no token, changes send that of --token-file, and a local command refuses one."""
    token = tmp_path / "token"
    token.write_text("a-token-of-this-test")
    with socket.create_server(("127.0.0.1", 0)) as agent:
        url = f"--url=http://127.0.0.1:{agent.getsockname()[1]}"
        heard: list[bytes] = []

        def listen() -> None:
            for _ in range(2):
                connection, _ = agent.accept()
                with connection:
                    heard.append(connection.recv(65536))

        listener = threading.Thread(target=listen)
        listener.start()
        main(["maintenance", "show", url])
        main(["maintenance", "end", url, f"--token-file={token}"])
        listener.join(10)
    assert [b"Bearer a-token-of-this-test" in request for request in heard] == [False, True]
    capsys.readouterr()
    assert main(["maintenance", "end", url]) == 2
    assert "needs a token: give its file with --token-file" in capsys.readouterr().err
    assert main(["maintenance", "end", f"--token-file={token}"]) == 2
    assert "--token-file goes with --url" in capsys.readouterr().err


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


def test_a_runbook_has_the_steps_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    """The name is found in any case, also that of the warning."""
    assert main(["runbook", "gpueccuncorrectablewarning"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("GpuEccUncorrectable: ")
    assert text.index("  1. ") < text.index("  2. ")


def test_all_alerts_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runbook"]) == 0
    listed = {line.split()[0] for line in capsys.readouterr().out.splitlines()}
    assert {check.alert for check in CHECKS if check.levels} <= listed


def test_an_unknown_alert_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runbook", "GpuLots"]) == 2
    assert "there is no alert 'GpuLots': did you mean GpuLost?" in capsys.readouterr().err


LINE = "NVRM: Xid (PCI:0000:1b:00): 149, pid=812, name=python3, NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x025001c6 0x0)"


@pytest.fixture(autouse=True)
def _own_configuration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GPUMON_CONFIG__FILE", str(tmp_path / "gpumon.yml"))
    (tmp_path / "gpumon.yml").write_text("")


def output_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["xid", *arguments]) == 0
    return capsys.readouterr().out


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    return json.loads(output_of(capsys, *arguments, "--json"))


def test_a_code_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    """What it is, how grave, and what to do now and when it comes again."""
    assert output_of(capsys, "79") == (
        "Xid 79: The GPU has fallen off the bus\n"
        "  Severity:       critical\n"
        "  Class:          hardware\n"
        "  Do at once:     drain the node and reboot it\n"
        "  If it recurs:   check power, riser, seating and PCIe errors; open a case with the vendor\n"
    )


def test_an_unknown_code_is_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    assert "Severity:       warning" in output_of(capsys, "4242")
    explanation = document(capsys, "4242")
    assert (explanation["xid"], explanation["known"], explanation["severity"]) == (4242, False, "warning")


@pytest.mark.parametrize(
    "arguments", [["--text", LINE], ["149", "--text", LINE], ["149", "--text", LINE.partition("149, ")[2]]]
)
def test_a_line_is_decoded(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    """Whole or from the number on; the process it names is not repeated."""
    explanation = document(capsys, *arguments)

    assert (explanation["xid"], explanation["severity"], explanation["action"]) == (
        149,
        "critical",
        "drain the node and reset the GPU",
    )
    assert explanation["detail"] == "NETIR_LINK_EVT of link 0: fatal."
    assert explanation["text"] == "NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x025001c6 0x0)"


def test_a_line_of_a_switch_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    """It has no code of a GPU."""
    line = "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 48 LTSSM Fault Up"
    assert output_of(capsys, "--text", line).startswith(
        "SXid 20034: A link of an NVSwitch went down\n  Severity:       critical\n"
    )
    assert document(capsys, "--text", line)["sxid"] == 20034


def test_all_codes_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """One a line, in order; retired codes, which no supported driver reports, come last."""
    lines = output_of(capsys).splitlines()
    listed = [int(line.split()[0]) for line in lines]
    assert listed == sorted(set(XIDS) - set(RETIRED)) + sorted(RETIRED)
    assert "  79  critical  hardware     The GPU has fallen off the bus. Do: drain the node and reboot it" in lines
    assert [each["xid"] for each in document(capsys)] == listed


def test_the_operators_file_is_in_force(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The output names what comes from it."""
    (tmp_path / "xids.yml").write_text("79: {action: page the hardware team}\n")
    (tmp_path / "gpumon.yml").write_text(f"xids: {{file: {tmp_path}/xids.yml}}\n")

    assert "  Do at once:     page the hardware team\n" in output_of(capsys, "79")
    assert "  From xids.file: action\n" in output_of(capsys, "79")
    assert document(capsys, "79")["changed"] == ["action"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["seventy-nine"], "'seventy-nine' is not the number of an Xid: give a number, as in `gpumon xid 79`"),
        (["79", "--text", LINE], "the line contains 149, not 79: omit one of them"),
        (["--text", "usb 1-1: new device"], "the line contains no error code: give it too"),
    ],
)
def test_a_question_without_an_answer_is_refused(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    """With what to ask instead."""
    assert main(["xid", *arguments]) == 2
    assert message in capsys.readouterr().err
