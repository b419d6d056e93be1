"""A few rows of each table of `make truth`, which runs all of them."""

from __future__ import annotations

import pytest

from benchmarks.truth.benign import DISTURBANCES
from benchmarks.truth.faults import FAULTS
from benchmarks.truth.measure import measure, measure_disturbance
from benchmarks.truth.page import is_missed

pytestmark = pytest.mark.slow


FOUND = (
    "fell off the bus: Xid 79, and lost to NVML",
    "a driver call on it does not return",
    "Xid 48: an uncorrectable error in memory",
    "the kernel module is gone",
    "GPU temperature at its maximum",
    "half of its PCIe lanes are gone",
    "the configuration file is invalid",
)
BORNE = (
    "the agent is killed with SIGKILL",
    "the clock is stepped forward by an hour, and back",
    "the host sleeps for ten minutes",
    "a single Xid 45",
    "a release of the node for two minutes",
)
DIVIDED = (
    "a guest that was given some of the GPUs",
    "a container beside a GPU that fails, and was not given to it",
)


@pytest.mark.parametrize("name", FOUND)
def test_a_fault_is_detected_in_time_on_its_device(name: str) -> None:
    fault = next(each for each in FAULTS if each.name == name)
    assert not is_missed(measure(fault, "t4x1"))


@pytest.mark.parametrize("name", BORNE)
def test_a_disturbance_raises_no_verdict(name: str) -> None:
    """A quarter of an hour of each disturbance raises nothing."""
    one = next(one for one in DISTURBANCES if one.name == name)
    assert measure_disturbance(one, "t4x1", 0.25).verdicts_raised == ()


@pytest.mark.parametrize("name", DIVIDED)
def test_a_guest_or_container_with_some_gpus_is_unknown_only(name: str) -> None:
    """The number of GPUs is unknown, and no other verdict is raised."""
    one = next(one for one in DISTURBANCES if one.name == name)
    assert measure_disturbance(one, "h100x8", 0.1).verdicts_raised == (("gpu_count_mismatch", "unknown"),)
