"""Checks of InfiniBand and RoCE ports."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from changed_report import changed
from each_case import each_case
from judging import Ward

from gpumon.health.check_row import HOUR
from gpumon.health.policy import Policy
from gpumon.health.verdict import Action, Clearance, Level, Verdict
from gpumon.model.error_event import NIC
from gpumon.model.infiniband import EFA, OTHER, SWITCH, InfinibandLink, InfinibandPort, Placement
from gpumon.model.records import PortRecord
from gpumon.state.port_inventory import MissingPort

KINDS = (
    *("symbol_error", "link_error_recovery", "port_rcv_errors", "port_xmit_discards", "local_link_integrity_errors"),
    *("excessive_buffer_overrun_errors", "local_ack_timeout_err", "rnr_nak_retry_err", "roce_slow_restart"),
)


def node(ports: int = 4, *, uptime: float = 86400.0, policy: Policy | None = None) -> Ward:
    """Return a node with ports of one kind that have all counters of a ConnectX."""
    ward = Ward(gpus=1, ports=ports, uptime=uptime, policy=policy)
    for number in range(ports):
        ward.port(number, errors_total=dict.fromkeys(KINDS, 0.0))
    placed = (
        replace(one, bus_id=f"00000000:{number:02X}:00.0", board="MT_0000000838")
        for number, one in enumerate(ward.report.ports)
    )
    ward.report = changed(ward.report, ports=tuple(placed))
    for number in range(ports):
        remember(ward, number, expected=None, speed=50e9)
    return ward


def add_errors(ward: Ward, kind: str, gained: float, number: int = 1) -> None:
    known = ward.report.ports[number].counts.errors_total or {}
    ward.port(number, errors_total={**known, kind: known.get(kind, 0.0) + gained})


def growing(ward: Ward, kind: str, seconds: float, a_second: float) -> Ward:
    for _ in range(int(seconds / 15)):
        add_errors(ward, kind, 15 * a_second)
        ward.go_on(15, every=15)
    return ward


def of_port(ward: Ward, check: str, number: int = 1) -> Verdict | None:
    one = ward.report.ports[number]
    return ward.verdicts.get((check, f"{one.device}/{one.port}"))


def down(ward: Ward, number: int = 1) -> None:
    ward.port(number, link={"port_up": 0.0, "port_speed_bytes_per_second": None})


def up(ward: Ward, number: int = 1) -> None:
    ward.port(number, link={"port_up": 1.0, "port_speed_bytes_per_second": 50e9})


def test_a_port_that_was_in_use_and_is_down_is_a_failure() -> None:
    """The verdict comes after four minutes and clears when the port is up again."""
    ward = node().go_on(30)
    down(ward)
    assert not ward.go_on(230).verdicts
    ward.go_on(20)
    assert of_port(ward, "ib_port_down") is not None
    assert len(ward.verdicts) == 1
    up(ward)
    assert not ward.go_on(90).verdicts


def test_a_port_that_is_not_wired_gives_no_verdict() -> None:
    """A port that has carried no data and has never been up gives no verdict."""
    ward = node()
    down(ward)
    ward.port(1, receive_bytes_total=0.0, transmit_bytes_total=0.0, link_downs_total=0.0)
    assert not ward.go_on(900, every=15).verdicts


def test_a_port_that_stays_down_over_a_reboot_stays_a_failure() -> None:
    """The verdict stays although the counters restarted at 0, as those of a port that was never wired."""
    ward = node().go_on(30)
    down(ward)
    ward.go_on(300)
    ward.reboot()
    ward.port(1, receive_bytes_total=0.0, transmit_bytes_total=0.0, link_downs_total=0.0)
    ward.go_on(1200, every=15)
    assert of_port(ward, "ib_port_down") is not None


def remember(ward: Ward, number: int = 1, *, expected: bool | None = True, speed: float | None = None) -> None:
    """Add the record of a port from an earlier boot."""
    one = ward.report.ports[number]
    record = PortRecord(
        identity=f"{one.bus_id}/{one.port}",
        device=one.device,
        port=one.port,
        bus_id=one.bus_id,
        guid="",
        link_layer=one.link_layer,
        board=one.board,
        firmware="",
        first_wall=1.7e9,
        last_wall=1.7e9,
        speed=speed,
        expected=expected,
    )
    links = ward.report.host.inventory
    known = replace(
        links,
        records={**links.records, record.identity: record},
        here={**links.here, (one.device, one.port): record.identity},
    )
    ward.report = replace(ward.report, host=replace(ward.report.host, inventory=known))


def silent(ward: Ward, number: int = 1) -> None:
    """Set the port down since the boot, with all counters at 0."""
    down(ward, number)
    ward.port(number, receive_bytes_total=0.0, transmit_bytes_total=0.0, link_downs_total=0.0)


@pytest.mark.parametrize(("expected", "verdicts"), [(True, ["ib_port_down"]), (None, [])])
def test_a_port_that_was_up_before_the_last_boot_is_a_failure(expected: bool | None, verdicts: list[str]) -> None:  # noqa: FBT001
    """After the grace period for link training, the stored record distinguishes it from a port that was never wired."""
    ward = node(uptime=0.0)
    remember(ward, expected=expected)
    silent(ward)
    assert not ward.go_on(400).verdicts
    assert ward.go_on(300).active_checks() == verdicts


def test_a_port_that_is_accepted_as_down_gives_no_verdict_until_it_is_up_again() -> None:
    """Its verdict clears within a minute, whatever its counters are."""
    ward = node().go_on(30)
    remember(ward, expected=True)
    down(ward)
    assert ward.go_on(260).active_checks() == ["ib_port_down"]
    remember(ward, expected=False)
    assert not ward.go_on(75).verdicts
    assert ward.transitions[-1].cleared_by is Clearance.GONE
    assert not ward.go_on(900).verdicts


def test_verdicts_on_a_renamed_port_clear() -> None:
    """A verdict on a port's old name clears ten minutes after other ports were read without it."""
    ward = node().go_on(30)
    down(ward, 3)
    assert ward.go_on(260).active_checks() == ["ib_port_down"]
    ward.report = changed(ward.report, ports=ward.report.ports[:3])
    assert ward.go_on(500).verdicts
    assert not ward.go_on(120).verdicts


