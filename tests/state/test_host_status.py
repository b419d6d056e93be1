"""Messages of the host child become ports, node rows and notices."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
from reader_turns import host_snapshot
from reduced_reports import gpu_reading, healthy, log_lines, reduce_all, snapshot

from gpumon.model.infiniband import InfinibandLink, InfinibandPort
from gpumon.model.snapshot import HostSnapshot, HostStatus, PortReading, Quarantine
from gpumon.outputs.prometheus import Renderer
from gpumon.state.host_section import STALE_SECONDS
from gpumon.state.messages import Tick
from gpumon.state.port_inventory import MAX_RECORDS
from gpumon.state.report import Report
from gpumon.state.sections import changes

FABRIC_MANAGER, IMEX = "nvidia-fabricmanager.service", "nvidia-imex.service"


def port(number: int = 0, *, up: float | None = 1.0, received: float = 1000.0, downs: float = 0.0) -> PortReading:
    return PortReading(
        device=f"mlx5_{number}",
        port="1",
        link_layer="InfiniBand",
        link=InfinibandLink(port_up=up, port_speed_bytes_per_second=50e9 if up else None),
        counts=InfinibandPort(receive_bytes_total=received, errors_total={"symbol_error": 4.0}, link_downs_total=downs),
    )


def links(*ports: PortReading, **more: object) -> HostSnapshot:
    return host_snapshot(ports=ports, **more)  # type: ignore[arg-type]


def total_received(report: Report, number: int = 0) -> float | None:
    return next(reading.counts.receive_bytes_total for reading in report.ports if reading.device == f"mlx5_{number}")


def test_ports_have_their_counters() -> None:
    report = reduce_all(links(port(0), port(1, up=0.0)))

    assert [(reading.device, reading.link.port_up) for reading in report.ports] == [("mlx5_0", 1.0), ("mlx5_1", 0.0)]
    assert report.ports[0].counts.errors_total == {"symbol_error": 4.0}


def test_counters_continue_after_a_reset_and_an_absence() -> None:
    """Port counters do not decrease after a driver reload or the absence of a card."""
    report = reduce_all(links(port(received=1000.0)))
    report = reduce_all(links(port(received=0.0)), links(port(received=10.0)), report=report)
    assert total_received(report) == 1010.0

    report = reduce_all(links(), report=report)
    assert report.ports == ()
    report = reduce_all(links(port(received=30.0)), report=report)
    assert total_received(report) == 1030.0


def test_an_unreadable_counter_is_absent_and_continues_later() -> None:
    """A saturated counter that restarts at a lower value continues from there."""
    report = reduce_all(links(port(downs=254.0)))
    blank = replace(port(), counts=InfinibandPort())
    report = reduce_all(links(blank), report=report)
    assert report.ports[0].counts == InfinibandPort()

    report = reduce_all(links(port(downs=0.0)), links(port(downs=2.0)), report=report)
    assert report.ports[0].counts.link_downs_total == 256.0


@pytest.mark.parametrize(("age", "fresh"), [(STALE_SECONDS - 1, True), (STALE_SECONDS + 1, False)])
def test_stale_readings_are_absent(age: float, *, fresh: bool) -> None:
    """Readings of a hung child become absent after the limit, and the report has a notice."""
    report = reduce_all(links(port(), services={FABRIC_MANAGER: True}), at=100.0)
    report = reduce_all(Tick(), report=report, at=100.0 + age)

    assert bool(report.ports) == fresh
    assert report.node.fabric_manager_up == (1.0 if fresh else None)
    assert ("links" in report.notices) != fresh


def test_services_are_up_down_or_not_installed() -> None:
    """A node without the services has no rows for them and no notice."""
    report = reduce_all(links(services={FABRIC_MANAGER: False}))
    assert (report.node.fabric_manager_up, report.node.imex_up) == (0.0, None)

    report = reduce_all(links(services={IMEX: True}), report=report)
    assert (report.node.fabric_manager_up, report.node.imex_up) == (None, 1.0)


def test_read_errors_are_a_notice_until_the_next_success() -> None:
    """The notice contains the child's errors and the quarantined device."""
    quarantined = {"mlx5_3": Quarantine(fault="stuck", detail="reading state does not return", wall=1e9)}
    report = reduce_all(
        links(port(), errors={"infiniband": "state: Input/output error"}), HostStatus(quarantined=quarantined)
    )
    assert report.notices == {
        "links": "mlx5_3 is quarantined: reading state does not return; infiniband: state: Input/output error"
    }

    assert reduce_all(links(port()), HostStatus(), report=report).notices == {}


def test_missing_permission_is_a_series_until_it_is_granted() -> None:
    report = reduce_all(snapshot(gpu_reading(0)), links(denied=("infiniband",)))
    assert report.node.collector_denied == {"infiniband": 1.0}
    assert reduce_all(snapshot(gpu_reading(0)), report=report).node.collector_denied == {"infiniband": 1.0}
    assert reduce_all(links(), report=report).node.collector_denied == {}


def test_children_that_cannot_be_ended_are_counted_together() -> None:
    report = reduce_all(HostStatus(abandoned=("host 7 in class/infiniband",)), report=healthy())
    assert report.node.abandoned_children == 1.0


def test_ports_above_the_limit_are_counted() -> None:
    report = reduce_all(links(port(), left_out=3))
    dropped = (report.node.dropped_series_total or {})["ports"]
    assert dropped > 3
    assert report.notices == {}
    assert (reduce_all(links(port()), report=report).node.dropped_series_total or {})["ports"] == dropped


