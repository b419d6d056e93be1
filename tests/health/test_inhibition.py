"""One fault, one primary verdict, whatever there is: no circles, nothing out of sight, nothing made harmless."""

from __future__ import annotations

from changed_report import with_transitions
from each_case import each_case
from hypothesis import given, settings
from hypothesis import strategies as st
from judging import EVERY, Ward, clear

from gpumon.health import inhibition
from gpumon.health.check_row import Check, asks_for_no_less
from gpumon.health.node_health import Health, apply_transitions
from gpumon.health.table import BY_NAME, CHECKS
from gpumon.health.verdict import Action, Clearance, Key, Level, Verdict, VerdictChange, VerdictTransition
from gpumon.model.instant import Instant
from gpumon.state import health_section

WARD = Ward(gpus=3, ports=1)
FACTS = health_section.facts(WARD.report, WARD.moment, WARD.terms)
NOW = FACTS.now


def devices(check: str) -> list[str]:
    row = BY_NAME[check]
    if row.gpu is not None:
        return [state.uuid for state in FACTS.gpus]
    return [case.device for case in FACTS.port_cases] if row.port is not None else [""]


@st.composite
def verdicts(draw: st.DrawFn) -> Verdict:
    check = draw(st.sampled_from([each.name for each in CHECKS]))
    ago = draw(st.sampled_from((5.0, 60.0, 250.0, 400.0, 4000.0, 80000.0)))
    seen = draw(st.floats(0.0, ago))
    return Verdict(
        check=check,
        device=draw(st.sampled_from(devices(check))),
        level=draw(st.sampled_from((Level.WARN, Level.FAIL))),
        reason="So it is.",
        action=draw(st.sampled_from(Action)),
        raised=Instant(FACTS.boot_id, NOW.at - ago, NOW.wall - ago),
        last_active=Instant(FACTS.boot_id, NOW.at - seen, NOW.wall - seen),
        active=draw(st.booleans()),
    )


def inhibited_health(found: list[Verdict]) -> Health:
    known = {each.key: each for each in found}
    return Health(open=inhibition.with_causes(known, FACTS), evaluated=FACTS.now)


def primary_above(one: Verdict, known: dict[Key, Verdict]) -> Verdict:
    """Return the primary verdict above a verdict; loop forever if verdicts inhibit each other in a circle."""
    for _ in range(len(known) + 1):
        if one.inhibited_by is None:
            return one
        one = known[one.inhibited_by]
    raise AssertionError(f"a circle above {one}")


@settings(max_examples=300)
@given(st.lists(verdicts(), max_size=25))
def test_invariants(found: list[Verdict]) -> None:
    """A verdict is inhibited only by a primary one at least as severe, and becomes primary when that clears."""
    health = inhibited_health(found)
    known = dict(health.open)
    for each in known.values():
        above = primary_above(each, known)
        assert above.level >= each.level
        if each.inhibited_by is not None:
            lead = inhibition._lead(known[each.inhibited_by])
            assert (
                known[each.inhibited_by].raised.wall <= each.raised.wall + lead
                or BY_NAME[each.check].inhibited_if is not None
            )
            row = BY_NAME[each.check]
            assert row.inhibited_by[each.inhibited_by[0]]
            assert asks_for_no_less(each, above) or row.latch is None or row.inhibited_if is not None
    assert health.level == max((each.level for each in known.values()), default=Level.OK)
    assert health.level == max((each.level for each in health.primary), default=Level.OK)

    causes = [each for each in known.values() if any(other.inhibited_by == each.key for other in known.values())]
    for cause in causes[:3]:
        over = VerdictTransition(
            verdict=cause, change=VerdictChange.CLEARED, time=Instant("", 0.0, NOW.wall), cleared_by=Clearance.RECOVERED
        )
        after = apply_transitions(health, (over,))
        assert all(each.inhibited_by in after.open for each in after.open.values() if each.inhibited_by is not None)
        shown = {each.key for each in after.primary}
        assert {each.key for each in known.values() if each.inhibited_by == cause.key} <= shown


@settings(max_examples=150)
@given(st.lists(st.tuples(verdicts(), st.booleans()), max_size=25))
def test_verdicts_from_before_a_reboot_make_no_circle(found: list[tuple[Verdict, bool]]) -> None:
    ages = [
        one._replace(
            raised=one.raised._replace(boot_id="boot-0"),
            last_active=one.last_active._replace(boot_id="boot-0"),
            active=False,
        )
        if old
        else one
        for one, old in found
    ]
    known = dict(inhibited_health(ages).open)
    assert all(primary_above(one, known).level >= one.level for one in known.values())


LATCHED = [each for each in CHECKS if each.latch is not None and each.inhibited_if is None and each.inhibited_by]