def test_links_train_after_a_boot() -> None:
    """Ports that are down for some minutes after a boot, and flap while they train, give no verdict."""
    ward = node(uptime=0.0)
    for number in range(4):
        down(ward, number)
    ward.go_on(120)
    for number in range(4):
        up(ward, number)
        ward.port(number, link_downs_total=4.0)
    assert not ward.go_on(900, every=15).verdicts


def test_ports_that_cannot_be_read_keep_their_verdicts() -> None:
    """While the host child is silent, no verdict is raised and none is cleared."""
    ward = node().go_on(30)
    down(ward)
    ward.go_on(300)
    ports, ward.report = ward.report.ports, changed(ward.report, ports=())
    assert ward.go_on(900, every=15).active_checks() == ["ib_port_down"]
    ward.report = changed(ward.report, ports=ports)
    up(ward)
    assert not ward.go_on(90).verdicts


@pytest.mark.parametrize(("times", "hours"), [(3, 11), (5, 23)])
def test_a_flapping_port_is_a_warning(times: int, hours: int) -> None:
    """Fewer downs give no verdict, and the warning clears without an operator."""
    ward = node().go_on(30)
    for count in range(1, times + 1):
        ward.port(1, link_downs_total=float(count))
        ward.go_on(hours * 3600 / times, every=600)
        flapping = of_port(ward, "ib_port_flapping")
        assert (flapping is not None) == (count == times), count
    assert flapping is not None
    assert flapping.level is Level.WARN
    assert not ward.go_on(25 * 3600, every=600).verdicts


