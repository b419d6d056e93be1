"""The fleet's recording rules, evaluated by promtool: medians by hardware, and each node's ratio to its median."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from promtool_run import Series, check, group, selector

from gpumon.health.alert_rules import render, rules, runbook_url
from gpumon.health.fleet_rules import MEDIAN, RATIO, ratio_at_best_size

pytestmark = pytest.mark.slow


H100, B200 = "NVIDIA H100 80GB HBM3", "NVIDIA B200"
MIB, GIB = 1 << 20, 1 << 30
PROBE = "gpumon_probe_allreduce_"


def node(
    instance: str, busbw: Mapping[int, float], *, gpus: int = 8, ranks: int = 8, model: str = H100
) -> list[Series]:
    """Return the series of one node: its GPUs, its ranks and the bus bandwidth of its last run by size."""

    def series(name: str, value: float, *labels: tuple[str, str]) -> Series:
        return Series(name, (("instance", instance), ("job", "gpumon"), *labels), [value] * 3)

    nccl = ("backend", "nccl")
    return [
        *(series("gpumon_gpu_info", 1, ("uuid", f"GPU-{instance}-{gpu}"), ("name", model)) for gpu in range(gpus)),
        series(f"{PROBE}ranks", ranks, nccl),
        *(
            series(f"{PROBE}busbw_bytes_per_second", rate, nccl, ("algorithm", "default"), ("bytes", str(size)))
            for size, rate in busbw.items()
        ),
    ]


FLEET = (
    *node("a", {MIB: 40e9, GIB: 440e9}),
    *node("b", {MIB: 44e9, GIB: 450e9}),
    *node("c", {MIB: 48e9, GIB: 460e9}),
    *node("low", {MIB: 44e9, GIB: 222.5e9}),
    *node("other-model", {GIB: 840e9}, model=B200),
    *node("fewer-ranks", {GIB: 360e9}, gpus=4, ranks=4),
    *node("mixed", {GIB: 100e9}),
    Series("gpumon_gpu_info", (("instance", "mixed"), ("job", "gpumon"), ("uuid", "GPU-x"), ("name", B200)), [1] * 3),
)
MEDIANS = {MIB: 44e9, GIB: 445e9}
HARDWARE = (("algorithm", "default"), ("name", H100), ("ranks", "8"))


def samples(name: str, values: Mapping[Any, float]) -> Iterator[dict[str, object]]:
    for labels, value in values.items():
        yield {"labels": selector(name, (*HARDWARE, *labels)), "value": value}


def test_each_node_is_compared_with_the_median_of_its_hardware(tmp_path: Path) -> None:
    """Other models, other numbers of ranks and mixed nodes neither count nor get a ratio."""
    medians = {(("bytes", str(size)),): median for size, median in MEDIANS.items()}
    ratios = {
        (("bytes", str(size)), ("instance", instance)): rate / MEDIANS[size]
        for instance, sizes in {
            "a": {MIB: 40e9, GIB: 440e9},
            "b": {MIB: 44e9, GIB: 450e9},
            "c": {MIB: 48e9, GIB: 460e9},
            "low": {MIB: 44e9, GIB: 222.5e9},
        }.items()
        for size, rate in sizes.items()
    }
    low = {(("bytes", str(GIB)), ("instance", "low")): 0.5}
    wanted = [
        {"expr": MEDIAN, "eval_time": "2m", "exp_samples": [*samples(MEDIAN, medians)]},
        {"expr": RATIO, "eval_time": "2m", "exp_samples": [*samples(RATIO, ratios)]},
        {"expr": ratio_at_best_size(condition=" < 0.85"), "eval_time": "2m", "exp_samples": [*samples(RATIO, low)]},
    ]
    alert = {
        "exp_labels": {"severity": "warning", "instance": "low", "bytes": str(GIB), **dict(HARDWARE)},
        "exp_annotations": {
            "summary": "The all-reduce is slower than on other nodes with the same GPUs.",
            "description": f"The default all-reduce of {GIB} bytes on 8 GPUs ({H100}) reached 50% of the fleet's "
            "median bus bandwidth.",
            "runbook_url": runbook_url("AllReduceBelowFleet"),
        },
    }
    alerts = [{"eval_time": "2m", "alertname": "AllReduceBelowFleet", "exp_alerts": [alert]}]
    check(tmp_path, render(rules()), [group(60, FLEET, promql_expr_test=wanted, alert_rule_test=alerts)])


def test_three_nodes_have_no_median(tmp_path: Path) -> None:
    """A median needs four nodes with the same hardware."""
    few = [one for one in FLEET if dict(one.labels)["instance"] in {"a", "b", "low"}]
    wanted = [{"expr": f"{MEDIAN} or {RATIO}", "eval_time": "2m", "exp_samples": []}]
    check(tmp_path, render(rules()), [group(60, few, promql_expr_test=wanted)])