@each_case("row", LATCHED, ids=[row.name for row in LATCHED])
@each_case("asked", [Action.RESET, Action.REBOOT])
def test_a_verdict_that_needs_a_reset_is_not_inhibited_by_a_milder_one(row: Check, asked: Action) -> None:
    """A verdict whose action is a service restart does not inhibit one that needs a reset."""
    one = Verdict(
        check=row.name,
        device=devices(row.name)[0],
        level=Level.FAIL,
        reason="So it is.",
        action=asked,
        raised=Instant(FACTS.boot_id, NOW.at - 60.0, NOW.wall - 60.0),
        last_active=Instant(FACTS.boot_id, NOW.at, NOW.wall),
        evidence={"xid": 74},
    )
    for name, where in row.inhibited_by.items():
        device = next(device for device in reversed(devices(name)) if where != "same" or device == one.device)
        for action in Action:
            cause = one._replace(check=name, device=device, action=action)
            under = inhibited_health([one, cause]).open[one.key].inhibited_by
            assert under in {None, cause.key}
            assert under is None or asks_for_no_less(one, cause), (name, action)


def test_a_stopped_fabric_manager_does_not_inhibit_a_failed_link_training() -> None:
    """A failed link training remains primary because a restart of the fabric manager does not fix it."""
    ward = Ward(gpus=2, ports=0)
    ward.gpu(0, state={"peers": {"4": type(next(iter(ward.report.gpus[0].peers.values())))(peer_type="switch")}})
    ward.link(0, 4, recoveries_total={"failed": 0.0})
    ward.go_on(60)
    ward.node(fabric_manager_up=0.0)
    ward.link(0, 4, up=0.0, recoveries_total={"failed": 1.0})
    ward.go_on(300)
    assert {"fabric_manager_down", "nvlink_down", "nvlink_recovery_failed"} <= set(ward.active_checks())
    assert "nvlink_recovery_failed" in {each.check for each in ward.report.health.primary}


def test_a_latched_verdict_does_not_inhibit_later_faults() -> None:
    """A link that fails a week after a GPU was lost for a minute is a separate fault."""
    ward = Ward(gpus=2, ports=0)
    peers = ward.report.gpus[0].peers
    for index in (0, 1):
        other = ward.report.gpus[1 - index].bus_id
        named = {link: type(peer)(peer_type="gpu", peer=other) for link, peer in peers.items()}
        ward.gpu(index, state={"peers": named})
    ward.fault(0, "lost")
    ward.go_on(60)
    ward.fault(0, None)
    ward.go_on(6 * 86400, every=3600)
    assert ward.active_checks() == ["gpu_lost"]
    ward.link(1, 4, up=0.0)
    ward.go_on(180)
    assert [each.check for each in ward.report.health.primary] == ["gpu_lost", "nvlink_down"]


def test_an_inhibited_verdict_does_not_lower_the_score() -> None:
    """A lost GPU and its Xid lower the score once."""
    ward = Ward(gpus=2, ports=0)
    ward.fault(0, "lost")
    ward.event(0, 79)
    ward.go_on(60)
    assert ward.active_checks() == ["gpu_lost", "gpu_xid_critical"]
    assert ward.report.health.score == 80.0


def test_an_inhibited_verdict_is_primary_as_soon_as_its_cause_clears() -> None:
    """The verdict is primary before the next evaluation, because a scrape may come in between."""
    ward = Ward(gpus=2, ports=0)
    ward.fault(0, "lost")
    ward.event(0, 79)
    ward.go_on(60)
    [lost] = ward.report.health.primary
    over = VerdictTransition(
        verdict=lost._replace(active=False),
        change=VerdictChange.CLEARED,
        time=Instant("", 0.0, ward.wall),
        cleared_by=Clearance.OPERATOR,
    )
    ward.report = with_transitions(ward.report, (over,))
    assert [each.check for each in ward.report.health.primary] == ["gpu_xid_critical"]


def test_verdicts_from_before_a_reboot_do_not_inhibit_other_devices() -> None:
    """A link failure of GPU 2 is primary when GPU 3, which was lost before the reboot, responds again."""
    ward = Ward()
    ward.event(2, 74)
    ward.link(2, 4, up=0.0)
    ward.event(3, 79)
    ward.fault(3, "lost")
    ward.go_on(600)
    assert [each.check for each in ward.report.health.primary] == ["gpu_lost"]
    ward.fault(3, None)
    ward.reboot()
    ward.go_on(500)
    primary = {each.key for each in ward.report.health.primary}
    assert ("gpu_lost", ward.report.gpus[3].uuid) in primary
    assert ("nvlink_down", ward.report.gpus[2].uuid) in primary


def failing_calls(ward: Ward, seconds: float) -> None:
    """Let a driver call fail at each evaluation for this time."""
    for _ in range(int(seconds / EVERY)):
        before = (ward.report.node.poll_errors_total or {}).get("slow,GpuIsLost", 0.0)
        ward.node(poll_errors_total={"slow,GpuIsLost": before + 1.0})
        ward.go_on(EVERY)


