"""The page as HTML: everything escaped, absent is n/a, the first thing is what is wrong."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import example_node as example
import example_parts
import pytest
import sample_reports as samples
from changed_report import changed
from sample_reports import gpu_document, run_document
from serving import ServedNode, ask, is_problem

from gpumon.health.verdict import Level
from gpumon.model.error_event import KINDS, SXID, XID
from gpumon.model.gpu import Gpu
from gpumon.model.gpu_state import GpuState
from gpumon.model.nvlink import Nvlink
from gpumon.outputs.node_text import gpu_warnings
from gpumon.probe.core.probes import PROBES
from gpumon.probe.core.result import Location, Pair
from gpumon.probe.core.state import ProbeState, end_run
from gpumon.server.page import with_code
from gpumon.server.page_overview import EVENT_KINDS, event_code, facts, tiles
from gpumon.server.page_plot import LABEL_DISTANCE, plot
from gpumon.state.report import Report

EVIL = """"><script>alert(1)</script><img src=x onerror='alert(2)'>`<marquee>`&"""


class Elements(HTMLParser):
    """Collects elements and their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))


def page(node: ServedNode, port: int, report: Report, path: str = "/") -> str:
    node.report = report
    return ask(port, path).body.decode()


def words(html: str) -> str:
    """What is read, without markup."""
    return " ".join(re.sub(r"<[^>]*>", " ", html).split())


def test_excluded_gpu_is_shown(node: ServedNode, port: int) -> None:
    """The tile counts the monitored GPUs, and the table names the excluded one."""
    shown = words(page(node, port, samples.excluding(3)))
    assert "GPUs up 7 of 7 all respond, 1 excluded" in shown
    assert f"GPU at {example_parts.bus_id(3)}: excluded by the configuration." in shown
    none_left = changed(
        samples.excluding(0), gpus=(), excluded=tuple(example_parts.bus_id(index) for index in range(8))
    )
    assert "GPUs up none no GPU is expected, 8 excluded" in words(page(node, port, none_left))


def test_text_from_outside_is_escaped(node: ServedNode, port: int) -> None:
    """No text of a driver, an alert, a probe or a notice becomes markup."""
    report = samples.troubled_node()
    gpus = tuple(
        replace(gpu, uuid=EVIL, detail=EVIL if gpu.fault else "", gpu=replace(gpu.gpu, name=EVIL))
        for gpu in report.gpus
    )
    verdicts = {
        (check, EVIL): each._replace(device=EVIL, reason=EVIL, evidence={"xid": 79.0, "name": EVIL})
        for (check, _), each in report.health.open.items()
    }
    last = replace(example.run(), outcome="failed", reason=EVIL, hint=EVIL, backend=EVIL)
    evil = changed(
        report,
        simulated=EVIL,
        gpus=gpus,
        health=replace(report.health, open=verdicts),
        driver=replace(report.driver, driver=EVIL, cuda=EVIL),
        notices={EVIL: EVIL},
        probe=replace(report.probe, history=(last,), running=EVIL),
    )
    for path in ("/", "/live"):
        elements = Elements(page(node, port, evil, path)).seen
        assert not [tag for tag, _ in elements if tag in ("img", "marquee")]
        assert all(attributes.get("src", "").startswith("/static/") for tag, attributes in elements if tag == "script")  # type: ignore[union-attr]
        assert not [name for _, attributes in elements for name in attributes if name.startswith("on")]


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_page_respects_its_security_policy(node: ServedNode, port: int, path: str) -> None:
    """There is no inline script or style, and no other host."""
    elements = Elements(page(node, port, samples.troubled_node(), path)).seen
    assert not [attributes for _, attributes in elements if "style" in attributes]
    assert not [
        tag for tag, attributes in elements if tag == "style" or (tag == "script" and not attributes.get("src"))
    ]
    loaded = [
        attributes.get("src") or attributes.get("href") for tag, attributes in elements if tag in ("script", "link")
    ]
    assert all(each and each.startswith("/static/") for each in loaded)
    for each in loaded:
        assert ask(port, each or "").status == 200


def test_simulated_node_has_a_banner(node: ServedNode, port: int) -> None:
    """The banner is first on the page; a real node has none."""
    assert "Simulated node." in words(page(node, port, samples.simulated_report(), "/live"))[:40]
    assert "imulated" not in page(node, port, samples.healthy())


def test_lost_gpu_is_a_problem(node: ServedNode, port: int) -> None:
    """Identity, fault, time and action are shown before the table of GPUs."""
    html = page(node, port, samples.lost(3))
    text = words(html)
    assert "1 problem." in text
    assert text.index("What to do: Drain the node and reboot it. If the GPU stays") < text.index("Utilization")
    assert example_parts.uuid(3) in html
    assert "10 min ago, 11:50 UTC" in text
    assert "7 of 8" in text
    assert "<title>(1) gpu-17" in html


def test_information_is_not_a_fault(node: ServedNode, port: int) -> None:
    """A GPU that is held and idle is shown, and the node has no problems."""
    text = words(page(node, port, samples.idle(2)))
    assert "No problems." in text
    assert "info GPU 2: Processes hold the GPU and hardly use it" in text


def test_absent_reading_is_not_a_zero(node: ServedNode, port: int) -> None:
    """A GPU without a utilization reading is not idle."""
    report = samples.healthy(1)
    html = page(node, port, changed(report, gpus=(replace(report.gpus[0], gpu=Gpu(up=1.0), links={}),)))
    assert not re.search(r"\b0 %", html)
    assert html.count("n/a") >= 5
    assert 'class="bar' not in html
    assert "unknown model" in html


def test_node_before_its_first_poll(node: ServedNode, port: int) -> None:
    """The page shows that there are no readings yet."""
    text = words(page(node, port, samples.without_driver()))
    assert "no readings yet" in text
    assert "The NVIDIA driver cannot be used" in text
    assert "This host has no GPU." in text


def test_age_of_old_readings_is_shown(node: ServedNode, port: int) -> None:
    """A stopped sampler is visible in the heading."""
    report = samples.healthy()
    stale = changed(report, node=replace(report.node, nvml_up=0.0, snapshot_timestamp_seconds=samples.STAMP.wall - 95))
    assert "readings are 1 min old" in words(page(node, port, stale))


def test_every_link_is_a_cell(node: ServedNode, port: int) -> None:
    """Up, down, with errors and unknown differ, in text too."""
    html = page(node, port, samples.troubled_node())
    assert "NVLink 4: down, 3 recovery errors" in html
    assert "NVLink 6: up, 12 replay errors" in html
    assert "NVLink 7: unknown" in html
    assert html.count('title="NVLink') == 8 * 18
    assert html.count("unknown") >= 2 * 18
    assert "GPU 1: NVLinks 4, 5 down;" in words(html)


def test_node_without_links_has_no_matrix(node: ServedNode, port: int) -> None:
    """The section exists, so that links can appear without a reload."""
    report = samples.healthy(1)
    html = page(node, port, changed(report, ports=(), gpus=(GpuState(bus_id="b", uuid="u", index=0, gpu=Gpu(up=1.0)),)))
    assert '<section id="links" aria-labelledby="links-title" hidden>' in html
    assert "NVLinks up" not in html


def test_instances_are_below_their_gpu(node: ServedNode, port: int) -> None:
    html = page(node, port, samples.partitioned_node())
    assert html.count("<b>1g.10gb</b>") == 7
    text = words(html)
    assert "12.2 GiB of 39.5 GiB SM 81 % tensor 35 %" in text
    assert "NVLinks up 36 of 36 all up, 36 unknown" in text
    assert 'class="down"' not in html


def test_activity_is_shown_if_it_is_measured(node: ServedNode, port: int) -> None:
    """SM, tensor cores and memory for GPUs with performance monitoring; nothing for others."""
    assert "97 % 1 process SM 88 % tensor 37 % DRAM 50 %" in words(page(node, port, samples.healthy(1)))
    bare = GpuState(bus_id="b", uuid="u", index=0, gpu=Gpu(up=1.0, utilization_ratio=0.5))
    assert "tensor" not in words(page(node, port, changed(samples.healthy(1), gpus=(bare,))))


def test_fabric_and_ports_are_shown(node: ServedNode, port: int) -> None:
    """Common remarks are shown once; a fault is shown beside its GPU."""
    assert "all GPUs: in the fabric, clique 32766; C2C 10 of 10" in words(page(node, port, samples.grace()))
    text = words(page(node, port, samples.disconnected_node()))
    for trouble in ("the fabric registration is in progress", "fabric unhealthy: route unhealthy"):
        assert text.count(trouble) == 2
    assert "mlx5_3/1 down 400 Gb/s, InfiniBand" in text
    assert "mlx5_4/1 up 400 Gb/s, InfiniBand" in text


def test_an_error_without_a_code_shows_its_kind() -> None:
    """Errors of PCIe, adapters and driver are told apart from lost records of the kernel log."""
    shown = {kind: event_code({"kind": kind, "xid": None, "sxid": None}) for kind in KINDS if kind not in {XID, SXID}}
    assert shown == EVENT_KINDS


def test_errors_are_shown(node: ServedNode, port: int) -> None:
    """Each with code, place, count and action; cancelled and historical errors have no action."""
    text = words(page(node, port, samples.troubled_node()))
    assert "10 min ago Xid 79 GPU 3 The GPU has fallen off the bus. Drain the node and reboot it." in text
    assert "Xid 31 9000 times GPU 1 MIG 2 GPU memory page fault." in text
    assert "SXid 20034 00000000:05:00.0 A link of an NVSwitch went down" in text
    assert "kernel log Records of the kernel log were lost." in text
    assert "Xid 163 GPU 1 Power smoothing unavailable. Cancelled by a later Xid." in text
    assert "Xid 48 GPU 1 Uncorrectable (double bit) ECC error. Older than the first start of the agent." in text


def test_links_without_any_state_are_not_drawn(node: ServedNode, port: int) -> None:
    """A guest that reports no link state has a sentence instead of a matrix."""
    report = samples.healthy(2)
    dark = changed(report, gpus=tuple(replace(gpu, links=dict.fromkeys(gpu.links, Nvlink())) for gpu in report.gpus))
    html = page(node, port, dark)
    assert "all GPUs: 18 NVLinks, state unknown; in the fabric" in words(html)
    assert 'class="matrix"' not in html


def test_link_services_are_shown(node: ServedNode, port: int) -> None:
    """Only installed services are shown; GB200 has no fabric manager."""
    report = samples.healthy()
    stopped = changed(report, node=replace(report.node, fabric_manager_up=0.0, imex_up=1.0))
    assert "fabric manager not running IMEX running" in words(page(node, port, stopped))
    assert "fabric manager" not in page(node, port, report)


def test_probe_history_is_drawn(node: ServedNode, port: int) -> None:
    """There is a mark for each run and algorithm; before any run the page shows when it is due."""
    html = page(node, port, samples.troubled_node())
    assert html.count('class="mark') == 2 * samples.RUNS - 2
    assert html.count('class="skip"') == 1
    assert "20\N{NO-BREAK SPACE}ok\N{NO-BREAK SPACE}●, " in html
    assert "1\N{NO-BREAK SPACE}degraded\N{NO-BREAK SPACE}▲" in html
    before = words(page(node, port, samples.before_any_run(samples.healthy())))
    assert "The probe has not run yet. The first run is due at 12:00:07 UTC" in before


def test_skipped_run_does_not_hide_the_last_figures(node: ServedNode, port: int) -> None:
    skip = replace(example.run(0), id="skip", outcome="skipped", reason="busy", measurements=())
    history = (example.run(3), skip)
    report = replace(samples.healthy(), probe=ProbeState(history=history, ran=history[:1]))
    text = words(page(node, port, report))
    assert "All-reduce 474 GB/s ok, 3 h 15 min ago" in text
    assert "skipped (busy)" in text
    assert "Measured 3 h 15 min ago: ok" in text
    only = words(page(node, port, replace(report, probe=ProbeState(history=(skip,)))))
    assert "All-reduce n/a skipped: busy" in only


def test_partial_run_does_not_hide_the_current_result(node: ServedNode, port: int) -> None:
    """The page shows the result of all GPUs and which GPUs the later run had."""
    found, some = example.run(3, outcome="wrong"), example.part(1, 4, 5, 6, 7)
    report = replace(samples.healthy(), probe=ProbeState(history=(found, some), ran=(found, some)))
    text = words(page(node, port, report))
    assert "All-reduce 474 GB/s wrong, 3 h 15 min ago" in text
    assert "wrong 3 h 14 min ago. This is still the result for all its GPUs." in text
    assert "ok 1 h 14 min ago, 4 of 8 GPUs (4 to 7) over nccl" in text
    assert "Measured 3 h 15 min ago: wrong" in text
    alone = words(page(node, port, replace(report, probe=ProbeState(history=(some,), ran=(some,)))))
    assert "All-reduce 474 GB/s ok, 1 h 15 min ago, 4 of 8 GPUs (4 to 7)" in alone
    assert "still the result" not in alone


def test_baseline_is_a_band() -> None:
    """By algorithm, as it was at the time of each run; with a gap if there was none."""
    runs = [run_document(example.run(hours)) for hours in range(6)]
    runs[3] |= {"comparisons": []}
    drawn = plot(runs)
    assert drawn is not None
    assert [item.name for item in drawn.series] == ["default", "ring"]
    for item in drawn.series:
        assert [len(band.split()) for band in item.bands] == [4, 6]
        assert [len(median.split()) for median in item.medians] == [2, 3]
        assert len(item.line.split()) == 6
    assert abs(drawn.series[0].label - drawn.series[1].label) >= LABEL_DISTANCE
    assert drawn.size == "8 GiB"
    alike = plot([run | {"measurements": [each | {"value": 1e11} for each in run["measurements"]]} for run in runs])
    assert alike is not None
    assert abs(alike.series[0].label - alike.series[1].label) == LABEL_DISTANCE


def test_unfinished_run_is_a_mark_on_the_axis() -> None:
    """No line passes through it, and the heading has the size of the other runs."""
    runs = [run_document(example.run(hours)) for hours in range(3)]
    small = [run | {"value": 5e3} for run in runs[0]["measurements"] if run["size"] < 1 << 30]
    held = runs[0] | {"outcome": "skipped", "reason": "held", "measurements": small}
    drawn = plot([held, *runs[1:]])
    whole = plot(runs)
    assert drawn is not None
    assert whole is not None
    assert [len(item.line.split()) for item in drawn.series] == [2, 2]
    assert (drawn.size, drawn.ticks) == (whole.size, whole.ticks)
    assert [(mark.outcome, mark.y) for mark in drawn.marks if mark.outcome != "ok"] == [("skipped", drawn.floor)]


def test_line_joins_comparable_runs_only() -> None:
    """A partial run, or one without the largest size, is a mark with a title."""
    runs = [run_document(example.run(hours)) for hours in range(4)]
    runs[0] = run_document(example.part(0, 4, 5, 6, 7))
    runs[2] |= {"measurements": [run for run in runs[2]["measurements"] if run["bytes"] <= 1 << 30]}
    drawn = plot(runs)
    assert drawn is not None
    assert [len(item.line.split()) for item in drawn.series] == [2, 2]
    assert drawn.size == "8 GiB"
    assert len(drawn.marks) == 8
    assert sum("at 8 GiB on 4 of 8 GPUs (4 to 7)" in mark.title for mark in drawn.marks) == 2
    assert sum("at 1 GiB on 8 ranks" in mark.title for mark in drawn.marks) == 2


def test_sizes_have_their_share_of_the_median(node: ServedNode, port: int) -> None:
    """A group for each algorithm, largest size first; comparisons below."""
    text = words(page(node, port, samples.healthy()))
    assert "default 8 GiB 474 GB/s 100 % 31.7 ms 32.6 ms 34.9 ms 1.2 % 0 1 GiB 450 GB/s" in text
    assert "ring 8 GiB 363 GB/s 100 %" in text
    assert "all_reduce, ring at 8 GiB: 363 GB/s, 100 % of 363 GB/s (this host&#39;s median of 30 runs)" in text
    assert "NVIDIA H100 80GB HBM3 driver 580.95.05 torch 2.13.0 nccl 2.30.7" in text


def test_pairs_are_a_matrix(node: ServedNode, port: int) -> None:
    """By GPU; slow pairs and wrong data are marked."""
    sentence = "GPU 2 is slow with every other."
    pairs = tuple(
        Pair(
            ranks=(a, b),
            bandwidth_bytes_per_second=9e10 if b == 2 else 3.6e11,
            wrong_elements=(0, 5 * (b == 3 and a == 0)),
        )
        for b in range(4)
        for a in range(b)
        if a != 2
    )
    location = Location(message=sentence, ranks=(2,), pairs=pairs, evidence=("GPU 2 was hot.",))
    run = replace(example.run(), outcome="degraded", reason="baseline", hint=f"Low. {sentence}", location=location)
    html = page(node, port, replace(samples.healthy(), probe=end_run(ProbeState(), run)))
    section = html[html.index('<section id="probe"') :]
    assert section.count(sentence) == 1
    assert 'class="erring" title="0 and 2: 90 GB/s, 25 % of the median">90</td>' in html
    assert 'class="down" title="0 and 3: 360 GB/s, 100 % of the median, 5 wrong elements">360!</td>' in html
    assert "<li>GPU 2 was hot.</li>" in html


def test_run_in_progress_has_its_progress(node: ServedNode, port: int) -> None:
    during = replace(samples.healthy(), probe=example.measuring())
    assert "A run is in progress: warming up 1 GiB (ring) 42 %" in words(page(node, port, during))


def test_other_probes_are_sentences(node: ServedNode, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are neither in the history nor in the figures of the all-reduce."""
    other = replace(PROBES["allreduce"], name="broadcast", title="broadcast")
    monkeypatch.setitem(PROBES, "broadcast", other)
    state = end_run(
        samples.healthy().probe,
        replace(example.run(), id="other", probe="broadcast", outcome="degraded", reason="baseline"),
    )
    html = page(node, port, replace(samples.healthy(), probe=state))
    assert "broadcast: degraded (baseline), default 474 GB/s, ring 363 GB/s, 15 min ago" in words(html)
    assert f"{samples.RUNS}\N{NO-BREAK SPACE}ok" in html


