from __future__ import annotations

import json
from dataclasses import replace

import pytest
from each_case import each_case

from gpumon.model.gpu import Gpu
from gpumon.model.gpu_state import GpuState
from gpumon.probe.core.baseline import Floors, Judge
from gpumon.probe.core.conclusion import conclude, skipped_result
from gpumon.probe.core.frames import Account, Progress, Sized
from gpumon.probe.core.next_step import next_step
from gpumon.probe.core.passes import Ending, Pass, percentile
from gpumon.probe.core.plan import Measure, Pairs, Plan, Rendezvous, Run, make_plans, rounds
from gpumon.probe.core.preflight import Skip
from gpumon.probe.core.probes import GIB, KIB, MIB, PROBES
from gpumon.probe.core.result import OUTCOMES, SKIP_REASONS, Measurement, ProbeResult, from_document, to_document
from gpumon.probe.runner.assessment import make_judge
from gpumon.state.report import Report

ALL_REDUCE = PROBES["allreduce"]
RUN = Run(id="one", trigger="request", started=1000.0)
ENDING = Ending(duration=3.0)
HELD = Skip(reason="held", hint="A hold.")
FOUR_GPUS, FOUR_GPUS_RING = make_plans(ALL_REDUCE, [f"GPU-{n}" for n in range(4)], python="/opt/python")
JUDGE = Judge(probe="allreduce", backend="nccl")


def accounts(plan: Plan, *, wrong: int = 0) -> list[Account]:
    """Rank r takes 1 + r milliseconds for each operation at every size."""
    return [
        Account(
            progress=Progress(rank=rank, stage="end", ratio=1.0),
            versions={"torch": "2.13.0"},
            sizes={(0, size): Sized(seconds=(1e-3 * (1 + rank),) * 20, wrong=wrong) for size in plan.setting.sizes},
            stepped=1,
            done=True,
            status=0,
            output=b"noise\n",
        )
        for rank in range(plan.ranks)
    ]


def concluded(
    told: list[Account], ending: Ending = ENDING, plan: Plan = FOUR_GPUS, judge: Judge = JUDGE
) -> ProbeResult:
    one = Pass(plan=plan, steps=plan.measures, accounts=told, ending=ending)
    result = conclude(RUN, [one], judge, ending.duration)
    assert result.outcome in OUTCOMES
    return result


def test_bandwidths_follow_the_definitions_of_nccl_tests() -> None:
    """The slowest rank's time counts; algbw is S/t and busbw of an all-reduce is 2(n-1)/n of it."""
    result = concluded(accounts(FOUR_GPUS))
    assert (result.outcome, result.ranks, result.backend, result.wrong_elements) == ("ok", 4, "nccl", 0)
    largest = result.measurements[-1]
    assert largest.bytes == 1 << 30
    assert largest.latency_seconds == pytest.approx({"p50": 4e-3, "p95": 4e-3, "p99": 4e-3})
    assert largest.algbw_bytes_per_second == pytest.approx((1 << 30) / 4e-3)
    assert largest.busbw_bytes_per_second == pytest.approx((1 << 30) / 4e-3 * 6 / 4)


@pytest.mark.parametrize("probe", ["allgather", "reducescatter", "alltoall"])
def test_bandwidths_of_shares_count_what_was_sent(probe: str) -> None:
    """Shares are multiples of 16 bytes, as in nccl-tests: three of 1 KiB are 336 bytes each."""
    [plan] = make_plans(PROBES[probe], ["GPU-0", "GPU-1", "GPU-2"], python="/opt/python")
    small = concluded(accounts(plan), plan=plan).measurements[0]
    assert small.bytes == KIB
    assert small.algbw_bytes_per_second == pytest.approx(3 * 336 / 3e-3)
    assert small.busbw_bytes_per_second == pytest.approx(2 * 336 / 3e-3)


