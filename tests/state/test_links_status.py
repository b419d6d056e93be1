"""fold: what the links child says becomes ports, rows of the node and notices."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
from folded import healthy, polled, said, seen, told

from gpumon.model.infiniband import InfinibandLink, InfinibandPort
from gpumon.model.snapshot import LinksSnapshot, PortReading
from gpumon.outputs.prometheus import Renderer
from gpumon.state.change_log import changes
from gpumon.state.links_status import STALE_SECONDS
from gpumon.state.messages import LinksStatus, Quarantine, Tick
from gpumon.state.port_inventory import MAX_RECORDS
from gpumon.state.report import Report

FABRIC_MANAGER, IMEX = "nvidia-fabricmanager.service", "nvidia-imex.service"


def port(number: int = 0, *, up: float | None = 1.0, received: float = 1000.0, downs: float = 0.0) -> PortReading:
    return PortReading(
        device=f"mlx5_{number}",
        port="1",
        link_layer="InfiniBand",
        link=InfinibandLink(port_up=up, port_speed_bytes_per_second=50e9 if up else None),
        counts=InfinibandPort(receive_bytes_total=received, errors_total={"symbol_error": 4.0}, link_downs_total=downs),
    )


def links(*ports: PortReading, **more: object) -> LinksSnapshot:
    return LinksSnapshot(ended_at=0.0, ports=ports, **more)  # type: ignore[arg-type]


def received(report: Report, number: int = 0) -> float | None:
    return next(one.counts.receive_bytes_total for one in report.ports if one.device == f"mlx5_{number}")


def test_ports_are_shown_with_their_counters() -> None:
    """State, speed and counters, as raw as they came."""
    report = told(links(port(0), port(1, up=0.0)))

    assert [(one.device, one.link.port_up) for one in report.ports] == [("mlx5_0", 1.0), ("mlx5_1", 0.0)]
    assert report.ports[0].counts.errors_total == {"symbol_error": 4.0}


def test_counters_go_on_over_a_reset_and_over_an_absence() -> None:
    """The driver was loaded again, the card was away for a while: what is exported never falls."""
    report = told(links(port(received=1000.0)))
    report = told(links(port(received=0.0)), links(port(received=10.0)), report=report)
    assert received(report) == 1010.0

    report = told(links(), report=report)
    assert report.ports == ()
    report = told(links(port(received=30.0)), report=report)
    assert received(report) == 1030.0


def test_a_counter_that_cannot_be_read_is_absent_and_goes_on_later() -> None:
    """Such as one that was full, until somebody reset it."""
    report = told(links(port(downs=254.0)))
    blank = replace(port(), counts=InfinibandPort())
    report = told(links(blank), report=report)
    assert report.ports[0].counts == InfinibandPort()

    report = told(links(port(downs=0.0)), links(port(downs=2.0)), report=report)
    assert report.ports[0].counts.link_downs_total == 256.0


@pytest.mark.parametrize(("age", "kept"), [(STALE_SECONDS - 1, True), (STALE_SECONDS + 1, False)])
def test_what_is_too_old_vanishes(age: float, *, kept: bool) -> None:
    """A child that hangs leaves no last good value behind, and that nothing is read is said."""
    report = told(links(port(), services={FABRIC_MANAGER: True}), at=100.0)
    report = told(Tick(), report=report, at=100.0 + age)

    assert bool(report.ports) == kept
    assert report.node.fabric_manager_up == (1.0 if kept else None)
    assert ("links" in report.notices) != kept


def test_services_are_up_down_or_not_installed() -> None:
    """GB200 has no fabric manager and is well."""
    report = told(links(services={FABRIC_MANAGER: False}))
    assert (report.node.fabric_manager_up, report.node.imex_up) == (0.0, None)

    report = told(links(services={IMEX: True}), report=report)
    assert (report.node.fabric_manager_up, report.node.imex_up) == (None, 1.0)


def test_what_cannot_be_read_is_a_notice_that_goes_when_it_can() -> None:
    """The words of the child, and a device that was left aside."""
    aside = {"mlx5_3": Quarantine(fault="stuck", detail="reading state does not return", wall=1e9)}
    report = told(links(port(), errors={"infiniband": "state: Input/output error"}), LinksStatus(quarantined=aside))
    assert report.notices == {
        "links": "mlx5_3 is quarantined: reading state does not return; infiniband: state: Input/output error"
    }

    assert told(links(port()), LinksStatus(), report=report).notices == {}


def test_a_lack_of_permission_is_a_series_that_goes_with_it() -> None:
    """Beside what the sampler lacks; each poll says anew what that is."""
    report = told(polled(seen(0)), links(denied=("infiniband",)))
    assert report.node.collector_denied == {"infiniband": 1.0}
    assert told(polled(seen(0)), report=report).node.collector_denied == {"infiniband": 1.0}
    assert told(links(), report=report).node.collector_denied == {}


def test_children_that_cannot_be_ended_are_counted_together() -> None:
    """Whoever started them."""
    report = told(LinksStatus(abandoned=("links 7 in class/infiniband",)), report=healthy())
    assert report.node.abandoned_children == 1.0


def test_ports_that_were_too_many_are_counted() -> None:
    """For good: it is a counter."""
    report = told(links(port(), left_out=3))
    dropped = (report.node.dropped_series_total or {})["ports"]
    assert dropped > 3
    assert report.notices == {}
    assert (told(links(port()), report=report).node.dropped_series_total or {})["ports"] == dropped


def test_what_is_remembered_is_bounded() -> None:
    """Virtual functions come and go under new names."""
    report = told(*(links(port(number)) for number in range(MAX_RECORDS + 50)))

    assert len(report.internal.ports.counters) == MAX_RECORDS
    assert ("mlx5_305", "1") in report.internal.ports.counters


def test_a_look_that_says_the_same_keeps_the_same_objects() -> None:
    """So that the page need not be written anew."""
    report = told(links(port()))
    again = told(links(port()), report=report)
    down = told(links(port(up=0.0)), report=again)

    assert again.ports[0] is report.ports[0]
    assert down.ports[0].counts is report.ports[0].counts
    assert 'gpumon_infiniband_port_up{device="mlx5_0",port="1",link_layer="InfiniBand"} 0' in Renderer(
        lambda: down
    ).render(down)


def test_a_change_of_a_port_is_told_once() -> None:
    """Down, up again, a flap between two looks, gone; nothing at the first sight of a port that is not in use."""
    steps = [links(port(0), port(1, up=0.0))]
    steps += [links(port(0, up=up, downs=downs), port(1, up=0.0)) for up, downs in ((0, 1), (0, 1), (1, 1), (1, 3))]
    steps += [links(port(1, up=0.0))]
    report, lines = told(), []
    for step in steps:
        after = told(step, report=report)
        lines.append([(one.level, one.message) for one in changes(report, after)])
        report = after

    assert lines == [
        [],
        [(logging.WARNING, "the port is down")],
        [],
        [(logging.INFO, "the port is up again")],
        [(logging.WARNING, "the port was down for a short time")],
        [(logging.WARNING, "the port is gone")],
    ]


def test_blindness_is_told_when_it_begins_and_when_it_ends() -> None:
    """However its words change meanwhile."""
    clear = told(links(port()))
    blind = told(links(port(), errors={"infiniband": "one"}), report=clear)
    still = told(links(port(), errors={"infiniband": "two"}), report=blind)

    assert said(clear, blind) == [(logging.WARNING, "not all links can be read")]
    assert said(blind, still) == []
    assert said(still, told(links(port()), report=still)) == [(logging.INFO, "all links can be read again")]


def gone(report: Report) -> list[str]:
    return [one.port.device for one in report.gone_ports]


def test_a_port_that_is_no_longer_listed_is_gone_until_it_is_back() -> None:
    """And has no readings meanwhile."""
    report = told(links(port(0), port(1)))
    assert gone(report) == []
    report = told(links(port(0)), links(port(0)), report=report)
    assert gone(report) == ["mlx5_1"]
    assert (report.gone_ports[0].port.link, report.gone_ports[0].port.counts) == (InfinibandLink(), InfinibandPort())
    report = told(links(port(0), port(1)), report=report)
    assert gone(report) == []


def test_ports_that_cannot_be_listed_are_not_gone() -> None:
    """Their device hangs and is left aside, the list itself cannot be read, or there are too many of them."""
    report = told(links(port(0), port(1)))
    assert gone(told(links(port(0), errors={"infiniband": "class/infiniband: denied"}), report=report)) == []
    assert gone(told(links(port(0), left_out=1), report=report)) == []
    aside = LinksStatus(quarantined={"mlx5_1": Quarantine(fault="stuck", detail="state", wall=0.0)})
    assert gone(told(aside, links(port(0)), report=report)) == []


def test_a_child_that_is_silent_has_lost_no_port() -> None:
    report = told(links(port(0), port(1)), links(port(0)), at=100.0)
    assert gone(told(Tick(), report=report, at=100.0 + STALE_SECONDS + 1)) == []


def test_ends_of_services_are_counted() -> None:
    """From 0 on, of those that are installed."""
    running = {"services": {FABRIC_MANAGER: True}}
    report = told(links(**running))
    assert report.node.service_stops_total == {"fabric_manager": 0.0}
    report = told(links(**running, ended=(FABRIC_MANAGER,)), links(**running), report=report)
    assert report.node.service_stops_total == {"fabric_manager": 1.0}
