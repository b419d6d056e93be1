"""Run the host child: read ports, services, processes and schedulers periodically, and send them to the daemon."""

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
from gpumon.collectors.host.files import Files, NotedTree, Reach, Tree
from gpumon.collectors.host.infiniband import COLLECTOR as INFINIBAND
from gpumon.collectors.host.infiniband import PortReader
from gpumon.collectors.host.processes import COLLECTOR as PROCESSES
from gpumon.collectors.host.processes import ProcessReader, mask_pids
from gpumon.collectors.host.schedulers import COLLECTOR as SCHEDULERS
from gpumon.collectors.host.schedulers import SchedulerReader
from gpumon.collectors.host.services import COLLECTOR as SERVICES
from gpumon.collectors.host.services import ServiceReader
from gpumon.collectors.lifecycle import reserve_stdout, tie_to_parent
from gpumon.collectors.node_source import node_source
from gpumon.model import frame
from gpumon.model.call_progress import Writer
from gpumon.model.orders import HostOrders, SimulationError
from gpumon.model.reading import SLOW, STATE
from gpumon.model.snapshot import ChildMessage, Hello, HostSnapshot, Logged, StuckProcess

AGAIN_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Trees:
    """The file trees that the host child reads: sysfs, and the root directory of the host."""

    sysfs: Files
    root: Files


class HostChild:
    """The readers of the host child: for ports, services, processes and schedulers. They keep data between polls."""

    def __init__(self, orders: HostOrders, trees: Trees) -> None:
        page = Writer(orders.page)

        def reach(files: Files, shown: Callable[[str], str] = str) -> Reach:
            return lambda subject: NotedTree(files, page, subject, shown)

        self._infiniband = PortReader(reach(trees.sysfs), orders.quarantined, orders.exclude, orders.fabric)
        self._services = ServiceReader(reach(trees.sysfs), reach(trees.root), orders.quarantined)
        self._processes = ProcessReader(reach(trees.root, mask_pids), orders.quarantined)
        self._schedulers = SchedulerReader(reach(trees.root, mask_pids), orders.quarantined)
        self._stuck: tuple[StuckProcess, ...] | None = None
        self._count_at = 0.0

    def poll(self) -> HostSnapshot:
        """Read everything that is due, and return it with the last values of the rest.

        Read port and service states at every poll, port counters and processes at the interval of the slow tier (15 s),
        and schedulers every 60 s.
        """
        counting = boot_clock() >= self._count_at
        if counting:
            self._count_at = boot_clock() + SLOW.value
        ports = self._infiniband.poll(counting=counting)
        self._stuck = self._processes.poll() if counting else self._stuck
        services = self._services.poll(fabric_manager=self._processes.fabric_manager)
        schedulers = self._schedulers.poll()
        read_errors = {
            SERVICES: self._services.read_errors,
            INFINIBAND: self._infiniband.read_errors,
            PROCESSES: self._processes.read_errors,
            SCHEDULERS: self._schedulers.read_errors,
        }
        denied = {collector for collector, of_collector in read_errors.items() if of_collector.denied}
        return HostSnapshot(
            ended_at=boot_clock(),
            ports=ports,
            services=services,
            errors={
                collector: of_collector.words for collector, of_collector in read_errors.items() if of_collector.words
            },
            denied=tuple(sorted(denied | ({PROCESSES} if self._processes.denied else set()))),
            left_out=self._infiniband.left_out,
            stuck=self._stuck,
            contained=self._processes.contained,
            ended=self._services.ended,
            schedulers=schedulers,
        )


def run(links: HostChild, send: Callable[[ChildMessage], None]) -> None:
    """Poll at the interval of STATE, and pass each snapshot to `send`. Raise BrokenPipeError if the daemon ended."""
    due = boot_clock()
    while True:
        send(links.poll())
        due = max(due + STATE.value, boot_clock())
        time.sleep(max(0.0, due - boot_clock()))


def trees(orders: HostOrders) -> Trees:
    """Return the file trees of the host or, if the orders request a simulation, of the simulated node.

    While the profile or scenario of a simulation is invalid, try again.
    """
    if orders.simulation is None:
        return Trees(Tree(Path(orders.sysfs)), Tree(Path(orders.root)))
    while True:
        try:
            tree = node_source().open_tree(orders.simulation)
            return Trees(tree, tree)
        except SimulationError:  # the sampler reports it
            time.sleep(AGAIN_SECONDS)


def main() -> int:
    """Read the orders (the configuration) from standard input, then poll until the daemon ends. Return exit code 0."""
    orders = HostOrders.decode(sys.stdin.buffer.readline())
    write = reserve_stdout()
    tie_to_parent(orders.parent)
    log.configure(level=orders.log_level, format=orders.log_format)

    def send(message: ChildMessage) -> None:
        write(frame.encode(message))
        if logged := log.take_counts():
            write(frame.encode(Logged(messages=logged)))

    send(Hello(version=__version__, schema=frame.SCHEMA, pid=os.getpid()))
    try:
        run(HostChild(orders, trees(orders)), send)
    except BrokenPipeError:
        logging.getLogger("gpumon.collectors.host").info("the daemon has ended")
    return 0


if __name__ == "__main__":
    sys.exit(main())