def test_plot_stays_inside_its_frame() -> None:
    """From no run to many at the same time."""
    assert plot([]) is None
    runs = [run_document(example.run(0, peak=peak)) for peak in (1e3, 9.99e11, 3.3e9)]
    failed = runs[0] | {"measurements": [], "outcome": "failed"}
    assert plot([failed]) is None
    for some in (runs[:1], runs, [failed, *runs]):
        drawn = plot(some)
        assert drawn is not None
        assert all(drawn.left <= mark.x <= drawn.right and 0 <= mark.y <= drawn.floor for mark in drawn.marks)


def test_the_gpu_that_does_not_answer_is_the_first_row(node: ServedNode, port: int) -> None:
    """A broken GPU is not below seven healthy ones; GPUs with verdicts follow it."""
    report = samples.lost(3)
    gpus = [replace(state, gpu=replace(state.gpu, health=3.0)) if state.index == 5 else state for state in report.gpus]
    html = page(node, port, changed(report, gpus=tuple(gpus)))
    rows = [int(index) for index in re.findall(r'title="All readings of GPU (\d)"', html)]
    assert rows == [3, 5, 0, 1, 2, 4, 6, 7]


def test_the_slowdown_temperature_does_not_change_with_each_reading() -> None:
    """It is the exported threshold; the driver's margin is shown as such if there is none."""
    gpu = gpu_document(example_parts.gpu(0)) | {"thermal_margin_celsius": 31.0}
    for temperature in (50.0, 58.0):
        *_, shown = facts(gpu | {"temperature_celsius": temperature})
        assert shown.bar.limit == "slows at 87 °C"
        *_, shown = facts(gpu | {"temperature_celsius": temperature, "temperature_slowdown_celsius": None})
        assert shown.bar.limit == "31 °C below slowdown"


