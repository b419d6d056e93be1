"""Which critical Xids are counted from 0 on which GPUs."""

from __future__ import annotations

import pytest

from gpumon.collectors.nvml.table_reader import ARCHITECTURES
from gpumon.health.catalogue import SHIPPED
from gpumon.health.products import RANKS
from gpumon.health.xids import possible_xids


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
