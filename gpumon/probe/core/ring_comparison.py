"""Compares NCCL's default algorithm with its ring, which shows that NVLink SHARP is lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpumon.probe.core.probes import ALL_REDUCE, PROBES
from gpumon.probe.core.result import Comparison

LEVEL = 1.1
"""Max ratio of default to ring that counts as no faster. With NVLink SHARP it is about a third faster."""

LOST = (
    "That is the ring's level, and the ring is as usual: NVLink SHARP is lost, and the links are ok. Check the fabric "
    "manager, and NCCL's log of NVLS with NCCL_DEBUG=INFO in probe.nccl_environment."
)
MAYBE_LOST = "That is the ring's level, which has no usual figure yet: NVLink SHARP may be lost."
NOT_LINKS = "The ring is as usual, so the links are ok."
LINKS = "The ring, without NVLink SHARP, is low too: links or clocks are to blame."
LEVELLED = (
    "The default is {measured:.2f} times the ring; by published figures, this hardware reaches at least "
    "{expected:.2f} times with NVLink SHARP: it may be lost or disabled. Check the fabric manager, and NCCL's log of "
    "NVLS with NCCL_DEBUG=INFO in probe.nccl_environment."
)
HIDDEN = "The default, with NVLink SHARP, is as usual; the ring, over the links alone, is low."


def compare_algorithms(compared: Sequence[Comparison]) -> str:
    """Return a sentence on the cause of a low bandwidth of default or ring; "" if none is low, or one is unknown.

    Each algorithm is represented by the largest size in the element type that is always measured.
    """
    default, ring = _largest_comparisons(compared)
    if default is None or ring is None or not (default.below_reference or ring.below_reference):
        return ""
    if ring.below_reference:
        return LINKS if default.below_reference else HIDDEN
    if default.value > LEVEL * ring.value:
        return NOT_LINKS
    usual, usual_ring = _usual_bandwidth(default), _usual_bandwidth(ring)
    if usual_ring is None:
        return MAYBE_LOST
    return LOST if usual is not None and usual > LEVEL * usual_ring else NOT_LINKS


def missing_gain(compared: Sequence[Comparison], gain: Callable[[int], float | None]) -> str:
    """Return a sentence if at most half of the published gain is measured, because hosts differ; otherwise ""."""
    default, ring = _largest_comparisons(compared)
    if default is None or ring is None or default.size != ring.size:
        return ""
    expected, measured = gain(default.size), default.value / ring.value
    return (
        ""
        if expected is None or measured > (1 + expected) / 2
        else LEVELLED.format(measured=measured, expected=expected)
    )


def _largest_comparisons(compared: Sequence[Comparison]) -> tuple[Comparison | None, Comparison | None]:
    largest = {
        comparison.algorithm: comparison
        for comparison in sorted(compared, key=lambda comparison: comparison.size)
        if comparison.dtype in PROBES[ALL_REDUCE].dtypes
    }
    return largest.get("default"), largest.get("ring")


def _usual_bandwidth(comparison: Comparison) -> float | None:
    return comparison.expected if comparison.baseline is None else comparison.baseline
