"""What `make pages` counts as right: the fault's own alert, or one that inhibits it, with all its texts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.pages.__main__ import tapes_of
from benchmarks.pages.measure import NotificationOutcome, measure, outcome_of, page, served_runbooks
from benchmarks.pages.stack import Notified
from benchmarks.pages.tape import FaultCase, Place, Tape

SERVED = frozenset({"/runbooks/GpuLost", "/runbooks/GpuStuck", "/runbooks/IbPortDown"})


def expected_notification(alert: str, **labels: str) -> Notified:
    """Return the notification of an alert of a GPU, unless the labels name another device."""
    texts = {"summary": "gpu-000: text", "description": "reason", "action": "reboot", "serial": "1650"}
    device = labels or {"gpu": "3"}
    return Notified(
        at=130.0,
        notification=1,
        receiver="pager",
        status="firing",
        labels={"alertname": alert, "instance": "gpu-000:17400", **device},
        annotations={**texts, "runbook_url": f"http://gpu-000:17400/runbooks/{alert}"},
    )


def outcome(expected: Place, *received: Notified, names: tuple[str, ...] = ("a fault",)) -> NotificationOutcome:
    """Return the outcome of a fault whose alert is `expected`."""
    tape = Tape(FaultCase(names), (), {expected: 10.0}, frozenset({expected}))
    return outcome_of("gpu-000", tape, 100.0, received, SERVED)


def test_the_alert_of_the_fault_is_right() -> None:
    """It has all its texts, 20 s after the verdict."""
    one = outcome(("GpuLost", "3"), expected_notification("GpuLost"))
    assert (one.right, one.delays, one.lacking, one.inhibited) == (True, (20.0,), (), ())


def test_another_alert_is_not_right() -> None:
    one = outcome(("NvlinkDown", "3"), expected_notification("IbPortDown", device="mlx5_0"))
    assert (one.right, one.lacking) == (False, ("NvlinkDown: notification",))


def test_an_alert_that_inhibits_the_one_of_the_fault_stands_for_it() -> None:
    """The page names it."""
    one = outcome(("GpumonChildAbandoned", ""), expected_notification("GpuStuck"))
    assert (one.right, one.inhibited) == (True, (("GpumonChildAbandoned", "GpuStuck"),))
    two = outcome(("GpuLost", "3"), expected_notification("GpuLost"))
    assert "| GpumonChildAbandoned (inhibited by GpuStuck) |" in page([one, two, two], {})


def test_what_a_notification_lacks() -> None:
    """A GPU's serial number, and a runbook that is served. A port has no serial number."""
    without = expected_notification("GpuLost")
    without = replace(
        without, annotations={**without.annotations, "serial": "", "runbook_url": "http://n:1/runbooks/No"}
    )
    assert outcome(("GpuLost", "3"), without).lacking == ("GpuLost: serial number", "GpuLost: runbook")
    port = expected_notification("IbPortDown", device="mlx5_0", port="1")
    port = replace(port, annotations={**port.annotations, "serial": ""})
    assert outcome(("IbPortDown", "mlx5_0"), port).right


def test_a_second_notification_is_never_exact() -> None:
    """The page counts it apart, also if it is excused."""
    first = replace(expected_notification("GpuXidCritical"), notification=0)
    runbooks = SERVED | {"/runbooks/GpuXidCritical", "/runbooks/GpuXidRecurring"}
    place = ("GpuXidRecurring", "3")
    tape = Tape(FaultCase(("a fault",)), (), {place: 10.0}, frozenset({place}))
    two = outcome_of("gpu-000", tape, 100.0, [first, expected_notification("GpuXidRecurring")], runbooks)
    assert (two.right, two.exact, two.pages) == (True, False, 2)
    text = page([two, outcome(("GpuLost", "3"), expected_notification("GpuLost"))], {})
    assert "serial number | 1 |" in text
    assert "then inhibits | 1 |" in text
    assert 'column "also" | 0 |' in text
    assert "`make pages` fails | 0 |" in text


def test_pairs_are_no_single_faults() -> None:
    outcomes = [
        outcome(("GpuLost", "3"), expected_notification("GpuLost")),
        outcome(("GpuLost", "3"), expected_notification("GpuLost"), names=("a fault", "another")),
    ]
    assert "| single faults with exactly one notification | 1 of 1 |" in page(outcomes, {})


@pytest.mark.slow
def test_an_agent_serves_the_runbooks(tmp_path: Path) -> None:
    """Of the paths in notifications those are served that exist."""
    other = expected_notification("GpuLost")
    other = replace(other, annotations={"runbook_url": "http://gpu-000:17400/runbooks/No"})
    assert served_runbooks(tmp_path, [expected_notification("GpuStuck"), other]) == {"/runbooks/GpuStuck"}


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
