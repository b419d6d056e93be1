"""JSON documents, their problems and the order of these."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import example_node as example
import example_parts
import pytest
import sample_reports as samples
from changed_report import changed
from each_case import each_case
from judging import Ward
from sample_reports import gpu_document, report_document

from gpumon.health.alert_texts import SEVERITIES
from gpumon.health.checks.gpu import FAULTS as ADVICE
from gpumon.health.node_health import Health
from gpumon.health.table import BY_NAME
from gpumon.health.verdict import Action, Clearance, Level, VerdictChange, VerdictTransition
from gpumon.model.gpu import FAULTS, Gpu
from gpumon.model.infiniband import InfinibandLink, InfinibandPort, InfinibandPortInfo
from gpumon.model.instant import Instant, Now
from gpumon.model.mig import Mig
from gpumon.model.node import Build, Driver, HealthMetrics, Node, VerdictInfo
from gpumon.model.nvlink import C2cLink, Fabric, Nvlink, NvlinkPeer, Platform
from gpumon.model.reading import Sample, Table, rows
from gpumon.model.reading import samples as readings
from gpumon.outputs.formatting import rfc3339
from gpumon.outputs.problems import problems
from gpumon.outputs.responses.base import row_values
from gpumon.outputs.responses.health import CurrentHealthResponse, HealthResponse
from gpumon.outputs.responses.report import newest_first
from gpumon.probe.core.probe_metrics import METRICS
from gpumon.probe.core.state import ProbeState, end_run
from gpumon.state.report import Report
from gpumon.state.sections import tables

STAMP = samples.STAMP


whole = report_document


def place(whole: dict[str, Any], table: type[Table], labels: dict[str, str]) -> dict[str, Any]:
    """Return the part of the documents that holds the readings of a table."""
    node = whole["node"]
    own = {Build: node["build"], Driver: node["driver"], Node: node, METRICS["allreduce"]: whole["probe"]["metrics"]}
    if table in own:
        return own[table]  # type: ignore[no-any-return]
    if table in (InfinibandLink, InfinibandPort, InfinibandPortInfo):
        return only(whole["ports"], labels, "device", "port")
    if table in (Nvlink, NvlinkPeer):
        return only(whole["links"], labels, "uuid", "link")
    gpu = only(whole["gpus"], labels, "uuid")
    if table is C2cLink:
        return only(gpu["c2c_links"], labels, "link")
    if table is Mig:
        return only(gpu["migs"], labels, "mig_uuid", "gpu_instance_id", "compute_instance_id", "profile")
    parts = {Gpu: gpu, Fabric: gpu["fabric"], Platform: gpu["platform"]}
    return parts[table]  # type: ignore[no-any-return]


def only(documents: list[dict[str, Any]], labels: dict[str, str], *names: str) -> dict[str, Any]:
    [one] = [document for document in documents if all(str(document[name]) == labels[name] for name in names)]
    return one


def in_words(health: dict[str, Any], sample: Sample, labels: dict[str, str]) -> float:
    """Verdicts are words in the documents, and numbers in the metrics."""
    if sample.name == "gpumon_node_health":
        return float(Level[health["level"].upper()])
    return max(float(Level[each["level"].upper()]) for each in verdicts_of(health, labels))


def verdicts_of(health: dict[str, Any], labels: dict[str, str]) -> list[dict[str, Any]]:
    """Return the verdicts of a series' check and device."""
    device = f"{labels['device']}/{labels['port']}" if "port" in labels else labels.get("uuid")
    return [each for each in health["verdicts"] if each["check"] == labels["check"] and each["device"] == device]


def document_value(whole: dict[str, Any], table: type[Table], sample: Sample) -> Any:
    """What the documents have for a series of Prometheus."""
    labels = dict(sample.labels)
    if table is HealthMetrics:
        return in_words(whole["health"], sample, labels)
    if table is VerdictInfo:
        [one] = verdicts_of(whole["health"], labels)
        codes = [
            f"Xid {each['evidence']['xid']:.0f}: {each['evidence']['name']}"
            for each in (one, *one["consequences"])
            if each["device"] == one["device"] and "xid" in each["evidence"]
        ]
        return float((one["action"], *codes[:1]) == (labels["action"], *filter(None, [labels["code"]])))
    values, name = place(whole, table, labels), sample.name.removeprefix(table.PREFIX)
    if name == "info" and any(row.identity for row in rows(table).values()):
        identities = {name for name, row in rows(table).items() if row.identity}
        return float(all((values[name] or "") == labels[name] for name in identities))
    value = values[name]
    for label in rows(table)[name].labels:
        value = value[labels[label]]
    return value


