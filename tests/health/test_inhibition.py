"""One fault, one primary verdict, whatever there is: no circles, nothing out of sight, nothing made harmless."""

from __future__ import annotations

from each_case import each_case
from hypothesis import given, settings
from hypothesis import strategies as st
from judging import Ward

from gpumon.health import inhibition
from gpumon.health.check import Check, asks_for_no_less
from gpumon.health.device_case import device_cases
from gpumon.health.node_health import Health, apply_transitions
from gpumon.health.table import BY_NAME, CHECKS
from gpumon.health.verdict import Action, Clearance, Key, Level, Verdict, VerdictChange, VerdictTransition
from gpumon.state import health_reducer
from gpumon.state.messages import VerdictTransitions

WARD = Ward(gpus=3, ports=1)
FACTS = health_reducer.facts(WARD.report, WARD.moment, WARD.terms)
NOW = FACTS.now


def devices(check: str) -> list[str]:
    row = BY_NAME[check]
    if row.gpu is not None:
        return [state.uuid for state in FACTS.gpus]
    return [case.device for case in device_cases(FACTS).ports] if row.port is not None else [""]


@st.composite
def verdicts(draw: st.DrawFn) -> Verdict:
    check = draw(st.sampled_from([one.name for one in CHECKS]))
    ago = draw(st.sampled_from((5.0, 60.0, 250.0, 400.0, 4000.0, 80000.0)))
    seen = draw(st.floats(0.0, ago))
    return Verdict(
        check=check,
        device=draw(st.sampled_from(devices(check))),
        level=draw(st.sampled_from((Level.WARN, Level.FAIL))),
        reason="So it is.",
        action=draw(st.sampled_from(Action)),
        since=NOW.wall - ago,
        since_at=NOW.at - ago,
        since_boot=FACTS.boot_id,
        seen=NOW.wall - seen,
        seen_at=NOW.at - seen,
        boot_id=FACTS.boot_id,
        active=draw(st.booleans()),
    )


def folded(found: list[Verdict]) -> Health:
    known = {one.key: one for one in found}
    return Health(open=inhibition.with_causes(known, FACTS), evaluated=True)


def top(one: Verdict, known: dict[Key, Verdict]) -> Verdict:
    """The primary verdict above it. Loops for ever in a circle."""
    for _ in range(len(known) + 1):
        if one.inhibited_by is None:
            return one
        one = known[one.inhibited_by]
    raise AssertionError(f"a circle above {one}")


@settings(max_examples=300)
@given(st.lists(verdicts(), max_size=25))
def test_invariants(found: list[Verdict]) -> None:
    """Each stands under a primary one that is as bad as itself and not much younger; a cause that goes frees it."""
    health = folded(found)
    known = dict(health.open)
    for one in known.values():
        above = top(one, known)
        assert above.level >= one.level
        if one.inhibited_by is not None:
            lead = inhibition._lead(known[one.inhibited_by])
            assert known[one.inhibited_by].since <= one.since + lead or BY_NAME[one.check].inhibited_if is not None
            row = BY_NAME[one.check]
            assert row.inhibited_by[one.inhibited_by[0]]
            assert asks_for_no_less(one, above) or row.latch is None or row.inhibited_if is not None
    assert health.level == max((one.level for one in known.values()), default=Level.OK)
    assert health.level == max((one.level for one in health.primary), default=Level.OK)

    causes = [one for one in known.values() if any(other.inhibited_by == one.key for other in known.values())]
    for cause in causes[:3]:
        over = VerdictTransition(
            verdict=cause, change=VerdictChange.CLEARED, wall=NOW.wall, cleared_by=Clearance.RECOVERED
        )
        after = apply_transitions(health, (over,))
        assert all(one.inhibited_by in after.open for one in after.open.values() if one.inhibited_by is not None)
        shown = {one.key for one in after.primary}
        assert {one.key for one in known.values() if one.inhibited_by == cause.key} <= shown


@settings(max_examples=150)
@given(st.lists(st.tuples(verdicts(), st.booleans()), max_size=25))
def test_what_a_reboot_has_answered_makes_no_circle(found: list[tuple[Verdict, bool]]) -> None:
    """Though it stands under what would follow from it; and nothing becomes milder."""
    ages = [one._replace(since_boot="boot-0", boot_id="boot-0", active=False) if old else one for one, old in found]
    known = dict(folded(ages).open)
    assert all(top(one, known).level >= one.level for one in known.values())


