"""/metrics/dcgm: names, labels, types, units and values as in dcgm-exporter, and nothing for an unknown value."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import example_parts
import sample_reports as samples
from changed_report import changed
from each_case import each_case
from job_reports import POD, SLURM, claim, owners
from prometheus_client.parser import text_string_to_metric_families
from reduced_reports import healthy
from sample_events import error_event

from gpumon.health.verdict import Level
from gpumon.model.gpu import Gpu
from gpumon.model.reading import metric_type, rows
from gpumon.outputs.dcgm import DEFAULTS, FIELDS, DcgmPage
from gpumon.state.report import Report
from scripts.simulated_reports import report_of

LEGACY, CANONICAL = DcgmPage(host="n1"), DcgmPage(host="n1", canonical=True)
Series = list[tuple[dict[str, str], float]]


@cache
def page_of(profile: str, page: DcgmPage = LEGACY) -> str:
    return page.render(report_of(profile))


def series(text: str, name: str) -> Series:
    """Return labels and value of each series of a metric."""
    return [
        (sample.labels, sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name in {name, f"{name}_total"}
    ]


def first(text: str, name: str) -> float | None:
    """Return the value of a metric for GPU 0."""
    return next((value for labels, value in series(text, name) if labels["gpu"] == "0"), None)


def with_gpu(report: Report, **readings: Any) -> Report:
    """Return the Report with other readings of GPU 0."""
    state = report.gpus[0]
    return changed(report, gpus=(replace(state, gpu=replace(state.gpu, **readings)), *report.gpus[1:]))


def test_a_hopper_has_all_default_metrics() -> None:
    """Each GPU has the 25 metrics that dcgm-exporter exports without configuration."""
    page = page_of("h100x8")
    assert len(DEFAULTS) == 25
    assert {field.legacy: len(series(page, field.legacy)) for field in DEFAULTS} == {
        each.legacy: 8 for each in DEFAULTS
    }


def test_labels_are_those_of_the_exporter() -> None:
    """The label of the host has the configured name."""
    identity = {"gpu": "0", "pci_bus_id": "00000000:1B:00.0", "device": "nvidia0", "modelName": "NVIDIA H100 80GB HBM3"}
    labels, _ = series(page_of("h100x8"), "DCGM_FI_DEV_GPU_TEMP")[0]
    uuid = labels.pop("UUID")
    assert uuid.startswith("GPU-")
    assert labels == identity | {"Hostname": "n1", "DCGM_FI_DRIVER_VERSION": "580.173.02"}
    labels, _ = series(page_of("h100x8", CANONICAL), "DCGM_FI_DEV_GPU_TEMP_CELSIUS")[0]
    assert labels == identity | {"UUID": uuid, "hostname": "n1", "DCGM_FI_SYSTEM_DRIVER_VERSION": "580.173.02"}


@each_case(
    ("readings", "legacy", "canonical"),
    [
        ({"clock_hertz": {"sm": 1.98e9}}, ("SM_CLOCK", 1980), ("SM_CLOCK_HERTZ", 1.98e9)),
        ({"utilization_ratio": 0.29}, ("GPU_UTIL", 29), ("GPU_UTIL_RATIO", 0.29)),
        ({"energy_joules_total": 2.5}, ("TOTAL_ENERGY_CONSUMPTION", 2500), ("GPU_ENERGY_JOULES_TOTAL", 2.5)),
        ({"memory_used_bytes": 3 << 20}, ("FB_USED", 3), ("FB_USED_BYTES", 3 << 20)),
        ({"power_watts": 612.5}, ("POWER_USAGE", 612.5), ("BOARD_POWER_WATTS", 612.5)),
        ({"clock_event_seconds_total": {"sw_power_cap": 1.5}}, ("POWER_VIOLATION", 1.5e9), ("POWER_VIOLATION", 1.5e9)),
        (
            {"performance_limited_seconds_total": {"thermal": 0.25}},
            ("THERMAL_VIOLATION", 2.5e8),
            ("THERMAL_VIOLATION", 2.5e8),
        ),
        (
            {"clock_event_active": {"idle": 0.0, "sw_power_cap": 1.0, "hw_thermal": 1.0}},
            ("CLOCK_THROTTLE_REASONS", 0x44),
            ("CLOCKS_EVENT_REASONS", 0x44),
        ),
    ],
)
def test_values_have_the_units_of_the_version(
    readings: dict[str, Any], legacy: tuple[str, float], canonical: tuple[str, float]
) -> None:
    """Up to 4.8 MHz, percent, mJ and MiB; from 4.9 on base units. Violations stay in nanoseconds."""
    report = with_gpu(samples.healthy(), **readings)
    for page, (name, value) in ((LEGACY, legacy), (CANONICAL, canonical)):
        assert first(page.render(report), f"DCGM_FI_DEV_{name}") == value


def test_nvlink_traffic_is_a_rate_in_both_directions() -> None:
    """It is the traffic between two polls without that of PCIe, in MB/s; PROF has each direction in B/s."""
    rates = {"nvlink_receive_bytes_total": 4e6, "nvlink_transmit_bytes_total": 2e6, "pcie_receive_bytes_total": 3e6}
    report = samples.healthy()
    page = LEGACY.render(changed(report, gpus=(replace(report.gpus[0], link_rates=rates),)))
    assert first(page, "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL") == 6
    assert (first(page, "DCGM_FI_PROF_NVLINK_RX_BYTES"), first(page, "DCGM_FI_PROF_NVLINK_TX_BYTES")) == (4e6, 2e6)


def test_used_memory_is_a_share_of_what_the_driver_leaves() -> None:
    """Without a total there is none."""
    values = {"memory_used_bytes": 30.0, "memory_total_bytes": 80.0, "memory_reserved_bytes": 20.0}
    name = "DCGM_FI_DEV_FB_USED_PERCENT"
    assert first(LEGACY.render(with_gpu(samples.healthy(), **values)), name) == 0.5
    assert f'{name}{{gpu="0"' not in LEGACY.render(with_gpu(samples.healthy(), **values | {"memory_total_bytes": None}))


def test_names_of_custom_csv_files_have_series() -> None:
    """Panels on NVLink, PCIe, BAR1 and the performance state use names that the exporter exports if configured."""
    page = page_of("h100x8")
    names = (
        *(f"PROF_NVLINK_{way}_BYTES" for way in ("TX", "RX")),
        *(f"DEV_NVLINK_{kind}_ERROR_COUNT_TOTAL" for kind in ("CRC_FLIT", "REPLAY", "RECOVERY")),
        *(f"DEV_PCIE_{most}LINK_{what}" for most in ("", "MAX_") for what in ("GEN", "WIDTH")),
        *("DEV_PSTATE", "DEV_FB_USED_PERCENT", "DEV_BAR1_TOTAL", "DEV_BAR1_USED"),
    )
    assert [name for name in names if page.count(f"\nDCGM_FI_{name}{{") != 8] == []


def test_an_unknown_value_has_no_series() -> None:
    """A GPU without readings keeps its Xids and its verdicts; it never has a 0 for a missing reading."""
    report = with_gpu(samples.healthy(), **dict.fromkeys(rows(Gpu)))
    page = LEGACY.render(changed(report, gpus=(replace(report.gpus[0], ecc_volatile=None),)))
    assert {line.partition("{")[0] for line in page.splitlines() if "{" in line} == {"DCGM_EXP_GPU_HEALTH_STATUS"}
    lost = changed(samples.lost(3), driver=replace(samples.lost(3).driver, driver=None))
    page = LEGACY.render(lost)
    assert {labels["gpu"] for labels, _ in series(page, "DCGM_FI_DEV_GPU_TEMP")} == set("0124567")
    assert "DRIVER_VERSION" not in page


@each_case(
    ("code", "boot", "expected"),
    [
        (None, "", ("0", "No Error")),
        (79, "now", ("79", "The GPU has fallen off the bus")),
        (79, "earlier", ("0", "No Error")),
    ],
)
def test_the_last_xid_is_that_of_this_boot(code: int | None, boot: str, expected: tuple[str, str]) -> None:
    """An alert on a value above 0 ends with a reboot, as with dcgm-exporter."""
    uuid = example_parts.uuid(0)
    times = {"13": 5.0} | ({} if code is None else {str(code): 9.0})
    report = with_gpu(
        samples.healthy(), xid_critical_errors_total=0.0, xid_last_timestamp_seconds=times if code else None
    )
    event = error_event(9, code or 0, uuid, boot_id=report.boot_id if boot == "now" else "earlier")
    page = LEGACY.render(changed(report, events=(event,) if code else ()))
    labels, value = series(page, "DCGM_FI_DEV_XID_ERRORS")[0]
    assert (labels["err_code"], labels["err_msg"], value) == (*expected, float(expected[0]))


def test_recent_xids_are_those_of_five_minutes() -> None:
    """Each Xid has a series with the number of its errors; an older one has none."""
    report, uuid = samples.healthy(), example_parts.uuid(0)
    now = report.node.snapshot_timestamp_seconds
    assert now is not None
    events = (error_event(1, 31, uuid, last_wall=now - 301), error_event(2, 79, uuid, last_wall=now - 299, nvml=4))
    found = series(LEGACY.render(changed(report, events=events)), "DCGM_EXP_XID_ERRORS_COUNT")
    assert [(labels["gpu"], labels["xid"], value) for labels, value in found] == [("0", "79", 4.0)]


def test_health_has_the_worst_verdict_of_each_watch() -> None:
    """0 is pass, 10 a warning, 20 a failure; an unknown health, and other watches of a lost GPU, have no series."""
    assert {value for _, value in series(LEGACY.render(samples.healthy()), "DCGM_EXP_GPU_HEALTH_STATUS")} == {0.0}
    found = series(LEGACY.render(samples.lost(3)), "DCGM_EXP_GPU_HEALTH_STATUS")
    failed = [labels for labels, value in found if value]
    assert [(each["gpu"], each["health_watch"], each["health_error_code"]) for each in failed] == [
        ("3", "DRIVER", "gpu_lost"),
        ("3", "ALL", "gpu_xid_critical"),
    ]
    assert [labels["health_watch"] for labels, _ in found if labels["gpu"] == "3"] == ["DRIVER", "ALL"]
    unknown = replace(samples.healthy(), health=replace(samples.healthy().health, evaluated=None))
    assert series(LEGACY.render(unknown), "DCGM_EXP_GPU_HEALTH_STATUS") == []


def test_an_unknown_verdict_is_not_a_pass() -> None:
    """A watch with a verdict of level unknown has no series."""
    report = samples.idle(2)
    (verdict,) = report.health.open.values()
    verdict = verdict._replace(check="gpu_power_cap_low", level=Level.UNKNOWN)
    report = replace(report, health=replace(report.health, open={verdict.key: verdict}))
    found = series(LEGACY.render(report), "DCGM_EXP_GPU_HEALTH_STATUS")
    assert {labels["gpu"] for labels, _ in found if labels["health_watch"] == "POWER"} == set("0134567")


def test_mig_instances_have_their_labels() -> None:
    """Memory and engine activity are those of each GPU instance, once for all of its compute instances.

    The GPU has none of its own, so that a sum over all series counts nothing twice.
    """
    found = series(page_of("h100migx8"), "DCGM_FI_DEV_FB_USED")
    divided = {one["gpu"] for one, _ in found if "GPU_I_ID" in one}
    assert {(one["GPU_I_ID"], one["GPU_I_PROFILE"]) for one, _ in found if one["gpu"] in divided} >= {("1", "3g.40gb")}
    assert all("GPU_I_ID" in one for one, _ in found if one["gpu"] in divided)
    report = samples.partitioned_node()
    state = report.gpus[1]
    shared = tuple(replace(mig, gpu_instance_id=1) for mig in state.migs)
    page = LEGACY.render(changed(report, gpus=(replace(state, migs=shared),)))
    assert [one["GPU_I_ID"] for one, _ in series(page, "DCGM_FI_DEV_FB_USED") if "GPU_I_ID" in one] == ["1"]


def test_every_name_is_unique_and_every_series_too() -> None:
    """No metric has the name of another one, in either version, and Prometheus rejects no series as a duplicate."""
    for page in (LEGACY, CANONICAL):
        names = [field.canonical if page.canonical else field.legacy for field in FIELDS]
        assert len(set(names)) == len(names)
        lines = [
            line.rpartition(" ")[0] for line in page.render(samples.troubled_node()).splitlines() if line[0] != "#"
        ]
        assert len(set(lines)) == len(lines)


def test_types_are_those_of_the_exporter() -> None:
    """The type follows the source. The NVLink rate and the metrics of the exporter were counters up to 4.8."""
    types = {field.legacy: field.type(canonical=False) for field in FIELDS}
    counters = {name.removeprefix("DCGM_FI_DEV_") for name, kind in types.items() if kind == "counter"}
    assert counters == {
        "TOTAL_ENERGY_CONSUMPTION",
        "PCIE_REPLAY_COUNTER",
        "NVLINK_BANDWIDTH_TOTAL",
        *(f"NVLINK_{kind}_ERROR_COUNT_TOTAL" for kind in ("CRC_FLIT", "REPLAY", "RECOVERY")),
        "UNCORRECTABLE_REMAPPED_ROWS",
        "CORRECTABLE_REMAPPED_ROWS",
        *(field.legacy for field in FIELDS if field.legacy.startswith("DCGM_EXP_")),
        *(f"ECC_{bits}_{period}_TOTAL" for bits in ("SBE", "DBE") for period in ("VOL", "AGG")),
        *(
            f"{policy}_VIOLATION"
            for policy in ("POWER", "THERMAL", "SYNC_BOOST", "BOARD_LIMIT", "LOW_UTIL", "RELIABILITY")
        ),
    }
    later = {field.canonical for field in FIELDS if field.type(canonical=True) == "counter"}
    assert not any(name.startswith("DCGM_EXP_") for name in later)
    assert metric_type("dcgm_fi_dev_nvlink_throughput_bytes_per_second") == "gauge"


def test_owners_are_labels_if_configured() -> None:
    """A GPU with one owner has the labels of dcgm-exporter for it; one with several, or by default, has none."""
    pods = tuple(claim(replace(POD, pod_name=name), "GPU-2") for name in ("a", "b"))
    report = owners(healthy(), mapped=(claim(SLURM, "GPU-0"), claim(POD, "GPU-1")), pods=pods)
    names = ("hpc_job", "pod", "namespace", "container")
    found = [
        {label: labels[label] for label in names if label in labels}
        for labels, _ in series(DcgmPage(host="n1", owner_labels=True).render(report), "DCGM_FI_DEV_GPU_UTIL")
    ]
    assert found == [{"hpc_job": "4711"}, {"pod": "train-0", "namespace": "ml"}, {}]
    assert all(not labels.keys() & set(names) for labels, _ in series(LEGACY.render(report), "DCGM_FI_DEV_GPU_UTIL"))