def test_each_operation_lasts_as_long_as_on_its_slowest_rank() -> None:
    """The maximum over the ranks is taken for each operation, before the percentiles."""
    told = accounts(FOUR_GPUS)
    size = FOUR_GPUS.setting.sizes[0]
    for rank in range(4):
        seconds = tuple(1.0 if operation % 4 == rank else 0.1 for operation in range(20))
        told[rank] = replace(told[rank], sizes={**told[rank].sizes, (0, size): Sized(seconds=seconds, wrong=0)})
    assert concluded(told).measurements[0].latency_seconds["p50"] == 1.0


def test_percentiles_lie_between_the_nearest_values() -> None:
    """The median of an even number of values is halfway; the last share reaches the largest."""
    assert percentile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.5
    assert percentile([4.0, 1.0, 3.0, 2.0], 1.0) == 4.0
    assert percentile([7.0], 0.99) == 7.0


def test_wrong_elements_are_summed_over_ranks_and_sizes() -> None:
    """Corruption is an outcome of its own, which neither a timeout nor an abort hides."""
    told = accounts(FOUR_GPUS, wrong=2)
    ending = replace(ENDING, timed_out=True, aborted=Skip(reason="busy", hint=""))
    for result in (concluded(told), concluded(told, ending)):
        assert (result.outcome, result.wrong_elements) == ("wrong", 2 * 4 * len(FOUR_GPUS.setting.sizes))
        assert result.measurements[0].wrong_elements == 8
        assert "noise" in result.log


def test_wrong_elements_of_pairs_and_of_sizes_that_not_all_have_measured_count() -> None:
    """Where the outcome is wrong, the number is not 0; what says nothing of any size says nothing of its data."""
    told = accounts(FOUR_GPUS)
    told[2] = replace(told[2], pairs={(1, 0): Sized(seconds=(1e-3,), wrong=7)})
    result = concluded(told)
    assert (result.outcome, result.wrong_elements) == ("wrong", 7)

    largest = max(FOUR_GPUS.setting.sizes)
    told = [replace(one, sizes={}) for one in accounts(FOUR_GPUS)]
    told[1] = replace(told[1], sizes={(0, largest): Sized(seconds=(1e-3,), wrong=3)})
    result = concluded(told, replace(ENDING, timed_out=True))
    assert (result.outcome, result.wrong_elements, result.measurements) == ("wrong", 3, ())

    silent = [replace(one, sizes={}, done=False, status=1) for one in accounts(FOUR_GPUS)]
    assert concluded(silent).wrong_elements is None


def test_a_size_that_one_rank_has_not_measured_is_left_out() -> None:
    """A run that timed out keeps the sizes that all ranks finished, and names where the last rank is."""
    told = accounts(FOUR_GPUS)
    first = FOUR_GPUS.setting.sizes[0]
    hanging = Progress(rank=2, stage="measure", bytes=1 << 20, ratio=0.3)
    told[2] = replace(
        told[2], progress=hanging, sizes={(0, first): told[2].sizes[0, first]}, stepped=0, done=False, status=-9
    )
    result = concluded(told, replace(ENDING, timed_out=True))
    assert (result.outcome, result.reason) == ("timeout", "measure")
    assert [one.bytes for one in result.measurements] == [first]
    assert "rank 2: measure of 1048576 bytes" in result.hint
    assert result.hint.endswith("NCCL log more.")


def test_what_was_measured_before_the_largest_size_is_compared_with_nothing() -> None:
    """What saturates the links is a share of that size, not of the largest that a run came to."""
    judge = replace(JUDGE, expected=lambda _: (1e15, "a data sheet"))
    told = accounts(FOUR_GPUS)
    whole = concluded(told, replace(ENDING, aborted=HELD), judge=judge)
    assert {one.bytes for one in whole.comparisons} == {max(FOUR_GPUS.setting.sizes)}
    first = FOUR_GPUS.setting.sizes[0]
    told = [replace(one, sizes={(0, first): one.sizes[0, first]}, stepped=0, done=False) for one in told]
    early = concluded(told, replace(ENDING, aborted=HELD), judge=judge)
    assert ([one.bytes for one in early.measurements], early.comparisons) == ([first], ())


