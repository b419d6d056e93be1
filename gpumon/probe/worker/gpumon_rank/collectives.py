"""TABLE: what can be timed. Each collective fills its buffers, runs on them, and counts wrong elements.

Sizes are those of nccl-tests: of the whole array, of which each rank holds a share with some collectives.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from gpumon_rank.faults import Fault
from gpumon_rank.pattern import LARGEST, Pattern


@dataclass(frozen=True)
class RankContext:
    """Where a rank runs. `torch` and `group` are the modules torch and torch.distributed."""

    torch: Any
    group: Any
    rank: int
    ranks: int
    device: Any
    fault: Fault


ALIGNMENT = 16
"""Alignment of shares in bytes, as in nccl-tests: NCCL is slower without it."""


def share(elements: int, ranks: int, width: int) -> int:
    """Return the elements of an array that each rank holds. The agent's probes.py computes the same."""
    aligned = ALIGNMENT // width
    return max(aligned, elements // ranks // aligned * aligned)


class Collective(ABC):
    """One collective at one size, in bytes."""

    SUMS = False
    """Whether the ranks add up what they send."""

    def __init__(self, context: RankContext, pattern: Pattern, size: int) -> None:
        self._torch, self._group = context.torch, context.group
        self._rank, self._ranks = context.rank, context.ranks
        self._device, self._fault = context.device, context.fault
        self._pattern = pattern
        self.elements = size // pattern.width
        self._share = share(self.elements, self._ranks, pattern.width)
        self.allocate()

    @property
    @abstractmethod
    def send_buffer(self) -> Any:
        """Return the buffer that this rank sends."""

    @property
    def receive_buffer(self) -> Any:
        """Return where data arrives; None: in the send buffer."""
        return None

    @abstractmethod
    def allocate(self) -> None: ...

    @abstractmethod
    def fill(self) -> None: ...

    def prepare(self) -> None:  # noqa: B027 - most collectives have nothing to prepare
        """Prepare one timed operation."""

    @abstractmethod
    def operate(self) -> None: ...

    @abstractmethod
    def count_wrong(self) -> int:
        """Return the number of wrong elements on this rank after one operation on what `fill` wrote."""

    def check(self) -> int:
        """Fill, run once and return the number of wrong elements. Clear the receive buffer first, to detect a no-op."""
        self.fill()
        if self.receive_buffer is not None:
            self.receive_buffer.zero_()
        self._fault.corrupt(self.send_buffer)
        self.operate()
        return self.count_wrong()

    def _empty(self, elements: int, device: Any = None, *, pinned: bool = False) -> Any:
        device = self._device if device is None else device
        return self._torch.empty(elements, dtype=self._pattern.dtype, device=device, pin_memory=pinned)


class AllReduceCollective(Collective):
    """In place: every rank ends with the sum."""

    SUMS = True

    def allocate(self) -> None:
        self._buffer = self._empty(self.elements)
        # the sum multiplies the values by the number of ranks: refill before they leave the type's range
        growth = math.log(LARGEST / self._pattern.largest) / math.log(max(2, self._ranks))
        self._most_uses, self._uses = max(1, int(growth)), 0

    @property
    def send_buffer(self) -> Any:
        return self._buffer

    def fill(self) -> None:
        self._pattern.fill(self._buffer, self._rank)
        self._uses = 0

    def prepare(self) -> None:
        if self._uses >= self._most_uses:
            self.fill()
        self._uses += 1

    def operate(self) -> None:
        self._group.all_reduce(self._buffer)

    def count_wrong(self) -> int:
        return self._pattern.count_wrong_sums(self._buffer)


class AllGather(Collective):
    """Every rank ends with the shares of all."""

    def allocate(self) -> None:
        self._own, self._all = self._empty(self._share), self._empty(self._share * self._ranks)

    @property
    def send_buffer(self) -> Any:
        return self._own

    @property
    def receive_buffer(self) -> Any:
        return self._all

    def fill(self) -> None:
        self._pattern.fill(self._own, self._rank)

    def operate(self) -> None:
        self._group.all_gather_into_tensor(self._all, self._own)

    def count_wrong(self) -> int:
        shares = self._all.chunk(self._ranks)
        return sum(self._pattern.count_wrong(share, rank) for rank, share in enumerate(shares))


class ReduceScatter(Collective):
    """Every rank ends with its share of the sum."""

    SUMS = True

    def allocate(self) -> None:
        self._own, self._all = self._empty(self._share), self._empty(self._share * self._ranks)

    @property
    def send_buffer(self) -> Any:
        return self._all

    @property
    def receive_buffer(self) -> Any:
        return self._own

    def fill(self) -> None:
        for share in self._all.chunk(self._ranks):
            self._pattern.fill(share, self._rank)

    def operate(self) -> None:
        self._group.reduce_scatter_tensor(self._own, self._all)

    def count_wrong(self) -> int:
        return self._pattern.count_wrong_sums(self._own)


class AllToAll(Collective):
    """Every rank has a share for each other one."""

    def allocate(self) -> None:
        self._out, self._in = self._empty(self._share * self._ranks), self._empty(self._share * self._ranks)

    @property
    def send_buffer(self) -> Any:
        return self._out

    @property
    def receive_buffer(self) -> Any:
        return self._in

    def fill(self) -> None:
        for peer, share in enumerate(self._out.chunk(self._ranks)):
            self._pattern.fill(share, self._rank * self._ranks + peer)

    def operate(self) -> None:
        self._group.all_to_all_single(self._in, self._out)

    def count_wrong(self) -> int:
        shares = self._in.chunk(self._ranks)
        return sum(
            self._pattern.count_wrong(share, peer * self._ranks + self._rank) for peer, share in enumerate(shares)
        )


class SendReceive(Collective):
    """Every rank sends to the next one and receives from the one before."""

    def allocate(self) -> None:
        self._out, self._in = self._empty(self.elements), self._empty(self.elements)
        self._next, self._before = (self._rank + 1) % self._ranks, (self._rank - 1) % self._ranks

    @property
    def send_buffer(self) -> Any:
        return self._out

    @property
    def receive_buffer(self) -> Any:
        return self._in

    def fill(self) -> None:
        self._pattern.fill(self._out, self._rank)

    def operate(self) -> None:
        exchange(self._group, self._out, self._next, self._in, self._before)

    def count_wrong(self) -> int:
        return self._pattern.count_wrong(self._in, self._before)


class HostToDevice(Collective):
    """Each rank by itself: from page-locked host memory to its GPU."""

    def allocate(self) -> None:
        pinned = self._device.type == "cuda"
        self._host = self._empty(self.elements, "cpu", pinned=pinned)
        self._there = self._empty(self.elements)

    @property
    def send_buffer(self) -> Any:
        return self._host

    def fill(self) -> None:
        self._pattern.fill(self._there, self._rank + 1)
        self._host.copy_(self._there)
        self._pattern.fill(self._there, self._rank)

    def operate(self) -> None:
        self._there.copy_(self._host, non_blocking=True)

    def count_wrong(self) -> int:
        return self._pattern.count_wrong(self._there, self._rank + 1)


class DeviceToHost(HostToDevice):
    """Each rank by itself: from its GPU to page-locked host memory."""

    @property
    def send_buffer(self) -> Any:
        return self._there

    def operate(self) -> None:
        self._host.copy_(self._there, non_blocking=True)

    def count_wrong(self) -> int:
        if self._device.type == "cuda":
            self._torch.cuda.synchronize()  # the copy is asynchronous
        self._pattern.fill(self._there, self._rank + 1)  # otherwise a copy that does nothing would look right
        self._there.copy_(self._host)
        return self._pattern.count_wrong(self._there, self._rank)


TABLE: dict[str, type[Collective]] = {
    "all_reduce": AllReduceCollective,
    "all_gather": AllGather,
    "reduce_scatter": ReduceScatter,
    "all_to_all": AllToAll,
    "send_receive": SendReceive,
    "host_to_device": HostToDevice,
    "device_to_host": DeviceToHost,
}


def exchange(group: Any, out: Any, to: int, into: Any, source: int) -> None:
    """Send and receive at the same time."""
    operations = [group.P2POp(group.isend, out, to), group.P2POp(group.irecv, into, source)]
    for work in group.batch_isend_irecv(operations):
        work.wait()
