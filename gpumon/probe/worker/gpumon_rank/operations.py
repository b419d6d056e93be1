"""Operations that a rank can time, and the TABLE of them. Each fills its buffers, runs, and counts wrong elements.

Buffers hold a pattern of whole numbers so small that the data type holds their sums exactly.

The size of a transfer is defined as in nccl-tests: bytes of the whole array, of which each rank holds a share in some
collectives.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from gpumon_rank.channel import StopRequest
from gpumon_rank.faults import Fault

PERIOD = 1021
"""Number of float32 elements after which the pattern repeats: a prime, to detect a block in the wrong place."""
TILE_ELEMENTS = 1 << 20
EXACT_BFLOAT16 = 256
"""Largest number up to which bfloat16 holds every whole number."""
LARGEST = 1e38
"""Max value in a buffer that is reduced repeatedly. It is near the largest number of float32 and bfloat16."""


class Pattern:
    """The pattern for buffers of one data type on one device. `summed`: whether the collective adds up all buffers."""

    def __init__(self, torch: Any, dtype: str, device: Any, ranks: int, *, summed: bool) -> None:
        self.dtype = getattr(torch, dtype)
        self.width: int = torch.empty(0, dtype=self.dtype).element_size()
        """Bytes of one element."""
        self._ranks = ranks
        if dtype == "float32":
            self._marks = period = PERIOD
        elif summed:
            self._marks, period = 2, _prime((EXACT_BFLOAT16 - ranks // 2) // ranks + 1)
        else:
            self._marks, period = EXACT_BFLOAT16 // 2, _prime(EXACT_BFLOAT16 // 2)
        self.largest = period + self._marks
        copies = max(1, TILE_ELEMENTS // period)
        self._tile = torch.arange(period, dtype=self.dtype, device=device).repeat(copies)
        self.turn = 0
        """Number of the checked operation, which changes the pattern, so that earlier data is wrong."""

    def mark(self, number: int) -> int:
        """Return what `fill` adds to the pattern of a sender. For all-to-all, `number` is a sender and a receiver."""
        return (number + self.turn) % self._marks

    def fill(self, elements: Any, number: int) -> None:
        for chunk in elements.split(len(self._tile)):
            chunk.copy_(self._tile[: len(chunk)]).add_(self.mark(number))

    def count_wrong(self, elements: Any, number: int) -> int:
        """Return the number of elements that differ from what `fill` writes for this sender."""
        return self._count_differing(elements, self._tile + self.mark(number))

    def count_wrong_sums(self, elements: Any) -> int:
        """Return the number of elements that differ from the sum of what `fill` writes on all ranks."""
        marks = sum(self.mark(rank) for rank in range(self._ranks))
        return self._count_differing(elements, self._tile * self._ranks + marks)

    def _count_differing(self, elements: Any, expected: Any) -> int:
        return sum(int((chunk != expected[: len(chunk)]).sum()) for chunk in elements.split(len(expected)))


def _prime(limit: int) -> int:
    """Return the largest prime up to `limit`, but at least 2."""
    return next((n for n in range(limit, 2, -1) if all(n % divisor for divisor in range(2, n))), 2)


@dataclass(frozen=True)
class RankContext:
    """Modules, device and numbers that an operation needs. `torch`, `group`: modules torch and torch.distributed."""

    torch: Any
    group: Any
    rank: int
    ranks: int
    device: Any
    fault: Fault
    stop: StopRequest


ALIGNMENT = 16
"""Alignment of shares in bytes, as in nccl-tests: NCCL is slower without it."""


def share(elements: int, ranks: int, width: int) -> int:
    """Return the elements that each rank holds: a multiple of ALIGNMENT bytes, rounded down, but not 0.

    `width`: bytes of an element. The agent computes the same in `participating_bytes`.
    """
    aligned = ALIGNMENT // width
    return max(aligned, elements // ranks // aligned * aligned)


class Operation(ABC):
    """An operation that a rank times at one size, with its buffers: a collective of torch.distributed, or a copy."""

    SUMS = False
    """Whether the operation adds up the buffers of the ranks."""

    def __init__(self, context: RankContext, pattern: Pattern, size: int) -> None:
        self._torch, self._group = context.torch, context.group
        self._rank, self._ranks = context.rank, context.ranks
        self._device, self._fault, self._stop = context.device, context.fault, context.stop
        self._pattern = pattern
        self.size = size
        self.elements = size // pattern.width
        self._share = share(self.elements, self._ranks, pattern.width)
        self._send: Any
        """Buffer that this rank sends."""
        self._receive: Any = None
        """Buffer that receives data; None for an operation in place and for copies."""
        self.allocate()

    @abstractmethod
    def allocate(self) -> None:
        """Allocate the buffers of this rank."""

    def fill(self) -> None:
        self._pattern.fill(self._send, self._rank)

    def prepare(self) -> None:  # noqa: B027 - most operations have nothing to prepare
        """Prepare one timed operation, outside of the timed interval."""

    @abstractmethod
    def operate(self) -> None:
        """Run the operation once; on a GPU, queue it on the current stream. Only this operation is timed."""

    @abstractmethod
    def count_wrong(self) -> int:
        """Return the number of wrong elements on this rank, after one `fill` and one `operate`."""

    def check(self, operations: int) -> int:
        """Run this number of operations, each with its own pattern. Return the total of wrong elements."""
        wrong = 0
        for turn in range(operations):
            self._stop.check()
            self._pattern.turn = turn
            self.fill()
            if self._receive is not None:
                self._receive.zero_()  # so that an operation without effect is detected
            self._fault.corrupt(self._send)
            self.operate()
            wrong += self.count_wrong()
        return wrong

    def _empty(self, elements: int, device: Any = None, *, pinned: bool = False) -> Any:
        device = self._device if device is None else device
        return self._torch.empty(elements, dtype=self._pattern.dtype, device=device, pin_memory=pinned)


class AllReduceCollective(Operation):
    """All-reduce in place: it replaces the buffer of every rank with the sum of the buffers of all ranks."""

    SUMS = True

    def allocate(self) -> None:
        self._send = self._empty(self.elements)
        # the sum multiplies the values by the number of ranks: refill before they leave the type's range
        growth = math.log(LARGEST / self._pattern.largest) / math.log(max(2, self._ranks))
        self._max_uses, self._uses = max(1, int(growth)), 0

    def fill(self) -> None:
        super().fill()
        self._uses = 0

    def prepare(self) -> None:
        if self._uses >= self._max_uses:
            self.fill()
        self._uses += 1

    def operate(self) -> None:
        self._group.all_reduce(self._send)

    def count_wrong(self) -> int:
        return self._pattern.count_wrong_sums(self._send)


class AllGather(Operation):
    """All-gather: every rank sends its share of the array and receives the shares of all ranks."""

    def allocate(self) -> None:
        self._send, self._receive = self._empty(self._share), self._empty(self._share * self._ranks)

    def operate(self) -> None:
        self._group.all_gather_into_tensor(self._receive, self._send)

    def count_wrong(self) -> int:
        shares = enumerate(self._receive.chunk(self._ranks))
        return sum(self._pattern.count_wrong(share, rank) for rank, share in shares)


class ReduceScatter(Operation):
    """Reduce-scatter: the buffers of all ranks are added up, and every rank receives its share of the sum."""

    SUMS = True

    def allocate(self) -> None:
        self._send, self._receive = self._empty(self._share * self._ranks), self._empty(self._share)

    def fill(self) -> None:
        for share in self._send.chunk(self._ranks):
            self._pattern.fill(share, self._rank)

    def operate(self) -> None:
        self._group.reduce_scatter_tensor(self._receive, self._send)

    def count_wrong(self) -> int:
        return self._pattern.count_wrong_sums(self._receive)


class AllToAll(Operation):
    """All-to-all: every rank sends a different share to each rank."""

    def allocate(self) -> None:
        self._send, self._receive = (self._empty(self._share * self._ranks) for _ in range(2))

    def fill(self) -> None:
        for peer, share in enumerate(self._send.chunk(self._ranks)):
            self._pattern.fill(share, self._rank * self._ranks + peer)

    def operate(self) -> None:
        self._group.all_to_all_single(self._receive, self._send)

    def count_wrong(self) -> int:
        shares = enumerate(self._receive.chunk(self._ranks))
        return sum(self._pattern.count_wrong(share, peer * self._ranks + self._rank) for peer, share in shares)


class SendReceive(Operation):
    """Send and receive in a ring: every rank sends to the next rank and receives from the previous one."""

    def allocate(self) -> None:
        self._send, self._receive = self._empty(self.elements), self._empty(self.elements)
        self._next, self._before = (self._rank + 1) % self._ranks, (self._rank - 1) % self._ranks

    def operate(self) -> None:
        exchange(self._group, self._send, self._next, self._receive, self._before)

    def count_wrong(self) -> int:
        return self._pattern.count_wrong(self._receive, self._before)


class HostToDevice(Operation):
    """Copy from page-locked host memory to this rank's GPU. No other rank takes part."""

    def allocate(self) -> None:
        self._on_host = self._empty(self.elements, "cpu", pinned=self._device.type == "cuda")
        self._on_device = self._empty(self.elements)
        self._send = self._on_host

    def fill(self) -> None:
        self._pattern.fill(self._on_device, self._rank + 1)
        self._on_host.copy_(self._on_device)
        self._pattern.fill(self._on_device, self._rank)

    def operate(self) -> None:
        self._on_device.copy_(self._on_host, non_blocking=True)

    def count_wrong(self) -> int:
        return self._pattern.count_wrong(self._on_device, self._rank + 1)


