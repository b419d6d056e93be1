"""Prometheus recording rules that keep the last verdicts of an agent that can no longer be scraped."""

from __future__ import annotations

from collections.abc import Mapping

from gpumon.health.check_row import DAY

JOB = "gpumon"
"""Name of the scrape job in Prometheus."""
VERDICT = "gpumon_health_check"
MAINTENANCE_END = "gpumon_maintenance_end_timestamp_seconds"
"""Metric that an agent exports once it has read its stored verdicts. While this metric exists, the agent's own
series are used instead of recorded ones.
"""
NODE = "(instance, job, cluster)"
"""Labels that name a node in Prometheus. Two clusters may have a node of one name; `cluster` may be absent."""
KEEP_SECONDS = DAY
"""Seconds after the last scrape for which the last verdicts are kept."""

LAST_SEEN = "instance:gpumon_agent:last_seen_timestamp_seconds"
LAST_MAINTENANCE_END = f"instance:{MAINTENANCE_END}:last"
LAST_VERDICT = f"instance:{VERDICT}:last"
LAST_INFO = f"instance:{VERDICT}_info:last_timestamp_seconds"
"""Time of the last scrape of each info series of a verdict. The series with the newest time is the current one."""


def recording_rules(keep_seconds: float = KEEP_SECONDS) -> Mapping[str, str]:
    """Return PromQL by the name of the recorded series, in the order of evaluation.

    `keep_seconds`: as KEEP_SECONDS. Each rule also reads its own earlier result, up to an hour old, so that a restart
    of Prometheus loses nothing. A verdict that has ended is recorded as 0 once, because last_over_time ignores the end
    of a series.
    """
    verdict = f"last_over_time({LAST_VERDICT}[1h]) > 0"
    while_recorded = f"and on {NODE} {LAST_SEEN}"
    return {
        LAST_SEEN: f"timestamp({MAINTENANCE_END}) or last_over_time({LAST_SEEN}[1h]) > time() - {keep_seconds:.0f}",
        LAST_MAINTENANCE_END: f"{MAINTENANCE_END} or last_over_time({LAST_MAINTENANCE_END}[1h]) {while_recorded}",
        LAST_VERDICT: f"{VERDICT} or {verdict} {while_recorded} unless on {NODE} {MAINTENANCE_END} or 0 * ({verdict})",
        # Last: a scrape that ends between two rules must not raise an alert whose texts are not there yet.
        LAST_INFO: f"timestamp({VERDICT}_info) or last_over_time({LAST_INFO}[1h]) {while_recorded} "
        f"unless on {NODE} {MAINTENANCE_END}",
    }
