"""Alerts as operators see them: name, severity, texts and what to do, for each check and for the agent itself.

The PromQL of the alerts that only Prometheus evaluates is in `gpumon/fleet/`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from gpumon import DEFAULT_PORT
from gpumon.health.check_row import MINUTE, Check, Paging, first_step, for_job
from gpumon.health.policy import BOOT_GRACE
from gpumon.health.table import SUBJECTS, Subject
from gpumon.health.verdict import UNKNOWN, Level

WARNING = "Warning"
"""Suffix that names the second alert of a check whose verdict can be a warning as well as a failure."""
SEVERITIES = ("critical", "warning", "info")
PAGING = ("critical", "warning")
"""Severities that page. Alerts of these severities are muted while the node is in maintenance."""
RUNBOOKS = "/runbooks"
"""Path of the runbooks that the agent serves."""
DOWN_SECONDS = BOOT_GRACE
"""Seconds for which agents must be down before they can be an outage: a reboot is no fault."""
SINGLE_SECONDS = DOWN_SECONDS + 2 * MINUTE
"""Seconds after which an agent that is down has an alert of its own: it may be the first agent of an outage."""
WATCHDOG = "GpumonWatchdog"
"""Name of the alert that always fires, for a receiver that pages when its notifications stop."""
AGENT_SUBJECT = "Alerts that only Prometheus evaluates"
LABEL = re.compile(r"(?<!\{)\{(\w+)\}")
"""Regular expression for a label name in braces, in the texts of an AlertText."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertText:
    """One alert, without its condition. Its texts of one line may contain label names in braces, as `{uuid}`."""

    name: str
    for_seconds: float = 0.0
    severity: str
    page: Paging = Paging.DAY
    area: str = "agent"
    """Value of the label `class`, by which a receiver is chosen."""
    summary: str
    description: str
    steps: str
    """What an operator does, as a numbered list in Markdown."""
    subject: str = AGENT_SUBJECT
    """Heading of the runbook page that contains the alert."""
    check: Check | None = None
    level: Level | None = None
    """Level of the verdicts of `check` that the alert is about."""

    @property
    def labels(self) -> Mapping[str, str]:
        """Return the labels that the alert has in addition to those of its device and node."""
        return {"severity": self.severity, "page": self.page, "class": self.area}

    @property
    def section(self) -> str:
        """Return the section of the runbook page, which the alerts of one check share."""
        return self.name if self.check is None else self.check.alert

    @property
    def runbook_url(self) -> str:
        return runbook_url(self.section)

    @property
    def first_step(self) -> str:
        """Return the first step in one line, without its number, and with a label for the JOB to explain."""
        return for_job(first_step(self.steps), "{job_id}")


def runbook_url(section: str, base: str = RUNBOOKS) -> str:
    """Return the URL of a runbook below `base`; by default its path on the agent."""
    return f"{base.rstrip('/')}/{section}"


def _of_fleet(name: str, area: str, text: str, steps: str) -> AlertText:
    """Return an alert about the fleet that does not page. `text`: both its summary and its description."""
    return AlertText(
        name=name,
        severity="info",
        page=Paging.NEVER,
        area=area,
        summary=text,
        description=text,
        steps=steps,
    )


