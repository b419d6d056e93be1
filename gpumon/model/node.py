"""Metric tables of the node, of the agent itself and of verdicts. The daemon fills them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gpumon.model.reading import AGENT, agent, identity

UNITS = {"fabric_manager_up": "nvidia-fabricmanager.service", "imex_up": "nvidia-imex.service"}
"""Name of the systemd unit whose state a metric of Node reports, by name of the metric."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """Versions of the running agent."""

    PREFIX: ClassVar[str] = "gpumon_build_"
    LABELS: ClassVar[tuple[str, ...]] = ()

    version: str | None = identity("Version of gpumon.", AGENT)
    python: str | None = identity("Version of Python.", AGENT)
    revision: str | None = identity("Source revision of the build.", AGENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """Versions of the driver and NVML; all None while the driver does not answer or the whole node is released."""

    PREFIX: ClassVar[str] = "gpumon_driver_"
    LABELS: ClassVar[tuple[str, ...]] = ()

    driver: str | None = identity("Version of the kernel driver.", AGENT)
    nvml: str | None = identity("Version of NVML.", AGENT)
    cuda: str | None = identity("CUDA version that the driver supports.", AGENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """Metrics of the node as a whole and of the agent."""

    PREFIX: ClassVar[str] = "gpumon_"
    LABELS: ClassVar[tuple[str, ...]] = ()

    simulated: float | None = agent("1 if the node is simulated.")
    nvml_up: float | None = agent(
        "1 if the last fast poll reached the driver.",
        note="Absent on a host without NVIDIA GPUs that expects none.",
    )
    nvml_stuck_seconds: float | None = agent(
        "Time for which the current driver call has not returned; 0 if there is none."
    )
    gpus_expected: float | None = agent("Expected number of GPUs: configured, accepted, of the product, or learned.")
    gpus_visible: float | None = agent("Number of GPUs that NVML lists.", note="nvmlDeviceGetCount_v2")
    gpus_on_pci_bus: dict[str, float] | None = agent(
        "NVIDIA GPUs on the PCI bus by bound driver.",
        label="driver",
        note="From /sys/bus/pci, classes 0300 and 0302: no NVSwitches, no audio. Drivers: nvidia, vfio-pci, none.",
    )
    kernel_log_up: float | None = agent("1 if the kernel log can be read.")
    kernel_log_overruns_total: float | None = agent(
        "Number of times the kernel log was overwritten before it was read."
    )
    http_refused_total: dict[str, float] | None = agent(
        "Number of connections and requests that the agent refused.",
        label="reason",
        note="connections: too many. credentials: a wrong password or token of a reader. descriptors: too many open "
        "files. token: a wrong one. user: a local user who may not change state.",
    )
    notifications_total: dict[str, float] | None = agent(
        "Notifications that the agent itself sent, by receiver and outcome.",
        label=("receiver", "outcome"),
        note="Outcomes: delivered, failed (and retried), refused (not sent again), dropped (too many that have ended). "
        "Only with a receiver configured.",
    )
    collector_denied: dict[str, float] | None = agent("1 for a collector that lacks a permission.", label="collector")
    start_timestamp_seconds: float | None = agent("Unix time at which the agent started.")
    snapshot_timestamp_seconds: float | None = agent("Unix time at which the last complete poll ended.")
    poll_duration_seconds: dict[str, float] | None = agent("Duration of the last poll of this tier.", label="tier")
    poll_success: dict[str, float] | None = agent("1 if the last poll of this tier read every GPU.", label="tier")
    polls_total: dict[str, float] | None = agent("Number of polls of this tier.", label="tier")
    poll_errors_total: dict[str, float] | None = agent(
        "Failed driver calls and fields by NVML error.",
        label=("tier", "error"),
        note="Also Implausible (impossible value) and SilentZero (all engines idle while kernels of a process run: the "
        "zeros are left out from the third poll in a row on). Unsupported calls and missing permissions are not "
        "counted.",
    )
    sampler_restarts_total: dict[str, float] | None = agent("Restarts of the sampler by reason.", label="reason")
    release_end_timestamp_seconds: float | None = agent(
        "Unix time at which the release of GPUs ends; absent without a release."
    )
    maintenance_end_timestamp_seconds: float | None = agent(
        "Unix time at which the maintenance of the node ends; 0 without a maintenance.",
        note="No alert pages until then.",
    )
    fabric_manager_up: float | None = agent(
        "1 if the NVIDIA fabric manager runs, as a service of systemd or in a container.",
        note="Absent if its unit is not installed and no process of it was seen: GB200 needs none.",
    )
    imex_up: float | None = agent(
        "1 if the NVIDIA IMEX daemon runs, from systemd.",
        note="Absent if its unit is not installed, or disabled and not running.",
    )
    service_stops_total: dict[str, float] | None = agent(
        "Number of times a service that the links need has stopped or restarted.",
        label="service",
        note="Services: fabric_manager, imex. Read every 5 s since the start of the agent.",
    )
    nvswitch_errors_total: dict[str, float] | None = agent(
        "SXid errors of NVSwitches from the kernel log, kept over restarts of the agent.",
        label=("nvswitch", "sxid"),
        note="A switch is named by its PCI address, like `peer` of gpumon_nvlink_peer_info.",
    )
    abandoned_children: float | None = agent("Number of child processes that SIGKILL did not end.")
    driver_calls_total: float | None = agent("NVML calls since the start of the agent.")
    store_up: float | None = agent("1 if events and results can be written to disk.")
    exposed_series: float | None = agent("Number of series of gpumon_ metrics on /metrics.")
    resident_memory_bytes: dict[str, float] | None = agent(
        "Resident memory of the agent: of its daemon, and of all its child processes.",
        label="process",
        note="Pages that child processes share count once for each. Ranks of a running probe are children too.",
    )
    dropped_series_total: dict[str, float] | None = agent(
        "Series dropped because of a limit, by reason.", label="reason", zeros=False
    )
    log_messages_total: dict[str, float] | None = agent("Log messages by level.", label="level")
    alerts: dict[str, float] | None = agent(
        "Alerts of the agent, pending or firing.", label=("rule", "severity", "state")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthMetrics:
    """Verdicts as metric values: 0 ok, 1 unknown, 2 warn, 3 fail."""

    PREFIX: ClassVar[str] = "gpumon_"
    LABELS: ClassVar[tuple[str, ...]] = ()

    health_check: dict[str, float] | None = agent(
        "Verdict that is not ok: 1 unknown, 2 warn, 3 fail.",
        label=("check", "gpu", "uuid", "device", "port", "job_id"),
        note="Only verdicts that are not inhibited. For a GPU with gpu and uuid, for a port with device and port, for "
        "a job with job_id.",
    )
    node_health: float | None = agent("Worst verdict of the node: 0 ok, 1 unknown, 2 warn, 3 fail.")


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictInfo:
    """Action, code and reason of a verdict that is not inhibited, for the text of its alert.

    The reason is the text at the verdict's last transition, so that the label does not change with each poll.
    """

    PREFIX: ClassVar[str] = "gpumon_health_check_"
    LABELS: ClassVar[tuple[str, ...]] = ("check", "gpu", "uuid", "device", "port", "job_id")

    action: str | None = identity("What to do: none, restart, reset, reboot, fix, inspect or replace.", AGENT)
    action_text: str | None = identity("The sentence that `gpumon status` shows for it; may be empty.", AGENT)
    code: str | None = identity(
        "Error that raised the verdict, such as Xid 79 with its name; empty if none did.", AGENT
    )
    reason: str | None = identity("Reason, with the readings at the time of the last transition.", AGENT)
