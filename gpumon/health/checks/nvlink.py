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
"""They accuse the peer, or are of links from chip to chip."""
LINK_XIDS = LINKS - {RECOVERY_ACTION} - _ELSEWHERE
"""Those by which the driver itself says that an NVLink is at fault."""
ERRORS_SOON = SampleWindow("gpumon_nvlink_errors_total", 5 * MINUTE)
ERRORS_LONG = SampleWindow("gpumon_nvlink_errors_total", 30 * MINUTE)
RECOVERIES = SampleWindow("gpumon_nvlink_recoveries_total", 5 * MINUTE)
UP = SampleWindow("gpumon_nvlink_up", 30 * MINUTE)

MOST_ERRORS = Limit("nvlink_errors", 1, "Errors of an NVLink in five minutes that are a warning.", COUNT)
BAD_MINUTES = Limit(
    "nvlink_bad_minutes", 15, "Minutes with errors, of the last thirty, that a sound NVLink may have.", Range(0, 29)
)
MOST_DOWNS = Limit(
    "nvlink_downs", 5, "Times that an NVLink goes down in thirty minutes which make it unfit for work.", COUNT
)
CRC_RATE = Limit("nvlink_crc_errors_per_second", 100, "CRC errors a second that make an NVLink unfit for work.", AMOUNT)
BIT_ERRORS = Limit("nvlink_bit_error_ratio", 1e-12, "Share of wrong bits that an NVLink may let through.", SHARE)
SPEED = Limit(
    "nvlink_speed_ratio", 0.95, "Share of its product's, and its neighbours', speed that an NVLink must have.", SHARE
)

REPEATED = frozenset({"replay", "recovery"})
"""Up to Hopper: what was lost and sent again. A CRC error by itself is judged by its rate."""
BROKEN = frozenset({"malformed_packet", "buffer_overrun", "receive", "receive_general", "local_link_integrity"})
"""From Blackwell on. Left out: what the other end reports or discards, and symbol errors, which are corrected."""
_TRAINING_BEFORE, _TRAINING_AFTER = MINUTE, 3 * MINUTE
"""Seconds around the moment at which a GPU began anew: its links are down, and are trained again."""

_LOST: Mapping[str, Where | XidCause] = {
    "gpu_lost": "peer",
    "gpu_missing": "peer",
    "gpu_xid_critical": XidCause("same", LINK_XIDS),
}


def down(gpu: GpuCase) -> Finding | None:
    """A link says 0 only where it should be up: see health/products.py."""
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
    """Whether a link that was down says nothing now: where links are learnt, a restart of the agent forgets them."""
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
    return fail(f"NVLink {links} could not be trained again after errors.", Action.RESET, at=at, links=links)


def errors(gpu: GpuCase) -> Finding | None:
    most = gpu.facts.limit(MOST_ERRORS)
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
    others = f"; {len(by_link) - 1} more links have errors too" if len(by_link) > 1 else ""
    return warn(f"Errors of NVLink {link} in five minutes: {words}{others}.", Action.INSPECT, link=link, errors=count)


def unstable(gpu: GpuCase) -> Finding | None:
    most, downs = gpu.facts.limit(BAD_MINUTES), gpu.facts.limit(MOST_DOWNS)
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
    reason = f"NVLink {link} had errors in {bad} of the last 30 minutes: it does not get better by itself."
    return fail(reason, Action.INSPECT, link=link, bad_minutes=bad)


def _flapping(gpu: GpuCase, most: float) -> Finding | None:
    """A link that is down for less than the patience of `nvlink_down`, again and again."""
    downs = {one.labels["link"]: _falls(one.values) for one in gpu.series(UP)}
    link = max(downs, key=lambda one: downs[one], default=None)
    if link is None or downs[link] < most:
        return None
    reason = f"NVLink {link} went down {downs[link]} times in the last 30 minutes."
    return fail(reason, Action.INSPECT, link=link, downs=float(downs[link]))


def _falls(values: Sequence[float]) -> int:
    return sum(after < before for before, after in pairwise(values))


def crc_high(gpu: GpuCase) -> Finding | None:
    """Of links that have them in each of five minutes."""
    if not _can_tell(gpu):
        return None
    crc = [one for one in _grown(gpu, ERRORS_SOON) if one.labels.get("kind") == "crc"]
    lasting = [one for one in crc if len(_minutes(gpu, one)) >= ERRORS_SOON.seconds / MINUTE]
    if not lasting:
        return PASSED
    worst, most = max(lasting, key=lambda one: one.gain), gpu.facts.limit(CRC_RATE)
    rate = worst.gain / ERRORS_SOON.seconds
    high = most is not None and rate >= most
    reason = f"NVLink {worst.labels['link']} receives {rate:.3g} packets a second with a wrong checksum."
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
    reason = f"NVLink {link} lets {known[link]:.1e} of its bits through wrong, more than {most:.0e}: it will fail."
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
    reason = f"Its slowest NVLink runs at {speed / 1e9:.1f} GB/s each way, where {best / 1e9:.1f} can be had."
    return warn(reason, Action.RESET, nvlink_speed_bytes_per_second=speed, best_bytes_per_second=best)


