"""Reads the evidence about the jobs of this host: states, worker servers and stacks of their ranks.

States are read before stacks, because py-spy stops a process while it reads it.
"""

from __future__ import annotations

import socket
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gpumon.cli.hang.dump import load, recording
from gpumon.cli.hang.evidence import NO_PROCESS, Evidence, RankEvidence, ReadError, Recording, Unread
from gpumon.cli.hang.judge import DEAD, STOPPED
from gpumon.cli.hang.processes import LocalRank, absent, find_dump, find_ranks, process_evidence, select, user_name
from gpumon.cli.hang.stacks import find_py_spy, read_stack
from gpumon.cli.hang.worker_server import ask, find_socket, main_stack

SAMPLES, SAMPLE_SECONDS = 24, 0.11
"""Number of samples of the recorders, and seconds between two of them."""


def read_jobs(job: str | None) -> tuple[list[Evidence], list[Unread]]:
    """Return the evidence about each job that `job` names, or all, and the processes whose job cannot be read."""
    ranks, unread = find_ranks()
    return [_JobReader(name, own, unread).read() for name, own in sorted(select(ranks, job).items())], unread


class _JobReader:
    def __init__(self, name: str, processes: Sequence[LocalRank], unread: Sequence[Unread]) -> None:
        self._name = name
        self._processes = {each.rank: each for each in processes}
        self._unread = list(unread)
        self._all_read = not unread and len(self._processes) == len(processes)
        if len(self._processes) < len(processes):
            self._note("all", "several processes have the same rank: give the pid of one of them as JOB")

    def _note(self, rank: int | str, reason: str) -> None:
        self._unread.append(Unread(f"rank {rank}", reason))

    def read(self) -> Evidence:
        processes = list(self._processes.values())
        ranks = [process_evidence(each) for each in processes]
        before = {each.rank: each.state in DEAD for each in ranks}
        sockets = {each.rank: path for each in ranks if (path := self._socket(each)) is not None}
        samples = self._samples(sockets)
        read_at = time.time()
        ranks = [_with_samples(each, samples[each.rank]) for each in ranks]
        ranks = [self._with_traceback(each, sockets.get(each.rank)) for each in ranks]
        if (py_spy := find_py_spy()) is not None:
            ranks = [self._with_stack(each, py_spy) for each in ranks]
        dumps = [path for each in processes if (path := find_dump(each))]
        for folder in sorted({path.parent for path in dumps}):
            self._unread.append(
                Unread(f"dumps in {folder}", f"if they are of this hang: gpumon explain --from {folder}")
            )
        missing = absent(processes) if self._all_read else []
        ranks += [RankEvidence(rank, socket.gethostname(), state=NO_PROCESS) for rank in missing]
        return Evidence(
            self._name,
            tuple(sorted(ranks, key=lambda each: each.rank)),
            tuple(self._unread),
            max(each.size or 0 for each in processes) or None,
            user_name(processes[0].user),
            read_at,
            any(not before[each.rank] and process_evidence(each).state in DEAD for each in processes),
        )

    def _socket(self, read: RankEvidence) -> Path | None:
        """Return the socket of the worker server of a rank; None without, or if the process cannot answer."""
        if read.pid is None or read.state in DEAD or read.state in STOPPED:
            return None
        try:
            path = find_socket(read.pid)
            reason = "none answers on a unix socket of the process"
        except OSError as error:
            path, reason = None, str(error.strerror)
        if path is None:
            self._note(read.rank, f"worker server: {reason}")
        return path

    def _samples(self, sockets: Mapping[int, Path]) -> Mapping[int, Sequence[Recording]]:
        """Return the recordings of each rank at several times. A rank that fails to answer once is not asked again."""
        samples: dict[int, list[Recording]] = defaultdict(list)
        silent: set[int] = set()
        for _ in range(SAMPLES if sockets else 0):
            for rank in sockets.keys() - silent:
                try:
                    samples[rank].append(recording(load(ask(sockets[rank], "POST", "fr_trace_json"))))
                except ReadError as error:
                    self._note(rank, f"flight recorder: {error}")
                    silent.add(rank)
            time.sleep(SAMPLE_SECONDS)
        return samples

    def _with_traceback(self, read: RankEvidence, path: Path | None) -> RankEvidence:
        """Ask for a traceback, for which the process needs the GIL. The GIL is held if a second attempt fails too."""
        if path is None or read.recording is None:
            return read
        for _ in range(2):
            try:
                stack = main_stack(ask(path, "POST", "dump_traceback").decode(errors="replace"))
                return replace(read, traceback_answered=True, stack=stack or None)
            except ReadError as error:
                failure = str(error)
        self._note(read.rank, f"traceback: {failure}")
        return replace(read, traceback_answered=False)

    def _with_stack(self, read: RankEvidence, py_spy: str) -> RankEvidence:
        """Return the evidence with the stack from py-spy, which is read twice."""
        if read.pid is None or read.state in DEAD:
            return read
        try:
            first = read_stack(py_spy, read.pid, stopped=read.state in STOPPED)
            time.sleep(SAMPLE_SECONDS)
            last = read_stack(py_spy, read.pid, stopped=read.state in STOPPED)
        except ReadError as error:
            self._note(read.rank, str(error))
            return read
        return replace(read, stack=last, stack_unchanged=first == last)


def _with_samples(read: RankEvidence, samples: Sequence[Recording]) -> RankEvidence:
    if len(samples) < 2:
        return read
    waits = [bool(each.pending) for each in samples]
    halves = (waits[: len(waits) // 2], waits[len(waits) // 2 :])
    shares = tuple(sum(half) / len(half) for half in halves) if len(waits) == SAMPLES else ()
    moving = any(each.position != samples[0].position for each in samples)
    return replace(read, recording=samples[-1], moving=moving, waiting_shares=shares)
