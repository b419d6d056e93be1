"""Writes the man pages and the completion of bash, zsh and fish from the parsers of the command lines."""

from __future__ import annotations

import argparse
import gzip
import os
import time
from pathlib import Path

import shtab
from argparse_manpage.manpage import Manpage
from gpumon_sim.command import COMMANDS as SIMULATOR
from gpumon_sim.command import parser as simulator_parser

from gpumon import __version__
from gpumon.cli.main import command_parser

COMPLETIONS = {
    "bash-completion/completions/gpumon": "bash",
    "zsh/vendor-completions/_gpumon": "zsh",  # of Debian
    "zsh/site-functions/_gpumon": "zsh",
    "fish/vendor_completions.d/gpumon.fish": "fish",
}
"""Where shells look for completions, below /usr/share."""
MAN_PAGES = "man/man1"
EPOCH = "SOURCE_DATE_EPOCH"


def write(share: Path) -> None:
    """Write the files to a folder, /usr/share of a package.

    The same parser and SOURCE_DATE_EPOCH give the same files.
    """
    texts = {path: shtab.complete(parser(), shell=shell) for path, shell in COMPLETIONS.items()}
    files = {path: text.encode() for path, text in texts.items()}
    for name, page in man_pages().items():
        files[f"{MAN_PAGES}/{name}.1.gz"] = gzip.compress(page.encode(), mtime=0)
    for path, content in files.items():
        (share / path).parent.mkdir(parents=True, exist_ok=True)
        (share / path).write_bytes(content)


def man_pages() -> dict[str, str]:
    """Return gpumon(1), with a section for each subcommand, and the pages of the simulator, by name."""
    pages = {"gpumon": _page(parser(), "gpumon", "monitor the GPUs of this host")}
    for command in ("", *SIMULATOR):
        made = simulator_parser(command)
        meaning = str(made.description).partition(".")[0]
        pages[made.prog.replace(" ", "-")] = _page(made, "gpumon-sim", meaning[0].lower() + meaning[1:])
    return pages


def _page(of: argparse.ArgumentParser, project: str, meaning: str) -> str:
    about = {
        "project_name": project,
        "version": __version__,
        "manual_title": of.prog,
        "description": meaning,
        "date": time.strftime("%Y-%m-%d", time.gmtime(int(os.environ.get(EPOCH, time.time())))),
    }
    return str(Manpage(of, about, format="single-commands-section"))


def parser() -> argparse.ArgumentParser:
    """Return the parser with a visible list of subcommands, which `gpumon --help` shows in groups instead."""
    root = command_parser()
    for action in root._actions:  # noqa: SLF001 - argparse has no public list
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            action.help = "commands"
    return root
