"""The settings of the agent, as pydantic models. To add a setting, add an attribute to a section.

The name of a setting consists of its section and its attribute: `web.listen_address` in the documentation, two levels
in the file, GPUMON_WEB__LISTEN_ADDRESS in the environment.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, PrivateAttr, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError
from typing_extensions import Self

from gpumon import DEFAULT_PORT
from gpumon.config.jobs_section import JobsSection
from gpumon.config.notifications_section import NotificationsSection
from gpumon.config.probe_section import ProbeSection
from gpumon.config.setting import (
    NEEDS,
    ConfigurationSection,
    SomePath,
    Url,
    check_address,
    check_gpu,
    matching,
    setting,
    split,
)
from gpumon.health.xids import Xid
from gpumon.model.reading import MAX_SERIES


class WebSection(ConfigurationSection):
    """Settings of the HTTP server."""

    RESTART = True

    listen_address: Annotated[str, AfterValidator(check_address)] = setting(
        f"127.0.0.1:{DEFAULT_PORT}",
        f"Address to listen on. `:{DEFAULT_PORT}` is every address of the host. Port 0 is any free port.",
        flag="--web.listen-address",
    )
    token_file: SomePath = setting(
        ...,
        "File with the bearer token for requests that change state. Created at the first start with mode 0640.",
        flag="--web.token-file",
        default_in_words="`token` in the state directory",
        example="/var/lib/gpumon/token",
    )
    socket: SomePath | None = setting(
        None,
        "Unix socket for the commands on this host. Every local user may read. Root, the agent's user and the members "
        "of the agent's group may change state.",
        flag="--web.socket",
        default_in_words="`gpumon.sock` in the runtime directory of the unit, else beside the store",
        example="/run/gpumon/gpumon.sock",
    )
    config_file: SomePath | None = setting(
        None,
        "File with certificates for TLS and with users, in the format of Prometheus's exporter-toolkit: docs/tls.md.",
        flag="--web.config.file",
        example="/etc/gpumon/web.yml",
    )
    read_token_file: SomePath | None = setting(
        None,
        "File with a bearer token that a client over TCP needs to read, unless it has a user's password. Created like "
        "`web.token_file`.",
        example="/var/lib/gpumon/read-token",
    )
    allowed_hosts: Annotated[tuple[str, ...], BeforeValidator(split)] = setting(
        (),
        "Accepted names in the Host header besides IP addresses and the names of the host. `*` accepts any name.",
        example=["gpu-17.monitoring.example.com"],
    )

    @property
    def address(self) -> tuple[str, int]:
        """Return (host, port) to listen on. The host has no brackets; an empty host means all addresses."""
        host, _, port = self.listen_address.rpartition(":")
        return host.strip("[]"), int(port)


class StoreSection(ConfigurationSection):
    """Settings of the SQLite database, which keeps data across restarts."""

    RESTART = True

    path: SomePath = setting(
        ...,
        "SQLite file for events, counters, verdicts, the inventory and probe results.",
        flag="--store.path",
        default_in_words="`gpumon.db` in the state directory",
        example="/var/lib/gpumon/gpumon.db",
    )
    retention_days: float = setting(
        90,
        "Age at which events, verdict transitions and probe results are deleted. Counters and the probe results of the "
        "baseline are kept.",
        gt=0,
    )
    retention_rows: int = setting(
        100_000,
        "Maximum number of events, of verdict transitions and of probe results. Counters and the probe results of the "
        "baseline are kept.",
        ge=1,
    )


class LogSection(ConfigurationSection):
    """Settings of the log on standard error."""

    level: Literal["debug", "info", "warning", "error"] = setting(
        "info",
        "Lowest severity that is logged: debug, info, warning or error. "
        "A reload applies to the sampler when it is next replaced.",
        flag="--log.level",
    )
    format: Literal["logfmt", "json"] = setting("logfmt", "Format of a line: logfmt or json.", flag="--log.format")


class PollSection(ConfigurationSection):
    """Settings of the polling of the GPUs."""

    interval_seconds: float = setting(1, "Interval of the fast readings.", flag="--poll.interval", ge=0.1, le=60)
    gpm: bool = setting(
        default=True,
        meaning="Read GPU performance monitoring (GPM, Hopper and later). Two more driver calls per GPU and poll.",
    )


class ProcessesSection(ConfigurationSection):
    """Settings of the metrics of processes on the GPUs."""

    max_per_gpu: int = setting(
        0,
        "Maximum number of processes per GPU to export with pid, name and memory, the largest first. "
        "0 exports none, because process names may be confidential.",
        ge=0,
        le=MAX_SERIES["processes"],
    )


class GpusSection(ConfigurationSection):
    """Settings of this host's GPUs: the expected number, and the GPUs to exclude."""

    expected_count: int | None = setting(
        None,
        "Number of GPUs that this host should have: docs/inventory.md.",
        default_in_words="the accepted or learned number",
        example=8,
        ge=0,
        le=1024,
    )
    exclude: Annotated[tuple[Annotated[str, BeforeValidator(check_gpu)], ...], BeforeValidator(split)] = setting(
        (),
        "GPUs that are never opened, by uuid, PCI bus id or index.",
        example=["GPU-4d2f7c1e-5d0b-6a0e-8c1f-2b3a4c5d6e7f", "0000:18:00.0"],
    )


