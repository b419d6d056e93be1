"""`gpumon-sim record`: record the answers of NVML on this host, to replay them elsewhere."""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import time
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path

from gpumon import __version__, log
from gpumon.cli.command_parser import CommandParser, UserError, for_seconds
from gpumon.cli.config_arguments import add_flags, configuration_to_start
from gpumon.clock import boot_clock
from gpumon.config.component_settings import profile_name, sampler_orders
from gpumon.config.model import Configuration
from gpumon.config.settings_table import CONFIG_FILE
from gpumon.model.orders import SimulationError
from gpumon.model.printable import printable
from gpumon_sim.capture import DAMAGED, Header, read, write
from gpumon_sim.recording.builder import Builder
from gpumon_sim.recording.mask import Mask
from gpumon_sim.recording.recorder import Recording
from gpumon_sim.recording.summary import brief, summary

DESCRIPTION = "Record the answers of NVML on this host, to replay them elsewhere."
CUT_SHORT = 1
"""Exit code if the recording is incomplete."""


def add(parser: CommandParser) -> None:
    parser.set_examples("gpumon-sim record node.capture --for 60s", "gpumon-sim record node.capture --summary")
    parser.add_argument("file", type=Path, metavar="FILE", help="recording to write or to summarise")
    parser.add_argument("--for", dest="duration", default="60s", metavar="DURATION", help="length, such as 5m (60s)")
    parser.add_argument("--unmasked", action="store_true", help="do not mask serials, uuids and process ids")
    parser.add_argument("--summary", action="store_true", help="print what FILE holds, and record nothing")
    add_flags(parser, CONFIG_FILE.name, "--poll.interval", "--simulate", "--simulate.scenario")


def run(args: argparse.Namespace) -> int:
    if args.summary:
        print(_summary(args.file), end="")
        return 0
    seconds = for_seconds(args.duration)
    settings = configuration_to_start(args)
    log.configure(level="warning", format=settings.log.format)
    _check_writable(args.file)
    return _record(args.file, settings, seconds, masked=not args.unmasked)


def _summary(path: Path) -> str:
    try:
        lines = summary(read(path)).split("\n")  # a stranger may have written the recording
        return "\n".join(map(printable, lines))
    except SimulationError as error:
        raise UserError(str(error)) from error
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"recording {path}: {DAMAGED} ({error!r})") from error


def _check_writable(path: Path) -> None:
    """Raise UserError if the recording cannot be written to this path.

    This is checked before the recording starts, which may take minutes.
    """
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise UserError(f"{path} cannot be written: name a file in a folder that exists and that you may write to")


def _record(path: Path, settings: Configuration, seconds: float, *, masked: bool) -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a stopped unit or batch job ends like ^C
    began, wall = boot_clock(), time.time()
    builder = Builder(Mask(secrets.token_bytes(32) if masked else None), began)
    recording = Recording(builder, sampler_orders(settings, began), seconds=seconds)
    recording.run()
    if not recording.up:
        raise UserError(f"nothing was recorded: {'; '.join(recording.remarks)}")
    header = Header(
        gpumon=__version__,
        wall=datetime.fromtimestamp(wall, timezone.utc).isoformat(timespec="seconds"),
        seconds=round(boot_clock() - began, 3),
        interval=settings.poll.interval_seconds,
        simulated=profile_name(settings),
        masked=masked,
        root=os.geteuid() == 0,
        bindings=version("nvidia-ml-py"),
        remarks=tuple(recording.remarks),
    )
    capture = builder.capture(header)
    try:
        size = write(capture, path)
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror}): name another file") from error
    print(brief(capture, path, size))
    return CUT_SHORT if recording.remarks else 0
