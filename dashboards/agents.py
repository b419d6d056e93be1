"""DASHBOARD: the alerts and the agents."""

from __future__ import annotations

from dashboards.panels import NODE, NONE, Column, Dashboard, Section, Words, graph, increments, stat, table, timeline
from dashboards.promql import (
    EACH_GPU,
    EACH_NODE,
    FIRING,
    MAX_SERIES,
    RULES_WORK,
    TARGETS,
    alerts,
    biggest,
    count,
    increase,
    rate,
    series,
    stated,
)
from gpumon.fleet.recording_rules import LAST_SEEN

_HIGHEST = f"Shows the {MAX_SERIES} highest series at each time: select nodes to see others."
_SEVERITY: Words = {0: NONE, 1: ("info", "blue"), 2: ("warning", "orange"), 3: ("critical", "red")}
_STAT = {"width": 6}
_UNDELIVERED = series("gpumon_notifications_total", 'outcome!="delivered"')


def _most(expression: str) -> str:
    return f"topk({MAX_SERIES}, {expression})"


def _by_severity() -> str:
    ranked = (('severity="critical"', 3), ('severity="warning"', 2), ('severity="info"', 1))
    return " or ".join(
        f"{rank} * {biggest(f'alertname, {EACH_NODE}', alerts(FIRING, severity))}" for severity, rank in ranked
    )


def _blind(answers: str) -> str:
    """Return the seconds of the last day in which a series was 0, by node, from one value a minute."""
    return biggest(EACH_NODE, f"60 * count_over_time(({answers} == 0)[1d:1m])")


_NIGHT = 'page="night"'
_ACTIVE = f"last_over_time({alerts(FIRING, _NIGHT)}[1d])"
_FAULT = f"alertname, {EACH_GPU}, device, port, job_id"
_PAGERS = '{integration=~"pagerduty|opsgenie|victorops|pushover|sns|telegram"}'
"""Integrations that page a person; mail and chat are tickets, and a webhook is often a dead man's switch."""


def _delivered(matchers: str) -> str:
    """Return the number of notifications of a day that were sent and did not fail."""
    sent, failed = (f"sum(increase(alertmanager_notifications_{name}total{matchers}[1d]))" for name in ("", "failed_"))
    return f"{sent} - {failed}"