@pytest.mark.parametrize("full", [False, True], ids=["by its counter", "by what is seen"])
def test_what_a_port_does_in_maintenance_does_not_count(full: bool) -> None:  # noqa: FBT001 - a case
    """Downs in a maintenance do not count, neither during it nor after it."""
    ward = node().go_on(30)
    if full:
        ward.port(1, link_downs_total=None)
    ward.maintain(3600)
    for count in range(1, 7):
        down(ward)
        if not full:
            ward.port(1, link_downs_total=float(count))
        ward.go_on(60)
        up(ward)
        ward.go_on(120)
    ward.end_windows()
    ward.go_on(600, every=15)
    for count in range(7, 10):
        assert of_port(ward, "ib_port_flapping") is None
        down(ward)
        if not full:
            ward.port(1, link_downs_total=float(count))
        ward.go_on(60)
        up(ward)
        ward.go_on(120)
    assert of_port(ward, "ib_port_flapping") is not None


def test_a_restart_does_not_clear_a_flapping_port() -> None:
    """The verdict stays for as long as the downs count, however often the agent is restarted."""
    ward = node(1).go_on(30)
    for count in range(1, 4):
        down(ward, 0)
        ward.port(0, link_downs_total=float(count))
        ward.go_on(60)
        up(ward, 0)
        ward.go_on(120)
    assert ward.verdict("ib_port_flapping")
    for _ in range(2):
        ward.restart()
        assert ward.go_on(11 * HOUR, every=300).verdict("ib_port_flapping")
    ward.restart()
    assert not ward.go_on(3 * HOUR, every=60).verdicts


def test_downs_of_a_port_with_a_saturated_counter_are_counted() -> None:
    """Without a counter the agent counts the downs that it reads; two are too few for a verdict."""
    ward = node().go_on(30)
    ward.port(1, link_downs_total=None)
    for _ in range(3):
        assert not ward.verdicts
        down(ward)
        ward.go_on(60)
        up(ward)
        ward.go_on(120)
    assert {(check, one.level) for (check, _), one in ward.verdicts.items()} == {("ib_port_flapping", Level.WARN)}


def test_a_port_slower_than_it_was_is_a_failure() -> None:
    """The verdict comes after five minutes."""
    ward = node().go_on(60)
    ward.port(1, link={"port_speed_bytes_per_second": 25e9})
    assert not ward.go_on(285).verdicts
    slow = of_port(ward.go_on(30), "ib_rate_low")
    assert slow is not None
    assert slow.level is Level.FAIL
    assert slow.reason == "The port runs at 200 Gb/s, below the 400 that it had before."


def test_a_port_that_stays_slow_stays_a_failure() -> None:
    """Neither a day nor a restart clears the verdict; the old speed or a configured speed does."""
    ward = node(1).go_on(60)
    ward.port(0, link={"port_speed_bytes_per_second": 25e9})
    assert ward.go_on(26 * 3600, every=300).level("ib_rate_low") is Level.FAIL
    ward.restart()
    assert ward.go_on(2 * 3600, every=300).level("ib_rate_low") is Level.FAIL
    assert len(ward.transitions) == 1
    ward.terms = replace(ward.terms, policy=Policy(thresholds={"min_infiniband_port_bytes_per_second": 25e9}))
    assert not ward.go_on(90).verdicts

    ward = node(1).go_on(60)
    ward.port(0, link={"port_speed_bytes_per_second": 25e9})
    assert ward.go_on(330).verdicts
    up(ward, 0)
    assert not ward.go_on(3700, every=30).verdicts


def test_a_port_slower_than_before_the_last_boot_is_a_failure_until_that_is_accepted() -> None:
    """The stored speed is the reference if no other port is of the same kind."""
    ward = node(1, uptime=0.0)
    remember(ward, 0, speed=50e9)
    ward.port(0, link={"port_speed_bytes_per_second": 25e9})
    ward.go_on(700, every=15)
    slow = of_port(ward, "ib_rate_low", 0)
    assert slow is not None
    assert slow.level is Level.FAIL
    assert slow.reason == "The port runs at 200 Gb/s, below the 400 that it had before."
    remember(ward, 0, speed=25e9)
    assert not ward.go_on(90).verdicts


def slower(ward: Ward, number: int) -> None:
    """Set a speed that the port has had since its first record."""
    remember(ward, number, expected=None, speed=25e9)
    ward.port(number, link={"port_speed_bytes_per_second": 25e9})


