"""CHECKS: error counters of InfiniBand and RoCE ports. A counter that stopped at its maximum is absent."""

from __future__ import annotations

from collections.abc import Mapping

from gpumon.health.check_row import HOUR, MINUTE, Check, Latch, same
from gpumon.health.facts import PortCase
from gpumon.health.policy import AMOUNT, Limit
from gpumon.health.sample_windows import SampleWindow
from gpumon.health.verdict import PASSED, Action, Finding, Level, fail, warn

ERRORS = "gpumon_infiniband_errors_total"
ERRORS_SOON, ERRORS_LONG, ERRORS_HOUR = (SampleWindow(ERRORS, seconds) for seconds in (5 * MINUTE, 10 * MINUTE, HOUR))
DOWNS_SOON = SampleWindow("gpumon_infiniband_link_downs_total", 5 * MINUTE)

SYMBOLS_SECOND = Limit(
    "max_infiniband_symbol_errors_per_second", 10, "Maximum rate of symbol errors a second; more are a warning.", AMOUNT
)
SYMBOLS_HOUR = Limit(
    "max_infiniband_symbol_errors_per_hour",
    120,
    "Maximum number of symbol errors in an hour; more are a failure.",
    AMOUNT,
)
RECOVERIES = Limit(
    "max_infiniband_link_recoveries_per_minute", 5, "Maximum rate of error recoveries of a link a minute.", AMOUNT
)
RECEIVE = Limit(
    "max_infiniband_receive_errors_per_second", 10, "Maximum rate of packets received with errors a second.", AMOUNT
)
DISCARDS = Limit(
    "max_infiniband_discards_per_second", 100, "Maximum rate of packets a second that a port fails to send.", AMOUNT
)
TIMEOUTS = Limit(
    "max_infiniband_ack_timeouts_per_second", 1, "Maximum rate of acknowledgement timeouts a second.", AMOUNT
)
SLOW_STARTS = Limit("max_roce_slow_restarts_per_second", 10, "Maximum rate of RoCE slow restarts a second.", AMOUNT)
NOT_READY = Limit(
    "max_infiniband_not_ready_per_second",
    1000,
    "Maximum rate of packets a second for which the receiver is not ready.",
    AMOUNT,
)

FATAL = {
    "excessive_buffer_overrun_errors": "its buffers overran",
    "local_link_integrity_errors": "its link had too many errors",
    "no_completion_cmds": "its device does not answer admin commands",
}
_STRESS = (
    ("port_xmit_discards", DISCARDS, "packets are discarded"),
    ("local_ack_timeout_err", TIMEOUTS, "acknowledgements are late"),
    ("roce_slow_restart", SLOW_STARTS, "flows restart slowly"),
    ("rnr_nak_retry_err", NOT_READY, "the receiver is not ready"),
)
_SLACK = 60.0
"""Maximum seconds of an hour that samples may leave uncovered."""


def fatal(port: PortCase) -> Finding | None:
    """Return a failure if a counter of FATAL has increased, a warning if connections failed or the link went down."""
    if port.port.counts.errors_total is None:
        return None
    since = port.time_cleared("ib_fatal_counter")
    grown = {growth.labels["kind"]: growth for growth in port.growth(ERRORS_SOON, since=since)}
    for kind, words in FATAL.items():
        if growth := grown.get(kind):
            reason = f"The port counted {kind} ({growth.gain:.0f}): {words}."
            return fail(reason, Action.INSPECT, at=port.facts.wall(growth.last_at), kind=kind)
    if growth := grown.get("req_transport_retries_exceeded"):
        reason = f"Connections of the port gave up after too many retries ({growth.gain:.0f}): jobs may have failed."
        return warn(reason, Action.NONE, at=port.facts.wall(growth.last_at), kind="req_transport_retries_exceeded")
    for growth in port.growth(DOWNS_SOON, since=since):
        if growth.last_at > port.facts.policy.boot_grace:
            reason = "The link of the port went down: jobs that used it may have failed."
            return warn(reason, Action.NONE, at=port.facts.wall(growth.last_at), kind="link_downed")
    return PASSED


