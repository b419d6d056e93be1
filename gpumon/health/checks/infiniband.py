"""CHECKS: InfiniBand and RoCE ports: presence, state and rate."""

from __future__ import annotations

from itertools import pairwise

from gpumon.health.check_row import DAY, HOUR, MINUTE, Check, Latch, Paging, same
from gpumon.health.checks import infiniband_counters
from gpumon.health.facts import PortCase
from gpumon.health.policy import COUNT, Limit, Range
from gpumon.health.sample_windows import STEP, SampleWindow
from gpumon.health.verdict import PASSED, Action, Clearance, Finding, Level, clear, fail, warn
from gpumon.model.driver_errors import nic_error
from gpumon.model.error_event import NIC
from gpumon.model.infiniband import EFA

DOWNS = SampleWindow("gpumon_infiniband_link_downs_total", DAY)
UPS_HALF_DAY, UPS_DAY = (SampleWindow("gpumon_infiniband_port_up", seconds) for seconds in (DAY / 2, DAY))

DOWNS_HALF_DAY = Limit(
    "infiniband_downs_in_12_hours",
    3,
    "Minimum number of link-down events of a port in twelve hours that raises a verdict.",
    COUNT,
)
DOWNS_DAY = Limit(
    "infiniband_downs_in_24_hours",
    5,
    "Minimum number of link-down events of a port in a day that raises a verdict.",
    COUNT,
)
SPEED = Limit(
    "min_infiniband_port_bytes_per_second",
    None,
    "Minimum rate of each InfiniBand port in each direction, in bytes a second: 50e9 is 400 Gb/s. Not for Ethernet.",
    Range(1e8, 1e12),
)
_GIGABIT = 1e9 / 8
_BEFORE = "speed_before_bytes_per_second"
"""Key of the evidence that holds the rate which the port had before or must have."""


def missing_adapter(port: PortCase) -> Finding:
    """Return a failure if the adapter of a port that was in use is gone, while other ports can be read."""
    since = port.facts.gone_ports.get(port.device)
    if since is None or since <= (port.time_cleared("ib_device_missing") or 0.0):
        return PASSED
    name, place = port.port.device, port.port.bus_id
    where = f" ({place})" if place not in {"", name} else ""
    rebooted = since < port.facts.wall(0.0)
    return fail(f"The adapter {name}{where} is gone.", Action.INSPECT if rebooted else Action.REBOOT)


def driver_fatal(port: PortCase) -> Finding | None:
    if not port.port.bus_id:
        return None
    cleared, facts = port.time_cleared("nic_driver_fatal") or 0.0, port.facts
    own = (event for event in facts.events_since(NIC, cleared) if event.bus_id == port.port.bus_id)
    events = [event for event in own if not facts.planned_work.in_maintenance(event)]
    if not events:
        return PASSED
    worst = max(events, key=lambda event: (nic_error(event.code).fatal, event.last.wall))
    error = nic_error(worst.code)
    make = fail if error.fatal else warn
    words = f"{error.meaning}: {worst.text.rstrip('.')}."
    return make(words, Action(error.action), at=worst.last.wall, times=worst.count)


def port_down(port: PortCase) -> Finding | None:
    """Return a failure for a port that is down and was up or used before. EFA adapters do not report the state."""
    up = port.port.link.port_up
    record = port.facts.known_ports.get(port.device)
    expected = None if record is None else record.expected
    if expected is False:
        return clear(Clearance.GONE)
    if up is None:
        return PASSED if port.port.driver == EFA else None
    if up:
        return PASSED
    if not (port.port.used if expected is None else expected):
        return None if port.has_verdict("ib_port_down") else PASSED
    return fail("The port is down.", Action.INSPECT)


def flapping_port(port: PortCase) -> Finding | None:
    if port.port.link.port_up is None and port.port.driver != EFA:
        return None
    limits = port.facts.any_threshold(DOWNS_HALF_DAY, DOWNS_DAY)
    for limit, window in zip(limits, (UPS_HALF_DAY, UPS_DAY), strict=True):
        times, hours = _times_down(port, window), window.seconds / HOUR
        if limit is not None and times >= limit:
            return warn(f"The port went down {times:.0f} times in {hours:.0f} hours.", Action.INSPECT, link_downs=times)
    return PASSED


def _times_down(port: PortCase, window: SampleWindow) -> float:
    """Return how often the port went down, except in maintenance. Its counter stops at a maximum: changes count too."""
    facts = port.facts
    begin = max(facts.policy.boot_grace, facts.now.at - window.seconds)
    maintenances = facts.planned_work.maintenance_times
    counted = sum(
        gain
        for growth in port.growth(DOWNS)
        for at, gain in growth.steps
        if at > begin and not any(first <= facts.wall(at) <= last + STEP for first, last in maintenances)
    )
    observed = _observed_downs(port, window)
    if observed:
        for first, last in maintenances:
            observed -= _observed_downs(port, window, since=first - STEP) - _observed_downs(port, window, since=last)
    return max(counted, observed)


