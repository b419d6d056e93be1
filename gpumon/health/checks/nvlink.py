"""CHECKS: NVLinks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from gpumon.health.catalogue import RECOVERY_ACTION
from gpumon.health.check import MINUTE, Check, Latch, Where, XidCause
from gpumon.health.checks.xid import LINKS
from gpumon.health.facts import Facts, GpuCase
from gpumon.health.policy import AMOUNT, COUNT, SHARE, Limit, Range
from gpumon.health.products import link_speed
from gpumon.health.sample_windows import CounterGrowth, SampleWindow
from gpumon.health.verdict import OFF, PASSED, Action, Finding, Level, fail, warn

_ELSEWHERE = frozenset({108, 121, 137, 159, 173})
"""Xids that blame the peer, or concern chip-to-chip links."""
LINK_XIDS = LINKS - {RECOVERY_ACTION} - _ELSEWHERE
"""Xids with which the driver reports a failed NVLink."""
ERRORS_SOON = SampleWindow("gpumon_nvlink_errors_total", 5 * MINUTE)
ERRORS_LONG = SampleWindow("gpumon_nvlink_errors_total", 30 * MINUTE)
RECOVERIES = SampleWindow("gpumon_nvlink_recoveries_total", 5 * MINUTE)
UP = SampleWindow("gpumon_nvlink_up", 30 * MINUTE)

MAX_ERRORS = Limit(
    "nvlink_errors", 1, "Minimum number of errors of an NVLink in five minutes that is a warning.", COUNT
)
BAD_MINUTES = Limit(
    "nvlink_bad_minutes",
    15,
    "Maximum number of minutes with errors, of the last thirty, for a healthy NVLink.",
    Range(0, 29),
)
MAX_DOWNS = Limit(
    "nvlink_downs", 5, "Minimum number of times that an NVLink goes down in thirty minutes that is a failure.", COUNT
)
CRC_RATE = Limit(
    "nvlink_crc_errors_per_second", 100, "Minimum rate of CRC errors a second of an NVLink that is a failure.", AMOUNT
)
BIT_ERRORS = Limit("nvlink_bit_error_ratio", 1e-12, "Maximum bit error ratio of an NVLink.", SHARE)
SPEED = Limit(
    "nvlink_speed_ratio", 0.95, "Minimum speed of an NVLink, as a share of its product's and its neighbours'.", SHARE
)

REPEATED = frozenset({"replay", "recovery"})
"""Up to Hopper: packets lost and sent again. CRC errors are evaluated by their rate."""
BROKEN = frozenset({"malformed_packet", "buffer_overrun", "receive", "receive_general", "local_link_integrity"})
"""From Blackwell on. Not included: errors that the other end reports or discards, and symbol errors, which are
corrected.
"""
_TRAINING_BEFORE, _TRAINING_AFTER = MINUTE, 3 * MINUTE
"""Seconds around a GPU reset in which its links are down and are trained again."""

_LOST: Mapping[str, Where | XidCause] = {
    "gpu_lost": "peer",
    "gpu_missing": "peer",
    "gpu_xid_critical": XidCause("same", LINK_XIDS),
}


def down(gpu: GpuCase) -> Finding | None:
    """Return a failure if links are down. A link reports 0 only if it should be up: see health/products.py."""
    links = gpu.state.links
    if not _can_tell(gpu):
        return None
    dead = [link for link, one in links.items() if one.up == 0]
    if not dead:
        return None if _forgotten(gpu) else PASSED
    named = f"NVLink {', '.join(dead)}" if len(dead) < len(links) else "Each NVLink"
    reason = f"{named} of {len(links)} {'is' if len(dead) in {1, len(links)} else 'are'} down."
    return fail(reason, Action.RESET, links_down=len(dead), links=len(links), down=",".join(dead))


def _forgotten(gpu: GpuCase) -> bool:
    """Return whether a link of the open verdict is now unreported.

    Links that should be up are learned again after a restart.
    """
    known = gpu.facts.open.get(("nvlink_down", gpu.state.uuid))
    if known is None or gpu.now.mig_mode:
        return False
    were = str(known.evidence.get("down", "")).split(",")
    return any(one.up is None for link, one in gpu.state.links.items() if link in were)


def recovery_failed(gpu: GpuCase) -> Finding | None:
    if not _can_tell(gpu):
        return None
    cleared = gpu.cleared("nvlink_recovery_failed")
    grown = [one for one in _grown(gpu, RECOVERIES, since=cleared) if one.labels.get("result") == "failed"]
    if not grown:
        return PASSED
    links = ", ".join(sorted({one.labels["link"] for one in grown}, key=int))
    at = gpu.facts.wall(max(one.last_at for one in grown))
    return fail(f"NVLink {links} could not be retrained after errors.", Action.RESET, at=at, links=links)


def errors(gpu: GpuCase) -> Finding | None:
    most = gpu.facts.limit(MAX_ERRORS)
    if most is None:
        return OFF
    if not _can_tell(gpu):
        return None
    by_link: dict[str, dict[str, float]] = {}
    for one in (*_grown(gpu, ERRORS_SOON), *_grown(gpu, RECOVERIES)):
        kind = one.labels.get("kind") or {"successful": "recovery"}.get(one.labels.get("result", ""), "")
        if kind in REPEATED | BROKEN:
            kinds = by_link.setdefault(one.labels["link"], {})
            kinds[kind] = kinds.get(kind, 0.0) + one.gain
    if not by_link:
        return PASSED
    link = max(by_link, key=lambda one: sum(by_link[one].values()))
    kinds, count = by_link[link], sum(by_link[link].values())
    if count < most:
        return PASSED
    words = ", ".join(f"{gained:.0f} {kind.replace('_', ' ')}" for kind, gained in kinds.items())
    others = f"; {len(by_link) - 1} more links have errors" if len(by_link) > 1 else ""
    return warn(f"Errors of NVLink {link} in five minutes: {words}{others}.", Action.INSPECT, link=link, errors=count)


def unstable(gpu: GpuCase) -> Finding | None:
    most, downs = gpu.facts.limit(BAD_MINUTES), gpu.facts.limit(MAX_DOWNS)
    if most is None and downs is None:
        return OFF
    if not _can_tell(gpu):
        return None
    return (most is not None and _erring(gpu, most)) or (downs is not None and _flapping(gpu, downs)) or PASSED


def _erring(gpu: GpuCase, most: float) -> Finding | None:
    minutes: dict[str, set[int]] = {}
    for one in _grown(gpu, ERRORS_LONG):
        if one.labels.get("kind") in REPEATED | BROKEN | {"crc"}:
            minutes.setdefault(one.labels["link"], set()).update(_minutes(gpu, one))
    link = max(minutes, key=lambda one: len(minutes[one]), default=None)
    if link is None or len(minutes[link]) <= most:
        return None
    bad = len(minutes[link])
    reason = f"NVLink {link} had errors in {bad} of the last 30 minutes: it does not recover by itself."
    return fail(reason, Action.INSPECT, link=link, bad_minutes=bad)


def _flapping(gpu: GpuCase, most: float) -> Finding | None:
    """Return a failure for a link that was down repeatedly, each time for less than the delay of `nvlink_down`."""
    downs = {one.labels["link"]: _falls(one.values) for one in gpu.series(UP)}
    link = max(downs, key=lambda one: downs[one], default=None)
    if link is None or downs[link] < most:
        return None
    reason = f"NVLink {link} went down {downs[link]} times in the last 30 minutes."
    return fail(reason, Action.INSPECT, link=link, downs=float(downs[link]))


def _falls(values: Sequence[float]) -> int:
    return sum(after < before for before, after in pairwise(values))


def crc_high(gpu: GpuCase) -> Finding | None:
    """Return a finding if a link had CRC errors in each of five minutes."""
    if not _can_tell(gpu):
        return None
    crc = [one for one in _grown(gpu, ERRORS_SOON) if one.labels.get("kind") == "crc"]
    lasting = [one for one in crc if len(_minutes(gpu, one)) >= ERRORS_SOON.seconds / MINUTE]
    if not lasting:
        return PASSED
    worst, most = max(lasting, key=lambda one: one.gain), gpu.facts.limit(CRC_RATE)
    rate = worst.gain / ERRORS_SOON.seconds
    high = most is not None and rate >= most
    reason = f"NVLink {worst.labels['link']} receives {rate:.3g} packets a second with checksum errors."
    say = fail if high else warn
    return say(reason, Action.INSPECT, link=worst.labels["link"], crc_errors_per_second=rate)


def ber_high(gpu: GpuCase) -> Finding | None:
    most = gpu.facts.limit(BIT_ERRORS)
    if most is None:
        return OFF
    if not _can_tell(gpu):
        return None
    rates = {link: (one.bit_error_ratio or {}).get("effective") for link, one in gpu.state.links.items()}
    known = {link: rate for link, rate in rates.items() if rate is not None}
    if not known:
        return None
    link = max(known, key=lambda one: known[one])
    if known[link] <= most:
        return PASSED
    reason = f"NVLink {link} has a bit error ratio of {known[link]:.1e} , more than {most:.0e}: it will fail."
    return fail(reason, Action.INSPECT, link=link, bit_error_ratio=known[link])


def slow(gpu: GpuCase) -> Finding | None:
    share, speed = gpu.facts.limit(SPEED), gpu.now.nvlink_speed_bytes_per_second
    if share is None:
        return OFF
    if speed is None or gpu.now.mig_mode or not _can_tell(gpu):
        return None
    others = (one.gpu.nvlink_speed_bytes_per_second for one in gpu.facts.gpus if one.gpu.name == gpu.now.name)
    best = max([link_speed(gpu.now.name) or 0.0, *filter(None, others)])
    if speed >= share * best:
        return PASSED
    reason = f"The slowest NVLink runs at {speed / 1e9:.1f} GB/s in each direction; expected are {best / 1e9:.1f} GB/s."
    return warn(reason, Action.RESET, nvlink_speed_bytes_per_second=speed, best_bytes_per_second=best)


def _can_tell(gpu: GpuCase) -> bool:
    """Return whether the links can be evaluated.

    A released GPU may be reset, which takes down the links of its peers.
    """
    return bool(gpu.state.links) and not any(one.released for one in gpu.facts.gpus)


def _grown(gpu: GpuCase, window: SampleWindow, *, since: float | None = None) -> Iterator[CounterGrowth]:
    """Yield the link counters that increased, without errors from link training after a GPU reset."""
    found = gpu.growth(window, since=since)
    if not found:
        return
    trained = list(_trained(gpu.facts))
    for one in found:
        steps = tuple(step for step in one.steps if not any(begin < step[0] < end for begin, end in trained))
        if steps:
            yield CounterGrowth(one.labels, steps)


def _minutes(gpu: GpuCase, grown: CounterGrowth) -> set[int]:
    """Return the minutes in which the counter increased, counted backwards from now."""
    return {int((gpu.facts.now.at - at) // MINUTE) for at, _ in grown.steps}


def _trained(facts: Facts) -> Iterator[tuple[float, float]]:
    """Yield the periods of link training after GPU resets, on the boot clock."""
    for state in facts.gpus:
        if state.reset_at is not None:
            yield state.reset_at - _TRAINING_BEFORE, state.reset_at + _TRAINING_AFTER


_FAILING: Mapping[str, Where | XidCause] = {**_LOST, "nvlink_down": "same", "nvlink_recovery_failed": "same"}

CHECKS = (
    Check(
        name="nvlink_down",
        help="An NVLink that should be up is down.",
        steps="""\
