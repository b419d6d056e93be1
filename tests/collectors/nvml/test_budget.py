"""The cost of polls in driver calls, each of which holds a lock that the training job needs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from each_case import each_case
from polled import Poll, open_poll

import gpumon
from gpumon.collectors.nvml.gpu_reader import Extent
from gpumon.model.gpu import Gpu
from gpumon.model.nvlink import Nvlink
from gpumon.model.reading import FAST, RARE, SLOW, Call, Field, Gpm, Tier, primary_sources, rows

PACKAGE = Path(gpumon.__file__).parent
WITHOUT_GPM, WITH_GPM = 55.0, 70.0
"""Maximum number of calls per second on eight H100."""
LENGTHY = {
    "nvmlDeviceGetPcieThroughput",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
}
"""20 ms and 5 ms each."""


def calls_of(poll: Poll, *tiers: Tier) -> Counter[str]:
    """Return the number of library calls by function in a poll with these due tiers, including events."""
    counted = poll.simulation.node.library._trace._calls
    before = Counter(counted)
    poll.node._due = dict.fromkeys(poll.node._due, float("inf")) | dict.fromkeys(tiers, 0.0)
    poll.node.events.take()
    poll.poll_later()
    return Counter(counted) - before


def steady(poll: Poll) -> Poll:
    """Repeat polls until calls that are made only once are done."""
    poll.poll()
    for _ in range(2):
        poll.poll_later(all_tiers=True)
    return poll


def calls_a_second(poll: Poll) -> float:
    """Every tier has its own interval."""
    fast, slow, rare = (calls_of(poll, *tiers).total() for tiers in ((FAST,), (FAST, SLOW), (FAST, SLOW, RARE)))
    return fast / FAST.value + (slow - fast) / SLOW.value + (rare - slow) / RARE.value


@pytest.mark.parametrize(("gpm", "most"), [(False, WITHOUT_GPM), (True, WITH_GPM)])
def test_a_full_node_stays_within_the_budget(*, gpm: bool, most: float) -> None:
    """The calls on eight H100 with 18 links each, counted in the library, are within the budget."""
    with open_poll(extent=Extent(gpm=gpm, detailed=False)) as poll:
        rate = calls_a_second(steady(poll))

    assert most - 10 < rate <= most  # far below this limit, a metric is no longer read


@each_case("profile", ["h100x8", "a100x8", "b200x8", "gb200x4", "l40sx4", "t4x1", "h100migx8"])
def test_no_slow_call_is_in_a_fast_poll(profile: str) -> None:
    """PCIe throughput sampling is never called, and process lists are in the slow tier."""
    with open_poll(profile) as poll:
        steady(poll)
        fast, all_tiers = calls_of(poll, FAST), calls_of(poll, FAST, SLOW, RARE)

    assert not LENGTHY & fast.keys()
    assert "nvmlDeviceGetPcieThroughput" not in all_tiers


def test_fields_take_one_call_per_tier_and_gpu() -> None:
    with open_poll() as poll:
        steady(poll)
        batches = [calls_of(poll, *tiers)["nvmlDeviceGetFieldValues"] for tiers in ((FAST,), (FAST, SLOW))]

    assert batches == [8, 16]


def test_a_fast_poll_reads_the_power_of_one_scope() -> None:
    """Each scope of the average power takes a driver about a millisecond: the module's and the memory's are slow."""
    scopes: dict[Tier, set[int]] = {FAST: set(), SLOW: set()}
    for row in rows(Gpu).values():
        for source in primary_sources(row.source):
            if isinstance(source, Field) and source.name == "POWER_AVERAGE":
                scopes[row.every].add(source.scope)

    assert scopes == {FAST: {0}, SLOW: {1, 2}}


def test_no_field_of_a_fast_poll_costs_a_millisecond() -> None:
    """On an H100 the energy counter takes 3 ms, two of the slowdown counters 0.8 ms each; link bytes lock all GPUs."""
    fields = {
        source.name
        for row in rows(Gpu).values()
        for source in primary_sources(row.source)
        if row.every is FAST and isinstance(source, Field)
    }

    assert fields == {"RECOVERY_ACTION", "MEMORY_TEMP", "POWER_AVERAGE"}


def test_bit_error_rates_are_read_rarely() -> None:
    """They take a lock of all GPUs for each link."""
    assert rows(Nvlink)["bit_error_ratio"].every is RARE


@pytest.mark.parametrize(("detailed", "read"), [(False, False), (True, True)])
def test_details_that_nothing_uses_are_read_only_with_detailed_metrics(*, detailed: bool, read: bool) -> None:
    with open_poll("h100x1", extent=Extent(detailed=detailed)) as poll:
        [reading] = steady(poll).poll_later(all_tiers=True).gpus
    gpu = reading.gpu

    assert gpu is not None
    assert (gpu.memory_power_watts is not None) == (gpu.jpeg_utilization_ratio is not None) == read
    assert ("lane" in (gpu.pcie_errors_total or {})) == ("video" in (gpu.clock_hertz or {})) == read
    assert None not in {gpu.power_limit_default_watts, gpu.encoder_utilization_ratio, gpu.memory_free_bytes}
    assert {"sm", "memory"} <= (gpu.clock_hertz or {}).keys()
    assert {"fatal", "correctable"} <= (gpu.pcie_errors_total or {}).keys()


def test_a_detail_is_marked_as_unread_unless_the_code_names_it() -> None:
    """A detail is `unread` exactly if no check, probe or /metrics/dcgm names it, and its driver call is its own."""
    text = "".join(
        path.read_text(encoding="utf-8")
        for folder in ("health", "probe", "state")
        for path in (PACKAGE / folder).rglob("*.py")
    )
    text += (PACKAGE / "outputs" / "dcgm.py").read_text(encoding="utf-8")
    shared = {
        source.name
        for row in rows(Gpu).values()
        if not row.detail
        for source in primary_sources(row.source)
        if isinstance(source, Call)
    }
    for name, row in rows(Gpu).items():
        parts = list(primary_sources(row.source))
        free = all(isinstance(part, Gpm) or (isinstance(part, Call) and part.name in shared) for part in parts)
        if row.detail is True and not free:
            assert row.unread == (name not in text), name


def test_graphics_processes_are_listed_rarely_on_a_gpu_without_one() -> None:
    """A board that supports MIG has no display: its graphics processes are read with the rare tier and for a probe."""
    counts = {}
    for profile in ("h100x1", "t4x1"):
        with open_poll(profile) as poll:
            steady(poll)
            calls_of(poll, FAST, SLOW, RARE)
            tiers = ((FAST, SLOW), (FAST, SLOW))
            counts[profile] = [calls_of(poll, *each)["nvmlDeviceGetGraphicsRunningProcesses_v3"] for each in tiers]
            poll.node.watching = True
            counts[profile].append(calls_of(poll, FAST)["nvmlDeviceGetGraphicsRunningProcesses_v3"])

    assert counts == {"h100x1": [1, 0, 1], "t4x1": [1, 1, 1]}


def test_on_blackwell_ecc_and_link_counters_are_in_two_batches() -> None:
    with open_poll("b200x8") as poll:
        steady(poll)
        slow = calls_of(poll, FAST, SLOW)["nvmlDeviceGetFieldValues"]

    assert slow == 8 + 2 * 8


def test_while_watching_each_poll_lists_processes_once() -> None:
    with open_poll("t4x1") as poll:
        steady(poll).node.watching = True
        for tiers in ((FAST,), (FAST, SLOW)):
            assert calls_of(poll, *tiers)["nvmlDeviceGetComputeRunningProcesses_v3"] == 1