def test_a_port_slower_than_others_of_its_kind_is_a_warning() -> None:
    """Cards of another kind are not compared, nor a kind of which half of the ports are slower."""
    ward = node()
    slower(ward, 1)
    slow = of_port(ward.go_on(330), "ib_rate_low")
    assert slow is not None
    assert slow.level is Level.WARN
    assert "3 of 3 similar ports" in slow.reason
    ward = node()
    storage = replace(ward.report.ports[1], board="MT_0000000224")
    ward.report = changed(ward.report, ports=(ward.report.ports[0], storage, *ward.report.ports[2:]))
    slower(ward, 1)
    assert not ward.go_on(600, every=15).verdicts
    ward = node()
    for number in (0, 1):
        slower(ward, number)
    ward.go_on(600, every=15)
    assert {verdict.level for verdict in ward.verdicts.values()} <= {Level.WARN}


def test_a_port_slower_than_configured_is_a_failure() -> None:
    ward = node(2, policy=Policy(thresholds={"min_infiniband_port_bytes_per_second": 100e9}))
    ward.go_on(330)
    assert {(check, one.level) for (check, _), one in ward.verdicts.items()} == {("ib_rate_low", Level.FAIL)}
    assert len(ward.verdicts) == 2


@pytest.mark.parametrize("kind", ["excessive_buffer_overrun_errors", "local_link_integrity_errors"])
def test_a_fatal_counter_is_a_failure_for_an_hour(kind: str) -> None:
    """One fatal error is enough; errors from before the start do not count."""
    ward = node()
    add_errors(ward, kind, 3.0, 2)
    ward.go_on(60)
    add_errors(ward, kind, 1.0)
    fatal = of_port(ward.go_on(15), "ib_fatal_counter")
    assert fatal is not None
    assert (fatal.level, fatal.evidence["kind"]) == (Level.FAIL, kind)
    assert len(ward.go_on(3000, every=15).verdicts) == 1
    assert not ward.go_on(700, every=15).verdicts


def test_a_link_that_went_down_for_a_moment_is_a_warning() -> None:
    """The warning lasts an hour and does not page."""
    ward = node().go_on(30)
    ward.port(1, link_downs_total=1.0)
    blip = of_port(ward.go_on(15), "ib_fatal_counter")
    assert blip is not None
    assert (blip.level, blip.action) == (Level.WARN, Action.NONE)
    assert not ward.go_on(3900, every=30).verdicts


def test_lasting_symbol_errors_are_a_warning_first_and_a_failure_after_an_hour() -> None:
    """The number of errors per hour is unknown until an hour has been read."""
    ward = node().go_on(60)
    growing(ward, "symbol_error", 900, 11.0)
    early = of_port(ward, "ib_symbol_errors")
    assert early is not None
    assert early.level is Level.WARN
    growing(ward, "symbol_error", 3000, 11.0)
    late = of_port(ward, "ib_symbol_errors")
    assert late is not None
    assert late.level is Level.FAIL
    assert not ward.go_on(900, every=15).verdicts


def test_a_cable_that_is_plugged_in_may_have_symbol_errors() -> None:
    """One burst gives no verdict, and neither does the hourly number that the standard allows."""
    ward = node().go_on(4000, every=30)
    add_errors(ward, "symbol_error", 5000.0)
    assert not ward.go_on(1200, every=15).verdicts
    growing(ward, "symbol_error", 1.5 * 3600, 100 / 3600)
    assert not ward.verdicts


@each_case(
    ("check", "kind", "most", "seconds"),
    [
        ("ib_error_rates", "link_error_recovery", 5 / 60, 330),
        ("ib_error_rates", "port_rcv_errors", 10.0, 330),
        ("roce_stress", "port_xmit_discards", 100.0, 630),
        ("roce_stress", "local_ack_timeout_err", 1.0, 630),
        ("roce_stress", "roce_slow_restart", 10.0, 630),
        ("roce_stress", "rnr_nak_retry_err", 1000.0, 630),
    ],
)
def test_rates_above_their_limits_are_warnings(check: str, kind: str, most: float, seconds: float) -> None:
    """The warning is on the port that exceeds the limit; rates just below it give none; it clears when they stop."""
    ward = node().go_on(15)
    assert not growing(ward, kind, seconds * 2, 0.95 * most).verdicts
    growing(ward, kind, seconds, 1.3 * most)
    assert {(one, found.level) for (one, _), found in ward.verdicts.items()} == {(check, Level.WARN)}
    assert of_port(ward, check) is not None
    assert not ward.go_on(900, every=15).verdicts