@each_case("name", ["healthy", "troubled_node", "lost", "partitioned_node", "grace", "disconnected_node"])
def test_every_series_is_in_the_documents(name: str) -> None:
    """Metrics and JSON show the same readings under the same names, series by series, details too."""
    report = replace(getattr(samples, name)(), detailed=True)
    documents = whole(report)
    seen = 0
    for table, labels in tables(report):
        for sample in readings(table, labels):
            assert document_value(documents, type(table), sample) == pytest.approx(sample.value, rel=1e-12), sample
            seen += 1
    assert seen > 300


def test_every_row_is_a_key_even_when_nothing_was_read() -> None:
    """A reading that is absent is null: the key is there, and it is not 0."""
    values = row_values(Gpu())
    assert list(values) == list(rows(Gpu))
    assert set(values.values()) == {None}


def test_labels_become_levels() -> None:
    """A reading with two labels is nested in their order, so that jq reads .ecc_errors_total.corrected.dram."""
    values = row_values(Gpu(ecc_errors_total={"corrected,dram": 2.0, "corrected,sram": 0.0, "uncorrected,dram": 1}))
    assert values["ecc_errors_total"] == {"corrected": {"dram": 2, "sram": 0}, "uncorrected": {"dram": 1}}


def test_a_process_without_a_name_keeps_its_level() -> None:
    """The name of a process that has ended is empty."""
    assert row_values(Gpu(process_memory_bytes={"7,": 5.0}))["process_memory_bytes"] == {"7": {"": 5}}


def test_numbers_that_json_lacks_are_null() -> None:
    """NaN and infinity would make the whole document unreadable."""
    values = row_values(Gpu(power_watts=float("nan"), temperature_celsius=float("inf"), up=1.0))
    assert (values["power_watts"], values["temperature_celsius"], values["up"]) == (None, None, 1)
    assert json.loads(json.dumps(values, allow_nan=False))["up"] == 1


def test_lost_gpu_keeps_its_identity() -> None:
    """Identity, state, fault, its start and the Xid counters stay; readings are null."""
    gpu = whole(samples.lost(3))["gpus"][3]
    assert (gpu["gpu"], gpu["uuid"], gpu["name"]) == (3, example_parts.uuid(3), "NVIDIA H100 80GB HBM3")
    assert (gpu["state"], gpu["up"], gpu["fault"]["lost"]) == ("lost", 0, 1)
    assert "fell off the bus" in gpu["detail"]
    assert gpu["since"] == "2025-11-20T11:50:00.000Z"
    assert gpu["xid_errors_total"] == {"79": 1}
    assert gpu["temperature_celsius"] is gpu["utilization_ratio"] is gpu["energy_joules_total"] is None


def test_gpu_without_a_reported_pci_address_has_that_of_the_inventory() -> None:
    """A GPU that could not be opened can still be found in lspci."""
    state = replace(example_parts.gpu(0), gpu=Gpu(up=0.0), fault="init_failed")
    assert gpu_document(state)["pci_bus_id"] == example_parts.bus_id(0)


def test_events_are_newest_first_and_name_their_gpu() -> None:
    """An event of a GPU that is not in the inventory keeps its PCI address."""
    report = samples.healthy()
    known = replace(
        example.event(),
        bus_id=example_parts.bus_id(2),
        uuid=None,
        last=example.event().last._replace(wall=STAMP.wall - 5),
    )
    strange = replace(
        example.event(), bus_id="0000:FF:00.0", uuid=None, last=example.event().last._replace(wall=STAMP.wall - 9)
    )
    documents = [each.document() for each in newest_first(report, (strange, known))]
    assert [(each["gpu"], each["uuid"], each["pci_bus_id"]) for each in documents] == [
        (2, example_parts.uuid(2), example_parts.bus_id(2)),
        (None, None, "0000:FF:00.0"),
    ]


def test_report_has_no_log_of_the_ranks() -> None:
    """The output of the ranks names processes and users."""
    result = replace(example.run(), log="pid 4711 of alice")
    report = replace(samples.healthy(), probe=ProbeState(history=(result,), ran=(result,)))
    assert "alice" not in json.dumps(whole(report))