def expecting(busbw: float) -> Judge:
    """Who knows that the largest size should come to so many bytes a second."""

    def expected(measurement: Measurement) -> tuple[float, str] | None:
        return (busbw, "a data sheet") if measurement.bytes == max(FOUR_GPUS.setting.sizes) else None

    return replace(JUDGE, expected=expected)


def test_a_drop_is_confirmed_by_a_repeat_and_then_located() -> None:
    """Only what is low is measured again; pairs are tried only when that is low too."""
    usual = 4e-3  # seconds, of the slowest rank
    busbw = (1 << 30) / usual * 6 / 4
    one = Pass(plan=FOUR_GPUS, accounts=accounts(FOUR_GPUS))
    assert next_step(one, expecting(busbw)) == FOUR_GPUS.measures[0]
    one = replace(one, steps=FOUR_GPUS.measures)
    assert next_step(one, expecting(busbw)) is None

    repeat = next_step(one, expecting(2 * busbw))
    assert isinstance(repeat, Measure)
    assert repeat.sizes == (1 << 30,)
    for seconds, after in ((usual, Pairs(bytes=256 << 20, rounds=rounds(4))), (usual / 2, None)):
        again = {(1, 1 << 30): Sized(seconds=(seconds,) * 20, wrong=0)}
        told = [replace(each, sizes={**each.sizes, **again}) for each in one.accounts]
        assert next_step(replace(one, steps=(*one.steps, repeat), accounts=told), expecting(2 * busbw)) == after


def test_a_run_that_falls_short_is_degraded_and_says_of_what() -> None:
    """The hint gives both figures, and whose the other one is."""
    result = concluded(accounts(FOUR_GPUS), judge=expecting(805e9))
    assert (result.outcome, result.reason) == ("degraded", "expected")
    assert "402.65 GB/s twice: 50% of 805.00 GB/s (a data sheet)" in result.hint


@each_case(("ranks", "expected"), [(2, 1), (3, 3), (4, 3), (5, 5), (8, 7)])
def test_every_two_ranks_meet_once_in_the_fewest_rounds(ranks: int, expected: int) -> None:
    """In one round no rank is in two pairs."""
    found = rounds(ranks)
    assert len(found) == expected
    assert sorted(pair for together in found for pair in together) == [
        (a, b) for a in range(ranks) for b in range(a + 1, ranks)
    ]
    for together in found:
        busy = [rank for pair in together for rank in pair]
        assert len(busy) == len(set(busy))


def test_a_failure_in_set_up_is_told_apart_from_one_of_the_ranks() -> None:
    """What fails before the first operation says nothing about the links; the hint names rank and GPU."""
    told = accounts(FOUR_GPUS)
    for stage, reason in (("join", "setup"), ("measure", "ranks")):
        progress = Progress(rank=3, stage=stage)
        told[3] = replace(told[3], progress=progress, done=False, status=1, error="RuntimeError: no")
        result = concluded(told, replace(ENDING, first_failed=3))
        assert (result.outcome, result.reason) == ("failed", reason)
        assert "Rank 3 (GPU-3)" in result.hint
        assert "RuntimeError: no. The log of the run has the last output of its ranks" in result.hint


@pytest.mark.parametrize(("model", "told"), [("NVIDIA B200", True), ("NVIDIA A100-SXM4-80GB", False)])
def test_the_hint_of_a_first_run_tells_that_nvlink_sharp_may_be_lost(model: str, *, told: bool) -> None:
    """By the two algorithms alone, at the only size that fits; the outcome is that of its figures."""
    gpus = tuple(GpuState(bus_id=str(n), uuid=f"GPU-{n}", index=n, gpu=Gpu(name=model)) for n in range(8))
    plans = make_plans(ALL_REDUCE, [one.uuid for one in gpus], python="/opt/python")
    report = Report(started=0.0, gpus=gpus)
    judge = make_judge(ALL_REDUCE, plans[0], report, Floors(expected=0.0))
    passes = [Pass(plan=one, steps=one.measures, accounts=accounts(one), ending=ENDING) for one in plans]
    result = conclude(RUN, passes, judge, ENDING.duration)
    assert result.outcome == "ok"
    assert ("The default is 1.00 times the ring" in result.hint) == told