PROMETHEUS_ONLY = (
    AlertText(
        name="GpumonDown",
        for_seconds=SINGLE_SECONDS,
        severity="warning",
        summary="gpumon cannot be scraped.",
        description=f"Prometheus has had no answer from gpumon for {SINGLE_SECONDS / MINUTE:g} minutes. "
        "These GPUs are not monitored.",
        steps=f"""\
1. Check that the host is up. If it is not, the fault is not in gpumon.
2. On the host: `gpumon doctor` and `journalctl -u gpumon -n 50`. With an invalid configuration the unit is activating;
   correct it (`gpumon config check`), and the agent starts within seconds. If the unit is failed:
   `systemctl reset-failed gpumon gpumon.socket`, then `systemctl start gpumon`.
3. `curl http://127.0.0.1:{DEFAULT_PORT}/-/healthy`. If it answers, check the listen address and the network.
""",
    ),
    AlertText(
        name="GpumonManyDown",
        severity="critical",
        page=Paging.NIGHT,
        summary="Many agents cannot be scraped.",  # no number: a resolved alert has that of the last evaluation
        description="Prometheus has had no answer from {{ $value }} nodes for "
        f"{DOWN_SECONDS / MINUTE:g} minutes. Check power and network.",
        steps="""\
1. `gpumon fleet --prometheus http://prometheus:9090` lists the nodes: do they share a rack, a switch or a power feed?
2. If the hosts are up, look for what was rolled out last: `journalctl -u gpumon` on one of them.
""",
    ),
    AlertText(
        name="IbManyPortsDown",
        severity="critical",
        page=Paging.NIGHT,
        area="network",
        summary="{device}/{port} went down at the time at which ports of other nodes did.",
        description="The port went down within minutes of ports of at least two other nodes: a switch?",
        steps="""\
1. Which switch has these ports? Check its power, its management port and its log.
2. If they share no switch, look for what was changed in the fabric: subnet manager, cabling, firmware.
""",
    ),
    AlertText(
        name="GpuManyPowerBrakes",
        severity="critical",
        page=Paging.NIGHT,
        area="hardware",
        summary="The power brake slows down GPUs of many nodes.",
        description="The power brake slows down GPUs of {{ $value }} nodes: a power feed or the cap of a rack?",
        steps="""\
1. Which rack, row or feed have these nodes in common? Check its power shelves, feeds and power cap: not the GPUs.
2. Until it is repaired, reduce the load or the power limits (`nvidia-smi -pl`) of these nodes. Do not replace GPUs.
""",
    ),
    AlertText(
        name="GpumonStale",
        severity="warning",
        summary="gpumon exports old readings.",
        description='The last complete poll ended {{ printf "%.0f" $value }} seconds ago.',
        steps="""\
1. `gpumon status` shows the driver call that has not returned, or why the sampler is not running.
2. Compare the clocks of the host and of Prometheus (`timedatectl`).
3. If no call hangs and the clocks agree, restart gpumon and report its log.
""",
    ),
    AlertText(
        name="AllReduceBelowFleet",
        for_seconds=2 * MINUTE,  # so that AllReduceSlow of the same run fires first, and inhibits it
        severity="warning",
        area="performance",
        summary="The all-reduce is slower than on other nodes with the same GPUs.",
        description="The {algorithm} all-reduce of {bytes} bytes on {ranks} GPUs ({name}) reached "
        "{{ $value | humanizePercentage }} of the fleet's median bus bandwidth.",
        steps="""\
1. Fix other alerts of this node (links, clocks, PCIe), then run `gpumon probe allreduce` on the free node.
2. Compare its table with that of another node.
3. If it is still slow, compare driver, NCCL, power limits and /etc/nccl.conf with another node.
""",
    ),
    _of_fleet(
        "GpumonFleetBusy",
        "job",
        "The GPUs of the fleet were busy for {{ $value | humanizePercentage }} of the last hour: more are needed.",
        "1. Add nodes, or look for work that can wait.\n",
    ),
    _of_fleet(
        "GpumonFleetIdle",
        "job",
        "The GPUs of the fleet were busy for {{ $value | humanizePercentage }} of the last hour: fewer suffice.",
        "1. The dashboard gpumon-fleet lists the GPUs that are held but idle.\n",
    ),
    _of_fleet(
        WATCHDOG,
        "agent",
        "This alert always fires: if its notifications stop, alerts no longer reach you.",
        "1. Check Prometheus, its rules, Alertmanager and the receiver, in this order.\n",
    ),
)
"""The alerts that only Prometheus can evaluate, because they are about the agent itself or a fleet."""

CHECK_UNKNOWN = AlertText(
    name="GpumonCheckUnknown",
    for_seconds=10 * MINUTE,
    severity="warning",
    summary="Check {check} has returned unknown.",
    description="Check {check} has returned unknown for 10 minutes. Unknown is not healthy.",
    steps="""\
1. `gpumon status` on the node shows what the check lacks and what to do: most often a permission, a service that does
   not run, or a GPU that answers with an error.
2. If the node cannot have what the check reads, add the check to `health.disabled_checks`.
""",
)

_DEVICES = {"gpu": "GPU {gpu}: ", "port": "{device}/{port}: ", "job": "Job {job_id}: ", "node": ""}
"""Start of the summary of an alert, by the kind of its check."""
_VERBS = {"critical": "has failed", "warning": "has returned a warning", "info": "has returned a warning"}


def alert_names(check: Check) -> tuple[str, ...]:
    """Return the alert names of a check: one for each level of its verdicts, the worst level first."""
    return (check.alert, check.alert + WARNING)[: len(check.levels)]


def alert_texts() -> tuple[AlertText, ...]:
    """Return all alerts in the order of the runbook page."""
    return (*PROMETHEUS_ONLY, CHECK_UNKNOWN, *_by_key().values())


def text_of(check: str, level: Level) -> AlertText | None:
    """Return the alert for a verdict of this check and level; None if there is no such alert."""
    return CHECK_UNKNOWN if level is UNKNOWN else _by_key().get((check, level))


@cache
def _by_key() -> Mapping[tuple[str, Level], AlertText]:
    checks = ((subject, check) for subject in SUBJECTS for check in subject.checks)
    return {(check.name, level): text for subject, check in checks for level, text in _of_check(check, subject)}


def _of_check(check: Check, subject: Subject) -> Iterator[tuple[Level, AlertText]]:
    ranked = sorted(check.severities, reverse=True)
    fault = check.help.rstrip(".")
    device = _DEVICES[check.kind]
    for name, (level, severity) in zip(alert_names(check), ranked, strict=True):
        yield (
            level,
            AlertText(
                name=name,
                severity=severity,
                page=check.paging(level),
                area=subject.area,
                summary=f"{device}{fault}.",
                description=f"{fault}: check {{check}} {_VERBS[severity]}. `gpumon status` on the node shows why.",
                steps=check.steps,
                subject=subject.heading,
                check=check,
                level=level,
            ),
        )


def fill(template: str, labels: Iterable[tuple[str, str]]) -> str:
    """Return the template with label names in braces replaced by their values; by "" for an absent label."""
    values = dict(labels)
    return LABEL.sub(lambda match: values.get(match[1], ""), template)