def test_age_counts_from_the_end_of_the_run() -> None:
    assert whole(samples.healthy())["probe"]["age_seconds"] == pytest.approx(900 - 11.4)


def test_links_are_listed_with_their_gpu() -> None:
    """Eight GPUs with eighteen links each make 144 rows, in order, each with its peer."""
    links = whole(samples.healthy())["links"]
    assert len(links) == 144
    assert (links[19]["gpu"], links[19]["link"], links[19]["up"], links[19]["errors_total"]["crc"]) == (1, 1, 1, 0)
    assert (links[19]["peer_type"], links[19]["peer"]) == ("switch", example_parts.switch(1))
    assert set(rows(Nvlink)) < set(links[0])


def test_links_of_a_lost_gpu_are_unknown() -> None:
    """They stay listed with their peers; their state is null, not 0."""
    links = [each for each in whole(samples.lost(3))["links"] if each["gpu"] == 3]
    assert [link["link"] for link in links] == list(range(18))
    assert {link["up"] for link in links} == {None}
    assert links[0]["peer"] == example_parts.switch(0)


def test_absent_parts_of_a_gpu_are_null() -> None:
    """A GPU without fabric and platform has null; instances and links are empty lists."""
    gpu = gpu_document(replace(example_parts.gpu(0), fabric=None))
    assert (gpu["fabric"], gpu["platform"], gpu["migs"], gpu["c2c_links"]) == (None, None, [], [])
    rack = gpu_document(samples.grace().gpus[0])
    assert (rack["platform"]["tray"], rack["fabric"]["clique_id"], len(rack["c2c_links"])) == ("12", "32766", 10)


def test_healthy_node_has_no_problem() -> None:
    """The list of problems is empty and the state is ok."""
    node = whole(samples.healthy())["node"]
    assert (node["state"], node["problems"]) == ("ok", [])


def test_host_without_expected_gpus_is_ok() -> None:
    """A login node that runs the agent is not a failing GPU host."""
    assert whole(samples.without_gpus())["node"]["state"] == "ok"


def test_the_worst_problem_is_the_first() -> None:
    """Critical before warning before information, and among equals the older one."""
    found = problems(samples.troubled_node())
    severities = [each.severity for each in found]
    assert severities == sorted(severities, key=SEVERITIES.index)
    assert {"critical", "warning"} <= set(severities)
    assert whole(samples.troubled_node())["node"]["state"] == "critical"


def test_fault_its_verdict_and_its_alert_are_one_problem() -> None:
    """With the verdict's reason, action and runbook."""
    (problem,) = problems(samples.lost(3))
    assert (problem.gpu, problem.title) == (3, "GPU 3: The GPU fell off the bus")
    assert problem.runbook_url.endswith("/runbooks/GpuLost")
    assert problem.action.startswith("Drain the node and reboot it. If ")
    assert "power-cycle" in problem.action
    assert "Consequences: GPU 3: Xid 79: The GPU has fallen off the bus." in problem.detail


def test_fault_without_a_verdict_yet_has_action_and_runbook() -> None:
    (problem,) = problems(samples.with_fault(samples.healthy(), 5, "stuck", "nvmlDeviceGetTemperature"))
    assert problem.action.startswith("Drain the node and reboot it. After Xid 119 or 120")
    assert problem.runbook_url.endswith("/runbooks/GpuStuck")


def test_no_second_reboot_while_the_first_is_verified() -> None:
    """The problem shows that a reboot is being verified and for how long."""
    report = after_reboot(samples.lost(3))

    (problem,) = problems(report)
    assert problem.action.startswith("If it recurs, drain the node and reboot it. ")
    verdict, before = whole(report)["health"]["verdicts"][0], whole(samples.lost(3))["health"]["verdicts"][0]
    assert (verdict["action"], verdict["action_text"], verdict["repair"]) == (
        "none",
        "if it recurs, drain the node and reboot it",
        "reboot",
    )
    assert verdict["repaired_at"] == whole(report)["node"]["booted"]
    assert (before["action"], before["repair"], before["repaired_at"]) == ("reboot", None, None)
    assert {each["verdict"]["action"] for each in whole(report)["health"]["transitions"]} == {"reboot"}
    assert "until it has been ok for 10 minutes: the node was rebooted since; `gpumon clear gpu_lost" in problem.detail