def test_a_rank_that_cannot_be_killed_is_named() -> None:
    """An abandoned rank makes the run a timeout with its own reason, and its pid is in the hint."""
    result = concluded(accounts(FOUR_GPUS), replace(ENDING, abandoned=(4711,)))
    assert (result.outcome, result.reason) == ("timeout", "unkillable")
    assert "4711" in result.hint


def test_what_ended_a_run_is_said_beside_what_cannot_be_killed() -> None:
    """Somebody waits for the GPUs: the hint says both."""
    ending = replace(ENDING, abandoned=(4711,), aborted=Skip(reason="held", hint="Held by 4712."))
    result = concluded(accounts(FOUR_GPUS), ending)
    assert (result.outcome, result.reason) == ("timeout", "unkillable")
    assert result.hint.endswith("Reboot the node. The run was ended (held): Held by 4712.")


@pytest.mark.parametrize(
    ("stage", "words"),
    [
        ("start", "most likely at a file. Check that the file system of probe.python"),
        ("import", "most likely at a file. Check that the file system of probe.python"),
        ("join", "most likely in the driver. Reboot the node."),
        ("measure", "most likely in the driver. Reboot the node."),
    ],
)
def test_where_an_unkillable_rank_is_stuck_is_told_by_its_stage(stage: str, words: str) -> None:
    """Before it joins it has touched no GPU: it reads the interpreter and PyTorch, over a network maybe."""
    told = [replace(account, pid=4711 + account.rank) for account in accounts(FOUR_GPUS)]
    told[2] = replace(told[2], progress=replace(told[2].progress, stage=stage))
    hint = concluded(told, replace(ENDING, abandoned=(4713,))).hint
    assert f"SIGKILL does not end pid 4713: it is blocked in the kernel, {words}" in hint
    assert hint.endswith("eboot the node.")


@pytest.mark.parametrize(("lasted", "asked"), [(300.0, True), (3.0, False)])
def test_a_pass_that_had_little_of_the_deadline_asks_for_no_file_system(lasted: float, asked: bool) -> None:  # noqa: FBT001
    """The first pass has taken the rest, and read the same files; the deadline that is named is that of the run."""
    told = [replace(one, progress=replace(one.progress, stage="import"), done=False) for one in accounts(FOUR_GPUS)]
    hint = concluded(told, Ending(duration=lasted, timed_out=True)).hint
    assert hint.startswith("Not done after 300 s (rank 0: import;")
    assert ("Check that the file system of probe.python" in hint) == asked


def test_the_log_is_bounded_and_cannot_steer_a_terminal() -> None:
    """Control characters of what the ranks printed are left out of the result."""
    told = [replace(account, output=b"\x1b[2Jbad \xff\n", status=1) for account in accounts(FOUR_GPUS)]
    assert "\x1b" not in concluded(told).log
    assert "bad" in concluded(told).log


def test_a_skip_is_a_result() -> None:
    """A guard's objection becomes a result with reason and hint, and no ranks."""
    result = skipped_result(ALL_REDUCE, RUN, Skip(reason="busy", hint="later"), simulated=True)
    assert (result.outcome, result.reason, result.hint, result.ranks) == ("skipped", "busy", "later", 0)
    assert result.reason in SKIP_REASONS


def test_results_survive_json() -> None:
    """What is stored comes back equal, and what a later version adds does no harm."""
    result = concluded(accounts(FOUR_GPUS))
    document = json.loads(json.dumps(to_document(result)))
    assert from_document(document) == result
    document["later"] = document["measurements"][0]["later"] = 1
    assert from_document(document) == result