1. `nvidia-smi nvlink -s` and `dmesg | grep -i xid` (74, or 144 to 150 from Blackwell on).
2. With NVSwitches: does the fabric manager run, in the driver's version? Check its log.
3. Drain the node and reset all GPUs that share links with this one. If it recurs: reseat or replace the board, the
   bridge or the tray.
""",
        gpu=down,
        after=2 * MINUTE,
        grace=True,
        inhibited_by={**_LOST, "fabric_manager_down": "node", "nvswitch_error": "node"},
    ),
    Check(
        name="nvlink_recovery_failed",
        help="An NVLink had errors and could not be retrained.",
        steps="""\
1. Drain the node: the link is down or about to fail.
2. Reset all GPUs that share links with this one.
3. If it recurs: reseat or replace the board, the cartridge or the cable.
""",
        gpu=recovery_failed,
        latch=Latch(),
        windows=(RECOVERIES,),
        inhibited_by={**_LOST, "nvlink_down": "same"},
    ),
    Check(
        name="nvlink_unstable",
        help="An NVLink repeatedly has errors or goes down.",
        steps="""\
1. Drain the node: collectives over this link are slow and will fail.
2. `gpumon_nvlink_errors_total` shows the link and the time; `gpumon_nvlink_peer_info` shows the peer.
3. Reset the GPUs. If it persists: reseat or replace the board or the peer.
""",
        gpu=unstable,
        clear_after=10 * MINUTE,
        windows=(ERRORS_LONG, UP),
        limits=(BAD_MINUTES, MAX_DOWNS),
        inhibited_by=_FAILING,
    ),
    Check(
        name="nvlink_crc_high",
        levels=(Level.WARN, Level.FAIL),
        help="An NVLink persistently receives packets with checksum errors.",
        steps="""\
