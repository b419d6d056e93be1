"""`gpumon serve`: run the agent."""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
from subprocess import DEVNULL

from gpumon import log
from gpumon.cli.command_parser import CommandParser, UserError
from gpumon.cli.config_arguments import add_flags, configuration_to_start, profile_names, reader
from gpumon.config.configuration_error import ConfigurationError

FALLBACK = "--simulate.fallback"
MIN_OPEN_FILES = 64
"""Minimum hard limit of open files: with 20 the agent has no HTTP server and no child process."""
DRIVER_SECONDS = 60.0
"""Maximum seconds to wait for NVML to initialise. If it takes longer, the driver counts as present."""


def add(parser: CommandParser) -> None:
    parser.set_examples("gpumon serve", "gpumon serve --simulate h100x8 --store.path ./gpumon.db")
    add_flags(parser)
    parser.add_argument(
        FALLBACK,
        dest="fallback",
        metavar="PROFILE",
        type=_profile,
        help="simulate this profile if no NVIDIA driver loads; without this flag the agent never simulates by itself",
    )


def _profile(name: str) -> str:
    try:
        names = profile_names()
    except UserError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if name not in names:
        raise argparse.ArgumentTypeError(f"there is no profile {name!r}: use one of {', '.join(names)}")
    return name


def run(args: argparse.Namespace) -> int:
    if (files := resource.getrlimit(resource.RLIMIT_NOFILE)[1]) < MIN_OPEN_FILES and files != resource.RLIM_INFINITY:
        remedy = "raise LimitNOFILE= of its unit, or `ulimit -Hn`"
        raise UserError(f"at most {files} open files are allowed, and the agent needs {MIN_OPEN_FILES}: {remedy}")
    if args.fallback and not getattr(args, "--simulate") and not _driver_loads():
        setattr(args, "--simulate", args.fallback)
    settings = configuration_to_start(args)
    log.configure(level=settings.log.level, format=settings.log.format)
    from gpumon.daemon import Daemon  # noqa: PLC0415 - slow, and not needed if the configuration is invalid
    from gpumon.server.listener import ListenError  # noqa: PLC0415 - the same
    from gpumon.server.web_config import WebConfigError  # noqa: PLC0415 - the same

    reread = reader(args)
    try:
        return Daemon(settings, reread).run()
    except ListenError as error:
        print(f"gpumon: {error}", file=sys.stderr)
        return 1  # systemd then restarts the agent, because the port may be free later
    except (ConfigurationError, WebConfigError) as error:
        raise UserError(str(error)) from error


def _driver_loads() -> bool:
    """Return True if the initialisation of NVML, in a child process because it may crash, succeeds or hangs."""
    command = [sys.executable, "-I", "-c", "import pynvml; pynvml.nvmlInit()"]
    child = subprocess.Popen(command, stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL)
    try:
        return child.wait(DRIVER_SECONDS) == 0
    except subprocess.TimeoutExpired:
        child.kill()  # do not wait for its end: it may be blocked in the driver
        return True
