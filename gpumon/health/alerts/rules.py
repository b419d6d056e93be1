"""TABLE: the rules on readings; those on verdicts are made in health/alerting.py. A rule is a row here, and a case."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache

from gpumon import DEFAULT_PORT
from gpumon.health.alerts.expression import (
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
    windows,
)
from gpumon.probe.core.probes import PROBES

MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0

HANG = 15 * MINUTE
"""Readings vanish with a GPU whose driver call hangs. Alerts on them outlast the hang: after ten minutes of trials it
has ended, or a person has been called because of it."""

PAGING = ("critical", "warning")
"""Severities that call a person."""
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
    "idle_busy_ratio": Threshold(0.3, "Busy share of an hour under which a GPU that is held counts as idle."),
    "allreduce_nccl_busbw_bytes_per_second": Threshold(None, "Lowest good bus bandwidth of the all-reduce on GPUs."),
    "allreduce_nccl_latency_seconds": Threshold(0.002, "Median time of the smallest all-reduce on GPUs that is good."),
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
    subject: str = "The agent and what it measures"
    """Heading of the runbook under which it stands."""
    section: str = ""
    """Section of the runbook, which rules may share; empty: its own, by its name."""
    limits: tuple[str, ...] = ()
    """For the runbook: other numbers that an operator may set, a line each."""

    @property
    def alerting(self) -> Expression | None:
        """The expression as both back ends take it: in maintenance nothing pages."""
        if self.expression is None or self.severity not in PAGING:
            return self.expression
        return Combine(self.expression, "unless", _in_maintenance(self.expression), on=NODE)


def _in_maintenance(expression: Expression) -> Expression:
    """Beside the agent's own series stands its maintenance; a node that is down has told of it before.

    Only for that a day is looked back on: in every rule it would cost Prometheus more than all the rest.
    """
    end = Reading("gpumon_maintenance_end_timestamp_seconds")
    own = all(name.startswith("gpumon_") for name in windows(expression))
    return Compare(end if own else Over("last_over_time", end, DAY), ">", Now())


def rules(thresholds: Mapping[str, float | None], runbook_url: str = RUNBOOK_URL) -> tuple[Rule, ...]:
    """All rules on readings, with these thresholds in place of the defaults. Raises UnknownThreshold.

    `runbook_url` is a pattern in which `{anchor}` is the rule's section of docs/alerts.md.
    """
    unknown = sorted(set(thresholds) - set(THRESHOLDS))
    if unknown:
        raise UnknownThreshold(f"unknown threshold {', '.join(unknown)}: the rules have {', '.join(THRESHOLDS)}")
    values = {name: threshold.default for name, threshold in THRESHOLDS.items()} | dict(thresholds)
    return finished(_table(), values, runbook_url)


def finished(
    rows: Iterable[Rule], thresholds: Mapping[str, float | None], runbook_url: str = RUNBOOK_URL
) -> tuple[Rule, ...]:
    """Rows with thresholds and addresses put in."""
    return tuple(_with(row, thresholds, runbook_url) for row in rows)


def first_step(rule: str) -> str:
    """What to do first about an alert of this rule, in one line; empty where there is no such rule."""
    return _first_steps().get(rule, "")


@cache
def _first_steps() -> Mapping[str, str]:
    return {row.name: first_of(row.action) for row in _table()}


def first_of(steps: str) -> str:
    """The first of numbered steps, in one line."""
    return " ".join(steps.partition("\n2. ")[0].removeprefix("1. ").split())


def _with(row: Rule, values: Mapping[str, float | None], runbook_url: str) -> Rule:
    assert row.expression is not None  # noqa: S101 - the table has one in every row
    return replace(
        row,
        expression=resolved(row.expression, values),
        runbook_url=runbook_url.format(anchor=(row.section or row.name).lower()),
        thresholds={name: values[name] for name in limits(row.expression)},
    )


_OBSERVED = Reading("gpumon_gpu_observed_seconds_total")
_BUSY_SHARE = Arithmetic(
    Over("rate", Reading("gpumon_gpu_busy_seconds_total"), HOUR), "/", Over("rate", _OBSERVED, HOUR)
)


_SMALLEST = Reading(
    "gpumon_probe_allreduce_latency_seconds",
    where(backend="nccl", bytes=str(min(PROBES["allreduce"].gpu.sizes)), percentile="p50"),
)


def _under_floor(backend: str) -> Expression:
    # The best size stands for the run: small messages are bound by latency, and the ladder of sizes may change.
    busbw = Reading("gpumon_probe_allreduce_busbw_bytes_per_second", where(backend=backend))
    return Compare(Highest(busbw, ("bytes",)), "<", Limit(f"allreduce_{backend}_busbw_bytes_per_second"))


def _table() -> tuple[Rule, ...]:
    return (
        Rule(
            name="GpumonDown",
            expression=Compare(Reading("up", where(job=JOB)), "==", 0),
            for_=3 * MINUTE,
            severity="critical",
            evaluated=False,
            summary="gpumon cannot be scraped.",
            description="Prometheus has had no answer from gpumon for three minutes: nobody watches these GPUs.",
            action=f"""\
1. Is the host up? If not, this is not about gpumon.
2. `systemctl status gpumon` and `journalctl -u gpumon` on the host.
3. `curl http://127.0.0.1:{DEFAULT_PORT}/-/healthy`: if it answers, check its listen address and the network.
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
            name="AllReduceLatencyHigh",
            expression=Compare(_SMALLEST, ">", Limit("allreduce_nccl_latency_seconds")),
            severity="warning",
            summary="Small all-reduces take long.",
            description="Half of the {algorithm} all-reduces of {bytes} bytes took longer than {value:humanize}s.",
            action="""\
1. Run it again while the node is free: `gpumon probe allreduce`. It names other alerts of the node, too.
2. Look at the processors: a governor that saves power, deep idle states, a process that keeps all of them busy.
3. `NCCL_DEBUG=INFO` shows which transport NCCL chose: sockets in place of NVLink or PCIe are this slow.
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
