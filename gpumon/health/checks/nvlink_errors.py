"""CHECKS: errors of NVLinks."""

from __future__ import annotations

from itertools import pairwise

from gpumon.health.check_row import DAY, HOUR, MINUTE, Check, same
from gpumon.health.checks.nvlink import FAILED_LINK, RECOVERIES, can_evaluate, link_growth
from gpumon.health.facts import GpuCase
from gpumon.health.policy import AMOUNT, COUNT, SHARE, Limit, Range
from gpumon.health.sample_windows import CounterGrowth, SampleWindow
from gpumon.health.verdict import PASSED, Action, Finding, Level, fail, warn

ERRORS_SOON = SampleWindow("gpumon_nvlink_errors_total", 5 * MINUTE)
ERRORS_LONG = SampleWindow("gpumon_nvlink_errors_total", 30 * MINUTE)
RECOVERIES_LONG = SampleWindow(RECOVERIES.metric, 30 * MINUTE)
RECOVERIES_DAY = SampleWindow(RECOVERIES.metric, DAY)
UP = SampleWindow("gpumon_nvlink_up", 30 * MINUTE)
ERROR_COUNT = Limit(
    "nvlink_errors", 1, "Minimum number of errors of an NVLink in five minutes that raises a warning.", COUNT
)
BAD_MINUTES = Limit(
    "max_nvlink_bad_minutes",
    15,
    "Maximum number of minutes with errors of an NVLink, of the last thirty.",
    Range(0, 29),
)
DOWN_COUNT = Limit(
    "nvlink_downs",
    5,
    "Minimum number of times that an NVLink goes down in thirty minutes that raises a failure.",
    COUNT,
)
RECOVERY_COUNT = Limit(
    "nvlink_recoveries",
    20,
    "Minimum number of recoveries of an NVLink (Blackwell and later) in a day that raises a warning.",
    COUNT,
)
RECOVERY_HOURS = 6
"""Hours of the last 24 with a recovery of an NVLink that raise a warning, however few recoveries there were."""
CRC_RATE = Limit(
    "nvlink_crc_errors_per_second",
    100,
    "Minimum rate of CRC errors a second of an NVLink that raises a failure.",
    AMOUNT,
)
BIT_ERRORS = Limit("max_nvlink_bit_error_ratio", 1e-12, "Maximum bit error ratio of an NVLink.", SHARE)
REPEATED = frozenset({"replay", "recovery"})
"""Kinds of errors, up to Hopper, after which packets are sent again. `nvlink_crc_high` evaluates CRC errors."""
BROKEN = frozenset(
    {
        *("malformed_packet", "buffer_overrun", "receive", "receive_general", "local_link_integrity"),
        *("effective", "symbol", "receive_remote"),
    }
)
"""Kinds of errors, from Blackwell on, that damaged packets. Packets that this end discards are not included.

DCGM fails a link for one error `effective`, `symbol` (forward error correction did not fix it) or `receive_remote`.
"""


def errors(gpu: GpuCase) -> Finding | None:
    limit = gpu.facts.threshold(ERROR_COUNT)
    if not can_evaluate(gpu):
        return None
    by_link: dict[str, dict[str, float]] = {}
    for growth in (*link_growth(gpu, ERRORS_SOON), *link_growth(gpu, RECOVERIES)):
        kind = growth.labels.get("kind") or {"successful": "recovery"}.get(growth.labels.get("result", ""), "")
        if kind in REPEATED | BROKEN:
            kinds = by_link.setdefault(growth.labels["link"], {})
            kinds[kind] = kinds.get(kind, 0.0) + growth.gain
    if not by_link:
        return PASSED
    link = max(by_link, key=lambda name: sum(by_link[name].values()))
    kinds, count = by_link[link], sum(by_link[link].values())
    if count < limit:
        return PASSED
    words = ", ".join(f"{gained:.0f} {kind.replace('_', ' ')}" for kind, gained in kinds.items())
    others = f"; {len(by_link) - 1} more links have errors" if len(by_link) > 1 else ""
    return warn(f"Errors of NVLink {link} in five minutes: {words}{others}.", Action.INSPECT, link=link, errors=count)


