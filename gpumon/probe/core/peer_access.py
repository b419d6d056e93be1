"""Finds pairs of GPUs without peer access that other pairs have, or that the pair had when the run began. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import combinations

from gpumon.probe.core.evidence import Observations

OK = "ok"
WORDS = {"read": "read", "write": "write", "nvlink": "NVLink", "atomics": "atomics"}
"""NVML's peer access capabilities, each with its name in sentences."""

Ends = tuple[str, str]
"""UUIDs of two GPUs in the order of the run."""


def missing_access(observations: Observations) -> dict[Ends, str]:
    """Return, by pair of GPUs, a phrase about the peer access that the pair lacks. Pairs that lack none are left out.

    A missing capability counts if the pair had it when the run began, or if it is usual on this board (`_is_usual`).
    `observations`: the GPUs of the run, in order.
    """
    access_by_pair = {
        ends: access
        for ends in combinations(observations, 2)
        if (access := observations[ends[0]].last.peer_access.get(ends[1]))
    }
    complete = access_by_pair if _is_whole(observations) else {}
    return {
        ends: words
        for ends, access in access_by_pair.items()
        if (words := _words(observations, ends, access, complete))
    }


def _is_whole(observations: Observations) -> bool:
    """Return whether the observed GPUs include every GPU for which NVML reports peer access.

    If some are missing, the others do not show which peer access the board provides.
    """
    return all(uuid in observations for gpu in observations.values() for uuid in gpu.last.peer_access)


def _words(
    observations: Observations, ends: Ends, access: Mapping[str, str], complete: Mapping[Ends, Mapping[str, str]]
) -> str:
    before = observations[ends[0]].first.peer_access.get(ends[1], {})
    without = {name: status for name, status in access.items() if status != OK}
    lost = {name: status for name, status in without.items() if before.get(name) == OK}
    unlike = {name: without[name] for name in without.keys() - lost.keys() if _is_usual(name, complete)}
    return " and ".join(
        (*_list_pairs("have lost", "they had before", lost), *_list_pairs("lack", "other pairs have", unlike))
    )


def _is_usual(name: str, complete: Mapping[Ends, Mapping[str, str]]) -> bool:
    """Return whether the board normally provides this peer access capability, so that pairs without it are faulty.

    Return True if at least half of all pairs have the capability, and some GPUs lack it in more pairs than other GPUs
    do. If every GPU lacks it in the same number of pairs, return False: either no pair lacks it, or the board is built
    so, as a cube mesh is.
    """
    statuses = {ends: access[name] for ends, access in complete.items() if name in access}
    have = sum(status == OK for status in statuses.values())
    without = Counter(gpu for ends, status in statuses.items() for gpu in ends if status != OK)
    gpus = {gpu for ends in statuses for gpu in ends}
    alike = len({without[gpu] for gpu in gpus}) == 1
    return have > 0 and have * 2 >= len(statuses) and not alike


def _list_pairs(verb: str, whose: str, without: Mapping[str, str]) -> Iterator[str]:
    if without:
        names = (f"{words} ({without[name].replace('_', ' ')})" for name, words in WORDS.items() if name in without)
        yield f"{verb} peer access that {whose}: {', '.join(names)}"