def test_a_saturated_counter_gives_no_verdict() -> None:
    """A saturated counter is absent: it is neither an error nor a proof that there is none."""
    ward = node().go_on(60)
    known = dict(ward.report.ports[1].counts.errors_total or {})
    del known["symbol_error"]
    ward.port(1, errors_total=known)
    assert not ward.go_on(900, every=15).verdicts


def remove_port(ward: Ward, number: int = 1) -> None:
    port = replace(ward.report.ports[number], link=InfinibandLink(), counts=InfinibandPort())
    rest = tuple(one for place, one in enumerate(ward.report.ports) if place != number)
    ward.report = changed(ward.report, ports=rest, gone_ports=(MissingPort(port, ward.wall),))


def test_an_adapter_that_is_gone_is_a_failure_until_it_is_back() -> None:
    """An adapter that is away for less than six minutes (firmware upgrade, restart of a DPU) gives no verdict."""
    ward = node().go_on(30)
    ports = ward.report.ports
    remove_port(ward)
    ward.go_on(350)
    ward.report = changed(ward.report, ports=ports, gone_ports=())
    assert not ward.go_on(120).verdicts
    remove_port(ward)
    verdict = ward.go_on(375).verdicts[("ib_device_missing", "mlx5_1/1")]
    assert verdict.action is Action.REBOOT
    assert verdict.reason == "The adapter mlx5_1 (00000000:01:00.0) is gone."
    ward.report = changed(ward.report, ports=ports, gone_ports=())
    assert not ward.go_on(15).verdicts


def test_an_adapter_that_is_missing_after_a_reboot_asks_for_an_inspection() -> None:
    """The action is an inspection, because another reboot does not help. Drivers have the boot grace to load."""
    ward = node(uptime=0.0)
    remove_port(ward)
    ward.report = changed(ward.report, gone_ports=(ward.report.gone_ports[0]._replace(wall=ward.wall - 600.0),))
    assert not ward.go_on(240).verdicts
    assert ward.go_on(480).verdicts["ib_device_missing", "mlx5_1/1"].action is Action.INSPECT


def test_an_adapter_that_goes_takes_its_port_down_with_it() -> None:
    """There is one primary verdict, whichever came first."""
    ward = node().go_on(30)
    down(ward)
    ward.go_on(260)
    remove_port(ward)
    ward.go_on(375)
    assert ward.active_checks() == ["ib_device_missing", "ib_port_down"]
    assert [each.check for each in ward.report.health.primary] == ["ib_device_missing"]


@each_case(
    ("code", "level", "action"),
    [
        (1, Level.FAIL, Action.REBOOT),
        (2, Level.FAIL, Action.REBOOT),
        (3, Level.FAIL, Action.INSPECT),
        (4, Level.WARN, Action.NONE),
        (5, Level.FAIL, Action.REBOOT),
        (6, Level.WARN, Action.INSPECT),
        (77, Level.WARN, Action.INSPECT),
    ],
)
def test_a_fault_that_the_driver_reports_of_an_adapter_is_a_verdict_on_its_port(
    code: int, level: Level, action: Action
) -> None:
    """The verdict is on that adapter alone; a reboot cures neither overheating nor a lack of slot power."""
    ward = node().go_on(30)
    ward.event(0, code, kind=NIC, bus_id="00000000:01:00.0", uuid=None, text="device's health compromised")
    ward.event(0, code, kind=NIC, bus_id="00000000:77:00.0", uuid=None, text="device's health compromised")
    ward.go_on()
    found = {key: (one.level, one.action) for key, one in ward.verdicts.items()}
    assert found == {("nic_driver_fatal", "mlx5_1/1"): (level, action)}
    assert not ward.go_on(90000, every=600).verdicts


