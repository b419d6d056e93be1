"""The Xid catalogue is complete and consistent."""

from __future__ import annotations

import re

from gpumon.health.catalogue import SHIPPED
from gpumon.health.xids import NOTHING, TABLE, XIDS, Class, Severity


def test_each_code_has_one_row() -> None:
    """No code is written twice."""
    assert len(TABLE) == len(XIDS)


def test_every_code_that_drivers_have_is_there() -> None:
    """All codes of NVIDIA's catalogue are described, retired ones too, and those of driver 615."""
    assert set(XIDS) == set(range(1, 178))
    assert SHIPPED.xid(14).name.startswith("Retired")


def test_severity_follows_the_first_action() -> None:
    """What asks for a reset or a reboot is critical, except the context switch timeout, which a job can cause."""
    heavy = re.compile(r"reset it$|reboot")

    assert {xid.code for xid in TABLE if heavy.search(xid.action)} - {109} <= SHIPPED.critical
    assert not [xid for xid in TABLE if xid.severity is Severity.INFO and heavy.search(xid.action)]
    assert not [xid for xid in TABLE if xid.severity is Severity.CRITICAL and xid.action == NOTHING]


def test_what_a_job_can_cause_is_not_critical() -> None:
    """A faulty application must not take a node out of service."""
    application = {xid.code for xid in TABLE if xid.kind is Class.APPLICATION}
    assert {13, 31, 43, 45, 68, 109} <= application
    assert not application & SHIPPED.critical


def test_the_worst_are_critical() -> None:
    """Codes that other exporters agree to be fatal are critical."""
    assert {46, 48, 62, 64, 74, 79, 95, 110, 119, 120, 136, 140, 143, 156, 158, 175} <= SHIPPED.critical


def test_an_unknown_code_is_a_warning() -> None:
    """A code from a newer driver is neither hidden nor critical, and keeps its number."""
    assert SHIPPED.xid(79).severity is Severity.CRITICAL
    assert SHIPPED.xid(100_000).severity is Severity.WARNING
    assert SHIPPED.xid(100_000).code == 100_000
    assert SHIPPED.critical == SHIPPED.critical
