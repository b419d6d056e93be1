"""Shows a text on the whole terminal and renews it at an interval, as `top` does."""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator

from gpumon.cli.client import ClientError
from gpumon.cli.command_parser import UserError, duration

SECONDS = 2.0
ENTER, LEAVE = "\x1b[?1049h\x1b[?25l\x1b[?7l", "\x1b[?7h\x1b[?25h\x1b[?1049l"
"""Terminal sequences that enter and leave the alternate screen, without cursor and with long lines cut."""
HOME, REST_OF_LINE, REST_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"


def add_watch_flag(parser: argparse.ArgumentParser) -> None:
    """Add the flag --watch."""
    parser.add_argument(
        "--watch",
        nargs="?",
        type=duration,
        const=SECONDS,
        metavar="DURATION",
        help=f"show a live view, renewed at this interval ({SECONDS:g}s), until q is pressed",
    )


def in_color() -> bool:
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ


def watch(render: Callable[[os.terminal_size], str], seconds: float) -> int:
    """Show the text of `render`, or its ClientError, every `seconds`, until q is pressed. Return the exit code."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UserError("--watch needs a terminal: leave it out to print once")
    with _whole_screen():
        while True:
            size = shutil.get_terminal_size((120, 24))
            try:
                text = render(size)
            except ClientError as error:
                text = f"{error}\n\nIt is asked again. q: end"
            lines = text.splitlines()[: size.lines]
            sys.stdout.write(HOME + "\n".join(line + REST_OF_LINE for line in lines) + REST_OF_SCREEN)
            sys.stdout.flush()
            ready, _, _ = select.select([sys.stdin], [], [], seconds)
            if ready and b"q" in os.read(sys.stdin.fileno(), 64):
                return 0


@contextlib.contextmanager
def _whole_screen() -> Iterator[None]:
    """Show the alternate screen within a context, and read keys without Enter. Restore the terminal at the end."""
    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        tty.setcbreak(keyboard)
        sys.stdout.write(ENTER)
        yield
    finally:
        sys.stdout.write(LEAVE)
        sys.stdout.flush()
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
