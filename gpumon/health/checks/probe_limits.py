"""CHECKS: fixed limits of the all-reduce, which do not depend on the host's earlier results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gpumon.health.check_row import Check, any_device
from gpumon.health.checks.probe import CAUSES_OF_SLOW_RUNS, explains_slow_run
from gpumon.health.facts import Facts
from gpumon.health.policy import Limit, Range
from gpumon.health.verdict import PASSED, WARN, Action, Finding, warn
from gpumon.model.reading import KEY_SEPARATOR
from gpumon.probe.core.probe_metrics import METRICS, ProbeMetrics
from gpumon.probe.core.probes import ALL_REDUCE, PROBES

_ABOVE_ZERO = Range(0, open_below=True)
LATENCY = Limit(
    "max_allreduce_nccl_latency_seconds",
    0.002,
    "Maximum median latency of the smallest all-reduce on GPUs.",
    _ABOVE_ZERO,
)
NCCL_BUSBW = Limit(
    "min_allreduce_nccl_busbw_bytes_per_second",
    None,
    "Minimum bus bandwidth of the all-reduce on GPUs.",
    _ABOVE_ZERO,
)
GLOO_BUSBW = Limit(
    "min_allreduce_gloo_busbw_bytes_per_second",
    None,
    "Minimum bus bandwidth of the all-reduce on CPUs.",
    _ABOVE_ZERO,
)
BUSBW = {"nccl": NCCL_BUSBW, "gloo": GLOO_BUSBW}
_SMALLEST = str(min(PROBES[ALL_REDUCE].gpu.sizes))


def latency_high(facts: Facts) -> Finding | None:
    """Return a warning if the last run's median latency at the smallest size is too high; None without a result."""
    limit = facts.threshold(LATENCY)
    medians = {
        algorithm: seconds
        for (backend, algorithm, size, percentile), seconds in _rows(_all_reduce(facts).latency_seconds)
        if (backend, size, percentile) == ("nccl", _SMALLEST, "p50")
    }
    if not medians:
        return None
    algorithm = max(medians, key=medians.__getitem__)
    seconds = medians[algorithm]
    if seconds <= limit:
        return PASSED
    reason = (
        f"Half of the {algorithm} all-reduces of {_SMALLEST} bytes took longer than {seconds * 1e3:.1f} ms; "
        f"the limit is {limit * 1e3:.1f} ms."
    )
    return warn(reason, Action.INSPECT, latency_seconds=seconds, algorithm=algorithm)


def bandwidth_low(facts: Facts) -> Finding | None:
    """Return a warning if an algorithm's best bus bandwidth is below the backend's limit; None without a result."""
    limits = dict(zip(BUSBW, facts.any_threshold(*BUSBW.values()), strict=True))
    best: dict[tuple[str, ...], float] = {}
    for (backend, algorithm, _), busbw in _rows(_all_reduce(facts).value):
        best[backend, algorithm] = max(busbw, best.get((backend, algorithm), 0.0))
    if not best:
        return None
    for (backend, algorithm), busbw in best.items():
        limit = limits[backend]
        if limit is not None and busbw < limit:
            reason = (
                f"The {algorithm} all-reduce ({backend}) reached {busbw / 1e9:.3g} GB/s of bus bandwidth at its best "
                f"size; the limit is {limit / 1e9:.3g} GB/s."
            )
            return warn(reason, Action.INSPECT, busbw_bytes_per_second=busbw, algorithm=algorithm, backend=backend)
    return PASSED


def _all_reduce(facts: Facts) -> ProbeMetrics:
    return facts.probe.metrics.get(ALL_REDUCE) or METRICS[ALL_REDUCE]()


def _rows(metric: Mapping[str, float] | None) -> Iterator[tuple[tuple[str, ...], float]]:
    """Yield (values of the labels, value) for each series of a metric."""
    return ((tuple(key.split(KEY_SEPARATOR)), value) for key, value in (metric or {}).items())


_FOLLOWS = CAUSES_OF_SLOW_RUNS | any_device("gpu_allreduce_slow") | {"allreduce_slow": "node"}

CHECKS: tuple[Check, ...] = (
    Check(
        name="allreduce_bandwidth_low",
        levels=(WARN,),
        help="The all-reduce is slower than the configured limit.",
        steps="""\
1. Fix other faults of the node (links, clocks, PCIe), then run `gpumon probe allreduce` on the free node.
2. `NCCL_DEBUG=INFO` shows which transport NCCL chose; `nvidia-smi topo -m` what it could have chosen.
3. Still slow: drain the node, leave out one GPU at a time to find the one that slows the others down.
""",
        node=bandwidth_low,
        limits=(NCCL_BUSBW, GLOO_BUSBW),
        inhibited_by=_FOLLOWS,
        inhibited_if=explains_slow_run,
    ),
    Check(
        name="allreduce_latency_high",
        levels=(WARN,),
        help="Small all-reduces take too long.",
        steps="""\
1. Fix other faults of the node (links, clocks, PCIe), then run `gpumon probe allreduce` on the free node.
2. Check the CPUs: a power-saving governor, deep idle states, a process that keeps all of them busy.
3. `NCCL_DEBUG=INFO` shows which transport NCCL chose: sockets in place of NVLink or PCIe are this slow.
""",
        node=latency_high,
        limits=(LATENCY,),
        inhibited_by=_FOLLOWS,
        inhibited_if=explains_slow_run,
    ),
)
