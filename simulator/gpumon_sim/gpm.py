"""TABLE: GPM metrics, with the ids that the simulated driver has for them and their values under full load.

It was written from NVML's header, independently of the table in collectors/nvml/gpm.py, so that tests detect a wrong id
there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from gpumon_sim.exports import Version
from gpumon_sim.observe import LINK_KIB_PER_SECOND, PCIE_BYTES_PER_SECOND
from gpumon_sim.quantities import LINK_DOWN, State

_MIB_IN_KIB, _MIB = 1 << 10, 1 << 20
_MAXIMA: tuple[tuple[Version, int], ...] = (((615,), 477), ((595,), 333), ((580,), 210), ((), 98))
"""NVML's highest GPM metric id plus one, with the first driver version that has this value, newest first."""


class Metric(NamedTuple):
    """A GPM metric: its id in NVML, and its value under full load in percent or MiB/s.

    If `per_link` is true, the value is the data rate of one NVLink. `spin` is the value while a kernel waits.
    """

    number: int
    full: float
    per_link: bool = False
    spin: float = 0.0


METRICS: Mapping[str, Metric] = {
    "graphics_util": Metric(1, 100, spin=100),
    "sm_util": Metric(2, 92, spin=100),
    "sm_occupancy": Metric(3, 41, spin=6),
    "integer_util": Metric(4, 24, spin=1),
    "any_tensor_util": Metric(5, 55),
    "dfma_tensor_util": Metric(6, 0),
    "hmma_tensor_util": Metric(7, 54),
    "dmma_tensor_util": Metric(8, 0),
    "imma_tensor_util": Metric(9, 1),
    "dram_bw_util": Metric(10, 47, spin=0.5),
    "fp64_util": Metric(11, 0.1),
    "fp32_util": Metric(12, 18),
    "fp16_util": Metric(13, 29),
    "pcie_tx_per_sec": Metric(20, PCIE_BYTES_PER_SECOND / _MIB),
    "pcie_rx_per_sec": Metric(21, PCIE_BYTES_PER_SECOND / _MIB),
    "nvdec_0_util": Metric(30, 0),
    "nvjpg_0_util": Metric(40, 0),
    "nvofa_0_util": Metric(50, 0),
    "nvlink_total_rx_per_sec": Metric(60, LINK_KIB_PER_SECOND / _MIB_IN_KIB, per_link=True),
    "nvlink_total_tx_per_sec": Metric(61, LINK_KIB_PER_SECOND / _MIB_IN_KIB, per_link=True),
}
NAMES = {metric.number: name for name, metric in METRICS.items()}


class GpmSample(NamedTuple):
    """A GPM sample that a client took: the state of a GPU, or of one GPU instance, at one moment."""

    gpu: int
    instance: int | None
    time: float
    state: State
    empty: bool = False
    """True for a GPU instance without a compute instance, in which no process can run."""


def highest(driver: Version) -> int:
    """Return the maximum number of metrics that one call may request from this driver version."""
    return next(maximum for since, maximum in _MAXIMA if driver >= since)


def value(name: str, earlier: GpmSample, later: GpmSample) -> float | None:
    """Return the mean of the GPM metric `name`, a key of METRICS, between two samples, in percent or MiB/s.

    If the scenario sets the metric, return the scenario's value, which is None for "not supported". Otherwise return
    NaN if no time has passed between the samples, unless the scenario sets the GPU's utilization.
    """
    state = later.state
    for key in (name, "*"):
        if key in state.gpm:
            return state.gpm[key]
    metric = METRICS[name]
    links = sum(link.state != LINK_DOWN for link in state.links) if metric.per_link else 1
    load, spin = _use(earlier, later)
    return (metric.full * links * load + metric.spin * spin * (1 - load)) * _share(later.instance)


def _use(earlier: GpmSample, later: GpmSample) -> tuple[float, float]:
    """Return the mean load between two samples, and the share of this time in which a kernel waited, from 0 to 1.

    NaN if no time has passed between them. If the scenario sets the GPU's utilization, return that as the load.
    """
    before, state = earlier.state, later.state
    if state.utilization is not None and state.utilization != state.own_utilization:
        return state.utilization / 100, 0.0
    seconds = max(0.0, later.time - earlier.time) or math.nan
    return (state.load_seconds - before.load_seconds) / seconds, (state.spin_seconds - before.spin_seconds) / seconds


def _share(instance: int | None) -> float:
    """Return the factor for the metrics of a GPU instance: from 0.92 to 1, by its id. Return 1 for a whole GPU."""
    return 1.0 if instance is None else 1 - instance % 5 / 50