def test_what_a_driver_reports_in_maintenance_is_no_fault() -> None:
    """A firmware update logs errors of the adapter."""
    ward = node()
    ward.maintain(600)
    ward.go_on(30)
    ward.event(0, 1, kind=NIC, bus_id="00000000:01:00.0", uuid=None, text="device's health compromised")
    ward.go_on(60).end_windows()
    assert not ward.go_on(600).verdicts


def test_the_configured_port_speed_does_not_apply_to_ethernet() -> None:
    """The configured speed applies to InfiniBand only, because such nodes use Ethernet for everything else."""
    ward = node(2, policy=Policy(thresholds={"min_infiniband_port_bytes_per_second": 100e9}))
    ports = ward.report.ports
    ward.report = changed(ward.report, ports=(replace(ports[0], link_layer="Ethernet"), *ports[1:]))
    ward.go_on(600, every=15)
    assert {verdict.device for verdict in ward.verdicts.values()} == {"mlx5_1/1"}


def change(ward: Ward, number: int = 1, **values: Any) -> None:
    """Set attributes of one port."""
    ports = list(ward.report.ports)
    ports[number] = replace(ports[number], **values)
    ward.report = changed(ward.report, ports=tuple(ports))


def test_a_port_that_is_not_of_the_fabric_only_warns() -> None:
    """A management port that is down is a warning with its reason, and its missing adapter asks for no reboot."""
    ward = node().go_on(30)
    change(ward, role=OTHER, role_reason="not named by links.fabric")
    down(ward)
    verdict = of_port(ward.go_on(300), "ib_port_down")
    assert verdict is not None
    assert verdict.level is Level.WARN
    assert verdict.reason == "The port is down. It is not a fabric port (not named by links.fabric)."
    remove_port(ward)
    missing = ward.go_on(400).verdicts["ib_device_missing", "mlx5_1/1"]
    assert (missing.level, missing.action) == (Level.WARN, Action.INSPECT)


def test_the_reason_names_the_gpus_beside_the_port() -> None:
    """The operator sees which GPU loses its way to other nodes."""
    ward = node().go_on(30)
    change(ward, placement=Placement(position=SWITCH, gpus=(ward.report.gpus[0].bus_id,)))
    down(ward)
    verdict = of_port(ward.go_on(300), "ib_port_down")
    assert verdict is not None
    assert verdict.reason == "The port is down. It is on the PCIe switch of GPU 0."


def test_a_restricted_port_has_no_verdicts() -> None:
    """A function of the fabric manager goes down when that restarts, and an open verdict on it clears."""
    ward = node().go_on(30)
    down(ward)
    assert ward.go_on(300).active_checks() == ["ib_port_down"]
    change(ward, restricted=True)
    assert not ward.go_on(90).verdicts


def test_an_efa_port_whose_state_is_not_reported_is_no_unknown() -> None:
    """EFA without a network interface cannot report its state; its counters are still evaluated."""
    ward = node()
    change(ward, driver=EFA, link=InfinibandLink(port_speed_bytes_per_second=50e9))
    ward.port(1, errors_total={**dict.fromkeys(KINDS, 0.0), "no_completion_cmds": 0.0}, link_downs_total=None)
    assert not ward.go_on(900, every=15).verdicts
    add_errors(ward, "no_completion_cmds", 1.0)
    verdict = of_port(ward.go_on(30), "ib_fatal_counter")
    assert verdict is not None
    assert verdict.level is Level.FAIL


def test_connections_that_gave_up_are_a_warning() -> None:
    """A single exceeded retry limit ends a connection, unlike a packet that the receiver was not ready for."""
    ward = node()
    ward.port(1, errors_total={**dict.fromkeys(KINDS, 0.0), "req_transport_retries_exceeded": 0.0})
    ward.go_on(60)
    add_errors(ward, "rnr_nak_retry_err", 1.0)
    assert not ward.go_on(60).verdicts
    add_errors(ward, "req_transport_retries_exceeded", 1.0)
    verdict = of_port(ward.go_on(30), "ib_fatal_counter")
    assert verdict is not None
    assert verdict.level is Level.WARN
