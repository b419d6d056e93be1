"""The fleet's recording rules, evaluated by promtool: medians by hardware, and each node's ratio to its median."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from promtool_run import Series, check, group, selector

from gpumon.fleet.alert_rules import render, rules
from gpumon.fleet.recording_rules import FAILED, MEDIAN, RATIO, ratio_at_best_size

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
    alerts = [{"eval_time": "4m", "alertname": "AllReduceBelowFleet", "exp_alerts": [alert]}]
    check(tmp_path, render(rules()), [group(60, FLEET, promql_expr_test=wanted, alert_rule_test=alerts)])


def test_nodes_of_two_clusters_with_one_name_have_each_their_ratio(tmp_path: Path) -> None:
    """Four nodes of two clusters have one median, and the alert of a slow one has the labels of its cluster."""
    fleet = [
        each
        for number, (cluster, rate) in enumerate((("a", 400e9), ("b", 200e9), ("a", 400e9), ("b", 400e9)))
        for each in node(f"n{number // 2}", {GIB: rate}, cluster=cluster)
    ]
    slow = {(("bytes", str(GIB)), ("cluster", "b"), ("instance", "n0"), JOB_LABEL): 0.5}
    exact = {"expr": ratio_at_best_size(condition=" < 0.85"), "eval_time": "2m", "exp_samples": [*samples(RATIO, slow)]}
    check(tmp_path, render(rules()), [group(60, fleet, promql_expr_test=[exact])])


def test_three_nodes_have_no_median(tmp_path: Path) -> None:
    few = [each for each in FLEET if dict(each.labels)["instance"] in {"a", "b", "low"}]
    wanted = [{"expr": f"{MEDIAN} or {RATIO}", "eval_time": "2m", "exp_samples": []}]
    check(tmp_path, render(rules()), [group(60, few, promql_expr_test=wanted)])


def node_series(instance: str, healths: list[float], away: int | None = None, busy: int = 0) -> list[Series]:
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
    fleet = [*node_series("a", [0, 2, 3, 1], busy=2), *node_series("gone", [0, 0, 0, 0], away=3)]
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
    fleet = [*node_series("a", [0, 2, 3, 1]), *node_series("gone", [3, 3, 3, 3], away=1)]
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
        Series(each.name, each.labels, [each.values[0] if at < dark else None for at in range(end + 1)])
        for each in node_series("a", [0, 0, 0, 0])
    ]
    ups = [float(at < dark) for at in range(end + 1)]
    fleet.append(Series("up", (("instance", "a"), ("job", "gpumon")), ups))
    sums = {"expected": 4.0, "unknown": 4.0, "up": 0.0, "healthy": 0.0, "busy": 0.0}
    wanted = [
        *(value_of(f"cluster:gpumon_gpus:{state}:sum", value, minute=30 * end) for state, value in sums.items()),
        {
            "expr": "round(cluster:gpumon_healthy:ratio_1d, 0.1)",
            "eval_time": f"{30 * end}m",
            "exp_samples": [{"labels": '{job="gpumon"}', "value": 0.5}],
        },
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


MANY_DOWN = next(rule for rule in rules() if rule.name == "GpumonManyDown")


def agents(down: Mapping[str, tuple[int, int]], up: Iterable[str], minutes: int = 40, **labels: str) -> list[Series]:
    """Return the series of agents. `down`: the minutes in which some cannot be scraped. `up`: the others."""
    series = []
    for instance in (*down, *up):
        begin, end = down.get(instance, (minutes, minutes))
        target = tuple(sorted({"instance": instance, "job": "gpumon", **labels}.items()))
        answers = [not begin <= minute < end for minute in range(minutes)]
        series.append(Series("up", target, [float(answer) for answer in answers]))
        series.append(
            Series("gpumon_maintenance_end_timestamp_seconds", target, [0.0 if answer else None for answer in answers])
        )
    return series


def outage(minute: int, *instances: str, since: int = 1, **labels: str) -> dict[str, Any]:
    """Return what promtool expects of GpumonManyDown for an outage of these nodes. `since`: its hour plus number."""
    alert = {
        "exp_labels": {"job": "gpumon", "since": str(since), **labels, **MANY_DOWN.labels},
        "exp_annotations": {
            "summary": f"Many agents cannot be scraped, such as {min(instances, default='')}.",
            "description": MANY_DOWN.description.replace("{{ $value }}", str(len(instances)))
            + "".join(f" {instance}" for instance in instances[:20])
            + (" and more" if len(instances) > 20 else ""),
            "action": MANY_DOWN.first_step,
            "runbook_url": "https://wiki/GpumonManyDown",
        },
    }
    return {"eval_time": f"{minute}m", "alertname": MANY_DOWN.name, "exp_alerts": [alert] if instances else []}


def single(minute: int, *instances: str) -> dict[str, Any]:
    """Return what promtool expects of GpumonDown in a minute."""
    rule = next(rule for rule in rules() if rule.name == "GpumonDown")
    labels = {"alertname": rule.name, "alertstate": "firing", "job": "gpumon", **rule.labels}
    firing = [selector("ALERTS", tuple({**labels, "instance": instance}.items())) for instance in instances]
    samples = [{"labels": labels, "value": 1} for labels in firing]
    asked = 'ALERTS{alertname="GpumonDown",alertstate="firing"}'
    return {"expr": asked, "eval_time": f"{minute}m", "exp_samples": samples}


def test_many_agents_down_are_one_alert(tmp_path: Path) -> None:
    """Three of ten agents down page at night once, named; two do not, and nodes in maintenance do not count."""
    names = [f"n{index}" for index in range(10)]
    ups = agents(dict.fromkeys(names[:3], (1, 40)), names[3:])
    muted = [
        Series(each.name, each.labels, [1e6, *[None] * 39])
        if "maintenance" in each.name and dict(each.labels)["instance"] == "n0"
        else each
        for each in ups
    ]
    fewer = [each for each in ups if dict(each.labels)["instance"] != "n0"]
    groups = [
        group(60, ups, alert_rule_test=[outage(5), outage(8, "n0", "n1", "n2")]),
        group(60, muted, alert_rule_test=[outage(8)]),
        group(60, fewer, alert_rule_test=[outage(8)]),
    ]
    check(tmp_path, render(rules(), runbooks="https://wiki"), groups)


def test_an_outage_of_many_agents_names_twenty_and_that_there_are_more(tmp_path: Path) -> None:
    """A text of limited length gives their number."""
    names = [f"n{index:02}" for index in range(24)]
    checked = group(60, agents(dict.fromkeys(names, (1, 40)), ["other"]), alert_rule_test=[outage(8, *names)])
    check(tmp_path, render(rules(), runbooks="https://wiki"), [checked])


def test_an_outage_hides_only_the_agents_that_went_down_with_it(tmp_path: Path) -> None:
    """What failed minutes later, or long ago, has its own alert, and a second outage pages again."""
    names = [f"n{index:02}" for index in range(20)]
    first, second = dict.fromkeys(names[:3], (5, 30)), dict.fromkeys(names[3:6], (15, 25))
    fleet = agents({**first, **second, "n06": (5, 40), "n07": (11, 40), "n08": (0, 40)}, names[9:])
    old = [one for one in fleet if dict(one.labels)["instance"] != "n08" or one.name == "up"]  # n08 never answered
    one, two = sorted((*first, "n06")), sorted((*second, "n07"))
    both, end = outage(22, *one, since=1), outage(38, "n06", since=1)
    both["exp_alerts"] += outage(22, *two, since=2)["exp_alerts"]
    end["exp_alerts"] += outage(38, "n07", since=2)["exp_alerts"]
    alerts = [outage(8), outage(12, *one), both, end]
    singles = [single(12, "n08"), single(19, "n07", "n08"), single(24, "n07", "n08"), single(39, "n07", "n08")]
    checked = group(60, old, alert_rule_test=alerts, promql_expr_test=singles)
    check(tmp_path, render(rules(), runbooks="https://wiki"), [checked])


def test_agents_that_fail_one_by_one_are_an_outage_that_resolves_none(tmp_path: Path) -> None:
    """The third within an hour pages; the first two, which were announced by name, keep their alerts."""
    fleet = agents({"n0": (1, 40), "n1": (12, 40), "n2": (25, 40)}, [f"n{index}" for index in range(3, 9)])
    alerts = [outage(28), outage(35, "n0", "n1", "n2")]
    singles = [single(20, "n0", "n1"), single(39, "n0", "n1")]
    checked = group(60, fleet, alert_rule_test=alerts, promql_expr_test=singles)
    check(tmp_path, render(rules(), runbooks="https://wiki"), [checked])


def test_agents_of_an_outage_that_stay_away_have_an_alert_each_after_a_day(tmp_path: Path) -> None:
    """The night page of an outage does not repeat for ever: single alerts, which page by day, replace it."""
    fleet = agents(dict.fromkeys(("n0", "n1", "n2"), (1, 30 * 60)), [f"n{index}" for index in range(3, 9)], 30 * 60)
    alerts = [outage(23 * 60, "n0", "n1", "n2"), outage(25 * 60)]
    singles = [single(23 * 60), single(25 * 60, "n0", "n1", "n2")]
    checked = group(60, fleet, alert_rule_test=alerts, promql_expr_test=singles)
    check(tmp_path, render(rules(), runbooks="https://wiki"), [checked])


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
    fleet = [
        each
        for cluster, count in (("a", 10), ("b", 9))
        for each in agents(
            {f"{cluster}{n:03}": (1, 10) for n in range(count)},
            [f"{cluster}{n:03}" for n in range(count, 200)],
            10,
            cluster=cluster,
        )
    ]
    expected = [outage(8, *(f"a{n:03}" for n in range(10)), cluster="a")]
    check(tmp_path, render(rules(), runbooks="https://wiki"), [group(60, fleet, alert_rule_test=expected)])


def test_a_reboot_of_some_nodes_does_not_page(tmp_path: Path) -> None:
    """Nodes that are away for less than the time of GpumonManyDown and GpumonDown are announced by neither."""
    fleet = agents(dict.fromkeys(("n0", "n1", "n2"), (5, 9)), [f"n{index}" for index in range(3, 10)])
    quiet = [each for minute in range(5, 13) for each in (outage(minute), outage(minute + 10))]
    checked = group(60, fleet, alert_rule_test=quiet, promql_expr_test=[single(9), single(20)])
    check(tmp_path, render(rules(), runbooks="https://wiki"), [checked])


def test_an_agent_that_dies_again_after_an_outage_has_its_own_alert(tmp_path: Path) -> None:
    """The outage, which is over, does not hide the later death."""
    names = [f"n{index:02}" for index in range(20)]
    fleet = agents(dict.fromkeys(names[:3], (5, 15)), names[3:])
    again = [
        Series(each.name, each.labels, [*each.values[:25], *([0.0 if each.name == "up" else None] * 15)])
        if dict(each.labels)["instance"] == "n00"
        else each
        for each in fleet
    ]
    alerts = [outage(12, "n00", "n01", "n02"), outage(20), outage(35)]
    checked = group(60, again, alert_rule_test=alerts, promql_expr_test=[single(24), single(35, "n00")])
    check(tmp_path, render(rules(), runbooks="https://wiki"), [checked])


def test_an_outage_does_not_hide_a_node_of_that_name_in_another_cluster(tmp_path: Path) -> None:
    """Three of ten agents of one cluster are down, and one agent of another cluster, which has a name of these."""
    names = [f"n{index}" for index in range(10)]
    fleet = agents(dict.fromkeys(names[:3], (5, 40)), names[3:], cluster="a")
    fleet += agents({"n0": (5, 40)}, names[1:], cluster="b")
    alone = single(20, "n0")
    alone["exp_samples"][0]["labels"] = alone["exp_samples"][0]["labels"].replace("}", ',cluster="b"}')
    expected = [outage(20, "n0", "n1", "n2", cluster="a")]
    checked = group(60, fleet, alert_rule_test=expected, promql_expr_test=[alone])
    check(tmp_path, render(rules(), runbooks="https://wiki"), [checked])


def test_no_check_of_an_agent_that_is_down_is_announced_as_unknown(tmp_path: Path) -> None:
    """A check was unknown for some minutes when the agents went down, and the last verdicts are kept."""
    down, alone = ("n0", "n1", "n2"), "n3"
    fleet = agents(dict.fromkeys((*down, alone), (8, 40)), [f"n{index}" for index in range(4, 10)])
    for instance in (*down, alone, "n9"):
        labels = (("check", "gpu_denied"), ("gpu", "3"), ("uuid", "GPU-x"), ("instance", instance), ("job", "gpumon"))
        end = 40 if instance == "n9" else 8
        fleet.append(Series("gpumon_health_check", labels, [None] * 4 + [1.0] * (end - 4) + [None] * (40 - end)))
    firing = {"expr": 'count by (instance) (ALERTS{alertname="GpumonCheckUnknown",alertstate="firing"})'}
    announced = [{"labels": '{instance="n9"}', "value": 1}]
    expected = [firing | {"eval_time": f"{minute}m", "exp_samples": announced} for minute in (14, 18, 25, 39)]
    check(tmp_path, render(rules(), runbooks="https://wiki"), [group(60, fleet, promql_expr_test=expected)])


def ports_down(since: Mapping[str, int], minutes: int = 30) -> list[Series]:
    """Return the series of nodes whose port went down in these minutes."""
    series = []
    for instance, begin in since.items():
        target = (("cluster", "a"), ("instance", instance), ("job", "gpumon"))
        labels = (("check", "ib_port_down"), ("device", "mlx5_3"), ("port", "1"), *target)
        down: list[float | None] = [3.0 if minute >= begin else None for minute in range(minutes)]
        series.append(Series("gpumon_health_check", labels, down))
        series.append(Series("gpumon_maintenance_end_timestamp_seconds", target, [0.0] * minutes))
    return series


def ports_out(minute: int, since: Mapping[str, int]) -> dict[str, Any]:
    """Return what promtool expects of IbManyPortsDown. `since`: the label of each node: the hour plus the number."""
    rule = next(rule for rule in rules() if rule.name == "IbManyPortsDown")
    device = {"check": "ib_port_down", "device": "mlx5_3", "port": "1"}
    alerts = [
        {
            "exp_labels": {**device, "cluster": "a", "job": "gpumon", "instance": instance, **rule.labels}
            | {"since": str(label)},
            "exp_annotations": {
                "summary": f"{instance}: mlx5_3/1 went down at the time at which ports of other nodes did.",
                "description": rule.description,
                "action": rule.first_step,
                "runbook_url": "https://wiki/IbManyPortsDown",
            },
        }
        for instance, label in since.items()
    ]
    return {"eval_time": f"{minute}m", "alertname": rule.name, "exp_alerts": alerts}


def test_ports_of_many_nodes_that_go_down_together_are_an_outage(tmp_path: Path) -> None:
    """A dead leaf switch has an alert of its own, which ports that were down before or go down later do not have."""
    first, second = {"n0": 5, "n1": 5, "n2": 6, "n3": 7}, {"n5": 20, "n6": 20, "n7": 20}
    fleet = ports_down({**first, **second, "old": 1, "later": 12})
    members = dict.fromkeys(first, 1)
    expected = [ports_out(5, {}), ports_out(15, members), ports_out(25, {**members, **dict.fromkeys(second, 2)})]
    two = [ports_out(9, {})]
    groups = [
        group(60, fleet, alert_rule_test=expected),
        group(60, ports_down({"n0": 5, "n1": 5}), alert_rule_test=two),
    ]
    check(tmp_path, render(rules(), runbooks="https://wiki"), groups)


def test_power_brakes_of_three_nodes_are_one_alert(tmp_path: Path) -> None:
    """Two nodes, or a third one in maintenance or with a warning, are none, and so are three of a large fleet.

    Three nodes of one rack are an alert also in a large fleet. The alert names each node once.
    """

    def brakes(
        nodes: Mapping[str, float], muted: str = "", others: int = 0, racks: Mapping[str, str] = MappingProxyType({})
    ) -> list[Series]:
        fleet = (*nodes, *(f"other{number}" for number in range(others)))
        target = {
            name: (("cluster", "a"), ("instance", name), ("job", "gpumon"), ("rack", racks.get(name, "")))
            for name in fleet
        }
        ends = {name: 1e9 if name == muted else 0.0 for name in nodes}
        return [
            *(Series("up", target[name], [1.0] * 9) for name in fleet),
            *(
                Series("gpumon_health_check", (("check", "gpu_power_brake"), *target[name], ("uuid", gpu)), [level] * 9)
                for name, level in nodes.items()
                for gpu in (f"{name}-0", f"{name}-1")
            ),
            *(
                Series("gpumon_maintenance_end_timestamp_seconds", target[name], [end] * 9)
                for name, end in ends.items()
            ),
        ]

    rule = next(rule for rule in rules() if rule.name == "GpuManyPowerBrakes")
    alert = {
        "exp_labels": {"cluster": "a", "job": "gpumon", **rule.labels},
        "exp_annotations": {
            "summary": "The power brake slows down GPUs of many nodes, such as n0.",
            "description": rule.description.replace("{{ $value }}", "3") + " n0 n1 n2",
            "action": rule.first_step,
            "runbook_url": "https://wiki/GpuManyPowerBrakes",
        },
    }
    one = {"eval_time": "5m", "alertname": rule.name, "exp_alerts": [alert]}
    failed = dict.fromkeys(("n0", "n1", "n2"), 3.0)
    none = one | {"exp_alerts": []}
    groups = [
        group(60, brakes(failed), alert_rule_test=[one]),
        group(60, brakes(failed, muted="n2"), alert_rule_test=[none]),
        group(60, brakes({**failed, "n2": 2.0}), alert_rule_test=[none]),
        group(60, brakes(failed, others=27), alert_rule_test=[none]),
        group(60, brakes(failed, others=27, racks=dict.fromkeys(failed, "r1")), alert_rule_test=[one]),
        group(60, brakes(failed, others=27, racks=dict.fromkeys(list(failed)[1:], "r1")), alert_rule_test=[none]),
    ]
    check(tmp_path, render(rules(), runbooks="https://wiki"), groups)


def test_two_prometheus_servers_send_the_same_labels_for_one_outage(tmp_path: Path) -> None:
    """The servers evaluate the rules at different seconds. Here the second one sees the outage a minute later."""
    servers = [group(60, ports_down(dict.fromkeys(("n0", "n1", "n2"), begin))) for begin in (5, 6)]
    servers = [each | {"alert_rule_test": [ports_out(12, {"n0": 1, "n1": 1, "n2": 1})]} for each in servers]
    check(tmp_path, render(rules(), runbooks="https://wiki"), servers)


def test_outages_of_one_hour_differ_also_if_the_first_is_over(tmp_path: Path) -> None:
    """A silence for the first, or a notification that it is over, does not hide the second, nor one an hour later."""
    fleet = agents(dict.fromkeys(("n0", "n1", "n2"), (5, 15)), [f"n{index}" for index in range(3, 10)], 150)
    down = {*range(5, 15), *range(20, 30), *range(100, 120)}
    again = [
        Series(
            each.name,
            each.labels,
            [(0.0 if each.name == "up" else None) if at in down else float(each.name == "up") for at in range(150)],
        )
        if dict(each.labels)["instance"] in {"n0", "n1", "n2"}
        else each
        for each in fleet
    ]
    nodes = ("n0", "n1", "n2")
    alerts = [outage(12, *nodes, since=1), outage(18), outage(27, *nodes, since=2), outage(110, *nodes, since=3601)]
    check(tmp_path, render(rules(), runbooks="https://wiki"), [group(60, again, alert_rule_test=alerts)])


def test_ports_of_nodes_in_maintenance_are_no_outage(tmp_path: Path) -> None:
    """Two ports are down and a third one, which is muted."""
    ports = [
        Series(each.name, each.labels, [1e6] * len(each.values))
        if "maintenance" in each.name and dict(each.labels)["instance"] == "n2"
        else each
        for each in ports_down(dict.fromkeys(("n0", "n1", "n2"), 5))
    ]
    check(tmp_path, render(rules(), runbooks="https://wiki"), [group(60, ports, alert_rule_test=[ports_out(8, {})])])


def test_ports_that_were_down_before_are_no_outage_for_a_new_prometheus(tmp_path: Path) -> None:
    """Also not those of nodes that return after more than a day. Those of nodes that were away for an hour are one."""
    new = ports_down(dict.fromkeys(("n0", "n1", "n2"), 0))
    back = 24 * 60 + 30

    def away(begin: int) -> list[Series]:
        return [
            Series(each.name, each.labels, [*each.values[:5], *[None] * (begin - 5), *each.values[begin:]])
            for each in ports_down(dict.fromkeys(("n0", "n1", "n2"), 90 if begin == 90 else 1), begin + 10)
        ]

    groups = [
        group(60, new, alert_rule_test=[ports_out(minute, {}) for minute in (0, 1, 2, 3, 10)]),
        group(60, away(back), alert_rule_test=[ports_out(back + minute, {}) for minute in (0, 1, 2, 5)]),
        group(60, away(90), alert_rule_test=[ports_out(92, dict.fromkeys(("n0", "n1", "n2"), 3601))]),
    ]
    check(tmp_path, render(rules(), runbooks="https://wiki"), groups)
