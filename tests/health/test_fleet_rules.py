"""The fleet's recording rules, evaluated by promtool: medians by hardware, and each node's ratio to its median."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from promtool_run import Series, check, group, selector

from gpumon.health.alert_rules import rules
from gpumon.health.fleet_rules import FAILED, MEDIAN, RATIO, ratio_at_best_size
from gpumon.health.rule_file import render

pytestmark = pytest.mark.slow


H100, B200 = "NVIDIA H100 80GB HBM3", "NVIDIA B200"
RULE = next(rule for rule in rules() if rule.name == "AllReduceBelowFleet")
MIB, GIB = 1 << 20, 1 << 30
PROBE = "gpumon_probe_allreduce_"


def node(
    instance: str, busbw: Mapping[int, float], *, gpus: int = 8, ranks: int = 8, model: str = H100, cluster: str = ""
) -> list[Series]:
    """Return the series of one node: its GPUs, its ranks and the bus bandwidth of its last run by size."""

    def series(name: str, value: float, *labels: tuple[str, str]) -> Series:
        target = (("instance", instance), ("job", "gpumon"), *((("cluster", cluster),) if cluster else ()))
        return Series(name, (*target, *labels), [value] * 3)

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
JOB_LABEL = ("job", "gpumon")


def samples(name: str, values: Mapping[Any, float]) -> Iterator[dict[str, object]]:
    for labels, value in values.items():
        yield {"labels": selector(name, (*HARDWARE, *labels)), "value": value}


def test_each_node_is_compared_with_the_median_of_its_hardware(tmp_path: Path) -> None:
    """Other models, other numbers of ranks and mixed nodes neither count nor get a ratio."""
    medians = {(("bytes", str(size)),): median for size, median in MEDIANS.items()}
    ratios = {
        (("bytes", str(size)), ("instance", instance), JOB_LABEL): rate / MEDIANS[size]
        for instance, sizes in {
            "a": {MIB: 40e9, GIB: 440e9},
            "b": {MIB: 44e9, GIB: 450e9},
            "c": {MIB: 48e9, GIB: 460e9},
            "low": {MIB: 44e9, GIB: 222.5e9},
        }.items()
        for size, rate in sizes.items()
    }
    low = {(("bytes", str(GIB)), ("instance", "low"), JOB_LABEL): 0.5}
    wanted = [
        {"expr": MEDIAN, "eval_time": "2m", "exp_samples": [*samples(MEDIAN, medians)]},
        {"expr": RATIO, "eval_time": "2m", "exp_samples": [*samples(RATIO, ratios)]},
        {"expr": ratio_at_best_size(condition=" < 0.85"), "eval_time": "2m", "exp_samples": [*samples(RATIO, low)]},
    ]
    alert = {
        "exp_labels": {**RULE.labels, "instance": "low", "job": "gpumon", "bytes": str(GIB), **dict(HARDWARE)},
        "exp_annotations": {
            "summary": "low: The all-reduce is slower than on other nodes with the same GPUs.",
            "description": f"The default all-reduce of {GIB} bytes on 8 GPUs ({H100}) reached 50% of the fleet's "
            "median bus bandwidth.",
            "action": " ".join(RULE.steps.split()),
            "runbook_url": "http://low/runbooks/AllReduceBelowFleet",
        },
    }
    alerts = [{"eval_time": "2m", "alertname": "AllReduceBelowFleet", "exp_alerts": [alert]}]
    check(tmp_path, render(rules()), [group(60, FLEET, promql_expr_test=wanted, alert_rule_test=alerts)])


def test_nodes_of_two_clusters_with_one_name_have_each_their_ratio(tmp_path: Path) -> None:
    """Four nodes of two clusters have one median, and the alert of a slow one has the labels of its cluster."""
    fleet = [
        one
        for number, (cluster, rate) in enumerate((("a", 400e9), ("b", 200e9), ("a", 400e9), ("b", 400e9)))
        for one in node(f"n{number // 2}", {GIB: rate}, cluster=cluster)
    ]
    slow = {(("bytes", str(GIB)), ("cluster", "b"), ("instance", "n0"), JOB_LABEL): 0.5}
    exact = {"expr": ratio_at_best_size(condition=" < 0.85"), "eval_time": "2m", "exp_samples": [*samples(RATIO, slow)]}
    check(tmp_path, render(rules()), [group(60, fleet, promql_expr_test=[exact])])


def test_three_nodes_have_no_median(tmp_path: Path) -> None:
    """A median needs four nodes with the same hardware."""
    few = [one for one in FLEET if dict(one.labels)["instance"] in {"a", "b", "low"}]
    wanted = [{"expr": f"{MEDIAN} or {RATIO}", "eval_time": "2m", "exp_samples": []}]
    check(tmp_path, render(rules()), [group(60, few, promql_expr_test=wanted)])


def counted(instance: str, healths: list[float], away: int | None = None, busy: int = 0) -> list[Series]:
    """Return the series of a node with these verdicts by GPU. `away`: the minute from which it cannot be scraped."""
    target = (("instance", instance), ("job", "gpumon"))

    def values(value: float, start: float = 0.0) -> list[float | None]:
        return [start + value * minute if away is None or minute < away else None for minute in range(11)]

    series = [Series("gpumon_gpus_expected", target, values(0, len(healths)))]
    series.append(Series("gpumon_maintenance_end_timestamp_seconds", target, values(0)))
    for index, health in enumerate(healths):
        gpu = (("gpu", str(index)), ("uuid", f"GPU-{instance}-{index}"), *target)
        used = 0.9 if index < busy else 0.0
        series += [
            Series("gpumon_gpu_health", gpu, values(0, health)),
            Series("gpumon_gpu_up", gpu, values(0, float(health != 3))),
            Series("gpumon_gpu_processes", gpu, values(0, float(index < busy))),
            Series("gpumon_gpu_busy_seconds_total", gpu, values(60 * used)),
            Series("gpumon_gpu_observed_seconds_total", gpu, values(60)),
        ]
    return series


def value_of(name: str, value: float | None, instance: str = "", minute: int = 9) -> dict[str, Any]:
    """Return what promtool expects of a recorded series; None: it is absent."""
    labels = (("instance", instance), ("job", "gpumon")) if instance else (("job", "gpumon"),)
    there = [] if value is None else [{"labels": selector(name, labels), "value": value}]
    return {"expr": selector(name, labels), "eval_time": f"{minute}m", "exp_samples": there}


def test_gpus_are_counted_by_state(tmp_path: Path) -> None:
    """A warning is healthy, a failure is not, and every GPU of a node that cannot be scraped is unknown."""
    fleet = [*counted("a", [0, 2, 3, 1], busy=2), *counted("gone", [0, 0, 0, 0], away=3)]
    gpus, fleet_gpus = "instance:gpumon_gpus", "cluster:gpumon_gpus"
    states = {"expected": (4, 4, 8), "up": (3, None, 3), "healthy": (2, None, 2), "unknown": (1, 4, 5)}
    states["failed"] = (1, None, 1)
    states["busy"] = (2, None, 2)
    wanted = [
        each
        for state, (here, gone, total) in states.items()
        for each in (
            value_of(f"{gpus}:{state}", here, "a"),
            value_of(f"{gpus}:{state}", gone, "gone"),
            value_of(f"{fleet_gpus}:{state}:sum", total),
        )
    ]
    wanted += [
        value_of("instance:gpumon_gpu_utilization:ratio_5m", 0.45, "a"),
        value_of("instance:gpumon_gpu_utilization:ratio_5m", None, "gone"),
        value_of("cluster:gpumon_gpu_utilization:ratio_5m", 0.45),
    ]
    check(tmp_path, render(rules()), [group(60, fleet, promql_expr_test=wanted)])


def test_shares_over_days(tmp_path: Path) -> None:
    """The share of healthy GPUs counts those of an absent node as not healthy; fault time is that of node failures."""
    fleet = [*counted("a", [0, 2, 3, 1]), *counted("gone", [3, 3, 3, 3], away=1)]
    target = (("instance", "a"), ("job", "gpumon"))
    fleet.append(Series("gpumon_node_health", target, [3.0] * 11))
    fleet += [
        Series("gpumon_node_health", (("instance", node), ("job", "gpumon")), [level] * 11)
        for node, level in (("ok", 0.0), ("unknown", 1.0), ("warned", 2.0))
    ]
    healthy = value_of("cluster:gpumon_healthy:ratio_1d", 0.25, minute=10)  # 2 of 8 all the time
    fault = value_of("instance:gpumon_fault_seconds:sum_7d", 900.0, "a", minute=10)
    failed = [
        value_of(FAILED, value, node) for node, value in (("a", 1.0), ("ok", 0.0), ("unknown", None), ("warned", 0.0))
    ]
    fleet.append(Series("gpumon_node_health", (("instance", "well"), ("job", "gpumon")), [0.0] * 11))
    fleet.append(Series("gpumon_node_health", (("instance", "down"), ("job", "gpumon")), [3.0] * 2 + [None] * 9))
    none = value_of("instance:gpumon_fault_seconds:sum_7d", 0.0, "well", minute=10)
    kept = value_of("instance:gpumon_fault_seconds:sum_7d", 300.0, "down", minute=10)
    check(tmp_path, render(rules()), [group(60, fleet, promql_expr_test=[healthy, fault, none, kept, *failed])])


def test_a_cluster_that_cannot_be_scraped_has_no_healthy_gpu(tmp_path: Path) -> None:
    """The share over a day counts the hours in which the cluster was dark, and no GPU of it is up, healthy or busy."""
    dark, end = 12 * 2, 23 * 2
    fleet = [
        Series(one.name, one.labels, [one.values[0] if at < dark else None for at in range(end + 1)])
        for one in counted("a", [0, 0, 0, 0])
    ]
    ups = [float(at < dark) for at in range(end + 1)]
    fleet.append(Series("up", (("instance", "a"), ("job", "gpumon")), ups))
    sums = {"expected": 4.0, "unknown": 4.0, "up": 0.0, "healthy": 0.0, "busy": 0.0}
    wanted = [
        *(value_of(f"cluster:gpumon_gpus:{state}:sum", value, minute=30 * end) for state, value in sums.items()),
        value_of("cluster:gpumon_healthy:ratio_1d", dark / (end + 1), minute=30 * end),
    ]
    check(tmp_path, render(rules()), [group(1800, fleet, promql_expr_test=wanted)], step=1800)


def test_a_node_that_is_down_for_days_is_still_expected(tmp_path: Path) -> None:
    """While it is a target of Prometheus its GPUs are unknown; those of a node that is no target end after a day."""
    half_hours = 2 * 30 + 1
    silence: list[float | None] = [None] * (half_hours - 2)
    fleet = [
        Series(name, (("instance", node), ("job", "gpumon")), [value, value, *silence])
        for node in ("down", "removed")
        for name, value in (("gpumon_gpus_expected", 8.0), ("gpumon_maintenance_end_timestamp_seconds", 0.0))
    ]
    fleet.append(Series("up", (("instance", "down"), ("job", "gpumon")), [1.0, 1.0, *[0.0] * (half_hours - 2)]))
    wanted = [
        value_of(f"instance:gpumon_gpus:{state}", value, node, minute=60 * hour)
        for state in ("expected", "unknown")
        for node, hour, value in (("down", 30, 8.0), ("removed", 20, 8.0), ("removed", 30, None))
    ]
    check(tmp_path, render(rules()), [group(1800, fleet, promql_expr_test=wanted)])


def test_a_renamed_node_is_expected_once(tmp_path: Path) -> None:
    """A name that is no target any more ends when its GPU is on another node; one that was only removed is kept."""

    def node(name: str, uuid: str, *, until: int = 11, since: int = 0) -> list[Series]:
        target = (("instance", name), ("job", "gpumon"))
        gpu = (("gpu", "0"), ("uuid", uuid), *target)
        values = {"gpumon_gpus_expected": 8.0, "gpumon_maintenance_end_timestamp_seconds": 0.0, "gpumon_gpu_info": 1.0}
        return [
            Series(
                metric,
                gpu if metric == "gpumon_gpu_info" else target,
                [value if since <= minute < until else None for minute in range(11)],
            )
            for metric, value in values.items()
        ]

    fleet = [*node("old", "GPU-1", until=4), *node("new", "GPU-1", since=4), *node("removed", "GPU-2", until=4)]
    values = {"old": None, "new": 8.0, "removed": 8.0}
    wanted = [value_of("instance:gpumon_gpus:expected", value, name) for name, value in values.items()]
    wanted.append(value_of("cluster:gpumon_gpus:expected:sum", 16.0))
    check(tmp_path, render(rules()), [group(60, fleet, promql_expr_test=wanted)])


def test_many_agents_down_are_one_alert(tmp_path: Path) -> None:
    """Three of ten agents down page at night once, named; two do not, and nodes in maintenance do not count."""
    ups = [Series("up", (("instance", f"n{index}"), ("job", "gpumon")), [float(index > 2)] * 11) for index in range(10)]
    ends = Series(
        "gpumon_maintenance_end_timestamp_seconds", (("instance", "n0"), ("job", "gpumon")), [1e6, *[None] * 10]
    )
    rule = next(rule for rule in rules() if rule.name == "GpumonManyDown")
    texts = {
        "summary": "3 agents cannot be scraped.",
        "description": rule.description.replace("{{ $value }}", "3") + " n0 n1 n2",
        "action": rule.first_step,
        "runbook_url": "https://wiki/GpumonManyDown",
    }
    alert = {"exp_labels": {"job": "gpumon", **rule.labels}, "exp_annotations": texts}

    def expected(*alerts: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"eval_time": "5m", "alertname": rule.name, "exp_alerts": list(alerts)}]

    groups = [
        group(60, ups, alert_rule_test=expected(alert)),
        group(60, [*ups, ends], alert_rule_test=expected()),
        group(60, ups[1:], alert_rule_test=expected()),
    ]
    check(tmp_path, render(rules(), runbooks="https://wiki"), groups)


def test_without_a_web_server_for_runbooks_links_lead_to_an_agent_that_answers(tmp_path: Path) -> None:
    """An agent that is down serves no runbook."""
    ups = [Series("up", (("instance", f"n{index}"), ("job", "gpumon")), [float(index == 1)] * 11) for index in range(2)]
    rule = next(rule for rule in rules() if rule.name == "GpumonDown")
    texts = {
        "summary": "n0: gpumon cannot be scraped.",
        "description": rule.description,
        "action": " ".join(rule.steps.split()),
        "runbook_url": "http://n1/runbooks/GpumonDown",
    }
    alert = {"exp_labels": {"job": "gpumon", "instance": "n0", **rule.labels}, "exp_annotations": texts}
    expected = [{"eval_time": "8m", "alertname": rule.name, "exp_alerts": [alert]}]
    check(tmp_path, render(rules()), [group(60, ups, alert_rule_test=expected)])


def test_ten_agents_down_page_in_a_fleet_of_any_size(tmp_path: Path) -> None:
    """A rack of a large fleet is less than a tenth of it. Each cluster is counted by itself."""
    labels = [
        (("cluster", cluster), ("instance", f"{cluster}{n:03}"), ("job", "gpumon"))
        for cluster in "ab"
        for n in range(200)
    ]
    down = {*(f"a{n:03}" for n in range(10)), *(f"b{n:03}" for n in range(9))}
    ups = [Series("up", each, [float(dict(each)["instance"] not in down)] * 11) for each in labels]
    rule = next(rule for rule in rules() if rule.name == "GpumonManyDown")
    texts = {
        "summary": "a: 10 agents cannot be scraped.",
        "description": rule.description.replace("{{ $value }}", "10") + "".join(f" a{n:03}" for n in range(10)),
        "action": rule.first_step,
        "runbook_url": "https://wiki/GpumonManyDown",
    }
    alert = {"exp_labels": {"job": "gpumon", "cluster": "a", **rule.labels}, "exp_annotations": texts}
    expected = [{"eval_time": "5m", "alertname": rule.name, "exp_alerts": [alert]}]
    check(tmp_path, render(rules(), runbooks="https://wiki"), [group(60, ups, alert_rule_test=expected)])