LATCHED = [one for one in CHECKS if one.latch is not None and one.inhibited_if is None and one.inhibited_by]


@each_case("row", LATCHED, ids=[row.name for row in LATCHED])
@each_case("asked", [Action.RESET, Action.REBOOT])
def test_what_only_a_repair_ends_stands_under_nothing_milder(row: Check, asked: Action) -> None:
    """Whoever restarts a service because the verdict says so would not know of the reset that is due all the same."""
    one = Verdict(
        check=row.name,
        device=devices(row.name)[0],
        level=Level.FAIL,
        reason="So it is.",
        action=asked,
        since=NOW.wall - 60.0,
        since_at=NOW.at - 60.0,
        since_boot=FACTS.boot_id,
        seen=NOW.wall,
        seen_at=NOW.at,
        boot_id=FACTS.boot_id,
        evidence={"xid": 74},
    )
    for name, where in row.inhibited_by.items():
        device = next(device for device in reversed(devices(name)) if where != "same" or device == one.device)
        for action in Action:
            cause = one._replace(check=name, device=device, action=action)
            under = folded([one, cause]).open[one.key].inhibited_by
            assert under in {None, cause.key}
            assert under is None or asks_for_no_less(one, cause), (name, action)


def test_a_link_that_cannot_be_trained_is_not_the_fabric_managers_fault() -> None:
    """Its link is, and that it is down follows from the fabric manager: a restart of which would not be enough."""
    ward = Ward(gpus=2, ports=0)
    ward.gpu(0, state={"peers": {"4": type(next(iter(ward.report.gpus[0].peers.values())))(peer_type="switch")}})
    ward.link(0, 4, recoveries_total={"failed": 0.0})
    ward.go_on(60)
    ward.node(fabric_manager_up=0.0)
    ward.link(0, 4, up=0.0, recoveries_total={"failed": 1.0})
    ward.go_on(300)
    assert {"fabric_manager_down", "nvlink_down", "nvlink_recovery_failed"} <= set(ward.active_checks())
    assert "nvlink_recovery_failed" in {one.check for one in ward.report.health.primary}


def test_what_came_after_its_cause_was_over_is_a_fault_of_its_own() -> None:
    """A link that fails today does not follow from a GPU that was lost for a minute last week, and is latched."""
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
    assert [one.check for one in ward.report.health.primary] == ["gpu_lost", "nvlink_down"]


def test_what_follows_from_something_costs_no_score() -> None:
    """A GPU that is lost and its Xid are one fault."""
    ward = Ward(gpus=2, ports=0)
    ward.fault(0, "lost")
    ward.event(0, 79)
    ward.go_on(60)
    assert ward.active_checks() == ["gpu_lost", "gpu_xid_critical"]
    assert ward.report.health.score == 80.0


def test_a_consequence_is_in_sight_as_soon_as_its_cause_is_cleared() -> None:
    """Not at the next look only: a scrape may come in between."""
    ward = Ward(gpus=2, ports=0)
    ward.fault(0, "lost")
    ward.event(0, 79)
    ward.go_on(60)
    [lost] = ward.report.health.primary
    over = VerdictTransition(
        verdict=lost._replace(active=False),
        change=VerdictChange.CLEARED,
        wall=ward.wall,
        cleared_by=Clearance.ACKNOWLEDGED,
    )
    ward.report = health_reducer.take(ward.report, VerdictTransitions(transitions=(over,)))
    assert [one.check for one in ward.report.health.primary] == ["gpu_xid_critical"]


def test_what_another_device_has_stands_under_nothing_that_the_reboot_has_answered() -> None:
    """GPU 3 is back; the link of GPU 2, which had its own error as well, is down all the same."""
    ward = Ward()
    ward.event(2, 74)
    ward.link(2, 4, up=0.0)
    ward.event(3, 79)
    ward.fault(3, "lost")
    ward.go_on(600)
    assert [one.check for one in ward.report.health.primary] == ["gpu_lost"]
    ward.fault(3, None)
    ward.reboot()
    ward.go_on(500)
    primary = {one.key for one in ward.report.health.primary}
    assert ("gpu_lost", ward.report.gpus[3].uuid) in primary
    assert ("nvlink_down", ward.report.gpus[2].uuid) in primary
