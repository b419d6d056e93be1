"""The man page and the completion of the shells, which the packages contain."""

from __future__ import annotations

import argparse
import gzip
import subprocess
from pathlib import Path

import pytest

from gpumon.cli.main import COMMANDS, command_parser
from scripts.shell_files import COMPLETIONS, MAN_PAGES, write

pytestmark = pytest.mark.slow

ASK = """
source "$1"; shift
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_shtab_gpumon
echo "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def share(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("share")
    write(folder)
    return folder


def proposed_words(share: Path, *words: str) -> set[str]:
    """Return what bash proposes for the last word."""
    command = ["bash", "-c", ASK, "bash", str(share / "bash-completion" / "completions" / "gpumon"), *words]
    return set(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())


def test_bash_completes_commands_actions_and_flags(share: Path) -> None:
    assert proposed_words(share, "gpumon", "") == {command.name for command in COMMANDS}
    assert proposed_words(share, "gpumon", "maintenance", "s") == {"start", "show"}
    assert proposed_words(share, "gpumon", "maintenance", "start", "--fo") == {"--for"}
    assert proposed_words(share, "gpumon", "fleet", "--prom") == {"--prometheus"}


def test_each_shell_knows_each_command(share: Path) -> None:
    """Zsh and fish are not run here: their files name every command."""
    for path in COMPLETIONS:
        text = (share / path).read_text(encoding="utf-8")
        assert [command.name for command in COMMANDS if command.name not in text] == []


def test_man_shows_each_command_with_its_flags(share: Path, tmp_path: Path) -> None:
    page = tmp_path / "gpumon.1"
    page.write_bytes(gzip.decompress((share / MAN_PAGES / "gpumon.1.gz").read_bytes()))
    environment = {"PATH": "/usr/bin:/bin", "MANWIDTH": "100", "LC_ALL": "C.UTF-8"}
    command = ["man", "--warnings", "--local-file", str(page)]
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert shown.stderr == ""
    [subcommands] = [each for each in command_parser()._actions if isinstance(each, argparse._SubParsersAction)]
    for name, parser in subcommands.choices.items():
        assert f"gpumon {name}\n" in shown.stdout
        for action in parser._actions:
            assert action.help == argparse.SUPPRESS or all(
                f" {flag}" in shown.stdout for flag in action.option_strings if flag not in {"-h", "--help"}
            )


def test_the_same_parser_gives_the_same_files(share: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package can be built again from its source."""
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1750000000")
    for folder in ("one", "two"):
        write(tmp_path / folder)
    for path in (*COMPLETIONS, f"{MAN_PAGES}/gpumon.1.gz"):
        assert (tmp_path / "one" / path).read_bytes() == (tmp_path / "two" / path).read_bytes()
        assert (share / path).exists()


def test_man_shows_the_commands_of_the_simulator(share: Path) -> None:
    """Each has a page of its own."""
    shown = {path.name: gzip.decompress(path.read_bytes()).decode() for path in (share / MAN_PAGES).glob("gpumon-sim*")}
    assert set(shown) == {"gpumon-sim.1.gz", "gpumon-sim-fleet.1.gz", "gpumon-sim-record.1.gz"}
    assert r"\-\-broken" in shown["gpumon-sim-fleet.1.gz"]