def test_ranks_run_on_real_gpus_by_uuid_and_nothing_is_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    """One rank a GPU over NCCL, the GPUs named by UUID; the environment is ours and the configuration's alone."""
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    default, ring = make_plans(
        ALL_REDUCE, ["GPU-a", "GPU-b"], python="python3", environment={"NCCL_MAX_NCHANNELS": "4"}
    )
    for plan in (default, ring):
        assert (plan.ranks, plan.setting.backend) == (2, "nccl")
        assert plan.environment["CUDA_VISIBLE_DEVICES"] == "GPU-a,GPU-b"
        assert plan.environment["NCCL_MAX_NCHANNELS"] == "4"
    assert "NCCL_ALGO" not in default.environment
    assert (ring.environment["NCCL_ALGO"], ring.environment["NCCL_NVLS_ENABLE"]) == ("Ring", "0")


def test_a_simulated_node_runs_two_ranks_on_the_cpu() -> None:
    """Simulated GPUs cannot reduce: the probe there is a real one, on the CPU."""
    [plan] = make_plans(ALL_REDUCE, ["GPU-a"] * 8, python="python3", simulated=True)
    assert (plan.ranks, plan.setting.backend, plan.gpus) == (2, "gloo", ())
    assert plan.environment["CUDA_VISIBLE_DEVICES"] == ""


def test_only_rank_0_is_handed_the_socket() -> None:
    """Rank 0 listens for the others on the descriptor that the agent has bound."""
    rendezvous = Rendezvous(port=4242, listen=7)
    orders = [
        json.loads(FOUR_GPUS.orders(rank, parent=1, result=9, rendezvous=rendezvous)) for rank in range(FOUR_GPUS.ranks)
    ]
    assert [one["listen"] for one in orders] == [7, None, None, None]
    assert {one["port"] for one in orders} == {4242}


def test_larger_sizes_are_measured_where_they_fit() -> None:
    """4 GiB needs two buffers and room for CUDA and NCCL; where the free memory is not known it is not tried."""
    for free, most in ((None, GIB), (10 * GIB, GIB), (11 * GIB, 4 * GIB)):
        plans = make_plans(ALL_REDUCE, ["GPU-a", "GPU-b"], python="python3", free=free)
        assert {max(plan.setting.sizes) for plan in plans} == {most}


def test_a_cpu_is_asked_for_no_more_memory_than_is_left() -> None:
    """Larger sizes are left out one by one; the smallest is always measured."""
    for free, most in ((None, 64 * MIB), (4 * GIB, 64 * MIB), (GIB, 16 * MIB), (0, KIB)):
        [plan] = make_plans(ALL_REDUCE, (), python="python3", free=free)
        assert max(plan.setting.sizes) == most, free


def test_sizes_that_are_left_out_are_told_with_the_reason() -> None:
    """A ladder that shrinks without a word would look like a run that measured what it should."""
    [plan] = make_plans(ALL_REDUCE, (), python="python3", free=GIB)
    hint = concluded(accounts(plan), plan=plan).hint
    assert hint.endswith(
        "Not measured for lack of memory: 64 MiB. 1024 MiB were free on the host, or in the agent's cgroup; "
        "for 64 MiB the 2 ranks need 1312."
    )
    for free in (None, 1312 * MIB):
        [plan] = make_plans(ALL_REDUCE, (), python="python3", free=free)
        assert "Left out" not in concluded(accounts(plan), plan=plan).hint


def test_types_are_measured_one_after_the_other() -> None:
    """Each at every size."""
    [plan] = make_plans(ALL_REDUCE, (), python="python3", dtypes=("float32", "bfloat16"))
    assert [(one.dtype, one.sizes) for one in plan.measures] == [
        (dtype, plan.setting.sizes) for dtype in ("float32", "bfloat16")
    ]


@each_case(
    ("name", "factor"),
    [("allreduce", 6 / 4), ("allgather", 3 / 4), ("reducescatter", 3 / 4), ("alltoall", 3 / 4), ("sendrecv", 1)],
)
def test_bus_factors_are_those_of_nccl_tests(name: str, factor: float) -> None:
    """Of four ranks."""
    assert PROBES[name].bus_factor(4) == factor
