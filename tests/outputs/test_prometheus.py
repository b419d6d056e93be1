"""/metrics: golden pages, also of faults and of probes, and what every page guarantees."""

from __future__ import annotations

import gzip
import math
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import example_node as example
import pytest
import yaml
from changed_report import new_report
from each_case import each_case
from gpumon_sim.faults.keys import KEYS
from gpumon_sim.faults.row import FULL
from gpumon_sim.profiles import PROFILES
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from gpumon.model.gpu import Gpu
from gpumon.model.gpu_state import GpuState
from gpumon.model.reading import Page, count_series, metric_type
from gpumon.model.reading import samples as samples_of
from gpumon.outputs.metric_catalogue import catalogue
from gpumon.outputs.prometheus import Renderer, daemon_process
from gpumon.probe.core.probe_metrics import INITIAL
from gpumon.probe.core.result import OUTCOMES, ProbeCounters, ProbeResult
from gpumon.probe.core.state import ProbeState, end_run, restore
from gpumon.state.gpu_view import ViewInputs, readings
from gpumon.state.report import Report
from gpumon.state.sections import samples, series_count, tables
from scripts.simulated_reports import report_of

GOLDEN = Path(__file__).parents[1] / "golden"
Families = defaultdict[str, dict[frozenset[tuple[str, str]], float]]
SPARSE = {entry.name for entry in catalogue() if not entry.zeros}
"""Metrics without series for zeros."""
BUDGET = 850
BUDGETS = {"b200x8": 1200, "gb200x4": 1200, "h100migx8": 900}
"""Maximum number of series on /metrics where it is not BUDGET."""
RESERVE = 50
"""Series of a budget for verdicts, results of the probe and metrics of the running agent."""


def render_pages(report: Report) -> dict[Page, str]:
    return {page: Renderer(lambda: report, page).render(report) for page in Page}


def series_of(page: str) -> int:
    return sum(not line.startswith("#") for line in page.splitlines())


@each_case("profile", sorted(PROFILES.keys() - {"h100x1", "h100x16"}))
def test_the_pages_of_a_healthy_node_are_the_golden_ones(profile: str) -> None:
    """Compare bytes; UPDATE_GOLDEN=1 rewrites the file, whose diff is reviewed."""
    page = "".join(render_pages(report_of(profile)).values())
    golden = GOLDEN / f"{profile}.metrics"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(page, encoding="utf-8")

    assert page == golden.read_text(encoding="utf-8")


def test_the_client_library_reads_every_family() -> None:
    """Names, types, help, labels and values agree with the Report."""
    report = report_of("h100x8")
    page = "".join(render_pages(replace(report, detailed=True)).values())
    expected: Families = defaultdict(dict)
    for sample in samples(replace(report, detailed=True)):
        if sample.value or sample.name not in SPARSE:
            expected[sample.name][frozenset(sample.labels)] = sample.value

    parsed: Families = defaultdict(dict)
    for family in text_string_to_metric_families(page):
        for each in family.samples:
            parsed[each.name][frozenset(each.labels.items())] = each.value
            assert metric_type(each.name) == family.type
            assert family.documentation

    assert expected == parsed


def test_promtool_accepts_the_page() -> None:
    """`promtool check metrics` lints names, units and help texts."""
    page = "".join(render_pages(report_of("h100x8")).values())
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=page.encode(), capture_output=True, check=False, timeout=30
    )

    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


@given(st.text(), st.text())
def test_any_label_value_survives_a_round_trip(name: str, serial: str) -> None:
    """Quotes, backslashes, newlines and other characters are escaped."""
    name, serial = name.replace("\r", ""), serial.replace("\r", "")
    report = new_report(gpus=(GpuState(bus_id="", uuid="GPU-0", index=0, gpu=Gpu(name=name, serial=serial)),))
    page = Renderer(lambda: report).render(report)

    infos = [
        s for family in text_string_to_metric_families(page) for s in family.samples if s.name == "gpumon_gpu_info"
    ]
    assert [(info.labels["name"], info.labels["serial"]) for info in infos] == (
        [(name, serial)] if name or serial else []
    )


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_any_number_survives_a_round_trip(value: float) -> None:
    """All digits, infinities and NaN are preserved."""
    report = new_report(gpus=(GpuState(bus_id="", uuid="u", index=0, gpu=Gpu(temperature_celsius=value)),))
    page = Renderer(lambda: report).render(report)
    (family,) = (f for f in text_string_to_metric_families(page) if f.name == "gpumon_gpu_temperature_celsius")

    assert family.samples[0].value == value or math.isnan(value)


def test_page_is_rendered_once_per_report() -> None:
    """Two scrapes of one Report get the same bytes, also compressed; a new Report gives a new page."""
    current = report_of("t4x1")
    renderer = Renderer(lambda: current)
    first = renderer.exposition()

    assert renderer.exposition() is first
    assert gzip.decompress(first.gzipped) == first.raw
    current = replace(current, started=1.0)
    assert renderer.exposition() is not first