class DeviceToHost(HostToDevice):
    """Copy from this rank's GPU to page-locked host memory. No other rank takes part."""

    def allocate(self) -> None:
        super().allocate()
        self._send = self._on_device

    def operate(self) -> None:
        self._on_host.copy_(self._on_device, non_blocking=True)

    def count_wrong(self) -> int:
        if self._device.type == "cuda":
            self._torch.cuda.synchronize()  # the copy is asynchronous
        self._pattern.fill(self._on_device, self._rank + 1)  # otherwise a copy that does nothing would appear correct
        self._on_device.copy_(self._on_host)
        return self._pattern.count_wrong(self._on_device, self._rank)


TABLE: dict[str, type[Operation]] = {
    "all_reduce": AllReduceCollective,
    "all_gather": AllGather,
    "reduce_scatter": ReduceScatter,
    "all_to_all": AllToAll,
    "send_receive": SendReceive,
    "host_to_device": HostToDevice,
    "device_to_host": DeviceToHost,
}


def exchange(group: Any, out: Any, to: int, into: Any, source: int) -> None:
    """Send and receive at the same time. Return when both are done or, with NCCL, queued on the current stream."""
    operations = [group.P2POp(group.isend, out, to), group.P2POp(group.irecv, into, source)]
    for work in group.batch_isend_irecv(operations):
        work.wait()