def unstable_link(gpu: GpuCase) -> Finding | None:
    minutes, downs = gpu.facts.any_threshold(BAD_MINUTES, DOWN_COUNT)
    if not can_evaluate(gpu):
        return None
    return (
        (minutes is not None and _link_with_errors(gpu, minutes))
        or (downs is not None and _flapping_link(gpu, downs))
        or PASSED
    )


def _link_with_errors(gpu: GpuCase, limit: float) -> Finding | None:
    minutes: dict[str, set[int]] = {}
    for growth in (*link_growth(gpu, ERRORS_LONG), *link_growth(gpu, RECOVERIES_LONG)):
        if "result" in growth.labels or growth.labels.get("kind") in REPEATED | BROKEN | {"crc"}:
            minutes.setdefault(growth.labels["link"], set()).update(_minutes(gpu, growth))
    link = max(minutes, key=lambda name: len(minutes[name]), default=None)
    if link is None or len(minutes[link]) <= limit:
        return None
    bad = len(minutes[link])
    reason = f"NVLink {link} had errors in {bad} of the last 30 minutes: it does not recover by itself."
    return fail(reason, Action.INSPECT, link=link, bad_minutes=bad)


def _flapping_link(gpu: GpuCase, limit: float) -> Finding | None:
    """Return a failure for an NVLink that goes down often. Each outage may be too short for the check `nvlink_down`."""
    downs = {
        series.labels["link"]: sum(after < before for before, after in pairwise(series.values))
        for series in gpu.series(UP)
    }
    link = max(downs, key=lambda name: downs[name], default=None)
    if link is None or downs[link] < limit:
        return None
    reason = f"NVLink {link} went down {downs[link]} times in the last 30 minutes."
    return fail(reason, Action.INSPECT, link=link, downs=float(downs[link]))


