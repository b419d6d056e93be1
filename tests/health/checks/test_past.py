"""What was wrong before the agent started, where nobody can tell."""

from __future__ import annotations

from dataclasses import replace

from judging import Ward

from gpumon.health.verdict import FAIL, OK, UNKNOWN


def test_a_node_whose_past_cannot_be_read_is_not_well() -> None:
    """As soon as it is judged, until the store is read; the store itself has no verdict beside that."""
    ward = Ward()
    ward.report = replace(ward.report, internal=replace(ward.report.internal, restored=False))
    ward.node(store_up=0.0)
    ward.notice("store", "/var/lib/gpumon/gpumon.db: it belongs to a newer version.")
    ward.go_on(20)
    [verdict] = ward.verdicts.values()
    assert (verdict.check, verdict.level, ward.report.health.level) == ("gpumon_history_unread", UNKNOWN, UNKNOWN)
    assert verdict.reason.endswith("healthy: /var/lib/gpumon/gpumon.db: it belongs to a newer version.")
    ward.go_on(600, every=60)
    assert ward.active_checks() == ["gpumon_history_unread"]
    ward.report = replace(ward.report, internal=replace(ward.report.internal, restored=True))
    ward.node(store_up=1.0)
    assert ward.go_on().report.health.level is OK


def test_what_fails_now_is_told_beside_it() -> None:
    """It is no less true for that."""
    ward = Ward()
    ward.report = replace(ward.report, internal=replace(ward.report.internal, restored=False))
    ward.fault(3, "lost")
    assert ward.go_on(60).report.health.level is FAIL