def _observed_downs(port: PortCase, window: SampleWindow, since: float | None = None) -> int:
    return sum(pair == (1, 0) for series in port.series(window, since=since) for pair in pairwise(series.values))


def slow_port(port: PortCase) -> Finding | None:
    """Return a failure if the port is slower than required or before, a warning if most similar ports are faster."""
    speed = port.port.link.port_speed_bytes_per_second
    if speed is None:
        return None
    required = port.facts.limit(SPEED) if port.port.link_layer == "InfiniBand" else None
    record = port.facts.known_ports.get(port.device)
    before = None if record is None else record.speed
    best, words = (before or speed, "it had before") if required is None else (required, "it must have")
    if speed < best:
        reason = f"The port runs at {speed / _GIGABIT:.0f} Gb/s, below the {best / _GIGABIT:.0f} that {words}."
        return fail(reason, Action.INSPECT, port_speed_bytes_per_second=speed, **{_BEFORE: best})
    kind = (port.port.board, port.port.link_layer)
    similar = [each for each in port.facts.ports if each is not port.port and (each.board, each.link_layer) == kind]
    speeds = (each.link.port_speed_bytes_per_second for each in similar)
    similar_speeds = [speed for speed in speeds if speed is not None]
    faster = sum(other > speed for other in similar_speeds)
    if faster * 2 <= len(similar_speeds):
        return PASSED
    best = max(similar_speeds)
    reason = (
        f"The port runs at {speed / _GIGABIT:.0f} Gb/s; {faster} of {len(similar_speeds)} similar ports "
        f"reach {best / _GIGABIT:.0f}."
    )
    return warn(reason, Action.INSPECT, port_speed_bytes_per_second=speed)


_BELOW = same("ib_device_missing", "nic_driver_fatal", "ib_port_down")

CHECKS: tuple[Check, ...] = (
    Check(
        name="ib_device_missing",
        levels=(Level.WARN, Level.FAIL),
        help="An InfiniBand or RoCE adapter that was in use is missing.",
        steps="""\
1. `lspci | grep -i mellanox` and `ibdev2netdev`: is it missing from the bus, or only from its driver?
2. `dmesg | grep mlx5` shows firmware or PCIe errors. Restarting the driver may recover it.
3. Drain and reboot the node. If it stays missing, power-cycle, reseat or replace the card.
4. If it was removed on purpose: `gpumon inventory accept`.
""",
        port=missing_adapter,
        after=6 * MINUTE,  # a firmware update, a reload of the driver or a restart of a DPU takes that long
        clear_after=0.0,
        grace=True,
    ),
    Check(
        name="nic_driver_fatal",
        levels=(Level.WARN, Level.FAIL),
        help="The driver of a network adapter reported a firmware or hardware error.",
        steps="""\
1. `dmesg | grep -E "mlx5_core|efa"` has the context.
2. Firmware that does not respond: drain and reboot the node, then update the firmware.
3. Heat: check airflow and the transceiver. Power: the slot provides less than the card needs.
""",
        port=driver_fatal,
        latch=Latch(quiet=DAY),
        pages=Paging.NEVER,
        inhibited_by={"ib_device_missing": "same"},
    ),
    Check(
        name="ib_port_down",
        pages=Paging.NIGHT,
        levels=(Level.WARN, Level.FAIL),
        help="A port that was in use is down.",
        steps="""\
1. `ibstat` or `ip link`: does it have a carrier (Polling: no signal from the other end)?
2. Was the switch or its port disabled? Check the fabric's subnet manager.
3. Reseat cable and transceiver, swap them with a neighbour's, then the card.
4. If it was unplugged on purpose: `gpumon inventory accept`.
""",
        port=port_down,
        after=4 * MINUTE,
        grace=True,
        inhibited_by={"ib_device_missing": "same", "nic_driver_fatal": "same"},
    ),
    Check(
        name="ib_port_flapping",
        levels=(Level.WARN,),
        help="A port goes down and up repeatedly.",
        steps="""\
1. Each time, jobs that use it stall or fail. `mlxlink -d DEVICE -m` shows the state of cable and transceiver.
2. Clean and reseat the cable, then replace it; try another switch port.
""",
        port=flapping_port,
        windows=(DOWNS, UPS_HALF_DAY, UPS_DAY),
        counts_causes=True,
        limits=(DOWNS_HALF_DAY, DOWNS_DAY),
        inhibited_by=_BELOW,
    ),
    Check(
        name="ib_rate_low",
        levels=(Level.WARN, Level.FAIL),
        help="A port is slower than before, than required, or than similar ports.",
        steps="""\
1. It slows every job that uses all ports. `ibstat` shows rate and width (4X is all lanes).
2. Reseat the cable; `mlxlink -d DEVICE` shows which lane does not train.
3. If intended: `gpumon inventory accept mlx5_3/1` accepts the rate. Or set the threshold, or disable the check.
""",
        port=slow_port,
        after=5 * MINUTE,
        grace=True,
        limits=(SPEED,),
        inhibited_by=_BELOW,
    ),
    *infiniband_counters.CHECKS,
)
