"""`gpumon serve`: the agent."""

from __future__ import annotations

import argparse
import subprocess
import sys

from gpumon import log
from gpumon.cli.config_arguments import add_flags, configuration_to_start, reader
from gpumon.cli.errors import UserError
from gpumon.config.load import ConfigurationError
from gpumon.sim.profiles import PROFILES

FALLBACK = "--simulate.fallback"
LOOK_SECONDS = 60.0
"""How long a driver may take to say whether it is there."""


def add(parser: argparse.ArgumentParser) -> None:
    add_flags(parser)
    parser.add_argument(
        FALLBACK,
        dest="fallback",
        choices=sorted(PROFILES),
        help="simulate this profile when no NVIDIA driver loads; without it the agent never simulates by itself",
    )


def run(chosen: argparse.Namespace) -> int:
    if chosen.fallback and not getattr(chosen, "--simulate") and not _driver_loads():
        setattr(chosen, "--simulate", chosen.fallback)
    settings = configuration_to_start(chosen)
    log.configure(level=settings.log.level, format=settings.log.format)
    from gpumon.daemon import Daemon  # noqa: PLC0415 - heavy, and not for a bad configuration
    from gpumon.server.server import ListenError  # noqa: PLC0415 - the same

    reread = reader(chosen)
    try:
        return Daemon(settings, reread).run()
    except (ListenError, ConfigurationError) as error:
        raise UserError(str(error)) from error


def _driver_loads() -> bool:
    """Ask in a process of its own: the call may crash or never return. A driver that hangs is there, and sick."""
    question = [sys.executable, "-c", "import pynvml; pynvml.nvmlInit()"]
    try:
        return subprocess.run(question, check=False, capture_output=True, timeout=LOOK_SECONDS).returncode == 0
    except subprocess.TimeoutExpired:
        return True