def test_a_link_that_is_down_without_a_verdict_is_a_pending_one() -> None:
    """The tile is no fault before the headline reports one."""
    report = samples.healthy()
    down = replace(report.gpus[2], links={**report.gpus[2].links, "4": Nvlink(up=0.0)})
    report = changed(report, gpus=(*report.gpus[:2], down, *report.gpus[3:]))
    waiting = samples.with_pending(report, "nvlink_down", 2, Level.FAIL)
    for shown, tone, note in ((report, "critical", "1 down"), (waiting, "warning", "1 down, verdict pending")):
        [tile] = [tile for tile in tiles(samples.report_document(shown)) if tile.label == "NVLinks up"]
        assert (tile.tone, tile.note) == (tone, note)


def test_healthy_gpu_has_no_warning() -> None:
    """A faulty GPU has one for each fault."""
    gpu = gpu_document(example_parts.gpu(0))
    assert gpu_warnings(gpu) == []
    broken = [{"link": 2, "up": 1}, {"link": 3, "up": 0}]
    assert gpu_warnings(
        gpu | {"recovery_action": 1, "pcie_link_width": 8, "row_remap_pending": 1, "c2c_links": broken}
    ) == [
        "the driver requests a reset of the GPU",
        "chip-to-chip link 3 down",
        "row remapping pending: a reset is needed",
        "PCIe x8 of x16",
    ]
    assert gpu_warnings(gpu_document(replace(example_parts.gpu(0), gpu=Gpu(up=1.0)))) == []
    assert gpu_warnings(gpu | {"xid_errors_total": {"13": 5, "79": 1}}) == ["Xid 13, 5 times; Xid 79, once"]


def test_backticks_are_code() -> None:
    """Text between them is escaped."""
    assert with_code("run `a < b` now") == "run <code>a &lt; b</code> now"


def test_static_files_are_cacheable(port: int) -> None:
    """Their URL changes with the file; other names are not served."""
    assert ask(port, "/static/gpumon.css").headers["Cache-Control"] == "public, max-age=86400"
    assert ask(port, "/").headers["Cache-Control"] == "no-store"
    assert is_problem(ask(port, "/static/page.py"), 404)
    assert is_problem(ask(port, "/static/..%2fpage.py"), 404)
