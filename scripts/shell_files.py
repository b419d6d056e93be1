"""Writes the man page and the completion of bash, zsh and fish from the parser of the command line."""

from __future__ import annotations

import argparse
import gzip
import os
import time
from pathlib import Path

import shtab
from argparse_manpage.manpage import Manpage

from gpumon import __version__
from gpumon.cli.main import command_parser

COMPLETIONS = {
    "bash-completion/completions/gpumon": "bash",
    "zsh/vendor-completions/_gpumon": "zsh",  # of Debian
    "zsh/site-functions/_gpumon": "zsh",
    "fish/vendor_completions.d/gpumon.fish": "fish",
}
"""Where shells look for completions, below /usr/share."""
MAN_PAGE = "man/man1/gpumon.1.gz"
EPOCH = "SOURCE_DATE_EPOCH"


def write(share: Path) -> None:
    """Write the files to a folder, /usr/share of a package.

    The same parser and SOURCE_DATE_EPOCH give the same files.
    """
    texts = {path: shtab.complete(parser(), shell=shell) for path, shell in COMPLETIONS.items()}
    files = {path: text.encode() for path, text in texts.items()}
    files[MAN_PAGE] = gzip.compress(man_page().encode(), mtime=0)
    for path, content in files.items():
        (share / path).parent.mkdir(parents=True, exist_ok=True)
        (share / path).write_bytes(content)


def man_page() -> str:
    """Return gpumon(1), with a section for each subcommand."""
    about = {
        "project_name": "gpumon",
        "version": __version__,
        "manual_title": "gpumon",
        "description": "monitor the GPUs of this host",
        "date": time.strftime("%Y-%m-%d", time.gmtime(int(os.environ.get(EPOCH, time.time())))),
    }
    return str(Manpage(parser(), about, format="single-commands-section"))


def parser() -> argparse.ArgumentParser:
    """Return the parser with a visible list of subcommands, which `gpumon --help` shows in groups instead."""
    root = command_parser()
    for action in root._actions:  # noqa: SLF001 - argparse has no public list
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            action.help = "commands"
    return root
