"""Times as people write them on a command line."""

from __future__ import annotations

import argparse
import re

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}


def seconds(text: str) -> float:
    """`90`, `90s`, `5m` or `1h`, for argparse."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(s|m|h|)", text)
    if match is None or not float(match[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is no time: write 90s, 5m or 1h")
    return float(match[1]) * _UNITS[match[2]]
