"""Observations of GPUs during a run, and the statements that a result derives from them."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest
from changed_report import new_report
from each_case import each_case

from gpumon.model.gpu import Gpu
from gpumon.model.gpu_state import GpuState
from gpumon.model.node import Node
from gpumon.model.nvlink import Fabric, Nvlink, NvlinkPeer
from gpumon.probe.core.baseline import Judge
from gpumon.probe.core.conclusion import conclude
from gpumon.probe.core.evidence import GpuSample, Observations, add_samples, findings
from gpumon.probe.core.frames import Account, Progress, Sized
from gpumon.probe.core.locate import NO_PAIR, locate
from gpumon.probe.core.passes import Ending, Pass
from gpumon.probe.core.plan import Pairs, Run, make_plans, rounds
from gpumon.probe.core.probes import PROBES
from gpumon.probe.core.result import Comparison, Location
from gpumon.probe.core.ring_comparison import HIDDEN, LINKS, MAYBE_LOST, NOT_LINKS, compare_algorithms
from gpumon.probe.core.ring_comparison import LOST as LOST_SHARP
from gpumon.runner.assessment import TelemetryRecorder
from gpumon.state.report import Report

RANKS = 4
GPUS = tuple(f"GPU-{n}" for n in range(RANKS))
ODD = 3


def gpu_samples(at: float, **deviation: Any) -> list[GpuSample]:
    """Return samples of GPUs under load, of which one differs."""
    moved = 40e9 * at
    usual = {
        "held_seconds": {"sw_power_cap": at, "hw_thermal": 0.0},
        "sm_clock": 1.98e9 if at else 0.3e9,
        "link_speed": 26.5e9,
        "link_bytes": moved,
        "link_errors": {"7 had replay errors": 5.0},
        "pcie_generation": 5.0 if at else 1.0,
        "pcie_generation_max": 5.0,
        "xids": {"31": 4.0, "74": 0.0},
        "ecc_errors": 0.0,
        "pcie_width": 16.0,
        "pcie_width_max": 16.0,
        "pcie_errors": {"replay": 3.0},
    }
    return [
        GpuSample(index=n, uuid=uuid, at=at, **(usual | (deviation if n == ODD else {})))  # type: ignore[arg-type]
        for n, uuid in enumerate(GPUS)
    ]


def observations(**deviation: Any) -> Observations:
    """Return samples from before, during and after a run; one GPU differs from the second sample on."""
    after = add_samples(add_samples({}, gpu_samples(0.0)), gpu_samples(1.0, **deviation))
    return add_samples(after, gpu_samples(2.0, **deviation))


@each_case(
    ("deviation", "words"),
    [
        ({}, None),
        ({"held_seconds": {"hw_thermal": 3.0}}, "its clocks were held down by heat (hardware)"),
        ({"held_down": ["hw_slowdown"]}, "its clocks were held down by hardware (heat or power)"),
        ({"held_down": ["applications_clocks"]}, "its clocks were held down by applications clocks"),
        ({"sm_clock": 1.2e9}, "its SM clock reached 1.20 GHz, that of the others 1.98"),
        ({"links_down": ["11"]}, "its NVLink 11 is down"),
        ({"link_errors": {"7 had replay errors": 17.0}}, "its NVLink 7 had replay errors, 12 times"),
        ({"link_speed": 13.2e9}, "an NVLink of it runs at 13.2 GB/s, those of the others at 26.5"),
        ({"link_bytes": 8e9}, "it moved 8.0 GB over its NVLinks, the others 80.0"),
        ({"fabric": ["degraded_bandwidth"]}, "its fabric reports degraded bandwidth"),
        ({"pcie_width": 8.0}, "its PCIe link has 8 of 16 lanes"),
        ({"pcie_generation": 3.0}, "its PCIe link ran at generation 3 of 5"),
        ({"pcie_errors": {"replay": 103.0}}, "its PCIe link counted replay errors, 100 times"),
        ({"pcie_errors": {"replay": 4.0}}, None),
        ({"xids": {"31": 4.0, "74": 1.0}}, "Xid 74 occurred once"),
        ({"ecc_errors": 2.0}, "its memory had an uncorrected ECC error 2 times"),
        ({"fault": "lost"}, "it does not answer (lost)"),
    ],
)
def test_a_deviation_of_one_gpu_is_reported(deviation: dict[str, Any], words: str | None) -> None:
    """A finding is a counter that increased, or a value that differs from that of the other GPUs."""
    assert findings(observations(**deviation)) == ({} if words is None else {GPUS[ODD]: (words,)})


def test_heat_is_always_a_finding_and_a_common_power_limit_is_not() -> None:
    """Heat is reported for every GPU, and the power limit not if all GPUs reach it."""
    hot = [replace(sample, held_down=["hw_thermal", "sw_power_cap"]) for sample in gpu_samples(1.0)]
    reported = findings(add_samples(add_samples({}, gpu_samples(0.0)), hot))
    assert reported == dict.fromkeys(GPUS, ("its clocks were held down by heat (hardware)",))


def test_little_link_traffic_is_not_compared() -> None:
    for seconds, count in ((0.01, 0), (1.0, 1)):
        assert (
            len(findings(add_samples(add_samples({}, gpu_samples(0.0)), gpu_samples(seconds, link_bytes=0.0)))) == count
        )


def by_link(moved: float, lame: float, end: str = "switch") -> dict[str, dict[str, float]]:
    """Return the traffic of four links with the same end, of which the third differs."""
    return {end: {str(link): lame if link == 2 else moved for link in range(4)}}


@each_case(
    ("links", "words"),
    [
        (by_link(5e9, 1.2e9), "its NVLink 2 moved 0.20 GB, its others 4.00"),
        (by_link(5e9, 4.6e9), None),
        (by_link(1.05e9, 1e9), None),
        (by_link(5e9, 0.5e9), None),
        ({"GPU-a": {"0": 5e9, "1": 5e9}, "GPU-b": {"2": 1e9, "3": 1e9}}, None),
    ],
    ids=["lame", "a little less", "little traffic", "counter reset", "other ends"],
)
def test_a_link_with_less_traffic_than_its_parallels_is_named(
    links: dict[str, dict[str, float]], words: str | None
) -> None:
    """Only links to the same end are comparison, from their first count in the run."""
    first = {end: dict.fromkeys(each, 1e9) for end, each in links.items()}
    before = add_samples(add_samples({}, gpu_samples(0.0)), gpu_samples(1.0, each_link_bytes=first))
    after = add_samples(before, gpu_samples(2.0, each_link_bytes=links))
    assert findings(after) == ({} if words is None else {GPUS[ODD]: (words,)})
    down = add_samples(before, gpu_samples(2.0, each_link_bytes=links, links_down=["2"]))
    assert findings(down) == {GPUS[ODD]: ("its NVLink 2 is down",)}


def test_a_poll_counts_once() -> None:
    once = add_samples({}, gpu_samples(1.0, held_down=["hw_thermal"]))
    assert add_samples(once, gpu_samples(1.0)) == once
    assert add_samples(once, gpu_samples(-86400.0)) != once, "the clock was set back"
    assert once[GPUS[ODD]].samples_taken == 1


def pass_over_pairs(slow: tuple[int, ...] = (), apart: tuple[int, int] | None = None, ranks: int = RANKS) -> Pass:
    """Return a pass over all pairs, in which the pairs of one rank, or of two ranks with each other, take longer."""
    plan = make_plans(PROBES["allreduce"], GPUS[:ranks], python=sys.executable)[0]

    def side(rank: int, peer: int) -> Sized:
        late = bool(slow) and set(slow) <= {rank, peer}
        direct = None if apart is None else {rank, peer} != set(apart)
        return Sized(seconds=(2e-3 if late else 1e-3,) * 8, wrong=0, direct=direct)

    accounts = [
        Account(
            progress=Progress(rank=rank), pairs={(0, peer): side(rank, peer) for peer in range(ranks) if peer != rank}
        )
        for rank in range(ranks)
    ]
    return Pass(plan=plan, steps=(Pairs(bytes=1 << 28, rounds=rounds(ranks)),), accounts=accounts)


def location_of(run_pass: Pass, samples: Observations) -> Location:
    location = locate(run_pass, samples)
    assert location is not None
    return location


HOT = {"held_seconds": {"hw_thermal": 3.0}}


def test_a_slow_gpu_is_named_with_its_findings() -> None:
    location = location_of(pass_over_pairs((ODD,)), observations(**HOT, pcie_width=8.0))
    assert location.message == ("GPU 3 (GPU-3) is slow with every other: its clocks were held down by heat (hardware).")
    assert (location.ranks, location.gpus) == ((3,), ("GPU-3",))
    assert location.evidence == (
        "GPU 3 (GPU-3): its clocks were held down by heat (hardware).",
        "GPU 3 (GPU-3): its PCIe link has 8 of 16 lanes.",
    )


def test_a_slow_path_is_explained_by_a_finding_of_either_end() -> None:
    location = location_of(pass_over_pairs((1, ODD)), observations(links_down=["4"]))
    assert location.ranks == (1, 3)
    assert location.message == (
        "Only the path between GPU 1 (GPU-1) and GPU 3 (GPU-3) is slow: of GPU 3 (GPU-3), its NVLink 4 is down."
    )


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_gpu_with_a_finding_is_named_if_no_pair_differs(ranks: int) -> None:
    hot = {uuid: sample for uuid, sample in observations().items() if uuid in GPUS[: ranks - 1]}
    hot[GPUS[ranks - 1]] = replace(
        observations(**HOT)[GPUS[ODD]], last=replace(observations(**HOT)[GPUS[ODD]].last, index=ranks - 1)
    )
    location = location_of(pass_over_pairs(ranks=ranks), hot)
    assert location.ranks == (ranks - 1,)
    assert location.message.endswith("stands out: its clocks were held down by heat (hardware).")
    both = location_of(pass_over_pairs(ranks=ranks), dict.fromkeys(GPUS[:ranks], observations(**HOT)[GPUS[ODD]]))
    assert both.ranks == ()
    assert "cannot be located" in both.message
    assert len(both.evidence) == ranks


def test_a_finding_of_another_gpu_is_evidence_only() -> None:
    location = location_of(pass_over_pairs((0,)), observations(**HOT))
    assert location.message == "GPU 0 (GPU-0) is slow with every other."
    assert location.evidence == ("GPU 3 (GPU-3): its clocks were held down by heat (hardware).",)


def test_wrong_data_is_not_explained_by_a_cause_of_slowness() -> None:
    location = location_of(pass_with_wrong_data(ODD), observations(**HOT))
    assert location.message == "Every exchange of wrong data is one with GPU 3 (GPU-3)."
    assert len(location.evidence) == 1


def test_missing_peer_access_of_a_pair_is_evidence() -> None:
    location = location_of(pass_over_pairs((0, 2), apart=(0, 2)), {})
    assert location.evidence == ("GPU GPU-0 and GPU GPU-2 cannot access each other's memory, as other pairs can.",)
    assert not location_of(pass_over_pairs(ranks=2, apart=(0, 1)), {}).evidence


ALL = dict.fromkeys(("read", "write", "nvlink", "atomics"), "ok")
CUT = {**ALL, "nvlink": "not_supported", "atomics": "disabled_by_regkey"}
LACK = "lack peer access that other pairs have: NVLink (not supported), atomics (disabled by regkey)"
LOST = "have lost peer access that they had before: NVLink (not supported), atomics (disabled by regkey)"


def samples_with_access(at: float, access: dict[tuple[int, int], dict[str, str]], **deviation: Any) -> list[GpuSample]:
    """Return samples with the peer access of each two GPUs, which is complete unless given."""
    matrix = {
        uuid: {GPUS[m]: access.get((min(n, m), max(n, m)), ALL) for m in range(RANKS) if m != n}
        for n, uuid in enumerate(GPUS)
    }
    return [replace(sample, peer_access=matrix[sample.uuid]) for sample in gpu_samples(at, **deviation)]


@pytest.mark.parametrize(
    ("before", "words"), [(None, LACK), ({(1, 3): CUT}, LACK), ({}, LOST)], ids=["unknown", "as before", "had it"]
)
def test_missing_peer_access_explains_a_slow_path(
    before: dict[tuple[int, int], dict[str, str]] | None, words: str
) -> None:
    """Missing peer access of a pair explains its slow path or slow GPU, and is named even if no pair is slow."""
    first = gpu_samples(0.0) if before is None else samples_with_access(0.0, before)
    samples = add_samples(add_samples({}, first), samples_with_access(1.0, {(1, 3): CUT}, **HOT))
    for slow, ranks, sentence in (
        ((1, 3), (1, 3), "Only the path between GPU 1 (GPU-1) and GPU 3 (GPU-3) is slow: they {}."),
        ((3,), (3,), "GPU 3 (GPU-3) is slow with every other: GPU 1 (GPU-1) and GPU 3 (GPU-3) {}."),
        ((), (1, 3), f"{NO_PAIR}; but GPU 1 (GPU-1) and GPU 3 (GPU-3) stand out: they {{}}."),
    ):
        location = location_of(pass_over_pairs(slow), samples)
        assert (location.ranks, location.message) == (ranks, sentence.format(words))
        assert f"GPU 1 (GPU-1) and GPU 3 (GPU-3) {words}, by NVML." in location.evidence
        assert {pair.ranks: pair.peer_access for pair in location.pairs} == {
            pair.ranks: CUT if pair.ranks == (1, 3) else ALL for pair in location.pairs
        }
    other = location_of(pass_over_pairs((0, 2)), samples)
    assert other.message == "Only the path between GPU 0 (GPU-0) and GPU 2 (GPU-2) is slow."


@pytest.mark.parametrize(
    ("slow", "sentence"),
    [
        ((3,), "GPU 3 (GPU-3) is slow with every other: it and 3 others {}."),
        ((), "{}; but GPU 3 (GPU-3) stands out: it and 3 others {}."),
    ],
)
def test_a_gpu_without_any_peer_access_is_named_alone(slow: tuple[int, ...], sentence: str) -> None:
    """A GPU that lacks peer access to all others is named alone, although half of all pairs lack it."""
    location = location_of(
        pass_over_pairs(slow), add_samples({}, samples_with_access(1.0, {(n, 3): CUT for n in range(3)}))
    )
    assert (location.ranks, len(location.evidence)) == ((3,), 3)
    assert location.message == sentence.format(*([LACK] if slow else [NO_PAIR, LACK]))


def test_peer_access_that_is_missing_by_design_is_no_evidence() -> None:
    """Regular gaps in peer access are no evidence, unless the access was present before."""
    square: dict[tuple[int, int], dict[str, str]] = {(0, 1): CUT, (2, 3): CUT}
    linked = {(0, 1), (2, 3)}
    by_design = {(a, b): CUT for a in range(RANKS) for b in range(a + 1, RANKS) if (a, b) not in linked}
    for access in (by_design, by_design | dict.fromkeys(linked, CUT), square):
        samples = add_samples({}, samples_with_access(1.0, access))
        assert not location_of(pass_over_pairs(), samples).evidence
    partial = samples_with_access(1.0, {(1, 3): CUT})
    beyond = {"GPU-beyond": ALL}
    samples = add_samples({}, [replace(sample, peer_access={**sample.peer_access, **beyond}) for sample in partial])
    assert not location_of(pass_over_pairs(), samples).evidence, "of a part of the host nobody can tell how it is built"
    twice = location_of(
        pass_over_pairs(), add_samples(add_samples({}, samples_with_access(0.0, {})), samples_with_access(1.0, square))
    )
    assert (twice.ranks, twice.message, len(twice.evidence)) == ((), f"{NO_PAIR}.", 2)


def test_the_hint_of_a_failed_run_has_the_findings() -> None:
    """The hint of a run that timed out has the Xid that occurred meanwhile."""
    run_pass = replace(pass_over_pairs(), ending=Ending(duration=300.0, timed_out=True))
    run = Run(id="one", trigger="schedule", started=0.0)
    result = conclude(
        run, [run_pass], Judge(probe="allreduce", backend="nccl"), 300.0, observations(xids={"31": 4.0, "79": 1.0})
    )
    assert result.outcome == "timeout"
    assert result.hint.endswith("GPU 3 (GPU-3): Xid 79 occurred once.")


def pass_with_wrong_data(*senders: int) -> Pass:
    """Return a pass in which the data of these senders arrives wrong."""
    run_pass = pass_over_pairs()
    accounts = [
        replace(
            account, pairs={key: replace(sized, wrong=int(key[1] in senders)) for key, sized in account.pairs.items()}
        )
        for account in run_pass.accounts
    ]
    return replace(run_pass, accounts=accounts, ending=Ending(duration=3.0))


def test_the_first_pass_with_a_location_determines_the_location() -> None:
    run, judge = Run(id="one", trigger="schedule", started=0.0), Judge(probe="allreduce", backend="nccl")
    unclear = replace(
        pass_with_wrong_data(),
        accounts=[_with_unrelated_wrong_pairs(account) for account in pass_with_wrong_data().accounts],
    )
    for passes, ranks in (
        ((unclear, pass_with_wrong_data(ODD)), (ODD,)),
        ((pass_with_wrong_data(1), pass_with_wrong_data(ODD)), (1,)),
        ((unclear,), ()),
    ):
        location = conclude(run, passes, judge, 300.0).location
        assert location is not None
        assert location.ranks == ranks


def _with_unrelated_wrong_pairs(account: Account) -> Account:
    """Return the account with wrong data in two pairs that have no rank in common."""
    pairs = {
        key: replace(sized, wrong=int({key[1], account.rank} in ({0, 1}, {2, 3})))
        for key, sized in account.pairs.items()
    }
    return replace(account, pairs=pairs)


# Samples from Reports

ENDS, LINKS_EACH = ("switch", "switch", "gpu"), 4


def report(at: float, **gpu: Any) -> Report:
    """Return a Report of two GPUs with a link each, of which the second differs."""
    states = [
        GpuState(
            bus_id=str(n),
            uuid=GPUS[n],
            index=n,
            gpu=Gpu(nvlink_receive_bytes_total=at, nvlink_transmit_bytes_total=at, **(gpu if n else {})),
            links={
                "0": Nvlink(
                    up=1.0,
                    errors_total={"replay": 9.0 * at * n, "crc": at * n, "symbol": at, "receive_remote": at},
                    recoveries_total={"failed": at * n},
                )
            },
            peers={str(link): NvlinkPeer(peer_type=kind, peer=f"{kind} {link}") for link, kind in enumerate(ENDS)},
            peer_access={GPUS[1 - n]: {"read": "ok"}},
            link_bytes={str(link): at * 1e9 * (1 + link) for link in range(LINKS_EACH)},
            fabric=Fabric(health={"route_unhealthy": 0.0}),
        )
        for n in range(2)
    ]
    return new_report(gpus=tuple(states), node=Node(snapshot_timestamp_seconds=at))


def test_the_recorder_groups_links_by_their_end() -> None:
    record = TelemetryRecorder(lambda: report(1.0), GPUS[:1]).record()
    assert record[GPUS[0]].last.each_link_bytes == {"switch": {"0": 1e9, "1": 2e9}, "gpu 2": {"2": 3e9}}
    assert record[GPUS[0]].last.peer_access == {GPUS[1]: {"read": "ok"}}


def test_the_recorder_derives_findings_from_reports() -> None:
    """The recorder reports changes of clocks, links and PCIe during the run, except corrected link errors."""
    reports = [
        report(1.0, pcie_replays_total=0.0, ecc_errors_total={"uncorrected,dram": 1.0, "uncorrected,sram": 0.0}),
        report(
            2.0,
            clock_event_active={"hw_thermal": 1.0, "idle": 1.0},
            clock_event_seconds_total={"hw_power_brake": 2.0},
            pcie_replays_total=50.0,
            ecc_errors_total={"uncorrected,dram": 1.0, "uncorrected,sram": 1.0, "corrected,dram": 7.0},
            xid_errors_total={"94": 1.0},
            pcie_errors_total={"fatal": 1.0, "correctable": 99.0},
        ),
    ]
    recorder = TelemetryRecorder(lambda: reports[0], GPUS[:2])
    reports.pop(0)
    assert findings(recorder.record()) == {
        GPUS[0]: ("its NVLink 0 had receive remote errors, once", "its NVLink 0 had symbol errors, once"),
        GPUS[1]: (
            "Xid 94 occurred once",
            "its memory had an uncorrected ECC error once",
            "its clocks were held down by heat (hardware)",
            "its clocks were held down by the power brake of its board",
            "its NVLink 0 had receive remote errors, once",
            "its NVLink 0 had replay errors, 9 times",
            "its NVLink 0 had symbol errors, once",
            "its NVLink 0 was retrained (failed), once",
            "its PCIe link counted fatal errors, once",
            "its PCIe link counted replay errors, 50 times",
        ),
    }
    assert set(recorder.record()) == set(GPUS[:2])
    assert not TelemetryRecorder(lambda: reports[0], ()).record()


# The two algorithms


def comparison(algorithm: str, busbw: float, usual: float | None) -> Comparison:
    low = "baseline" if usual is not None and busbw < 0.9 * usual else ""
    return Comparison(
        operation="all_reduce",
        algorithm=algorithm,
        dtype="float32",
        size=1 << 30,
        value=busbw,
        baseline=usual,
        below_reference=low,
    )


@each_case(
    ("default", "ring", "message"),
    [
        ((480, 480), (370, 370), ""),
        ((368, 480), (370, 370), LOST_SHARP),
        ((368, 480), (370, None), MAYBE_LOST),
        ((240, 480), (185, 370), LINKS),
        ((475, 480), (185, 370), HIDDEN),
        ((420, 480), (370, 370), NOT_LINKS),
        ((180, 230), (229, 229), NOT_LINKS),
    ],
)
def test_lost_nvlink_sharp_is_distinguished_from_slow_links(
    default: tuple[float, float], ring: tuple[float, float | None], message: str
) -> None:
    assert compare_algorithms([comparison("default", *default), comparison("ring", *ring)]) == message
    assert compare_algorithms([comparison("default", *default)]) == ""
