"""Run the host child: call its readers (ports, services, processes, schedulers, owners) and send what they read."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from gpumon.clock import boot_clock
from gpumon.collectors.host.infiniband import PortReader
from gpumon.collectors.host.owners import OwnerReader
from gpumon.collectors.host.processes import ProcessReader
from gpumon.collectors.host.reader import HostReader, ReadErrors, Tree, Trees, Turn, mask_pids
from gpumon.collectors.host.schedulers import read_schedulers
from gpumon.collectors.host.services import ServiceReader
from gpumon.collectors.lifecycle import DaemonRequests, SendMessages, run
from gpumon.collectors.node_source import node_source
from gpumon.model import frame
from gpumon.model.call_progress import Writer
from gpumon.model.orders import HostOrders, SimulationError
from gpumon.model.reading import SLOW, STATE
from gpumon.model.snapshot import HostSnapshot, TrialResult

READERS = (
    HostReader("infiniband", PortReader, STATE.value),
    HostReader("services", ServiceReader, STATE.value),
    HostReader("processes", ProcessReader, SLOW.value),
    HostReader("schedulers", read_schedulers, 60.0),
    HostReader("owners", OwnerReader, 10.0),
)
"""All readers. To add one, add a row."""

AGAIN_SECONDS = 1.0


class _Slot:
    """A reader, the time of its next turn, and the errors of its last turn."""

    def __init__(self, row: HostReader, at: float) -> None:
        self.row = row
        self.read = row.read() if isinstance(row.read, type) else row.read
        self.due = at
        self.errors = ReadErrors()

    def take_turn(self, turn: Turn) -> frame.Frame | None:
        """Return what the reader has read; None if it raises OSError, which is noted."""
        self.errors = turn.errors
        try:
            return self.read(turn)
        except OSError as error:
            self.errors.note(mask_pids(str(error.filename or self.row.name)), error)
            return None


class HostChild:
    """Calls each reader at its interval."""

    def __init__(
        self,
        orders: HostOrders,
        trees: Trees,
        readers: Sequence[HostReader] = READERS,
        clock: Callable[[], float] = boot_clock,
        requests: DaemonRequests | None = None,
    ) -> None:
        self._orders = orders
        self._trees = trees
        self._clock = clock
        self._requests = requests or DaemonRequests()
        self._page = Writer(orders.page)
        self._slots = [_Slot(row, clock()) for row in readers]

    @property
    def due(self) -> float:
        """Return the boot clock of the next turn of a reader."""
        return min(slot.due for slot in self._slots)

    def poll(self) -> HostSnapshot:
        """Call each reader that is due. Return what they have read, and the last errors of all readers."""
        at = self._clock()
        return HostSnapshot(
            values={slot.row.name: self._value(slot, at) for slot in self._slots if slot.due <= at},
            errors={slot.row.name: slot.errors.words for slot in self._slots if slot.errors.words},
            denied=tuple(sorted(slot.row.name for slot in self._slots if slot.errors.denied)),
            ended_at=self._clock(),
        )

    def _value(self, slot: _Slot, at: float) -> frame.Frame | None:
        """Return what the reader has read; None if it is quarantined or failed."""
        name, slot.due = slot.row.name, max(slot.due + slot.row.interval, at)
        if name in self._orders.quarantined:
            return None
        return slot.take_turn(Turn(name, self._trees, self._orders, at, page=self._page, pids=self._requests.pids))


def trees(orders: HostOrders) -> Trees:
    """Return the file trees of the host or of the simulated node. While a simulation is invalid, try again."""
    root = Tree(Path(orders.root))
    if orders.simulation is None:
        return Trees(Tree(Path(orders.sysfs)), root, root)
    while True:
        try:
            tree = node_source().open_tree(orders.simulation)
            return Trees(tree, tree, root)
        except SimulationError:  # the sampler reports it
            time.sleep(AGAIN_SECONDS)


def poll_host(orders: HostOrders, send: SendMessages, requests: DaemonRequests) -> int:
    """Poll whenever a reader is due. Return 0 when the daemon requests the end, or after a trial, which is one poll."""
    host = HostChild(orders, trees(orders), requests=requests)
    if orders.trial is not None:
        host.poll()
        send(TrialResult(subject=orders.trial))
        return 0
    while not requests.end.wait(max(0.0, host.due - boot_clock())):
        send(host.poll())
    return 0


if __name__ == "__main__":
    sys.exit(run(HostOrders, poll_host))