class MetricsSection(ConfigurationSection):
    """Settings of the Prometheus endpoint."""

    RESTART = True

    detailed: bool = setting(
        default=False,
        meaning="Read all details (docs/metrics.md), and export them on `/metrics` too: half as many series again.",
    )
    dcgm_names: Literal["legacy", "canonical"] = setting(
        "legacy",
        "Names and units on `/metrics/dcgm`: those of dcgm-exporter up to 4.8 (`legacy`) or of 4.9 (`canonical`).",
    )
    dcgm_owner_labels: bool = setting(
        default=False,
        meaning="Whether /metrics/dcgm has the labels `pod`, `namespace`, `container` and `hpc_job`, as far as "
        "`jobs.labels` has those names. A GPU with several owners has none of them.",
    )
    dcgm_host_label: Literal["Hostname", "hostname"] | None = setting(
        None,
        "Label with the name of the host on `/metrics/dcgm`: `hostname` from dcgm-exporter 4.8.3 on.",
        default_in_words="`Hostname`, with canonical names `hostname`",
        example="hostname",
    )


class SimulateSection(ConfigurationSection):
    """Settings of a simulated node that replaces the GPUs of this host."""

    RESTART = True

    profile: str | None = setting(
        None,
        "Profile to simulate, or path of a recording to replay (`./node.capture`).",
        flag="--simulate",
        default_in_words="none: the real GPUs",
        example="h100x8",
    )
    scenario: SomePath | None = setting(
        None,
        "File with the events of the simulated node. Read again when it changes.",
        flag="--simulate.scenario",
        default_in_words="the profile's own",
        example="scenario.yml",
    )

    @field_validator("scenario")
    @classmethod
    def _scenario_needs_profile(cls, scenario: Path | None, info: ValidationInfo) -> Path | None:
        if scenario is not None and info.data.get("profile", "") is None:
            raise PydanticCustomError(NEEDS, "requires a profile", {"remedy": "set simulate.profile (--simulate) too"})
        return scenario


class HealthSection(ConfigurationSection):
    """Settings of the health checks: docs/health.md."""

    thresholds: Mapping[str, float | None] = setting(
        {},
        "Thresholds of checks that override the defaults, by name. Null disables what depends on the threshold.",
        example={"min_margin_celsius": 5},
    )
    disabled_checks: Annotated[tuple[str, ...], BeforeValidator(split)] = setting(
        (), "Checks to disable, by name.", example=["gpu_persistence_off"]
    )
    boot_grace_seconds: float = setting(
        300,
        "Time after a boot for links to train and daemons to start. 0 on a simulated node unless set.",
        ge=0,
        le=86400,
    )
    file: SomePath | None = setting(
        None,
        "File to which the verdicts are written for `gpumon check` and other programs: docs/check.md.",
        flag="--health.file",
        default_in_words="`health.json` in systemd's runtime directory, else `gpumon.db.health.json` beside the store",
        example="/run/gpumon/health.json",
        restart=True,
    )
    versions: Mapping[str, str] = setting(
        {},
        "Versions that this host should have, by name: docs/inventory.md lists the names.",
        example={"driver": "580.105.08"},
    )


class AlertsSection(ConfigurationSection):
    """Settings of the alerts."""

    runbook_url: Url | None = setting(
        None,
        "URL below which the runbooks are: the agent then redirects `/runbooks/NAME` to it.",
        default_in_words="the agent's own pages",
        example="https://wiki.example.com/gpumon",
        restart=True,
    )


class ReleaseSection(ConfigurationSection):
    """Settings of releases, during which the agent closes the driver: docs/release.md."""

    marker: SomePath = setting(
        Path("/run/gpumon/release"),
        "Marker file that releases the node, or the GPU that it names, while it exists and is not too old.",
        restart=True,
    )
    max_seconds: float = setting(
        1800, "Maximum length of a release, and maximum age of the marker file.", ge=1, le=86400
    )


