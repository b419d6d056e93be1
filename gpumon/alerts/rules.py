"""TABLE: the rules. A rule is added by adding a row and its case in tests/alerts/cases.py."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cache
from textwrap import fill

from gpumon.alerts.expression import (
    Arithmetic,
    Combine,
    Compare,
    Expression,
    Highest,
    Limit,
    Now,
    Over,
    Reading,
    limits,
    resolved,
    where,
)
from gpumon.alerts.faults import FAULTS

MINUTE, HOUR = 60.0, 3600.0

HANG = 15 * MINUTE
"""Readings vanish with a GPU whose driver call hangs. Alerts on them outlast the hang: after ten minutes of trials it
has ended, or a person has been called by GpuStuck."""

OPENING = 2 * MINUTE
"""Without persistence mode each GPU takes up to three seconds to open, one after the other: the last ones wait."""

NODE = ("instance",)
GPU = (*NODE, "uuid")
"""What identifies a GPU: before it has told its uuid, one made of its PCI address stands in, the same on every node."""

RUNBOOK_URL = "https://github.com/gpumon/gpumon/blob/main/docs/alerts.md#{anchor}"
JOB = "gpumon"
"""Name of the scrape job in Prometheus."""


@dataclass(frozen=True, slots=True)
class Threshold:
    """A number that an operator may override for both back ends; None switches off what depends on it."""

    default: float | None
    meaning: str


THRESHOLDS: Mapping[str, Threshold] = {
    "snapshot_age_seconds": Threshold(120, "Age of the last complete poll from which GpumonStale fires."),
    "thermal_margin_celsius": Threshold(5, "Degrees left to slowdown at which GpuTemperatureHigh fires."),
    "temperature_celsius": Threshold(85, "Core temperature at which it fires where the driver gives no margin."),
    "thermal_slowdown_ratio": Threshold(0.5, "Share of ten minutes in thermal slowdown that fires GpuThermalSlowdown."),
    "idle_busy_ratio": Threshold(0.3, "Busy share of an hour under which a GPU that is held counts as idle."),
    "allreduce_nccl_busbw_bytes_per_second": Threshold(None, "Lowest good bus bandwidth of the all-reduce on GPUs."),
    "allreduce_gloo_busbw_bytes_per_second": Threshold(None, "Lowest good bus bandwidth of the all-reduce on CPUs."),
}


class UnknownThreshold(ValueError):  # noqa: N818 - it is what the operator named
    """A threshold was configured that no rule has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One row. Durations in seconds; texts are templates (see template.py)."""

    name: str
    expression: Expression | None
    """None: switched off, because a threshold or list it needs is unset."""
    severity: str
    summary: str
    description: str
    action: str
    """For the runbook: what a person does about it."""
    for_: float = 0.0
    """How long the expression must hold before the alert fires."""
    keep_firing_for: float = 0.0
    """How long it goes on firing after that."""
    evaluated: bool = True
    """False for what the agent cannot say of itself: rendered only."""
    runbook_url: str = ""
    thresholds: Mapping[str, float | None] | None = None
    """Those that the expression uses, with their values."""


def rules(
    thresholds: Mapping[str, float | None], critical_xids: Collection[int], runbook_url: str = RUNBOOK_URL
) -> tuple[Rule, ...]:
    """All rules, with these thresholds in place of the defaults. Raises UnknownThreshold.

    `runbook_url` is a pattern in which `{anchor}` is the rule's section of docs/alerts.md.
    """
    unknown = sorted(set(thresholds) - set(THRESHOLDS))
    if unknown:
        raise UnknownThreshold(f"unknown threshold {', '.join(unknown)}: the rules have {', '.join(THRESHOLDS)}")
    values = {name: threshold.default for name, threshold in THRESHOLDS.items()} | dict(thresholds)
    return tuple(_with(row, values, runbook_url) for row in _table(tuple(str(xid) for xid in sorted(critical_xids))))


def first_step(rule: str) -> str:
    """What to do first about an alert of this rule, in one line; empty where there is no such rule."""
    return _first_steps().get(rule, "")


@cache
def _first_steps() -> Mapping[str, str]:
    return {row.name: " ".join(row.action.partition("\n2. ")[0].removeprefix("1. ").split()) for row in _table(())}


def _with(row: Rule, values: Mapping[str, float | None], runbook_url: str) -> Rule:
    assert row.expression is not None  # noqa: S101 - the table has one in every row
    return replace(
        row,
        expression=resolved(row.expression, values),
        runbook_url=runbook_url.format(anchor=row.name.lower()),
        thresholds={name: values[name] for name in limits(row.expression)},
    )


_NVML_UP = Reading("gpumon_nvml_up")
_RELEASED = Compare(Reading("gpumon_gpu_released"), "==", 1)
_MARGIN = Reading("gpumon_gpu_thermal_margin_celsius")
_OBSERVED = Reading("gpumon_gpu_observed_seconds_total")
_BUSY_SHARE = Arithmetic(
    Over("rate", Reading("gpumon_gpu_busy_seconds_total"), HOUR), "/", Over("rate", _OBSERVED, HOUR)
)


def _fault(*faults: str) -> Reading:
    return Reading("gpumon_gpu_fault", where(fault=faults if len(faults) > 1 else faults[0]))


def _advice(*faults: str) -> str:
    """A point of the runbook for each fault, inside a step."""
    points = (f"- `{fault}`: {FAULTS[fault].action}" for fault in faults)
    return "\n".join(
        fill(one, 120, initial_indent="   ", subsequent_indent="     ", break_on_hyphens=False) for one in points
    )


def _step(number: int, text: str) -> str:
    return fill(f"{number}. {text}", 120, subsequent_indent="   ", break_on_hyphens=False)


def _under_floor(backend: str) -> Expression:
    # The best size stands for the run: small messages are bound by latency, and the ladder of sizes may change.
    busbw = Reading("gpumon_probe_allreduce_busbw_bytes_per_second", where(backend=backend))
    return Compare(Highest(busbw, ("bytes",)), "<", Limit(f"allreduce_{backend}_busbw_bytes_per_second"))


def _table(critical_xids: tuple[str, ...]) -> tuple[Rule, ...]:
    return (
        Rule(
            name="GpumonNvmlDown",
            expression=Compare(_NVML_UP, "==", 0),
            for_=MINUTE,
            severity="critical",
            summary="The NVIDIA driver does not answer.",
            description="gpumon has not reached NVML for a minute: no reading of this node's GPUs is current.",
            action="""\