def symbols(port: PortCase) -> Finding | None:
    """Return a finding on symbol errors that still occur: an earlier short burst is link training."""
    if "symbol_error" not in (port.port.counts.errors_total or {}):
        return None
    per_hour, per_second = port.facts.any_threshold(SYMBOLS_HOUR, SYMBOLS_SECOND)
    soon = _gains(port, ERRORS_SOON).get("symbol_error", 0.0)
    if not soon:
        return PASSED
    hour, rate = _gains(port, ERRORS_HOUR)["symbol_error"], soon / ERRORS_SOON.seconds
    of_hour = (series for series in port.series(ERRORS_HOUR) if series.labels["kind"] == "symbol_error")
    covered = any(series.covered_seconds >= ERRORS_HOUR.seconds - _SLACK for series in of_hour)
    if per_hour is not None and covered and hour > per_hour:
        reason = f"The port had {hour:.0f} symbol errors in an hour: cable, transceiver or port are degrading."
        return fail(reason, Action.INSPECT, symbol_errors_per_hour=hour)
    if per_second is None or rate <= per_second:
        return PASSED
    return warn(f"The port has {rate:.0f} symbol errors a second.", Action.INSPECT, symbol_errors_per_second=rate)


def rates(port: PortCase) -> Finding | None:
    if port.port.counts.errors_total is None:
        return None
    soon = _gains(port, ERRORS_SOON)
    a_minute = soon.get("link_error_recovery", 0.0) / (ERRORS_SOON.seconds / MINUTE)
    limit = port.facts.limit(RECOVERIES)
    if limit is not None and a_minute > limit:
        reason = f"The link of the port recovers from errors {a_minute:.0f} times a minute."
        return warn(reason, Action.INSPECT, link_recoveries_per_minute=a_minute)
    a_second, limit = soon.get("port_rcv_errors", 0.0) / ERRORS_SOON.seconds, port.facts.limit(RECEIVE)
    if limit is not None and a_second > limit:
        reason = f"The port receives {a_second:.0f} packets a second with errors."
        return warn(reason, Action.INSPECT, receive_errors_per_second=a_second)
    return PASSED


def stress(port: PortCase) -> Finding | None:
    if port.port.counts.errors_total is None:
        return None
    gained = _gains(port, ERRORS_LONG)
    for kind, threshold, words in _STRESS:
        rate, limit = gained.get(kind, 0.0) / ERRORS_LONG.seconds, port.facts.limit(threshold)
        if limit is not None and rate > limit:
            reason = f"The network is under stress: {words}, {rate:.3g} a second for ten minutes."
            return warn(reason, Action.INSPECT, kind=kind, per_second=rate)
    return PASSED


def _gains(port: PortCase, window: SampleWindow) -> Mapping[str, float]:
    return {growth.labels["kind"]: growth.gain for growth in port.growth(window)}


_DOWN = same("ib_device_missing", "nic_driver_fatal", "ib_port_down", "ib_port_flapping")

CHECKS: tuple[Check, ...] = (
    Check(
        name="ib_fatal_counter",
        levels=(Level.WARN, Level.FAIL),
        help="A port counted errors that a healthy link never has.",
        steps="""\
1. `gpumon_infiniband_errors_total` shows which counter increased and when.
2. Overruns: flow control fails; check the switch port too. Link integrity and link downs: cable or transceiver.
""",
        port=fatal,
        latch=Latch(quiet=HOUR),
        windows=(ERRORS_SOON, DOWNS_SOON),
        inhibited_by=_DOWN,
    ),
    Check(
        name="ib_symbol_errors",
        levels=(Level.WARN, Level.FAIL),
        help="A port has persistent symbol errors.",
        steps="""\
1. More than 120 an hour exceed InfiniBand's bit error ratio: packets are lost or sent again.
2. Clean and reseat the cable; swap cable, transceiver and port, one after the other.
""",
        port=symbols,
        after=5 * MINUTE,
        windows=(ERRORS_SOON, ERRORS_HOUR),
        limits=(SYMBOLS_SECOND, SYMBOLS_HOUR),
        inhibited_by={**_DOWN, "ib_fatal_counter": "same"},
    ),
    Check(
        name="ib_error_rates",
        levels=(Level.WARN,),
        help="The link of a port is degrading.",
        steps="""\
1. `gpumon_infiniband_errors_total`: recoveries point to the link, receive errors to the link or the sender.
2. Plan the replacement of cable or transceiver before the link fails.
""",
        port=rates,
        windows=(ERRORS_SOON,),
        limits=(RECOVERIES, RECEIVE),
        inhibited_by={**_DOWN, "ib_fatal_counter": "same", "ib_symbol_errors": "same"},
    ),
    Check(
        name="roce_stress",
        levels=(Level.WARN,),
        help="A port drops or repeats packets: congestion, or failing flow control.",
        steps="""\
1. If all ports of a node or rack are affected: congestion, or a wrong setting (PFC, ECN, QoS) in the switches.
2. If one port is affected: its cable, or the other end.
""",
        port=stress,
        windows=(ERRORS_LONG,),
        limits=(DISCARDS, TIMEOUTS, SLOW_STARTS, NOT_READY),
        inhibited_by={**_DOWN, "ib_symbol_errors": "same", "ib_error_rates": "same"},
    ),
)
