"""GPUs that are not here, fewer than there should be, and versions that differ."""

from __future__ import annotations

from dataclasses import replace

import example_parts
from each_case import each_case
from judging import Ward

from gpumon.health.expectation import Basis, Expectation
from gpumon.health.policy import Policy
from gpumon.health.verdict import Action, Clearance, Level, Verdict
from gpumon.model.snapshot import CONTAINER, GUEST
from gpumon.model.stored_gpu import StoredGpu
from gpumon.state.gpu_inventory import Removal, RemovedGpu

DRIVER, VBIOS = "580.95.05", "96.00.89.00.01"
QUARTER = 15 * 60.0


def board(index: int, boot_id: str = "boot-1") -> StoredGpu:
    return StoredGpu(
        uuid=example_parts.uuid(index),
        bus_id=example_parts.bus_id(index),
        serial="S1",
        name="H100",
        first_wall=0.0,
        last_wall=1.0,
        boot_id=boot_id,
    )


def expecting(ward: Ward, expectation: Expectation, *, visible: int) -> None:
    ward.report = replace(ward.report, expectation=expectation)
    ward.node(gpus_expected=float(expectation.count), gpus_visible=float(visible))


def test_a_missing_gpu_is_one_verdict() -> None:
    """It explains the count; a reboot is the first thing to try."""
    ward = Ward(gpus=8)
    expecting(ward, Expectation(count=8), visible=7)
    ward.gpu(3, state={"stored": board(3)})
    ward.fault(3, "missing", "no longer on the PCI bus")
    ward.go_on(90)

    verdict = ward.verdict("gpu_missing", 3)
    assert verdict is not None
    assert (verdict.level, verdict.action) == (Level.FAIL, Action.REBOOT)
    assert "It is no longer on the PCI bus." in verdict.reason
    assert verdict.evidence["serial"] == "S1"
    assert ward.active_checks() == ["gpu_missing"]


def test_one_that_a_reboot_did_not_bring_back_is_to_be_inspected() -> None:
    """It was last seen in an earlier boot."""
    ward = Ward(gpus=8)
    ward.gpu(3, state={"stored": board(3, "boot-0")})
    ward.fault(3, "missing")
    verdict = ward.go_on(90).verdict("gpu_missing", 3)

    assert verdict is not None
    assert verdict.action is Action.INSPECT


def test_a_driver_that_takes_them_up_one_by_one_misses_none() -> None:
    """After a reload the last of eight comes half a minute later."""
    ward = Ward(gpus=8)
    ward.fault(7, "missing")
    ward.go_on(40)
    ward.fault(7, None)

    assert not ward.go_on(300).verdicts


def test_what_is_expected_no_more_has_no_verdict() -> None:
    """Replaced, or accepted as gone: its verdicts go at once, with the reason."""
    ward = Ward(gpus=8)
    ward.fault(7, "missing")
    uuid = ward.report.gpus[7].uuid
    assert ward.go_on(90).verdict("gpu_missing", 7)
    memory = replace(
        ward.report.internal,
        inventory=replace(
            ward.report.internal.inventory, removed={uuid: RemovedGpu(Removal.ACCEPTED, example_parts.bus_id(7))}
        ),
    )
    ward.report = replace(ward.report, gpus=ward.report.gpus[:7], internal=memory)

    assert not ward.go_on(10).verdicts
    assert ward.transitions[-1].cleared_by is Clearance.GONE


def test_seven_of_eight_at_a_first_boot_is_a_fault() -> None:
    """Nobody has ever seen the eighth; the product says that there is one, and the bus where."""
    ward = Ward(gpus=7)
    wanted = Expectation(count=8, basis=Basis.PRODUCT)
    expecting(ward, wanted, visible=7)
    verdict = ward.go_on(90).verdict("gpu_count_mismatch")
    assert verdict is not None
    assert (verdict.level, verdict.action) == (Level.FAIL, Action.INSPECT)
    assert verdict.reason == "The driver reports 7 GPUs; expected are 8, as on other hosts with this product."

    expecting(ward, Expectation(count=8), visible=8)
    assert not ward.go_on(300).verdicts
    expecting(ward, replace(wanted, unlisted=("00000000:50:00.0",)), visible=7)
    verdict = ward.go_on(90).verdict("gpu_count_mismatch")
    assert verdict is not None
    assert verdict.action is Action.REBOOT
    assert verdict.reason.endswith("On the PCI bus but not reported by the driver: 00000000:50:00.0.")


