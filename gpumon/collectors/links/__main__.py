"""`python -m gpumon.collectors.links`: look at ports, services and processes, say what was seen, for ever."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpumon import __version__, log
from gpumon.clock import boot_clock
from gpumon.collectors.lifecycle import frames_only, tie_to
from gpumon.collectors.links.files import Files, Paged, Reach, Tree
from gpumon.collectors.links.infiniband import COLLECTOR as INFINIBAND
from gpumon.collectors.links.infiniband import Infiniband
from gpumon.collectors.links.processes import COLLECTOR as PROCESSES
from gpumon.collectors.links.processes import Processes, anonymous
from gpumon.collectors.links.schedulers import COLLECTOR as SCHEDULERS
from gpumon.collectors.links.schedulers import Schedulers
from gpumon.collectors.links.services import COLLECTOR as SERVICES
from gpumon.collectors.links.services import Services
from gpumon.model import frame
from gpumon.model.call_progress import Writer
from gpumon.model.infiniband import LOOK_SECONDS
from gpumon.model.orders import LinksOrders, Simulation, is_recording
from gpumon.model.reading import SLOW
from gpumon.model.snapshot import ChildMessage, Hello, LinksSnapshot, Logged, StuckProcess
from gpumon.sim import SimulationError

AGAIN_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Trees:
    """The files to read."""

    sysfs: Files
    root: Files


class Links:
    """One life of a child."""

    def __init__(self, orders: LinksOrders, trees: Trees) -> None:
        page = Writer(orders.page)

        def reach(files: Files, shown: Callable[[str], str] = str) -> Reach:
            return lambda subject: Paged(files, page, subject, shown)

        self._infiniband = Infiniband(reach(trees.sysfs), orders.leave_aside)
        self._services = Services(reach(trees.sysfs), reach(trees.root), orders.leave_aside)
        self._processes = Processes(reach(trees.root, anonymous), orders.leave_aside)
        self._schedulers = Schedulers(reach(trees.root, anonymous), orders.leave_aside)
        self._stuck: tuple[StuckProcess, ...] | None = None
        self._count_at = 0.0

    def look(self) -> LinksSnapshot:
        """States at every look; what is counted, and processes, every slow tick."""
        counting = boot_clock() >= self._count_at
        if counting:
            self._count_at = boot_clock() + SLOW.value
        ports, services = self._infiniband.look(counting=counting), self._services.look()
        self._stuck = self._processes.look() if counting else self._stuck
        schedulers = self._schedulers.look()
        troubles = {
            SERVICES: self._services.troubles,
            INFINIBAND: self._infiniband.troubles,
            PROCESSES: self._processes.troubles,
            SCHEDULERS: self._schedulers.troubles,
        }
        denied = {collector for collector, found in troubles.items() if found.denied}
        return LinksSnapshot(
            ended_at=boot_clock(),
            ports=ports,
            services=services,
            errors={collector: found.words for collector, found in troubles.items() if found.words},
            denied=tuple(sorted(denied | ({PROCESSES} if self._processes.denied else set()))),
            left_out=self._infiniband.left_out,
            stuck=self._stuck,
            contained=self._processes.contained,
            ended=self._services.ended,
            schedulers=schedulers,
        )


def run(links: Links, say: Callable[[ChildMessage], None]) -> None:
    """Until whoever listens is gone."""
    due = boot_clock()
    while True:
        say(links.look())
        due = max(due + LOOK_SECONDS, boot_clock())
        time.sleep(max(0.0, due - boot_clock()))


def trees(orders: LinksOrders) -> Trees:
    """Of this host, or of a simulated one: that as soon as there is one, for a scenario that is bad may be mended."""
    if orders.simulation is None:
        return Trees(Tree(Path(orders.sysfs)), Tree(Path(orders.root)))
    while True:
        try:
            return _simulated(orders.simulation)
        except SimulationError:  # the sampler says so
            time.sleep(AGAIN_SECONDS)


def _simulated(simulation: Simulation) -> Trees:
    from gpumon.sim.infiniband import EmptyTree, open_tree  # noqa: PLC0415

    if is_recording(simulation.profile):
        return Trees(EmptyTree(), EmptyTree())
    tree = open_tree(
        simulation.profile,
        scenario=Path(simulation.scenario) if simulation.scenario else None,
        epoch=simulation.epoch,
    )
    return Trees(tree, tree)


def main() -> int:
    """Read the orders, then look until the input closes."""
    orders = LinksOrders.decode(sys.stdin.buffer.readline())
    write = frames_only()
    tie_to(orders.parent)
    log.configure(level=orders.log_level, format=orders.log_format)

    def say(message: ChildMessage) -> None:
        write(frame.encode(message))
        if logged := log.take():
            write(frame.encode(Logged(messages=logged)))

    say(Hello(version=__version__, schema=frame.SCHEMA, pid=os.getpid()))
    try:
        run(Links(orders, trees(orders)), say)
    except BrokenPipeError:
        logging.getLogger("gpumon.collectors.links").info("the daemon is gone")
    return 0


if __name__ == "__main__":
    sys.exit(main())
