"""`gpumon once`: read GPUs and ports once, by child processes like those of the agent, and print the readings."""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import sys
import time

from gpumon import log
from gpumon.cli.command_parser import CommandParser
from gpumon.cli.config_arguments import add_flags, configuration_to_start
from gpumon.cli.live_view import in_color
from gpumon.clock import boot_clock
from gpumon.config.component_settings import host_orders, initial_report, reducer_settings, sampler_orders
from gpumon.config.model import Configuration
from gpumon.config.settings_table import CONFIG_FILE
from gpumon.model.error_event import ErrorObservation
from gpumon.model.frame import Frame
from gpumon.model.reading import Page
from gpumon.model.snapshot import DriverStatus, Hello, Logged, SamplerStatus, Snapshot, TrialResult
from gpumon.outputs import terminal
from gpumon.outputs.prometheus import Renderer
from gpumon.outputs.responses.base import Document, HostTime
from gpumon.outputs.responses.report import ReportResponse
from gpumon.state.monitor import Monitor
from gpumon.state.report import Report
from gpumon.supervisor.child_supervisor import HostSupervisor
from gpumon.supervisor.loop import Loop
from gpumon.supervisor.sampler_supervisor import SAMPLER, SamplerSupervisor

DEADLINE_SECONDS = 75.0
"""Maximum seconds for the poll of the GPUs. Even a slow driver opens all GPUs in less time."""
LINKS_SECONDS = 5.0
"""Maximum seconds to wait for the ports after the GPUs were read, because the read of a port may block for ever."""
FAILED = 1


def add(parser: CommandParser) -> None:
    parser.set_examples("gpumon once", "gpumon once --simulate h100x8 --json")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print the report as JSON")
    form.add_argument("--prometheus", action="store_true", help="print the metrics as Prometheus reads them")
    add_flags(parser, CONFIG_FILE.name, "--simulate", "--simulate.scenario")


def run(args: argparse.Namespace) -> int:
    settings = configuration_to_start(args)
    log.configure(level="warning", format=settings.log.format)
    reading = SingleReading(settings)
    report = reading.run()
    if args.prometheus:
        print("".join(Renderer(lambda: report, page).render(report) for page in Page), end="")
    elif args.json:
        print(json.dumps(report_document(report), indent=2))
    else:
        width = shutil.get_terminal_size((120, 24)).columns
        print(terminal.table(report_document(report), width, color=in_color()), end="")
    if reading.failure is not None:
        print(f"gpumon: {reading.failure}", file=sys.stderr)
    return FAILED if reading.failure is not None or report.node.nvml_up == 0 else 0


class SingleReading:
    """Reads all GPUs and ports once, without an agent, in at most DEADLINE_SECONDS."""

    def __init__(self, settings: Configuration) -> None:
        self.failure: str | None = f"no GPU could be read within {DEADLINE_SECONDS:g} s"
        """Why no GPU could be read; None once the GPUs were read, or the driver reported that it is down."""
        self._linked = False
        self._loop = Loop()
        self._monitor = Monitor(initial_report(settings), reducer_settings(settings))
        epoch = boot_clock()
        self._samplers = SamplerSupervisor(
            self._loop,
            sampler_orders(settings, epoch),
            on_message=self._take,
            on_state=self._supervise,
        )
        self._host = HostSupervisor(
            self._loop,
            host_orders(settings, epoch),
            on_message=self._take_host,
            on_state=self._monitor.take,
        )

    def run(self) -> Report:
        self._loop.call_after(DEADLINE_SECONDS, self._loop.stop)
        self._samplers.start()
        self._host.start()
        self._loop.run()
        self._samplers.stop()
        self._host.stop()
        return self._monitor.latest

    def _take(self, message: Frame) -> None:
        if not isinstance(message, (Hello, Logged, TrialResult, ErrorObservation)):
            self._monitor.take(message)
        polled = isinstance(message, Snapshot) and message.complete
        if polled or (isinstance(message, DriverStatus) and not message.up):
            self._end(None)

    def _supervise(self, state: SamplerStatus) -> None:
        self._monitor.take(state)  # the sampler makes progress if a GPU on which it crashes is quarantined
        crashes = state.restarts["crash"] + state.restarts["mismatch"]
        if crashes > (SAMPLER.max_crashes or 1) * (1 + len(state.quarantined)):
            self._end(f"the sampler ended {crashes} times before it had read a GPU; its messages are above")

    def _take_host(self, snapshot: Frame) -> None:
        self._monitor.take(snapshot)
        self._linked = True
        if self.failure is None:
            self._loop.stop()

    def _end(self, failure: str | None) -> None:
        self.failure = failure
        if failure is not None or self._linked:
            self._loop.stop()
        else:
            self._loop.call_after(LINKS_SECONDS, self._loop.stop)


def report_document(report: Report) -> Document:
    now = HostTime(host=platform.node(), wall=time.time(), boot=boot_clock())
    return ReportResponse.from_report(report, now).document()
