"""What reaches a person: five faults, each on a node of a simulated fleet, through Prometheus and Alertmanager."""

from __future__ import annotations

import pytest

from benchmarks.pages.__main__ import tapes_of
from benchmarks.pages.measure import measure
from benchmarks.pages.tape import FaultCase

FAULTS = {
    "fell off the bus: Xid 79, and lost to NVML": "pager",
    "Xid 48: an uncorrectable error in memory": "pager",
    "one NVLink is down": "pager",
    "a port is down": "pager",
    "the kernel module is gone": "pager",
}


@pytest.mark.slow
@pytest.mark.timeout(600)  # the tapes alone take a minute on a busy machine
def test_each_fault_is_one_notification_with_reason_and_action() -> None:
    """Each leads to one notification at its receiver, with host, reason, action, serial number and runbook."""
    chosen = [FaultCase((name,)) for name in FAULTS]
    outcomes, _ = measure(tapes_of(chosen), interval=1.0, apart=1.0, settle=15.0, afterwards=45.0)
    assert {each.title: (each.receivers, each.pages, each.lacking) for each in outcomes} == {
        title: ((receiver,), 1, ()) for title, receiver in FAULTS.items()
    }