class MaintenanceSection(ConfigurationSection):
    """Settings of maintenance windows, during which alerts do not page: docs/maintenance.md."""

    max_seconds: float = setting(86400, "Maximum length of a maintenance window.", ge=1, le=7 * 86400)


class KernelLogSection(ConfigurationSection):
    """Settings of the kernel log, which reports Xids and NVSwitch errors."""

    path: SomePath = setting(
        Path("/dev/kmsg"), "Device to read. Not read on a simulated node unless it is set.", restart=True
    )


class XidsSection(ConfigurationSection):
    """Settings of the Xid table: the file whose rows override or extend the table that gpumon ships."""

    file: SomePath | None = setting(
        None,
        "File with rows that override or extend the shipped table: docs/xids.md. Read again at each reload.",
        default_in_words="none",
        example="/etc/gpumon/xids.yml",
    )


class PciSection(ConfigurationSection):
    """Settings of sysfs, from which PCI devices are read."""

    sysfs: SomePath = setting(Path("/sys"), "Mount point of sysfs.", restart=True)


Adapter = Annotated[
    str,
    matching(
        r"(?![*?]*$)[A-Za-z0-9_.:*?\[\]!-]{1,100}",
        "must be a device (mlx5_3), a PCI address (0000:86:00.0), a board id (MT_0000000838), "
        "or a pattern of one with * and ? (mlx5_an*), without a port number",
    ),
]
Adapters = Annotated[tuple[Adapter, ...], BeforeValidator(split)]


class LinksSection(ConfigurationSection):
    """Settings of InfiniBand and RoCE ports, and of the services that NVLink requires."""

    sysfs: SomePath | None = setting(
        None, "Mount point of sysfs.", default_in_words="`pci.sysfs`", example="/host/sys", restart=True
    )
    root: SomePath = setting(
        Path("/"), "Mount point of the root of the host, whose systemd units show what is installed.", restart=True
    )
    exclude: Adapters = setting(
        (),
        "Network adapters that are never read, by device name, PCI address or board id, or a pattern of one.",
        example=["mlx5_an*", "0000:05:00.0"],
    )
    fabric: Adapters = setting(
        (),
        "Network adapters of the fabric, named like those of `links.exclude`. Only their ports can fail the node.",
        default_in_words="determined by link layer, position and speed: docs/links.md",
        example=["mlx5_[0-7]"],
    )


class Configuration(ConfigurationSection):
    """The validated configuration: one attribute for each section, and the origin of each setting."""

    web: WebSection
    store: StoreSection
    log: LogSection = LogSection()
    poll: PollSection = PollSection()
    processes: ProcessesSection = ProcessesSection()
    gpus: GpusSection = GpusSection()
    metrics: MetricsSection = MetricsSection()
    simulate: SimulateSection = SimulateSection()
    probe: ProbeSection = ProbeSection()
    jobs: JobsSection = JobsSection()
    health: HealthSection = HealthSection()
    alerts: AlertsSection = AlertsSection()
    notifications: NotificationsSection = NotificationsSection()
    release: ReleaseSection = ReleaseSection()
    maintenance: MaintenanceSection = MaintenanceSection()
    kernel_log: KernelLogSection = KernelLogSection()
    xids: XidsSection = XidsSection()
    pci: PciSection = PciSection()
    links: LinksSection = LinksSection()
    _origins: Mapping[str, str] = PrivateAttr(default_factory=dict)
    _xid_rows: Mapping[int, Xid] = PrivateAttr(default_factory=dict)

    def with_origins(self, origins: Mapping[str, str]) -> Self:
        """Return a copy with these origins, by setting."""
        copy = self.model_copy()
        copy._origins = dict(origins)  # noqa: SLF001 - its own
        return copy

    @property
    def xid_rows(self) -> Mapping[int, Xid]:
        """Return the operator's Xid rows from xids.file, by code."""
        return self._xid_rows

    def with_xid_rows(self, rows: Mapping[int, Xid]) -> Self:
        """Return a copy with these rows from xids.file, by code."""
        copy = self.model_copy()
        copy._xid_rows = dict(rows)  # noqa: SLF001 - its own
        return copy

    def origin(self, name: str) -> str:
        """Return where a setting was set: file and line, environment variable, flag or "default"."""
        return self._origins.get(name, "default")

    def value(self, name: str) -> Any:
        """Return the value of a setting by its name, such as "web.listen_address"."""
        section, _, key = name.partition(".")
        return getattr(getattr(self, section), key)