def after_reboot(report: Report) -> Report:
    """Return the report after a reboot, with verdicts whose faults are over."""
    over = {key: one._replace(active=False) for key, one in report.health.open.items()}
    return replace(report, boot_id="another", health=replace(report.health, open=over))


@each_case("report", [samples.lost(3), samples.stuck(), samples.idle(3), after_reboot(samples.lost(3))])
def test_a_page_has_the_action_that_the_status_shows(report: Report) -> None:
    """The agent's alert has it, and the info series, from which Prometheus takes the text of a page."""
    (problem,) = problems(report)
    assert [alert.action for alert in report.alerts] == [problem.action]
    (info,) = (table for table, _ in tables(report) if isinstance(table, VerdictInfo))
    (verdict,) = report.health.primary
    assert f"{info.action_text} {BY_NAME[verdict.check].advice}".strip() == problem.action


def test_no_second_reset_while_the_first_is_verified() -> None:
    """Only a reset after the fault was last seen counts, and only while it is being verified."""
    report = samples.lost(3)
    now = Now(at=samples.STAMP.boot, wall=samples.STAMP.wall, uptime=0.0)
    report = replace(report, health=replace(report.health, evaluated=now))
    (key,) = {one.key for one in report.health.primary}
    asking = report.health.open[key]._replace(action=Action.RESET, active=False)

    def instructions(**changed: Any) -> tuple[Any, ...]:
        after = replace(report, health=replace(report.health, open={key: asking._replace(**changed)}))
        one, (problem,) = whole(after)["health"]["verdicts"][0], problems(after)
        return one["action"], one["repair"], one["repaired_at"], problem.action.partition(".")[0]

    later = asking.last_active.at + 1
    booted = samples.STAMP.wall - samples.STAMP.boot
    assert instructions(reset_at=later) == (
        "none",
        "reset",
        rfc3339(round(booted + later)),
        "If it recurs, drain the node and reset the GPU",
    )
    not_yet = ("reset", None, None, "Drain the node and reset the GPU")
    assert (
        instructions()
        == instructions(reset_at=asking.last_active.at - 1)
        == instructions(reset_at=later, active=True)
        == not_yet
    )
    assert instructions(reset_at=later, action=Action.REBOOT)[:2] == ("reboot", None), "a reset is less than a reboot"
    assert instructions(reset_at=later, raised=asking.last_active._replace(at=later + 1)) == not_yet


def test_fault_without_a_verdict_is_a_problem() -> None:
    """A fault is shown before its verdict is raised."""
    (problem,) = problems(samples.with_fault(samples.healthy(), 5, "stuck", "nvmlDeviceGetName has not returned"))
    assert (problem.gpu, problem.title, problem.severity) == (5, "GPU 5: stuck", "critical")


def test_latched_verdict_shows_how_to_clear_it() -> None:
    """The problem names the command that clears it."""
    (problem, *_) = problems(samples.with_verdicts(changed(samples.lost(3), gpus=samples.healthy().gpus)))
    assert problem.title == "GPU 3: The GPU fell off the bus"
    assert "`gpumon clear gpu_lost --gpu 3` clears it" in problem.detail


def test_missing_driver_is_one_problem() -> None:
    """GPUs that are unknown because the driver is missing have no fault of their own."""
    gone = tuple(
        replace(gpu, fault="unknown", detail="LibraryNotFound", since=None, gpu=Gpu(up=0.0))
        for gpu in samples.healthy().gpus
    )
    base = samples.without_driver()
    (early,) = problems(changed(base, gpus=gone))
    assert (early.title, early.severity) == ("The NVIDIA driver cannot be used", "critical")
    (problem,) = problems(samples.with_verdicts(changed(base, gpus=gone)))
    assert problem.title.startswith("The NVIDIA driver does not respond")
    assert "Consequences: GPU 0: " in problem.detail
    assert problem.detail.endswith("and 4 more.")


def test_corrupting_probe_is_critical_even_after_a_skip() -> None:
    """A skipped run does not hide corrupted data."""
    wrong = replace(example.run(1), outcome="wrong", wrong_elements=7, hint="Run it on pairs.")
    skip = replace(example.run(0), outcome="skipped", reason="busy", measurements=())
    report = replace(samples.healthy(), probe=ProbeState(history=(wrong, skip), ran=(wrong,)))
    (problem,) = problems(report)
    assert (problem.severity, problem.action) == ("critical", "Run it on pairs.")
    assert "7 elements" in problem.detail


