"""Prometheus recording rules that compare each node's all-reduce bandwidth with the median of the fleet."""

from __future__ import annotations

from collections.abc import Mapping

MIN_NODES = 4
"""Minimum number of nodes with the same hardware for which a median is recorded."""
MIN_RATIO = 0.85
"""Share of the fleet's median below which AllReduceBelowFleet fires."""

BUSBW = "instance:gpumon_probe_allreduce_busbw_bytes_per_second:max"
MEDIAN = "fleet:gpumon_probe_allreduce_busbw_bytes_per_second:median"
RATIO = "instance:gpumon_probe_allreduce_busbw:fleet_ratio"
_HARDWARE = "name, ranks, algorithm, bytes"

_MODELS = "group by (instance, name) (gpumon_gpu_info)"
_ONE_MODEL = f"{_MODELS} and on (instance) (count by (instance) ({_MODELS}) == 1)"
_RANKS = 'count_values by (instance) ("ranks", max by (instance) (gpumon_probe_allreduce_ranks{backend="nccl"}))'
_LAST_RUN = 'max by (instance, algorithm, bytes) (gpumon_probe_allreduce_busbw_bytes_per_second{backend="nccl"})'

RECORDING_RULES: Mapping[str, str] = {
    # The last run on all GPUs of a node that has one GPU model, labeled with that model and the number of ranks.
    BUSBW: f"{_LAST_RUN} * on (instance) group_left (name) ({_ONE_MODEL}) * on (instance) group_left (ranks) {_RANKS}",
    MEDIAN: f"quantile by ({_HARDWARE}) (0.5, {BUSBW}) and count by ({_HARDWARE}) ({BUSBW}) >= {MIN_NODES}",
    RATIO: f"{BUSBW} / on ({_HARDWARE}) group_left () {MEDIAN}",
}
"""PromQL by the name of the recorded series, in the order of evaluation."""


def ratio_at_best_size(matchers: str = "", *, condition: str = "") -> str:
    """Return PromQL for each node's share of the fleet's median, at the message size with its highest bandwidth.

    Smaller messages measure latency. `matchers`: label matchers in braces. `condition`: a comparison, such as " <
    0.85".
    """
    return (
        f"{RATIO}{matchers}{condition} and on (instance, algorithm, bytes) topk by (instance, algorithm) (1, {BUSBW})"
    )
