"""Text of strangers, such as drivers, peers and jobs, made safe to print."""

from __future__ import annotations


def printable(text: str) -> str:
    """Replace control and escape characters, so that a stranger's text cannot control the terminal."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