def _can_tell(gpu: GpuCase) -> bool:
    """A neighbour that is being reset takes its links down."""
    return bool(gpu.state.links) and not any(one.released for one in gpu.facts.gpus)


def _grown(gpu: GpuCase, window: SampleWindow, *, since: float | None = None) -> Iterator[CounterGrowth]:
    """Counters of its links that grew, less what the training of a neighbour's links made of them."""
    found = gpu.growth(window, since=since)
    if not found:
        return
    trained = list(_trained(gpu.facts))
    for one in found:
        steps = tuple(step for step in one.steps if not any(begin < step[0] < end for begin, end in trained))
        if steps:
            yield CounterGrowth(one.labels, steps)


def _minutes(gpu: GpuCase, grown: CounterGrowth) -> set[int]:
    """The minutes in which it grew, counted from now."""
    return {int((gpu.facts.now.at - at) // MINUTE) for at, _ in grown.steps}


def _trained(facts: Facts) -> Iterator[tuple[float, float]]:
    """Spans of the boot clock in which links were trained, because a GPU began anew."""
    for state in facts.gpus:
        if state.reset_at is not None:
            yield state.reset_at - _TRAINING_BEFORE, state.reset_at + _TRAINING_AFTER


_FAILING: Mapping[str, Where | XidCause] = {**_LOST, "nvlink_down": "same", "nvlink_recovery_failed": "same"}

CHECKS = (
    Check(
        name="nvlink_down",
        help="An NVLink that should be up carries no traffic.",
        steps="""\
1. `nvidia-smi nvlink -s` and `dmesg | grep -i xid` (74, or 144 to 150 from Blackwell on).
2. With NVSwitches: is the fabric manager running, in the driver's version? Read its log.
3. Drain the node and reset all GPUs that share links with this one. It comes again: reseat or replace the board, the
   bridge or the tray.
""",
        gpu=down,
        after=2 * MINUTE,
        grace=True,
        inhibited_by={**_LOST, "fabric_manager_down": "node", "nvswitch_error": "node"},
    ),
    Check(
        name="nvlink_recovery_failed",
        help="An NVLink had errors and could not be trained again.",
        steps="""\
1. Drain the node: the link is down, or will be.
2. Reset all GPUs that share links with this one.
3. It comes again: reseat or replace the board, the cartridge or the cable.
""",
        gpu=recovery_failed,
        latch=Latch(),
        windows=(RECOVERIES,),
        inhibited_by={**_LOST, "nvlink_down": "same"},
    ),
    Check(
        name="nvlink_unstable",
        help="An NVLink has errors, or goes down, again and again.",
        steps="""\
1. Drain the node; collectives over this link are slow, and will fail.
2. `gpumon_nvlink_errors_total` tells the link and since when; `gpumon_nvlink_peer_info` what is at its other end.
3. Reset the GPUs. It goes on: reseat or replace the board, or what the link leads to.
""",
        gpu=unstable,
        clear_after=10 * MINUTE,
        windows=(ERRORS_LONG, UP),
        limits=(BAD_MINUTES, MOST_DOWNS),
        inhibited_by=_FAILING,
    ),
    Check(
        name="nvlink_crc_high",
        levels=(Level.WARN, Level.FAIL),
        help="An NVLink goes on receiving packets with a wrong checksum.",
        steps="""\
1. Each is sent again: traffic slows down before it fails. The warning is for the next maintenance.
2. From 100 a second on drain the node and reset the GPUs.
3. It goes on: reseat or replace the board, or what the link leads to.
""",
        gpu=crc_high,
        windows=(ERRORS_SOON,),
        limits=(CRC_RATE,),
        inhibited_by={**_FAILING, "nvlink_unstable": "same"},
    ),
    Check(
        name="nvlink_ber_high",
        help="An NVLink lets more wrong bits through than it may.",
        steps="""\
1. Drain the node at the next occasion: such a link drops before long.
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
        help="An NVLink had errors that were mended.",
        steps="""\
1. One is no reason to act: not every job notices.
2. They come again: drain the node and reset the GPUs that share the link; then the vendor's diagnostics.
""",
        gpu=errors,
        windows=(ERRORS_SOON, RECOVERIES),
        limits=(MOST_ERRORS,),
        inhibited_by={**_FAILING, "nvlink_unstable": "same", "nvlink_crc_high": "same", "nvlink_ber_high": "same"},
    ),
    Check(
        name="nvlink_slow",
        levels=(Level.WARN,),
        help="An NVLink is slower than its product's, or than its neighbours.",
        steps="""\
1. `nvidia-smi nvlink -s` names the link.
2. Reset the GPUs that share it when the node is free: links are trained then.
3. It stays slow: reseat or replace the board, or what the link leads to.
""",
        gpu=slow,
        after=5 * MINUTE,
        grace=True,
        limits=(SPEED,),
        inhibited_by=_FAILING,
    ),
)