def test_port_counters_are_limited_in_number() -> None:
    """Counters of removed ports are limited in number, because virtual functions return under new names."""
    report = reduce_all(*(links(port(number)) for number in range(MAX_RECORDS + 50)))

    assert len(report.host.inventory.counters) == MAX_RECORDS
    assert ("mlx5_305", "1") in report.host.inventory.counters


def test_an_unchanged_snapshot_keeps_the_same_objects() -> None:
    """An unchanged snapshot keeps the same objects, so that the page is not rendered again."""
    report = reduce_all(links(port()))
    again = reduce_all(links(port()), report=report)
    down = reduce_all(links(port(up=0.0)), report=again)

    assert again.ports[0] is report.ports[0]
    assert down.ports[0].counts is report.ports[0].counts
    assert 'gpumon_infiniband_port_up{device="mlx5_0",port="1",link_layer="InfiniBand"} 0' in Renderer(
        lambda: down
    ).render(down)


def test_each_change_of_a_port_is_logged_once() -> None:
    """The log reports down, up, a flap between two polls, and gone; a new unused port logs nothing."""
    steps = [links(port(0), port(1, up=0.0))]
    steps += [links(port(0, up=up, downs=downs), port(1, up=0.0)) for up, downs in ((0, 1), (0, 1), (1, 1), (1, 3))]
    steps += [links(port(1, up=0.0))]
    report, lines = reduce_all(), []
    for step in steps:
        after = reduce_all(step, report=report)
        lines.append([(change.level, change.message) for change in changes(report, after)])
        report = after

    assert lines == [
        [],
        [(logging.WARNING, "the port is down")],
        [],
        [(logging.INFO, "the port is up again")],
        [(logging.WARNING, "the port was down for a short time")],
        [(logging.WARNING, "the port is gone")],
    ]


def test_start_and_end_of_read_errors_are_logged() -> None:
    """One line reports the start and one the end, although the text changes in between."""
    clear = reduce_all(links(port()))
    blind = reduce_all(links(port(), errors={"infiniband": "one"}), report=clear)
    still = reduce_all(links(port(), errors={"infiniband": "two"}), report=blind)

    assert log_lines(clear, blind) == [(logging.WARNING, "not all links can be read")]
    assert log_lines(blind, still) == []
    assert log_lines(still, reduce_all(links(port()), report=still)) == [(logging.INFO, "all links can be read again")]


def test_a_reader_that_no_link_needs_has_a_notice_of_its_own() -> None:
    """Its error is no problem of the links, whose check names another remedy."""
    clear = reduce_all(links(port()))
    snapshot = links(port(), errors={"logins": "damaged"})
    failed = reduce_all(replace(snapshot, values={**snapshot.values, "logins": None}), report=clear)

    assert failed.notices == {"logins": "logins: damaged"}
    assert log_lines(clear, failed) == [(logging.WARNING, "not all data of the reader logins can be read")]


def gone_devices(report: Report) -> list[str]:
    return [reading.port.device for reading in report.gone_ports]


def test_a_port_that_is_not_listed_is_gone_until_it_returns() -> None:
    report = reduce_all(links(port(0), port(1)))
    assert gone_devices(report) == []
    report = reduce_all(links(port(0)), links(port(0)), report=report)
    assert gone_devices(report) == ["mlx5_1"]
    assert (report.gone_ports[0].port.link, report.gone_ports[0].port.counts) == (InfinibandLink(), InfinibandPort())
    report = reduce_all(links(port(0), port(1)), report=report)
    assert gone_devices(report) == []


def test_ports_that_cannot_be_listed_are_not_gone() -> None:
    """Ports are not gone if their device is quarantined, the list cannot be read, or there are too many."""
    report = reduce_all(links(port(0), port(1)))
    assert (
        gone_devices(reduce_all(links(port(0), errors={"infiniband": "class/infiniband: denied"}), report=report)) == []
    )
    assert gone_devices(reduce_all(links(port(0), left_out=1), report=report)) == []
    quarantined = HostStatus(quarantined={"mlx5_1": Quarantine(fault="stuck", detail="state", wall=0.0)})
    assert gone_devices(reduce_all(quarantined, links(port(0)), report=report)) == []


def test_a_silent_child_makes_no_port_gone() -> None:
    report = reduce_all(links(port(0), port(1)), links(port(0)), at=100.0)
    assert gone_devices(reduce_all(Tick(), report=report, at=100.0 + STALE_SECONDS + 1)) == []


def test_stops_of_services_are_counted() -> None:
    """Each stop of an installed service increases its count, which starts at 0."""
    running = {"services": {FABRIC_MANAGER: True}}
    report = reduce_all(links(**running))
    assert report.node.service_stops_total == {"fabric_manager": 0.0}
    report = reduce_all(links(**running, ended=(FABRIC_MANAGER,)), links(**running), report=report)
    assert report.node.service_stops_total == {"fabric_manager": 1.0}


def test_a_fabric_manager_in_a_container_runs_whatever_its_unit_is() -> None:
    """Its process counts, whether the unit is stopped or not installed; once it has ended, so has the service."""

    def up(report: Report) -> float | None:
        return report.node.fabric_manager_up

    assert up(reduce_all(links(fabric_manager=False))) is None
    stopped = reduce_all(links(services={FABRIC_MANAGER: False}, fabric_manager=False))
    running = reduce_all(links(services={FABRIC_MANAGER: False}, fabric_manager=True), report=stopped)
    assert (up(stopped), up(running)) == (0.0, 1.0)
    assert up(reduce_all(links(fabric_manager=False), report=running)) == 0.0
    assert up(reduce_all(links(), report=running)) is None