def test_a_gpu_that_is_lost_explains_why_one_is_not_counted() -> None:
    """One fault, one primary verdict."""
    ward = Ward(gpus=8)
    expecting(ward, Expectation(count=8), visible=7)
    ward.fault(3, "lost")
    ward.go_on(90)

    assert [one.check for one in ward.report.health.primary] == ["gpu_lost"]
    assert ward.active_checks() == ["gpu_count_mismatch", "gpu_lost"]


def test_a_guest_that_was_given_some_is_not_known_to_lack_any() -> None:
    """But what was configured, or here before, is missed there too."""
    ward = Ward(gpus=2)
    given = Expectation(count=2, may=4, may_basis=Basis.PRODUCT, place=GUEST)
    expecting(ward, given, visible=2)
    verdict = ward.go_on(90).verdict("gpu_count_mismatch")
    assert verdict is not None
    assert verdict.level is Level.UNKNOWN
    assert "this guest may have been given fewer" in verdict.reason

    expecting(ward, replace(given, count=3), visible=2)
    assert ward.go_on(90).level("gpu_count_mismatch") is Level.FAIL


def restarted(ward: Ward, expectation: Expectation, *, recalled: bool = True, on_bus: int = 8) -> Verdict:
    """What is said of the sixth GPU of a container that has four now."""
    bus = {example_parts.bus_id(index): "nvidia" for index in range(on_bus)}
    ward.report = replace(
        ward.report, internal=replace(ward.report.internal, inventory=replace(ward.report.internal.inventory, bus=bus))
    )
    expecting(ward, expectation, visible=4)
    for index in (4, 5):
        ward.gpu(index, state={"stored": board(index), "restored": recalled})
        ward.fault(index, "missing", "on the PCI bus, but the driver does not list it")
    verdict = ward.go_on(90).verdict("gpu_missing", 5)
    assert verdict is not None
    return verdict


def test_a_container_that_starts_again_with_fewer_is_not_known_to_lack_any() -> None:
    """The others are on the host's bus: they may be somebody else's by now."""
    ward = Ward(gpus=6)
    verdict = restarted(ward, Expectation(count=6, may=8, place=CONTAINER))

    assert (verdict.level, verdict.action) == (Level.UNKNOWN, Action.NONE)
    assert "This container may have been given fewer GPUs than before" in verdict.reason
    assert "`gpumon inventory accept`" in verdict.reason
    assert ward.report.health.level is Level.UNKNOWN


@each_case(
    ("expectation", "recalled", "on_bus"),
    [
        (Expectation(count=6, place=GUEST), True, 8),
        (Expectation(count=6), True, 8),
        (Expectation(count=6, place=CONTAINER), False, 8),
        (Expectation(count=6, place=CONTAINER), True, 4),
        (Expectation(count=6, basis=Basis.CONFIGURED, place=CONTAINER), True, 8),
        (Expectation(count=6, basis=Basis.ACCEPTED, place=CONTAINER), True, 8),
    ],
    ids=["guest", "host", "seen-since-start", "not-on-the-bus", "configured", "accepted"],
)
def test_a_gpu_that_cannot_have_been_taken_away_is_missed(
    expectation: Expectation, *, recalled: bool, on_bus: int
) -> None:
    """Nothing is taken from a container while it runs, and what a person has said holds."""
    verdict = restarted(Ward(gpus=6), expectation, recalled=recalled, on_bus=on_bus)
    assert (verdict.level, verdict.action) == (Level.FAIL, Action.REBOOT)


def test_while_a_gpu_is_released_nobody_counts() -> None:
    """The driver may count it, or not."""
    ward = Ward(gpus=8)
    expecting(ward, Expectation(count=8), visible=7)
    ward.gpu(2, state={"released": True})

    assert not ward.go_on(300).verdicts


def test_a_driver_other_than_configured_is_a_warning() -> None:
    """Until it is the one that is expected; NCCL's is that of the last run of the probe."""
    ward = Ward(policy=Policy(versions={"driver": "580.105.08", "nccl": "2.30.7"}))
    assert not ward.go_on(QUARTER - 60, every=30.0).verdicts
    verdict = ward.go_on(120).verdict("node_version_drift")
    assert verdict is not None
    assert (verdict.level, verdict.action) == (Level.WARN, Action.INSPECT)
    assert verdict.reason == f"The driver is {DRIVER}; 580.105.08 is expected."

    ward.terms = replace(ward.terms, policy=Policy(versions={"driver": DRIVER, "nccl": "2.27.3"}))
    verdict = ward.go_on(60).verdict("node_version_drift")
    assert verdict is not None
    assert verdict.reason == "NCCL is 2.30.7; 2.27.3 is expected."
    ward.terms = replace(ward.terms, policy=Policy(versions={"driver": DRIVER}))
    assert not ward.go_on(300).verdicts


