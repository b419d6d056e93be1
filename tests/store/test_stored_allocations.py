"""Allocations in the store."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from stores import read, write

from gpumon.model.allocation import Allocation, Owner
from gpumon.model.instant import Instant
from gpumon.store import allocations
from gpumon.store.allocations import AllocationQuery
from gpumon.store.store import Store

FIRST = Allocation(
    uuid="GPU-1",
    source="mapping",
    owner=Owner(slurm_job_id="1", user='al"ice'),
    began=Instant("boot-1", 10.0, 1000.0),
    last_wall=1100.0,
    ended=True,
    held_seconds=90.0,
)
SECOND = replace(
    FIRST, owner=Owner(slurm_job_id="2"), began=Instant("boot-1", 120.0, 1110.0), last_wall=1200.0, ended=False
)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store.open(tmp_path / "gpumon.db")
    write(store, allocations.put, [FIRST, SECOND])
    return store


def test_an_allocation_has_one_row(store: Store) -> None:
    """A later state of an allocation replaces the stored one."""
    later = replace(SECOND, last_wall=1300.0, held_seconds=5.0)
    write(store, allocations.put, [later])
    assert read(store, allocations.find, AllocationQuery()) == (later, FIRST)


def test_a_query_finds_who_held_a_gpu_in_a_time(store: Store) -> None:
    """An allocation matches if it was in force at some time from `since` to `until`, in the store and in memory."""
    queries = {
        AllocationQuery(since=1105.0): (SECOND,),
        AllocationQuery(until=1109.0): (FIRST,),
        AllocationQuery(since=1050.0, until=1060.0): (FIRST,),
        AllocationQuery(uuid="GPU-2"): (),
        AllocationQuery(uuid="GPU-1", limit=1): (SECOND,),
    }
    for query, expected in queries.items():
        assert read(store, allocations.find, query) == expected, query
        assert tuple(each for each in (SECOND, FIRST) if query.matches(each))[: query.limit] == expected, query


def test_only_what_has_not_ended_is_restored(store: Store) -> None:
    """After a restart of the agent, allocations that have ended are history."""
    assert read(store, allocations.read_open) == (SECOND,)


def test_old_allocations_are_deleted(store: Store) -> None:
    """An allocation is deleted when the retention has passed since it was last in force, or if there are too many."""
    write(store, allocations.prune, 1150.0, 10)
    assert read(store, allocations.find, AllocationQuery()) == (SECOND,)
    write(store, allocations.put, [FIRST])
    write(store, allocations.prune, 0.0, 1)
    assert read(store, allocations.find, AllocationQuery()) == (FIRST,)
