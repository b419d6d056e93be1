"""Compares the flight recorders of the ranks: which rank waits in which collective, and which ranks it waits for. Pure.

Groups of pipeline stages are not compared: their counts include point-to-point operations, which differ between
healthy members.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from gpumon.cli.hang.evidence import Evidence, RecordedOperation

PIPELINE, DEFAULT = "PIPELINE", "0"
"""Part of the descriptions of pipeline groups, and name of the group of all ranks."""
_SAME_SIZES = ("all_reduce", "broadcast")
"""Operations whose inputs have the same sizes at all ranks."""
_SYMMETRIC = ("all_reduce", "all_gather", "allgather", "reduce_scatter", "all_to_all", "alltoall", "barrier")
"""Parts of the names of operations that complete at no rank before every rank has contributed."""
_OVERTAKEN = 2
"""Number of collectives that peers completed and a rank did not, from which on it no longer observes its GPU."""


class Wait(NamedTuple):
    """A rank waits in a collective: `behind` are the members that did not enqueue it, `unread` those not read."""

    rank: int
    operation: RecordedOperation
    behind: tuple[int, ...]
    unread: tuple[int, ...]


class WaitGraph:
    """The recordings of the ranks, and who waits for whom."""

    def __init__(self, evidence: Evidence) -> None:
        self.recordings = {each.rank: each.recording for each in evidence.ranks if each.recording is not None}
        operations = [each for recording in self.recordings.values() for each in recording.operations]
        p2p = {each.group for each in operations if each.p2p and each.name.startswith("nccl")}
        self._groups = [
            (rank, group)
            for rank, recording in self.recordings.items()
            for group in recording.groups
            if PIPELINE not in group.description.upper() and group.name not in p2p
        ]
        self._enqueued = {(rank, group.name): group.enqueued for rank, group in self._groups}
        self._members: dict[str, set[int]] = defaultdict(set)
        for rank, group in self._groups:
            self._members[group.name] |= {rank, *(group.ranks or (evidence.numbers if group.name == DEFAULT else ()))}
        self.waits = tuple(self._waits())
        self.unrecorded = any(group.unrecorded and self.recordings[rank].blocking for rank, group in self._groups)
        """Whether operations without entries were called, so that a rank without a pending one may wait too."""

    def _waits(self) -> Iterator[Wait]:
        """Yield the waits of all ranks: one for each group with a pending collective."""
        for rank, group in self._groups:
            pending = (each for each in self.recordings[rank].pending if each.group == group.name and not each.p2p)
            if (operation := next(pending, None)) is not None:
                members = sorted(self._members[group.name] - {rank})
                behind = tuple(each for each in members if self._is_behind(each, operation))
                yield Wait(rank, operation, behind, tuple(each for each in members if each not in self.recordings))

    def _is_behind(self, rank: int, operation: RecordedOperation) -> bool:
        """Return whether a rank has not enqueued the operation. Without a count: whether nothing is pending there."""
        if rank not in self.recordings:
            return False
        enqueued = self._enqueued.get((rank, operation.group))
        return not self.recordings[rank].pending if enqueued is None else enqueued < operation.sequence

    @property
    def waiting(self) -> set[int]:
        """The ranks that wait for others, for ranks that were not read, or in gloo, which blocks its caller."""
        return {each.rank for each in self.waits if each.behind or each.unread or each.operation.blocking}

    @property
    def roots(self) -> dict[int, Wait]:
        """Return the ranks for which others wait, and which wait for none, each with the wait of another rank.

        A rank whose last operation is point-to-point and pending may wait for its peer, so it is none.
        """
        last = {rank: recording.operations[-1:] for rank, recording in self.recordings.items()}
        in_p2p = {
            rank for rank, operations in last.items() if any(each.p2p and not each.completed for each in operations)
        }
        causes = {rank: wait for wait in self.waits for rank in wait.behind}
        return {rank: wait for rank, wait in causes.items() if rank not in self.waiting | in_p2p}

    def overtaken(self) -> dict[int, tuple[RecordedOperation, int]]:
        """Return the ranks that did not observe the end of collectives that peers completed with their contribution.

        Each with the first such collective, and the number of the last one that a peer completed.
        """
        last: dict[str, int] = defaultdict(int)
        for _, group in self._groups:
            last[group.name] = max(last[group.name], group.completed or 0)
        found: dict[int, tuple[RecordedOperation, int]] = {}
        for rank, group in self._groups:
            own = [each for each in self.recordings[rank].pending if each.group == group.name and not each.p2p]
            missed = [each for each in own if each.sequence <= last[group.name]]
            if len(missed) >= _OVERTAKEN and all(any(kind in each.name for kind in _SYMMETRIC) for each in missed):
                found.setdefault(rank, (missed[0], last[group.name]))
        return found

    def mismatch(self) -> tuple[str, list[tuple[str, list[int]]]] | None:
        """Return the first collective that differs between members of a group in name or size.

        With its place, and operation and ranks of each side, the largest side first.
        """
        sides: dict[tuple[int, str], dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        for rank, recording in self.recordings.items():
            for each in recording.operations:
                if not each.p2p and (rank, each.group) in self._enqueued:
                    sides[each.sequence, each.group][_signature(each)].append(rank)
        for (sequence, group), by_name in sorted(sides.items()):
            if len(by_name) > 1:
                ordered = sorted(by_name.items(), key=lambda item: (-len(item[1]), item[1]))
                return f"collective {sequence} of group {group}", ordered
        return None


def _signature(operation: RecordedOperation) -> str:
    sized = operation.name.rpartition(":")[2] in _SAME_SIZES
    return f"{operation.name} of {operation.sizes}" if sized and operation.sizes else operation.name
