"""The limits of the all-reduce that an operator sets for every host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from judging import Ward

from gpumon.health.policy import Policy
from gpumon.health.verdict import Level
from gpumon.probe.core.probe_metrics import METRICS


def node_with_results(
    *,
    latency: dict[str, float] | None = None,
    busbw: dict[str, float] | None = None,
    thresholds: Mapping[str, float | None] | None = None,
) -> Ward:
    """Return a node whose last run has these results, after a minute."""
    ward = Ward(gpus=2, ports=0, policy=Policy(thresholds=thresholds or {}))
    probe = ward.report.probe
    metrics = {"allreduce": replace(METRICS["allreduce"](), latency_seconds=latency, busbw_bytes_per_second=busbw)}
    ward.report = replace(ward.report, probe=replace(probe, metrics=metrics))
    return ward.go_on(60)


def test_a_median_latency_above_two_milliseconds_is_a_warning() -> None:
    """The smallest size on GPUs counts; other sizes, percentiles and backends do not."""
    others = {"nccl,ring,1048576,p50": 0.1, "nccl,ring,1024,p99": 0.1, "gloo,ring,1024,p50": 0.1}
    assert node_with_results(latency={**others, "nccl,ring,1024,p50": 0.0019}).verdict("allreduce_latency_high") is None
    verdict = node_with_results(latency={"nccl,tree,1024,p50": 0.001, "nccl,ring,1024,p50": 0.004}).verdict(
        "allreduce_latency_high"
    )
    assert verdict is not None
    assert verdict.level is Level.WARN
    assert verdict.reason == (
        "Half of the ring all-reduces of 1024 bytes took longer than 4.0 ms; the limit is 2.0 ms."
    )
    off = node_with_results(
        latency={"nccl,ring,1024,p50": 0.004}, thresholds={"max_allreduce_nccl_latency_seconds": None}
    )
    assert off.verdict("allreduce_latency_high") is None


def test_a_bandwidth_below_the_configured_limit_is_a_warning() -> None:
    """Off by default. The best size of each algorithm counts, and each backend has its own limit."""
    busbw = {"nccl,ring,1024": 1e6, "nccl,ring,1048576": 2e11}
    name = "min_allreduce_nccl_busbw_bytes_per_second"
    cases: tuple[tuple[dict[str, float | None], Level], ...] = (
        ({}, Level.OK),
        ({name: 1.5e11}, Level.OK),
        ({name: 2.5e11}, Level.WARN),
        ({"min_allreduce_gloo_busbw_bytes_per_second": 2.5e11}, Level.OK),
    )
    for thresholds, expected in cases:
        ward = node_with_results(busbw=busbw, thresholds=thresholds)
        assert ward.level("allreduce_bandwidth_low") is expected, thresholds