DASHBOARD = Dashboard(
    uid="gpumon-agents",
    title="gpumon: alerts and agents",
    description="Does a fault reach a person, and does each agent see its GPUs?",
    sections=(
        Section(
            title="Does a fault reach a person, once?",
            panels=(
                stat(
                    "Alerts that fire?",
                    "gpumon's alerts that fire in Prometheus now.",
                    count(alerts(FIRING), RULES_WORK),
                    colors={None: "green", 1: "orange"},
                    **_STAT,
                ),
                stat(
                    "Pages for each fault, 24 hours?",
                    "Delivered by the integrations of Alertmanager that page (pagerduty and the like), divided by the "
                    'alerts with page="night" that fired in Prometheus. Reminders and resolved messages count. n/a: no '
                    "such alert fired, Alertmanager is not scraped, or it pages by e-mail or webhook only.",
                    f"round({_delivered(_PAGERS)}) / count(count by ({_FAULT}) ({_ACTIVE}))",
                    **_STAT,
                ),
                stat(
                    "Notifications that failed, 24 hours?",
                    "Not delivered by Alertmanager, or by Prometheus to Alertmanager. They are sent again.",
                    "round(sum(increase(alertmanager_notifications_failed_total[1d])) + "
                    "sum(increase(prometheus_notifications_errors_total[1d])))",
                    colors={None: "green", 1: "red"},
                    **_STAT,
                ),
                stat(
                    "Notifications that an agent could not deliver, 24 hours?",
                    "Agents with receivers of their own (docs/notifications.md). n/a: no agent has one.",
                    f"round(sum(increase({_UNDELIVERED}[1d])))",
                    colors={None: "green", 1: "red"},
                    **_STAT,
                ),
                timeline(
                    "Which alerts fired, where and when?",
                    "gpumon's alerts in Prometheus, by node.",
                    _by_severity(),
                    "{{instance}} {{alertname}}",
                    _SEVERITY,
                    known=RULES_WORK,
                    width=24,
                ),
            ),
        ),
        Section(
            title="Does each agent see its GPUs?",
            panels=(
                table(
                    "Which agents do not answer, and since when?",
                    "Prometheus cannot scrape them. Last answer: as far as Prometheus remembers, for a day.",
                    [
                        stated(f"{biggest(EACH_NODE, TARGETS)} == 0", "instance", "none", TARGETS),
                        f"1000 * {biggest(EACH_NODE, series(LAST_SEEN))} and on ({EACH_NODE}) {TARGETS} == 0",
                    ],
                    [Column("instance", NODE), Column("B", "last answer", unit="dateTimeFromNow")],
                ),
                table(
                    "How long was each node blind in 24 hours?",
                    "Minutes in which the agent did not answer, or its driver did not.",
                    [stated(_blind(TARGETS), "instance", "none", TARGETS), _blind(series("gpumon_nvml_up"))],
                    [
                        Column("instance", NODE),
                        Column("A", "agent silent", unit="s"),
                        Column("B", "driver silent", unit="s"),
                    ],
                    sort="agent silent",
                ),
                graph(
                    "How old are the readings?",
                    f"Time since the last complete poll, with Prometheus' clock. {_HIGHEST}",
                    {"{{instance}}": _most(f"time() - {series('gpumon_snapshot_timestamp_seconds')}")},
                    unit="s",
                ),
                graph(
                    "How long does a poll take?",
                    f"Duration of the last poll of each tier, mostly time in the driver. {_HIGHEST}",
                    {"{{instance}} {{tier}}": _most(series("gpumon_poll_duration_seconds"))},
                    unit="s",
                    minimum=0,
                ),
                increments(
                    "Which driver calls failed?",
                    "Calls and fields that failed between points. Unsupported ones are not counted.",
                    increase("gpumon_poll_errors_total", f"{EACH_NODE}, tier, error"),
                    "{{instance}} {{tier}} {{error}}",
                    series("gpumon_nvml_up"),
                ),
                increments(
                    "Why was a sampler replaced?",
                    "Replacements of the child that calls the driver. deadline: a driver call did not return.",
                    increase("gpumon_sampler_restarts_total", f"{EACH_NODE}, reason"),
                    "{{instance}} {{reason}}",
                    series("gpumon_build_info"),
                ),
            ),
        ),
        Section(
            title="What do the agents cost?",
            panels=(
                graph(
                    "How much memory does an agent take?",
                    f"The daemon and its child processes, with the ranks of a running probe. {_HIGHEST}",
                    {"{{instance}}": _most(f"sum by ({EACH_NODE}) ({series('gpumon_resident_memory_bytes')})")},
                    unit="bytes",
                    minimum=0,
                ),
                graph(
                    "How many series does an agent export?",
                    f"Series on /metrics. Each costs memory in Prometheus (docs/scale.md). {_HIGHEST}",
                    {"{{instance}}": _most(series("gpumon_exposed_series"))},
                    minimum=0,
                ),
                graph(
                    "How often is the driver called?",
                    f"NVML calls per second. {_HIGHEST}",
                    {"{{instance}}": _most(rate("gpumon_driver_calls_total"))},
                    unit="reqps",
                    minimum=0,
                ),
                table(
                    "Which versions run where?",
                    "Versions of gpumon, Python and the driver.",
                    [
                        biggest(f"{EACH_NODE}, version, python", series("gpumon_build_info")),
                        biggest(f"{EACH_NODE}, driver, cuda", series("gpumon_driver_info")),
                    ],
                    [
                        Column("instance", NODE),
                        Column("version", "gpumon"),
                        Column("python", "Python"),
                        Column("driver", "driver"),
                        Column("cuda", "CUDA"),
                    ],
                ),
            ),
        ),
    ),
)
