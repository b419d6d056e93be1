"""Is NVLink SHARP lost, or are the links slow? The ring, which goes without it, tells. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from gpumon.probe.result import Comparison

LEVEL = 1.1
"""Up to so many times the ring's bandwidth is at the ring's level: with NVLink SHARP it is a third more."""

LOST = (
    "That is what the ring comes to, which is as usual: NVLink SHARP is lost, and the links are well. See the fabric "
    "manager, and what NCCL says of NVLS with NCCL_DEBUG=INFO in probe.nccl_environment."
)
MAYBE_LOST = "That is what the ring comes to, for which there is no usual figure yet: NVLink SHARP may be lost."
NOT_LINKS = "The ring is as usual, so the links are not to blame."
LINKS = "So does the ring, which goes without NVLink SHARP: links or clocks are to blame."
HIDDEN = "The default, which NVLink SHARP helps, is as usual; what goes over the links alone is not."


def told_apart(compared: Sequence[Comparison]) -> str:
    """What the two algorithms say together, at the largest size; empty where there was only one."""
    largest = {one.algorithm: one for one in sorted(compared, key=lambda one: one.bytes) if one.dtype == "float32"}
    default, ring = largest.get("default"), largest.get("ring")
    if default is None or ring is None or not (default.low or ring.low):
        return ""
    if ring.low:
        return LINKS if default.low else HIDDEN
    if default.busbw > LEVEL * ring.busbw:
        return NOT_LINKS
    usual, usual_ring = _usual(default), _usual(ring)
    if usual_ring is None:
        return MAYBE_LOST
    return LOST if usual is not None and usual > LEVEL * usual_ring else NOT_LINKS


def _usual(one: Comparison) -> float | None:
    return next((figure for figure in (one.baseline, one.expected, one.fleet) if figure is not None), None)