1. `gpumon status` names the error: driver not loaded, versions of kernel module and library that differ, no permission,
   or calls that do not return.
2. After a driver update without a reboot, library and kernel module differ: reload the modules or reboot.
3. `lsmod | grep nvidia` and `dmesg | grep -i nvrm` tell whether the module is loaded and what it said.
4. When calls hang, drain the node and reboot it; a process in state D cannot be killed.
""",
        ),
        Rule(
            name="GpumonDown",
            expression=Compare(Reading("up", where(job=JOB)), "==", 0),
            for_=3 * MINUTE,
            severity="critical",
            evaluated=False,
            summary="gpumon cannot be scraped.",
            description="Prometheus has had no answer from gpumon for three minutes: nobody watches these GPUs.",
            action="""\
1. Is the host up? If not, this is not about gpumon.
2. `systemctl status gpumon` and `journalctl -u gpumon` on the host.
3. `curl http://127.0.0.1:10400/-/healthy` on the host: when that answers, look at the listen address and the network.
""",
        ),
        Rule(
            name="GpumonStale",
            expression=Compare(
                Arithmetic(Now(), "-", Reading("gpumon_snapshot_timestamp_seconds")), ">", Limit("snapshot_age_seconds")
            ),
            severity="critical",
            evaluated=False,
            summary="gpumon answers, but its readings are old.",
            description="The last complete poll ended {value:.0f} seconds ago.",
            action="""\
1. `gpumon status` names the driver call that has not returned, or the reason why the sampler is not running.
2. Compare the clocks of the host and of Prometheus (`timedatectl`).
3. Nothing hangs and the clocks agree: restart gpumon and report what its log says.
""",
        ),
        Rule(
            name="GpuLost",
            # One alert a GPU, whatever the reason: a driver that is asked again may give another one. A GPU that nobody
            # can read because the whole driver does not answer is GpumonNvmlDown's business.
            expression=Highest(
                Combine(
                    Compare(_fault("lost", "missing", "reset_required", "init_failed"), "==", 1),
                    "or",
                    Combine(
                        Compare(Over("min_over_time", _fault("unknown"), OPENING), "==", 1),
                        "unless",
                        Compare(_NVML_UP, "==", 0),
                        on=NODE,
                    ),
                ),
                without=("fault",),
            ),
            severity="critical",
            summary="GPU {gpu} is lost.",
            description="GPU {gpu} ({uuid}) can no longer be used; the metric gpumon_gpu_fault and the API say why.",
            action=f"""\