def test_one_whose_firmware_differs_from_most_is_told() -> None:
    """Of the same product alone."""
    ward = Ward(gpus=8)
    ward.gpu(5, vbios="96.00.A5.00.03", gsp=None)
    verdict = ward.go_on(QUARTER + 60, every=30.0).verdict("gpu_version_drift", 5)
    assert verdict is not None
    assert verdict.reason == (f"Its VBIOS is 96.00.A5.00.03; 7 of 8 GPUs of this product have {VBIOS}.")
    assert ward.active_checks() == ["gpu_version_drift"]

    ward.gpu(5, name="NVIDIA L40S")
    assert not ward.go_on(300).verdicts


def test_a_tie_of_versions_is_told_of_the_node() -> None:
    """Nobody knows which is right, until the configuration says so; then the others are told one by one."""
    other = "96.00.A5.00.03"
    ward = Ward(gpus=8)
    for index in range(4, 8):
        ward.gpu(index, vbios=other)
    verdict = ward.go_on(QUARTER + 60, every=30.0).verdict("node_version_drift")
    assert verdict is not None
    assert (verdict.level, verdict.action) == (Level.WARN, Action.INSPECT)
    assert verdict.reason == (
        f"The VBIOS is {VBIOS} on GPUs 0, 1, 2, 3 and {other} on GPUs 4, 5, 6, 7, without a majority."
    )
    assert ward.active_checks() == ["node_version_drift"]

    ward.terms = replace(ward.terms, policy=Policy(versions={"vbios": other}))
    ward.go_on(QUARTER + 60, every=30.0)
    assert [ward.level("gpu_version_drift", n) is Level.WARN for n in range(8)] == [True] * 4 + [False] * 4
    assert ward.active_checks() == ["gpu_version_drift"]


def test_a_tie_is_one_of_gpus_that_are_alike_and_answer() -> None:
    """Two products differ as they should; of two GPUs one is as right as the other, and of one alone none is."""
    pair = Ward(gpus=2)
    pair.gpu(1, vbios="96.00.A5.00.03", name="NVIDIA L40S")
    assert not pair.go_on(QUARTER + 60, every=30.0).verdicts
    pair.gpu(1, name=pair.report.gpus[0].gpu.name)
    assert pair.go_on(QUARTER + 60, every=30.0).active_checks() == ["node_version_drift"]
    pair.fault(1, "stuck")
    pair.gpu(1, name=None, vbios=None)
    assert "node_version_drift" not in pair.go_on(300).active_checks()


def test_a_configured_firmware_is_everybodys() -> None:
    """Though all agree, all differ from it; one that does not answer is not judged."""
    ward = Ward(gpus=3, policy=Policy(versions={"vbios": "97.00"}))
    ward.fault(2, "stuck")
    ward.go_on(QUARTER + 60, every=30.0)

    assert [ward.level("gpu_version_drift", n) for n in range(3)] == [Level.WARN, Level.WARN, Level.OK]
    verdict = ward.verdict("gpu_version_drift", 0)
    assert verdict is not None
    assert verdict.reason == f"Its VBIOS is {VBIOS}; 97.00 is expected."


def test_what_is_accepted_ends_the_verdict_at_the_next_look() -> None:
    """Whoever accepts seven of eight, and asks `gpumon check` then, is told that all is well."""
    ward = Ward(gpus=7, ports=0)
    expecting(ward, Expectation(count=8, basis=Basis.PRODUCT), visible=7)
    assert ward.go_on(90).active_checks() == ["gpu_count_mismatch"]
    expecting(ward, Expectation(count=7, basis=Basis.ACCEPTED), visible=7)
    assert not ward.go_on(5).verdicts
    assert ward.transitions[-1].cleared_by is Clearance.GONE


def test_a_gpu_that_is_back_has_to_stay() -> None:
    """The number that was accepted is there again: it may go once more."""
    ward = Ward(gpus=7, ports=0)
    expecting(ward, Expectation(count=7, basis=Basis.ACCEPTED), visible=6)
    assert ward.go_on(90).active_checks() == ["gpu_count_mismatch"]
    ward.node(gpus_visible=7.0)
    assert ward.go_on(30).verdicts
    assert not ward.go_on(60).verdicts