def primary_since(ward: Ward, seconds: float) -> set[str]:
    """Return the checks that have a verdict of their own at some time in these seconds."""
    checks: set[str] = set()
    for _ in range(int(seconds / EVERY)):
        ward.go_on(EVERY)
        checks |= {verdict.check for verdict in ward.report.health.primary}
    return checks


def test_failed_calls_end_with_the_lost_gpu() -> None:
    for minutes in (8, 12, 30):  # before, when and long after the check has counted enough of them
        ward = Ward(gpus=2, ports=0)
        ward.node(poll_errors_total={"slow,GpuIsLost": 0.0})
        ward.go_on(60)
        ward.fault(1, "lost")
        failing_calls(ward, minutes * 60)
        assert [verdict.check for verdict in ward.report.health.primary] == ["gpu_lost"]
        assert (ward.verdict("gpumon_poll_errors") is not None) == (minutes > 10)
        ward.fault(1, None)
        ward.go_on(EVERY)
        assert "gpu_lost" in {verdict.check for verdict in clear(ward, "gpu_lost")}
        assert not ward.verdicts
        assert not primary_since(ward, 1200)


def test_calls_that_still_fail_are_a_verdict_of_their_own() -> None:
    """What goes on after the cause was cleared is found again from then on."""
    ward = Ward(gpus=2, ports=0)
    ward.node(poll_errors_total={"slow,GpuIsLost": 0.0})
    ward.go_on(60)
    ward.fault(1, "lost")
    failing_calls(ward, 900)
    ward.fault(1, None)
    ward.go_on(EVERY)
    clear(ward, "gpu_lost")
    failing_calls(ward, 500)
    assert not ward.verdicts
    failing_calls(ward, 200)
    assert [verdict.check for verdict in ward.report.health.primary] == ["gpumon_poll_errors"]


def test_replaced_samplers_end_with_the_outage_of_the_driver() -> None:
    """Samplers that crashed while the driver was down are no verdict after it answers."""
    ward = Ward(gpus=2, ports=0)
    ward.node(sampler_restarts_total={"crash": 0.0})
    ward.go_on(60)
    ward.node(nvml_up=0.0, sampler_restarts_total={"crash": 9.0})
    ward.go_on(120)
    assert [verdict.check for verdict in ward.report.health.primary] == ["gpu_driver_down"]
    assert ward.level("gpumon_sampler_restarting") is Level.WARN
    ward.node(nvml_up=1.0)
    assert primary_since(ward, 1200) == {"gpu_driver_down"}
    ends = [each for each in ward.transitions if each.change is VerdictChange.CLEARED]
    assert [each.verdict.check for each in ends] == ["gpu_driver_down", "gpumon_sampler_restarting"]
    assert {each.time for each in ends} == {ends[0].time}
    assert {each.cleared_by for each in ends} == {Clearance.RECOVERED}


def test_a_consequence_that_has_passed_waits_no_minute_of_its_own() -> None:
    """A consequence without a window that is over when its cause is cleared is cleared with it."""
    ward = Ward(gpus=2, ports=0)
    ward.node(nvml_up=0.0)
    for index in (0, 1):
        ward.fault(index, "unknown", "DriverNotLoaded")
    ward.go_on(180)
    assert ward.level("gpu_unreadable", 1) is Level.FAIL
    ward.node(nvml_up=1.0)
    ward.go_on(40)
    for index in (0, 1):
        ward.fault(index, None)
    assert primary_since(ward, 120) == {"gpu_driver_down"}


def test_a_fabric_manager_that_keeps_exiting_is_found_although_each_exit_was_a_verdict() -> None:
    """A check that counts repetitions of its cause outlives the cause."""
    ward = Ward(gpus=2, ports=0)
    ward.node(fabric_manager_up=1.0, service_stops_total={"fabric_manager": 0.0})
    ward.go_on(60)
    for stops in (1.0, 2.0, 3.0):
        ward.node(fabric_manager_up=0.0, service_stops_total={"fabric_manager": stops})
        ward.go_on(70)
        ward.node(fabric_manager_up=1.0)
        ward.go_on(70)
    assert "fabric_manager_flapping" in {verdict.check for verdict in ward.report.health.primary}


def test_a_driver_that_answers_after_a_restart_of_the_agent_is_up_after_a_minute() -> None:
    """A stored outage of the driver ends as fast after a restart as without one, while hung calls filled its window."""
    for restart in (False, True):
        ward = Ward(gpus=2, ports=0)
        ward.node(nvml_up=0.0, nvml_stuck_seconds=70.0)
        ward.go_on(180)
        assert ward.level("gpu_driver_down") is Level.FAIL
        if restart:
            ward.restart()
        ward.node(nvml_up=1.0, nvml_stuck_seconds=0.0)
        assert ward.go_on(60).level("gpu_driver_down") is Level.FAIL
        assert ward.go_on(20).level("gpu_driver_down") is Level.OK