1. Drain the node: jobs that hold this GPU cannot go on.
2. `gpumon status` names the fault; what each one asks for:
{_advice("lost", "missing", "reset_required", "init_failed", "unknown")}
3. It comes again: check power, risers and seating, run the vendor's diagnostics, replace the board.
""",
        ),
        Rule(
            name="GpuStuck",
            expression=Compare(_fault("stuck"), "==", 1),
            severity="critical",
            summary="A driver call for GPU {gpu} does not return.",
            description="GPU {gpu} ({uuid}) is left aside, and tried again from time to time; its readings are absent.",
            action=f"""\
{_step(1, FAULTS["stuck"].action)}
2. `gpumon status` names the call and since when it hangs. `dmesg | grep -i xid`: Xid 119 or 120 is the GSP firmware.
3. It comes again: update driver and firmware, then open a case with the vendor.
""",
        ),
        Rule(
            name="GpuCountMismatch",
            # While one GPU is reset, or given to another driver, the driver may count it or not.
            expression=Combine(
                Compare(Reading("gpumon_gpus_visible"), "!=", Reading("gpumon_gpus_expected")),
                "unless",
                _RELEASED,
                on=NODE,
            ),
            for_=MINUTE,
            keep_firing_for=HANG,
            severity="critical",
            summary="The driver sees {value:.0f} GPUs, which is not the number expected.",
            description="The driver counts {value:.0f} GPUs; gpumon_gpus_expected says how many there should be.",
            action="""\
1. `lspci -d 10de:` shows whether the GPU is on the bus, `gpumon_gpus_on_pci_bus` which driver it is bound to.
2. On the bus but not visible: `dmesg | grep -i nvrm`, then reload the driver or reboot.
3. Not on the bus: power the host off and on; look at the BMC's log, power and risers.
4. The number is right and the expectation is not: set it in the configuration.
""",
        ),
        Rule(
            name="GpuXidCritical",
            expression=Compare(
                Over("increase", Reading("gpumon_gpu_xid_errors_total", where(xid=critical_xids)), HOUR), ">", 0
            ),
            severity="critical",
            summary="Critical Xid {xid} on GPU {gpu}.",
            description="GPU {gpu} ({uuid}) reported Xid {xid} within the last hour.",
            action="""\
1. Drain the node: memory, link, firmware or bus of this GPU are at fault, not the job.
2. `gpumon status` names the errors of the last day and what each asks for, `gpumon xid` explains any code or line of
   the kernel log. Most ask for a reset of the GPU, 79 for a power cycle, 64 for a new board.
3. The same code after the reset: run the vendor's diagnostics and replace the board.
""",
        ),
        Rule(
            name="GpuTemperatureHigh",
            expression=Combine(
                Compare(_MARGIN, "<=", Limit("thermal_margin_celsius")),
                "or",
                Combine(
                    Compare(Reading("gpumon_gpu_temperature_celsius"), ">=", Limit("temperature_celsius")),
                    "unless",
                    _MARGIN,
                    on=GPU,
                ),
            ),
            for_=5 * MINUTE,
            keep_firing_for=HANG,
            severity="warning",
            summary="GPU {gpu} is about to slow down from heat.",
            description="GPU {gpu} ({uuid}): {value:.0f} degrees, left to the slowdown where the driver tells, "
            "else of the core.",
            action="""\
1. One GPU: dust, a failed fan, a loose heat sink or cold plate. Compare it with its neighbours.
2. All GPUs of the node: inlet temperature, fans, coolant flow (the BMC knows).
3. Until then lower the load or the power limit (`nvidia-smi --power-limit`).
""",
        ),
        Rule(
            name="GpuEccUncorrectable",
            expression=Compare(
                Over("increase", Reading("gpumon_gpu_ecc_errors_total", where(severity="uncorrected")), HOUR), ">", 0
            ),
            severity="critical",
            summary="Uncorrectable memory errors on GPU {gpu}.",
            description="GPU {gpu} ({uuid}) had uncorrectable ECC errors in {location} within the last hour.",
            action="""\
