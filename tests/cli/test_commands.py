"""The commands: their help, their examples, and how they find the agent."""

from __future__ import annotations

import argparse
import re
import shlex
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from each_case import each_case

from gpumon.cli.command_parser import CommandParser
from gpumon.cli.main import COMMANDS, command_parser, main
from gpumon.config.settings_table import FLAGS

CLIENTS = ("status", "events", "clear", "maintenance", "release", "probe", "inventory")


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
    """The usage is that of the command that was given, and a misspelt command names the nearest one."""
    with pytest.raises(SystemExit):
        main(arguments)
    assert message in capsys.readouterr().err


def test_help_of_an_action_is_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    """The help of `gpumon probe history` has no flag of `gpumon probe hold`."""
    with pytest.raises(SystemExit):
        main(["probe", "history", "--help"])
    shown = capsys.readouterr().out
    assert "--since" in shown
    assert "--owner" not in shown


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