def recovering_link(gpu: GpuCase) -> Finding | None:
    """Return a warning if an NVLink recovered RECOVERY_COUNT times, or in RECOVERY_HOURS hours, of the last day.

    Recoveries before the last reset of the GPU do not count. No other counter may show such a link: marin issue 9086.
    """
    limit = gpu.facts.threshold(RECOVERY_COUNT)
    if not can_evaluate(gpu):
        return None
    reset_at, cleared = gpu.state.reset_at, gpu.time_cleared("nvlink_recovering") or 0.0
    since = cleared if reset_at is None else max(cleared, gpu.facts.wall(reset_at))
    steps: dict[str, list[tuple[float, float]]] = {}
    for growth in link_growth(gpu, RECOVERIES_DAY, since=since):
        steps.setdefault(growth.labels["link"], []).extend(growth.steps)
    link = max(steps, key=lambda name: sum(gain for _, gain in steps[name]), default=None)
    if link is None:
        return PASSED
    count = sum(gain for _, gain in steps[link])
    hours = min(24, len({at // HOUR for at, _ in steps[link]}))
    if count < limit and hours < RECOVERY_HOURS:
        return PASSED
    reason = f"NVLink {link} recovered {count:.0f} times in {hours} of the last 24 hours: it will probably fail."
    return warn(reason, Action.INSPECT, link=link, recoveries=count, hours=float(hours))


def crc_high(gpu: GpuCase) -> Finding | None:
    """Return a finding if an NVLink had CRC errors in each of the last five minutes: a failure from CRC_RATE on."""
    if not can_evaluate(gpu):
        return None
    crc = [growth for growth in link_growth(gpu, ERRORS_SOON) if growth.labels.get("kind") == "crc"]
    lasting = [growth for growth in crc if len(_minutes(gpu, growth)) >= ERRORS_SOON.seconds / MINUTE]
    if not lasting:
        return PASSED
    worst, limit = max(lasting, key=lambda growth: growth.gain), gpu.facts.limit(CRC_RATE)
    rate = worst.gain / ERRORS_SOON.seconds
    high = limit is not None and rate >= limit
    reason = f"NVLink {worst.labels['link']} receives {rate:.3g} packets a second with checksum errors."
    make = fail if high else warn
    return make(reason, Action.INSPECT, link=worst.labels["link"], crc_errors_per_second=rate)


def ber_high(gpu: GpuCase) -> Finding | None:
    limit = gpu.facts.threshold(BIT_ERRORS)
    if not can_evaluate(gpu):
        return None
    rates = {link: (state.bit_error_ratio or {}).get("effective") for link, state in gpu.state.links.items()}
    reported = {link: rate for link, rate in rates.items() if rate is not None}
    if not reported:
        return None
    link = max(reported, key=lambda name: reported[name])
    if reported[link] <= limit:
        return PASSED
    reason = f"NVLink {link} has a bit error ratio of {reported[link]:.1e}, more than {limit:.0e}: it will fail."
    return fail(reason, Action.INSPECT, link=link, bit_error_ratio=reported[link])


def _minutes(gpu: GpuCase, grown: CounterGrowth) -> set[int]:
    """Return the minutes in which the counter increased, counted backwards from now: 0 is the last minute."""
    return {int((gpu.facts.now.at - at) // MINUTE) for at, _ in grown.steps}


CHECKS: tuple[Check, ...] = (
    Check(
        name="nvlink_unstable",
        help="An NVLink repeatedly has errors, recovers or goes down.",
        steps="""\
1. Drain the node: collectives over this link are slow and will fail.
2. On `/metrics/links`, `gpumon_nvlink_errors_total` shows the link and the time, `gpumon_nvlink_peer_info` the peer.
3. Drain and reset the GPUs. If it persists: reseat or replace the board or the peer.
""",
        gpu=unstable_link,
        clear_after=10 * MINUTE,
        windows=(ERRORS_LONG, RECOVERIES_LONG, UP),
        counts_causes=True,
        limits=(BAD_MINUTES, DOWN_COUNT),
        inhibited_by=FAILED_LINK,
    ),
    Check(
        name="nvlink_recovering",
        levels=(Level.WARN,),
        help="An NVLink recovers again and again through the day.",
        steps="""\
1. The link works, but will probably fail. This can wait for the next drain of the node.
2. On `/metrics/links`, `gpumon_nvlink_recoveries_total` shows the link, `gpumon_nvlink_peer_info` the peer.
3. Drain the node and reset the GPUs, which clears the warning. If it persists: check cartridge and cable
   at both ends, then replace the board or the peer.
""",
        gpu=recovering_link,
        clear_after=10 * MINUTE,
        windows=(RECOVERIES_DAY,),
        counts_causes=True,
        limits=(RECOVERY_COUNT,),
        inhibited_by={**FAILED_LINK, "nvlink_unstable": "same"},
    ),
    Check(
        name="nvlink_crc_high",
        levels=(Level.WARN, Level.FAIL),
        help="An NVLink persistently receives packets with checksum errors.",
        steps="""\
1. Each packet is sent again, which slows traffic. A warning can wait for the next maintenance.
2. Critical: drain the node and reset the GPUs.
3. If it persists: reseat or replace the board or the peer.
""",
        gpu=crc_high,
        windows=(ERRORS_SOON,),
        limits=(CRC_RATE,),
        inhibited_by={**FAILED_LINK, "nvlink_unstable": "same"},
    ),
    Check(
        name="nvlink_ber_high",
        help="The bit error ratio of an NVLink is too high.",
        steps="""\
1. Drain the node when possible: such a link fails soon.
2. `nvidia-smi nvlink -e` names the link. Check cartridge and cable at both ends.
""",
        gpu=ber_high,
        after=5 * MINUTE,
        limits=(BIT_ERRORS,),
        inhibited_by={**FAILED_LINK, "nvlink_unstable": "same"},
    ),
    Check(
        name="nvlink_errors",
        levels=(Level.WARN,),
        help="An NVLink had errors and recovered.",
        steps="""\
1. One error needs no action: few jobs are affected. A receive remote error is a packet that the sender or a switch
   marked as bad: check the links of other GPUs first.
2. If it recurs: drain the node and reset the GPUs that share the link; then run the vendor's diagnostics.
""",
        gpu=errors,
        windows=(ERRORS_SOON, RECOVERIES),
        limits=(ERROR_COUNT,),
        inhibited_by={
            **FAILED_LINK,
            **same("nvlink_unstable", "nvlink_recovering", "nvlink_crc_high", "nvlink_ber_high"),
        },
    ),
)