def test_a_faulted_gpu_shows_identity_and_fault_and_no_reading() -> None:
    """Series that never disappear stay; all others are absent, not 0."""
    known = GpuState(bus_id="b", uuid="GPU-0", index=0, identity={"name": "NVIDIA H100"})
    gpu = readings(known, ViewInputs(xids={"79": (1.0, 5.0)}, fault="lost"))
    report = new_report(gpus=(GpuState(bus_id="b", uuid="GPU-0", index=0, gpu=gpu, fault="lost"),))
    names = {sample.name for sample in samples(report) if sample.name.startswith("gpumon_gpu_")}

    assert names == {
        f"gpumon_gpu_{name}"
        for name in (
            *("info", "up", "fault", "released"),
            *("observed_seconds_total", "xid_errors_total", "xid_critical_errors_total", "xid_last_timestamp_seconds"),
        )
    }


def test_details_are_exported_only_if_configured() -> None:
    """Detailed rows and label values need metrics.detailed; otherwise they do not count as series either."""
    clocks = {"graphics": 1.98e9, "sm": 1.98e9, "memory": 2.6e9}
    gpu = GpuState(bus_id="", uuid="u", index=0, gpu=Gpu(bar1_used_bytes=1.0, clock_hertz=clocks))
    plain = new_report(gpus=(gpu,))
    detailed = replace(plain, detailed=True)
    pages = [Renderer(lambda: plain).render(report) for report in (plain, detailed)]

    assert [page.count("bar1_used_bytes{") for page in pages] == [0, 1]
    assert [page.count("clock_hertz{") for page in pages] == [2, 3]
    assert series_count(detailed) == series_count(plain) + 2


def test_caches_do_not_grow() -> None:
    """After many processes and MIG instances the caches are as small as the page."""
    renderer = Renderer(lambda: Report(started=0.0))
    for number in range(200):
        gpu = Gpu(process_memory_bytes={f"{number}{each},python": 1.0 for each in range(8)})
        state = GpuState(bus_id="", uuid=f"u{number // 100}", index=0, gpu=gpu)
        page = renderer.render(new_report(gpus=(state,)))

        assert page.count("process_memory_bytes{") == 8
    remembered = [len(known) for rows in renderer._prefixes.values() for known in rows.values()]
    assert sum(remembered) < 200


@each_case("profile", sorted(PROFILES.keys() - {"h100x16"}))
def test_series_stay_within_the_budget(profile: str) -> None:
    """At most 110 series per GPU on /metrics besides those of MIG instances."""
    report = report_of(profile)
    for state in report.gpus:
        own = [table for table, labels in tables(report) if labels == state.labels]
        assert sum(count_series(table, Page.METRICS, detailed=False) for table in own) <= 110


@each_case("profile", sorted(PROFILES.keys() - {"h100x16"}))
def test_metrics_stay_within_the_series_budget(profile: str) -> None:
    """A healthy node has fewer series on /metrics than its budget, and the agent reports their number."""
    report = report_of(profile)
    series = series_of(render_pages(report)[Page.METRICS])
    assert series + RESERVE <= BUDGETS.get(profile, BUDGET)
    assert series == series_count(report)


def test_each_link_is_on_its_page_and_its_sum_on_metrics() -> None:
    """Sums and counts per GPU on /metrics, each link on /metrics/links even without detailed metrics."""
    report = report_of("b200x8")
    pages = render_pages(report)
    assert [page.count('link="') for page in pages.values()] == [0, len(samples_of_links(report))]
    assert pages[Page.METRICS].count("gpumon_gpu_nvlinks_expected{") == 8
    errors = [sum((link.errors_total or {}).values()) for state in report.gpus for link in state.links.values()]
    assert sum(errors) == sum(sum((state.gpu.nvlink_errors_total or {}).values()) for state in report.gpus)


def samples_of_links(report: Report) -> list[object]:
    links = ((table, labels) for table, labels in tables(report) if "link" in dict(labels))
    return [sample for table, labels in links for sample in samples_of(table, labels)]


def test_an_xid_that_did_not_occur_has_no_series() -> None:
    """The sum over the critical codes is 0 from the start, and each code has a series from its first error."""
    known = GpuState(bus_id="b", uuid="GPU-0", index=0)
    gpu = readings(known, ViewInputs(xids={"48": (2.0, 5.0), "13": (1.0, 5.0)}))
    page = render_pages(new_report(gpus=(GpuState(bus_id="b", uuid="GPU-0", index=0, gpu=gpu),)))[Page.METRICS]
    shown = [line for line in page.splitlines() if line.startswith("gpumon_gpu_xid_") and "timestamp" not in line]
    assert [line.split("GPU-0")[1] for line in shown] == ['",xid="48"} 2', '",xid="13"} 1', '"} 2']


def test_importing_the_renderer_loads_no_driver_and_no_server() -> None:
    """The renderer needs neither pynvml nor torch nor fastapi."""
    question = "import sys, gpumon.outputs.prometheus; print({'pynvml', 'torch', 'fastapi'} & set(sys.modules))"
    answer = subprocess.run([sys.executable, "-c", question], capture_output=True, check=True, timeout=60)

    assert answer.stdout == b"set()\n"