1. Each packet is sent again: traffic slows down before it fails. A warning can wait for the next maintenance.
2. From 100 a second on, drain the node and reset the GPUs.
3. If it persists: reseat or replace the board or the peer.
""",
        gpu=crc_high,
        windows=(ERRORS_SOON,),
        limits=(CRC_RATE,),
        inhibited_by={**_FAILING, "nvlink_unstable": "same"},
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
        inhibited_by={**_FAILING, "nvlink_unstable": "same"},
    ),
    Check(
        name="nvlink_errors",
        levels=(Level.WARN,),
        help="An NVLink had errors and recovered.",
        steps="""\
1. One error needs no action: few jobs are affected.
2. If it recurs: drain the node and reset the GPUs that share the link; then run the vendor's diagnostics.
""",
        gpu=errors,
        windows=(ERRORS_SOON, RECOVERIES),
        limits=(MAX_ERRORS,),
        inhibited_by={**_FAILING, "nvlink_unstable": "same", "nvlink_crc_high": "same", "nvlink_ber_high": "same"},
    ),
    Check(
        name="nvlink_slow",
        levels=(Level.WARN,),
        help="An NVLink is slower than its product's speed, or than its neighbours.",
        steps="""\
1. `nvidia-smi nvlink -s` names the link.
2. Reset the GPUs that share it when the node is idle: this trains the links.
3. If it stays slow: reseat or replace the board or the peer.
""",
        gpu=slow,
        after=5 * MINUTE,
        grace=True,
        limits=(SPEED,),
        inhibited_by=_FAILING,
    ),
)