def test_information_does_not_change_the_state() -> None:
    node = whole(samples.idle(2))["node"]
    assert (node["state"], len(node["problems"])) == ("ok", 1)


def test_detail_of_a_fault_is_a_sentence_of_its_own() -> None:
    """The meaning of the fault comes first, then what the agent found."""
    missing = samples.with_fault(samples.healthy(), 3, "missing", "no longer on the PCI bus")
    detail = whole(missing)["gpus"][3]["detail"]
    assert detail == f"{ADVICE['missing'].meaning} No longer on the PCI bus."


def test_every_fault_has_advice() -> None:
    assert set(ADVICE) == set(FAULTS)
    assert all(each.meaning and each.action for each in ADVICE.values())


def test_age_of_the_evaluation_grows() -> None:
    """The age is computed at the request by the boot clock; without an evaluation it is null."""
    report = replace(samples.healthy(), health=Health(evaluated=Now(at=100.0, wall=0.0, uptime=0.0)))
    assert [HealthResponse.from_report(report, boot).evaluation_age_seconds for boot in (102.5, 163.0)] == [2.5, 63.0]
    unjudged = HealthResponse.from_report(replace(report, health=Health()), 102.5)
    assert (unjudged.evaluated, unjudged.evaluation_age_seconds) == (None, None)


def test_a_cleared_run_is_no_problem_any_more() -> None:
    """`gpumon status` shows no problem of a slow run after `gpumon clear allreduce_slow`, as `gpumon check` does."""
    run = replace(example.run(), outcome="degraded")
    report = replace(samples.healthy(), probe=end_run(ProbeState(), run))
    assert [problem.title for problem in problems(report)] == ["The last all-reduce: degraded"]
    verdict = samples.lost(3).health.verdicts[0]._replace(check="allreduce_slow", device="")
    for wall, titles in ((run.ended - 1, ["The last all-reduce: degraded"]), (run.ended + 1, [])):
        over = VerdictTransition(
            verdict=verdict, change=VerdictChange.CLEARED, time=Instant("", 0.0, wall), cleared_by=Clearance.OPERATOR
        )
        cleared = replace(report, health=replace(report.health, cleared={verdict.key: over}))
        assert [problem.title for problem in problems(cleared)] == titles


def test_a_failed_run_on_request_is_a_problem() -> None:
    """Also one of a probe without a schedule, which raises no verdict; the next run that is ok ends it."""
    failed = replace(example.run(1), probe="copy", outcome="failed", reason="ranks")
    state = end_run(ProbeState(), failed)
    assert [problem.title for problem in problems(replace(samples.healthy(), probe=state))] == [
        "The last host-GPU copy: failed"
    ]
    repaired = replace(samples.healthy(), probe=end_run(state, replace(example.run(), probe="copy")))
    assert problems(repaired) == ()


def hot_before_the_outage() -> Ward:
    """Return a node with a GPU that was too hot when its driver stopped to answer seven minutes ago."""
    ward = Ward(gpus=4, ports=0)
    ward.gpu(2, name="NVIDIA H100 80GB HBM3", thermal_margin_celsius=-4.0, temperature_celsius=70.0)
    ward.go_on(600)
    assert problems(ward.report)[0].title.startswith("GPU 2: ")
    assert "Last observed" not in problems(ward.report)[0].detail
    ward.node(nvml_up=0.0)
    unread = [replace(state, fault="unknown", gpu=Gpu(name=state.gpu.name)) for state in ward.report.gpus]
    ward.report = changed(ward.report, gpus=tuple(unread))
    return ward.go_on(420)


def test_an_outage_of_the_driver_is_above_what_was_observed_before() -> None:
    """Status and page begin with the outage; a GPU that was hot before is stated with the time of that reading."""
    ward = hot_before_the_outage()
    outage, hot, *_ = problems(ward.report)
    assert outage.title.startswith("The NVIDIA driver does not respond")
    assert hot.title.startswith("GPU 2: ")
    assert hot.detail.startswith("Last observed at 2027-01-16 08:10:00 UTC: ")


def test_the_health_file_has_the_same_order_and_tense() -> None:
    """`gpumon check` prints the first verdict of the file, which is the outage."""
    outage, hot, *_ = CurrentHealthResponse.current(hot_before_the_outage().report).verdicts
    assert outage.check == "gpu_driver_down"
    assert hot.check == "gpu_thermal_margin_low"
    assert hot.reason.startswith("Last observed at ")