1. Results of jobs that ran on this GPU are in doubt. Drain it.
2. Reset the GPU, so that the rows are replaced; then look at `gpumon_gpu_row_remap_failed`.
3. Errors in sram, or again after a reset: run the vendor's diagnostics and replace the board.
""",
        ),
        Rule(
            name="GpuRowRemapFailed",
            expression=Compare(Reading("gpumon_gpu_row_remap_failed"), "==", 1),
            keep_firing_for=HANG,
            severity="critical",
            summary="GPU {gpu} has no spare memory row left.",
            description="A bad memory row of GPU {gpu} ({uuid}) could not be replaced.",
            action="""\
1. Drain the GPU: its memory can no longer be repaired.
2. Replace the board; the vendor takes `nvidia-smi -q -d ROW_REMAPPER` as proof.
""",
        ),
        Rule(
            name="GpuThermalSlowdown",
            # From the reasons seen, not the seconds counted: sources disagree on the unit of the driver's counters.
            expression=Compare(
                Over(
                    "avg_over_time",
                    Reading("gpumon_gpu_clock_event_active", where(reason=("hw_slowdown", "hw_thermal", "sw_thermal"))),
                    10 * MINUTE,
                ),
                ">",
                Limit("thermal_slowdown_ratio"),
            ),
            for_=5 * MINUTE,
            keep_firing_for=HANG,
            severity="warning",
            summary="GPU {gpu} is slowed down ({reason}).",
            description="{reason} slowed GPU {gpu} ({uuid}) down for {value:ratio} of the last ten minutes.",
            action="""\
1. `sw_thermal`, `hw_thermal`: cooling, as for GpuTemperatureHigh.
2. `hw_slowdown` without either: power. Look at power supplies, cables and the rack's power cap.
3. A synchronous job runs at the pace of its slowest GPU: drain the node until this is solved.
""",
        ),
        Rule(
            name="NvlinkDown",
            # 0 is said only of a link that should be up: see health/products.py. Links of the neighbours go down with a
            # GPU that is released and reset.
            expression=Combine(Compare(Reading("gpumon_nvlink_up"), "==", 0), "unless", _RELEASED, on=NODE),
            for_=2 * MINUTE,
            keep_firing_for=HANG,
            severity="critical",
            summary="NVLink {link} of GPU {gpu} is down.",
            description="Link {link} of GPU {gpu} ({uuid}) carries no traffic.",
            action="""\
1. `nvidia-smi nvlink -s` and `dmesg | grep -i xid` (74, or 144 to 150 from Blackwell on).
2. With NVSwitches: is the fabric manager running, in the driver's version? Read its log.
3. Drain the node and reset all GPUs that share links with this one. It comes again: reseat or replace the board, the
   bridge or the tray.
""",
        ),
        Rule(
            name="AllReduceBandwidthLow",
            expression=Combine(_under_floor("nccl"), "or", _under_floor("gloo")),
            severity="warning",
            summary="The all-reduce is slower than it should be.",
            description="The {algorithm} all-reduce ({backend}) reached {value:humanize}B/s of bus bandwidth at "
            "its best size, which is under the configured floor.",
            action="""\
1. Run it again while the node is free: `gpumon probe allreduce`.
2. Look for other alerts of this node: a link that is down, slowed clocks, PCIe below its width.
3. `NCCL_DEBUG=INFO` shows which transport NCCL chose; `nvidia-smi topo -m` what it could have chosen.
4. Still slow: drain the node, leave out one GPU at a time to find the one that holds the others back.
""",
        ),
        Rule(
            name="GpuIdle",
            # An agent that has not yet watched for the whole hour does not judge it.
            expression=Combine(
                Combine(
                    Compare(_BUSY_SHARE, "<", Limit("idle_busy_ratio")),
                    "and",
                    Compare(Over("min_over_time", Reading("gpumon_gpu_processes"), HOUR), ">", 0),
                    on=GPU,
                ),
                "and",
                Compare(Over("increase", _OBSERVED, HOUR), ">", 0.9 * HOUR),
                on=GPU,
            ),
            keep_firing_for=HANG,
            severity="info",
            summary="GPU {gpu} is held but hardly used.",
            description="Processes held GPU {gpu} ({uuid}) for an hour in which it was busy {value:ratio} of the time.",
            action="""\
1. `nvidia-smi` on the host, or the job scheduler, tells who holds it.
2. A notebook left open, a job that waits for its input, a rank that waits for another: ask its owner.
""",
        ),
    )
