"""The Xid catalogue is complete and consistent, also with the architectures that can report each Xid."""

from __future__ import annotations

import re

import pytest

from gpumon.collectors.nvml.table_reader import ARCHITECTURES
from gpumon.health.catalogue import SHIPPED
from gpumon.health.products import RANKS
from gpumon.health.xids import NOTHING, TABLE, XIDS, Class, Severity, possible_xids


def test_each_code_has_one_row() -> None:
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


def of(architecture: str | None, *, chip_to_chip: bool = False) -> set[int]:
    return set(possible_xids(SHIPPED.critical, architecture, chip_to_chip=chip_to_chip))


@pytest.mark.parametrize(
    ("architecture", "never"),
    [
        ("Turing", {95, 110, 136, 143, 150, 151, 155, 156, 167, 169, 173}),
        ("Ampere", {57, 58, 110, 136, 143, 150, 151, 155, 156, 167, 169, 173}),
        ("Hopper", {57, 58, 150, 155, 173}),
        ("Blackwell", {57, 58, 74, 136, 173}),
    ],
)
def test_codes_that_cannot_happen_are_not_counted(architecture: str, never: set[int]) -> None:
    """By NVIDIA's catalogue; everything else that is critical is there."""
    assert SHIPPED.critical - of(architecture) == never


def test_gpus_beside_a_grace_cpu_can_lose_that_link() -> None:
    """On Hopper and on Blackwell."""
    for architecture in ("Hopper", "Blackwell"):
        assert of(architecture, chip_to_chip=True) - of(architecture) == {173}


def test_unknown_architecture_can_have_everything() -> None:
    """A GPU newer than this table misses no alert."""
    assert of("Tomorrow", chip_to_chip=True) == SHIPPED.critical
    assert of("Rubin") == SHIPPED.critical - {173}


def test_gpu_that_was_never_opened_counts_what_every_gpu_can_have() -> None:
    """So that no counter vanishes when its architecture becomes known."""
    for architecture in ARCHITECTURES.values():
        assert of(None) <= of(architecture)
    assert {48, 62, 79} <= of(None)


def test_ranks_are_of_architectures_that_are_read() -> None:
    """A spelling mistake would make a row mean nothing."""
    assert set(RANKS) <= set(ARCHITECTURES.values())