def test_page_has_the_usual_families_of_a_python_process() -> None:
    """Their names are those of prometheus_client, and the page of /metrics ends with them."""
    families = list(text_string_to_metric_families(daemon_process().decode()))

    assert {family.name.split("_")[0] for family in families} == {"process", "python"}
    assert {"process_cpu_seconds", "process_resident_memory_bytes", "process_open_fds", "python_info"} <= {
        family.name for family in families
    }
    report = report_of("t4x1")
    page = Renderer(lambda: report, Page.METRICS, daemon_process).exposition()
    assert page.raw.startswith(Renderer(lambda: report).exposition().raw)
    assert b"\nprocess_open_fds " in gzip.decompress(page.gzipped)


FAULT_PAGES = Path(__file__).parents[1] / "golden" / "faults"

CASES = [
    (key.key, profile)
    for key in KEYS.values()
    if "page" not in key.without
    for profile in dict.fromkeys(fault.profile for fault in key.faults)
]


@cache
def page_of(profile: str, scenario: Path | None = None) -> tuple[str, ...]:
    report = report_of(profile, scenario)
    return tuple("".join(Renderer(lambda: report, page).render(report) for page in Page).splitlines())


def changes(before: tuple[str, ...], after: tuple[str, ...]) -> str:
    """Lines that went, then lines that came, each in the order of its page."""
    gone, come = set(before) - set(after), set(after) - set(before)
    lines = [f"-{line}" for line in before if line in gone] + [f"+{line}" for line in after if line in come]
    return "\n".join(lines) + "\n" if lines else ""


def golden_of(key: str, profile: str) -> Path:
    return FAULT_PAGES / (f"{key}.diff" if profile == FULL else f"{key}.{profile}.diff")


@pytest.mark.parametrize(("key", "profile"), CASES)
def test_each_fault_changes_the_documented_lines(key: str, profile: str, tmp_path: Path) -> None:
    """Compare line by line; UPDATE_GOLDEN=1 rewrites the file, whose diff is reviewed."""
    scenario, golden = tmp_path / "scenario.yml", golden_of(key, profile)
    scenario.write_text(yaml.safe_dump(KEYS[key].page(profile)), encoding="utf-8")
    changed = changes(page_of(profile), page_of(profile, scenario))
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(changed, encoding="utf-8")

    assert changed == golden.read_text(encoding="utf-8")


def test_each_golden_page_is_of_a_fault() -> None:
    """No page remains of a fault that was removed."""
    assert set(FAULT_PAGES.iterdir()) == {golden_of(*case) for case in CASES}


PROBE_PAGE = Path(__file__).parents[1] / "golden" / "probe.metrics"
GOOD = example.run(5)
NOTHING = replace(GOOD, measurements=(), comparisons=(), wrong_elements=None)
RUNS = (
    GOOD,
    replace(example.run(4, peak=400e9), outcome="degraded", reason="baseline"),
    replace(example.run(3), outcome="wrong", wrong_elements=3),
    replace(NOTHING, id="late", started=example.run(2).started, outcome="timeout", reason="join"),
    replace(NOTHING, id="bad", started=example.run(1).started, outcome="failed", reason="setup", duration_seconds=2.5),
    replace(NOTHING, id="skip", started=example.run(0).started, outcome="skipped", reason="held", ranks=0),
)


def after(runs: Sequence[ProbeResult]) -> ProbeState:
    state = ProbeState(metrics=INITIAL)
    for run in runs:
        state = end_run(state, run)
    return state


def probe_page(state: ProbeState, *, restored: bool = True) -> str:
    report = new_report(probe=state, restored=restored)
    lines = Renderer(lambda: report).render(report).splitlines(keepends=True)
    return "".join(line for line in lines if "gpumon_probe_" in line)


def test_the_metrics_of_the_probe_are_the_golden_ones() -> None:
    """Compare bytes after a run of each outcome; UPDATE_GOLDEN=1 rewrites the file, whose diff is reviewed."""
    assert {run.outcome for run in RUNS} == set(OUTCOMES)
    shown = probe_page(after(RUNS))
    if os.environ.get("UPDATE_GOLDEN"):
        PROBE_PAGE.write_text(shown, encoding="utf-8")

    assert shown == PROBE_PAGE.read_text(encoding="utf-8")


def test_a_restart_changes_no_metric_of_the_probe() -> None:
    """Results and counters from the store give the same page."""
    before = after(RUNS)
    metrics = before.metrics["allreduce"]
    outcomes, reasons = (
        {name: int(n) for name, n in (t or {}).items()} for t in (metrics.runs_total, metrics.skips_total)
    )
    stored = {"allreduce": ProbeCounters(outcomes=outcomes, reasons=reasons)}
    state = restore(ProbeState(metrics=INITIAL), RUNS, stored)
    assert probe_page(state) == probe_page(before)


def test_no_counter_is_exported_before_the_store_was_read() -> None:
    """Else it would fall to 0 at each restart of the agent, which Prometheus counts as a reset."""
    assert "_total{" not in probe_page(after(()), restored=False)
    assert "_total{" in probe_page(after(()))
