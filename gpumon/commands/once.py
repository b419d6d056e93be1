"""`gpumon once`: read the GPUs once, without an agent, through the same sampler child."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
import time

from gpumon import log
from gpumon.commands.settings import add_flags, configuration
from gpumon.config.model import Configuration
from gpumon.monitor import Monitor
from gpumon.outputs import document, terminal
from gpumon.outputs.prometheus import Renderer
from gpumon.report import Report
from gpumon.snapshot.call_page import boot_clock
from gpumon.snapshot.snapshot import DriverStatus, Hello, Message, Snapshot, TrialResult, XidEvent
from gpumon.supervisor.loop import Loop
from gpumon.supervisor.samplers import SamplerSupervisor
from gpumon.wiring import first_report, orders, terms

DEADLINE_SECONDS = 75.0
"""Longer than the slowest driver may take to open its GPUs."""
NOT_WELL = 1


def add(parser: argparse.ArgumentParser) -> None:
    add_flags(parser)
    parser.add_argument("--format", choices=("table", "json", "prometheus"), default="table")


def run(chosen: argparse.Namespace) -> int:
    settings = configuration(chosen)
    log.configure(level="warning", format=settings.log.format)
    report = read_once(settings)
    print(_rendered(report, chosen.format), end="")
    return 0 if report.node.nvml_up != 0 else NOT_WELL


def read_once(settings: Configuration) -> Report:
    """The Report after the first poll, or after the driver has said that there will be none."""
    loop = Loop()
    monitor = Monitor(first_report(settings), terms(settings))

    def take(message: Message) -> None:
        if not isinstance(message, (Hello, TrialResult, XidEvent)):
            monitor.take(message)
        if isinstance(message, Snapshot) or (isinstance(message, DriverStatus) and not message.up):
            loop.stop()

    epoch = boot_clock()
    samplers = SamplerSupervisor(
        loop, lambda page: orders(settings, page, epoch), on_message=take, on_state=monitor.take
    )
    loop.call_after(DEADLINE_SECONDS, loop.stop)
    samplers.start()
    loop.run()
    samplers.stop()
    return monitor.latest


def _rendered(report: Report, form: str) -> str:
    if form == "prometheus":
        return Renderer(lambda: report).render(report)
    stamp = document.Stamp(host=platform.node(), wall=time.time(), boot=boot_clock())
    whole = document.whole(report, stamp)
    if form == "json":
        return json.dumps(whole, indent=2) + "\n"
    return terminal.table(whole, shutil.get_terminal_size((120, 24)).columns, color=_color())


def _color() -> bool:
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ
