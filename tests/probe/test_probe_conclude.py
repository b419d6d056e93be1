from __future__ import annotations

import json
from dataclasses import replace

import pytest
from changed_report import new_report
from each_case import each_case

from gpumon.model.gpu import Gpu
from gpumon.model.gpu_state import GpuState
from gpumon.probe.core.baseline import Floors, Judge
from gpumon.probe.core.conclusion import conclude, skipped_result
from gpumon.probe.core.frames import Account, Progress, Sized
from gpumon.probe.core.next_step import next_step
from gpumon.probe.core.passes import Ending, Pass, percentile
from gpumon.probe.core.plan import Measure, Pairs, Plan, Run, make_plans, rounds
from gpumon.probe.core.preflight import Skip
from gpumon.probe.core.probes import GIB, KIB, MIB, PROBES
from gpumon.probe.core.result import OUTCOMES, SKIP_REASONS, Measurement, ProbeResult, from_document, to_document
from gpumon.runner.assessment import make_judge

ALL_REDUCE = PROBES["allreduce"]
RUN = Run(id="one", trigger="request", started=1000.0)
ENDING = Ending(duration=3.0)
HELD = Skip(reason="held", hint="A hold.")
FOUR_GPUS, FOUR_GPUS_RING = make_plans(ALL_REDUCE, [f"GPU-{n}" for n in range(4)], python="/opt/python")
JUDGE = Judge(probe="allreduce", backend="nccl")


def accounts(plan: Plan, *, wrong: int = 0) -> list[Account]:
    """Return accounts in which rank r takes 1 + r milliseconds for each operation at every size."""
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


def conclude_pass(
    rank_accounts: list[Account], ending: Ending = ENDING, plan: Plan = FOUR_GPUS, judge: Judge = JUDGE
) -> ProbeResult:
    finished = Pass(plan=plan, steps=plan.measures, accounts=rank_accounts, ending=ending)
    result = conclude(RUN, [finished], judge, ending.duration)
    assert result.outcome in OUTCOMES
    return result


def test_bandwidths_follow_the_definitions_of_nccl_tests() -> None:
    """The algbw is size over the slowest rank's time, and busbw of an all-reduce is 2(n-1)/n of it."""
    result = conclude_pass(accounts(FOUR_GPUS))
    assert (result.outcome, result.ranks, result.backend, result.wrong_elements) == ("ok", 4, "nccl", 0)
    largest = result.measurements[-1]
    assert largest.size == 1 << 30
    assert largest.latency_seconds == pytest.approx({"p50": 4e-3, "p95": 4e-3, "p99": 4e-3})
    assert largest.raw_value == pytest.approx((1 << 30) / 4e-3)
    assert largest.value == pytest.approx((1 << 30) / 4e-3 * 6 / 4)


@pytest.mark.parametrize("probe", ["allgather", "reducescatter", "alltoall"])
def test_bandwidths_of_shares_count_the_bytes_sent(probe: str) -> None:
    """Shares are multiples of 16 bytes, as in nccl-tests: three shares of 1 KiB are 336 bytes each."""
    [plan] = make_plans(PROBES[probe], ["GPU-0", "GPU-1", "GPU-2"], python="/opt/python")
    small = conclude_pass(accounts(plan), plan=plan).measurements[0]
    assert small.size == KIB
    assert small.raw_value == pytest.approx(3 * 336 / 3e-3)
    assert small.value == pytest.approx(2 * 336 / 3e-3)


def test_an_operation_takes_the_time_of_its_slowest_rank() -> None:
    """Percentiles are computed from the maximum over the ranks of each operation."""
    rank_accounts = accounts(FOUR_GPUS)
    size = FOUR_GPUS.setting.sizes[0]
    for rank in range(4):
        seconds = tuple(1.0 if operation % 4 == rank else 0.1 for operation in range(20))
        rank_accounts[rank] = replace(
            rank_accounts[rank], sizes={**rank_accounts[rank].sizes, (0, size): Sized(seconds=seconds, wrong=0)}
        )
    assert conclude_pass(rank_accounts).measurements[0].latency_seconds["p50"] == 1.0


def test_percentiles_interpolate_between_values() -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.5
    assert percentile([4.0, 1.0, 3.0, 2.0], 1.0) == 4.0
    assert percentile([7.0], 0.99) == 7.0


def test_wrong_elements_are_summed_over_ranks_and_sizes() -> None:
    """Wrong elements are summed, and the outcome is "wrong" even if the run timed out or was aborted."""
    rank_accounts = accounts(FOUR_GPUS, wrong=2)
    ending = replace(ENDING, timed_out=True, aborted=Skip(reason="busy", hint=""))
    for result in (conclude_pass(rank_accounts), conclude_pass(rank_accounts, ending)):
        assert (result.outcome, result.wrong_elements) == ("wrong", 2 * 4 * len(FOUR_GPUS.setting.sizes))
        assert result.measurements[0].wrong_elements == 8
        assert "noise" in result.log


def test_wrong_elements_of_pairs_and_incomplete_sizes_count() -> None:
    rank_accounts = accounts(FOUR_GPUS)
    rank_accounts[2] = replace(rank_accounts[2], pairs={(1, 0): Sized(seconds=(1e-3,), wrong=7)})
    result = conclude_pass(rank_accounts)
    assert (result.outcome, result.wrong_elements) == ("wrong", 7)

    largest = max(FOUR_GPUS.setting.sizes)
    rank_accounts = [replace(account, sizes={}) for account in accounts(FOUR_GPUS)]
    rank_accounts[1] = replace(rank_accounts[1], sizes={(0, largest): Sized(seconds=(1e-3,), wrong=3)})
    result = conclude_pass(rank_accounts, replace(ENDING, timed_out=True))
    assert (result.outcome, result.wrong_elements, result.measurements) == ("wrong", 3, ())

    silent = [replace(account, sizes={}, done=False, status=1) for account in accounts(FOUR_GPUS)]
    assert conclude_pass(silent).wrong_elements is None


def test_a_size_that_one_rank_has_not_measured_is_omitted() -> None:
    """A run that timed out keeps the sizes that all ranks finished, and names the stage of the last rank."""
    rank_accounts = accounts(FOUR_GPUS)
    first = FOUR_GPUS.setting.sizes[0]
    hanging = Progress(rank=2, stage="measure", size=1 << 20, ratio=0.3)
    rank_accounts[2] = replace(
        rank_accounts[2],
        progress=hanging,
        sizes={(0, first): rank_accounts[2].sizes[0, first]},
        stepped=0,
        done=False,
        status=-9,
    )
    result = conclude_pass(rank_accounts, replace(ENDING, timed_out=True))
    assert (result.outcome, result.reason) == ("timeout", "measure")
    assert [measurement.size for measurement in result.measurements] == [first]
    assert "rank 2: measure of 1048576 bytes" in result.hint
    assert result.hint.endswith("NCCL log more.")


def test_only_the_largest_planned_size_is_compared() -> None:
    judge = replace(JUDGE, expected=lambda _: (1e15, "a data sheet"))
    rank_accounts = accounts(FOUR_GPUS)
    whole = conclude_pass(rank_accounts, replace(ENDING, aborted=HELD), judge=judge)
    assert {comparison.size for comparison in whole.comparisons} == {max(FOUR_GPUS.setting.sizes)}
    first = FOUR_GPUS.setting.sizes[0]
    rank_accounts = [
        replace(account, sizes={(0, first): account.sizes[0, first]}, stepped=0, done=False)
        for account in rank_accounts
    ]
    early = conclude_pass(rank_accounts, replace(ENDING, aborted=HELD), judge=judge)
    assert ([measurement.size for measurement in early.measurements], early.comparisons) == ([first], ())


def judge_expecting(busbw: float) -> Judge:
    """Return a judge that expects this bandwidth at the largest size."""

    def published_figure(measurement: Measurement) -> tuple[float, str] | None:
        return (busbw, "a data sheet") if measurement.size == max(FOUR_GPUS.setting.sizes) else None

    return replace(JUDGE, expected=published_figure)


def test_a_drop_is_confirmed_by_a_repeat_and_then_located() -> None:
    """A low size is measured again, and pairs are measured only if the repeat is low too."""
    usual = 4e-3  # seconds, of the slowest rank
    busbw = (1 << 30) / usual * 6 / 4
    progress = Pass(plan=FOUR_GPUS, accounts=accounts(FOUR_GPUS))
    assert next_step(progress, judge_expecting(busbw)) == FOUR_GPUS.measures[0]
    progress = replace(progress, steps=FOUR_GPUS.measures)
    assert next_step(progress, judge_expecting(busbw)) is None

    repeat = next_step(progress, judge_expecting(2 * busbw))
    assert isinstance(repeat, Measure)
    assert repeat.sizes == (1 << 30,)
    for seconds, after in ((usual, Pairs(bytes=256 << 20, rounds=rounds(4))), (usual / 2, None)):
        again = {(1, 1 << 30): Sized(seconds=(seconds,) * 20, wrong=0)}
        rank_accounts = [replace(account, sizes={**account.sizes, **again}) for account in progress.accounts]
        assert (
            next_step(
                replace(progress, steps=(*progress.steps, repeat), accounts=rank_accounts), judge_expecting(2 * busbw)
            )
            == after
        )


def test_a_run_below_its_expected_figure_is_degraded() -> None:
    """The hint gives the measured and the expected figure, and the source of the expected one."""
    result = conclude_pass(accounts(FOUR_GPUS), judge=judge_expecting(805e9))
    assert (result.outcome, result.reason) == ("degraded", "expected")
    assert "402.65 GB/s twice: 50% of 805.00 GB/s (a data sheet)" in result.hint


def test_a_run_below_the_configured_limit_is_not_ok() -> None:
    """The best size counts, as for the check. Other probes have no limit."""
    fine = conclude_pass(accounts(FOUR_GPUS))
    best = max(measurement.value for measurement in fine.measurements)

    def outcome(limit: float, probe: str = "allreduce") -> tuple[str, str]:
        result = conclude_pass(accounts(FOUR_GPUS), judge=replace(JUDGE, probe=probe, floors=Floors(limit=limit)))
        return result.outcome, result.reason

    assert outcome(best) == outcome(best * 2, "copy") == ("ok", "")
    assert outcome(best * 1.01) == ("degraded", "limit")


@each_case(("ranks", "expected"), [(2, 1), (3, 3), (4, 3), (5, 5), (8, 7)])
def test_rounds_pair_every_two_ranks_once(ranks: int, expected: int) -> None:
    schedule = rounds(ranks)
    assert len(schedule) == expected
    assert sorted(pair for round_ in schedule for pair in round_) == [
        (a, b) for a in range(ranks) for b in range(a + 1, ranks)
    ]
    for round_ in schedule:
        busy = [rank for pair in round_ for rank in pair]
        assert len(busy) == len(set(busy))


def test_a_setup_failure_differs_from_a_rank_failure() -> None:
    """A failure before the first operation has reason "setup", and the hint names rank and GPU."""
    rank_accounts = accounts(FOUR_GPUS)
    for stage, reason in (("join", "setup"), ("measure", "ranks")):
        progress = Progress(rank=3, stage=stage)
        rank_accounts[3] = replace(rank_accounts[3], progress=progress, done=False, status=1, error="RuntimeError: no")
        result = conclude_pass(rank_accounts, replace(ENDING, first_failed=3))
        assert (result.outcome, result.reason) == ("failed", reason)
        assert "Rank 3 (GPU-3)" in result.hint
        assert "RuntimeError: no. The log of the run has the last output of its ranks" in result.hint


@pytest.mark.parametrize(("model", "hinted"), [("NVIDIA B200", True), ("NVIDIA A100-SXM4-80GB", False)])
def test_the_hint_of_a_first_run_reports_that_nvlink_sharp_may_be_lost(model: str, *, hinted: bool) -> None:
    """The hint compares default and ring at the largest size if the model has NVLink SHARP; the outcome is ok."""
    gpus = tuple(GpuState(bus_id=str(n), uuid=f"GPU-{n}", index=n, gpu=Gpu(name=model)) for n in range(8))
    plans = make_plans(ALL_REDUCE, [gpu.uuid for gpu in gpus], python="/opt/python")
    report = new_report(gpus=gpus)
    judge = make_judge(ALL_REDUCE, plans[0], report, Floors(expected=0.0))
    passes = [Pass(plan=plan, steps=plan.measures, accounts=accounts(plan), ending=ENDING) for plan in plans]
    result = conclude(RUN, passes, judge, ENDING.duration)
    assert result.outcome == "ok"
    assert ("The default is 1.00 times the ring" in result.hint) == hinted


def test_the_hint_names_the_abort_and_the_unkillable_rank() -> None:
    ending = replace(ENDING, abandoned=(4711,), aborted=Skip(reason="held", hint="Held by 4712."))
    result = conclude_pass(accounts(FOUR_GPUS), ending)
    assert (result.outcome, result.reason) == ("timeout", "unkillable")
    assert result.hint.endswith("Drain and reboot the node. The run was ended (held): Held by 4712.")


@pytest.mark.parametrize(
    ("stage", "words"),
    [
        ("start", "most likely at a file. Check that the file system of probe.python"),
        ("import", "most likely at a file. Check that the file system of probe.python"),
        ("join", "most likely in the driver. Drain and reboot the node."),
        ("measure", "most likely in the driver. Drain and reboot the node."),
    ],
)
def test_the_stage_of_an_unkillable_rank_determines_the_advice(stage: str, words: str) -> None:
    """Before the join stage the hint suggests the file system, later the driver."""
    rank_accounts = [replace(account, pid=4711 + account.rank) for account in accounts(FOUR_GPUS)]
    rank_accounts[2] = replace(rank_accounts[2], progress=replace(rank_accounts[2].progress, stage=stage))
    hint = conclude_pass(rank_accounts, replace(ENDING, abandoned=(4713,))).hint
    assert f"SIGKILL does not end pid 4713: it is blocked in the kernel, {words}" in hint
    assert hint.endswith("eboot the node.")


@pytest.mark.parametrize(("lasted", "suggested"), [(300.0, True), (3.0, False)])
def test_a_short_last_pass_does_not_blame_the_file_system(lasted: float, suggested: bool) -> None:  # noqa: FBT001
    """The hint suggests the file system only if the pass used the deadline itself."""
    rank_accounts = [
        replace(account, progress=replace(account.progress, stage="import"), done=False)
        for account in accounts(FOUR_GPUS)
    ]
    hint = conclude_pass(rank_accounts, Ending(duration=lasted, timed_out=True)).hint
    assert hint.startswith("Not done after 300 s (rank 0: import;")
    assert ("Check that the file system of probe.python" in hint) == suggested


def test_the_log_has_no_control_characters() -> None:
    rank_accounts = [replace(account, output=b"\x1b[2Jbad \xff\n", status=1) for account in accounts(FOUR_GPUS)]
    assert "\x1b" not in conclude_pass(rank_accounts).log
    assert "bad" in conclude_pass(rank_accounts).log


def test_a_skip_is_a_result() -> None:
    """A skip becomes a result with its reason and hint, and without ranks."""
    result = skipped_result(ALL_REDUCE, RUN, Skip(reason="busy", hint="later"), simulated=True)
    assert (result.outcome, result.reason, result.hint, result.ranks) == ("skipped", "busy", "later", 0)
    assert result.reason in SKIP_REASONS


def test_results_survive_json() -> None:
    """A stored result is restored unchanged, and unknown fields of a later version are ignored."""
    result = conclude_pass(accounts(FOUR_GPUS))
    document = json.loads(json.dumps(to_document(result)))
    assert from_document(document) == result
    document["later"] = document["measurements"][0]["later"] = 1
    assert from_document(document) == result


def test_ranks_use_gpus_by_uuid_and_inherit_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL has one rank for each GPU, named by UUID; the environment comes from gpumon and its configuration."""
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
    [plan] = make_plans(ALL_REDUCE, ["GPU-a"] * 8, python="python3", simulated=True)
    assert (plan.ranks, plan.setting.backend, plan.gpus) == (2, "gloo", ())
    assert plan.environment["CUDA_VISIBLE_DEVICES"] == ""


def test_ranks_meet_in_an_inherited_file() -> None:
    """Every rank gets the same path, which leads through a descriptor of its own."""
    orders = [json.loads(FOUR_GPUS.orders(rank, parent=1, result=9, rendezvous=7)) for rank in range(FOUR_GPUS.ranks)]
    assert {order["rendezvous"] for order in orders} == {"/proc/self/fd/7"}


def test_larger_sizes_are_measured_if_they_fit() -> None:
    """4 GiB is measured only if the free memory is reported and holds two buffers plus CUDA and NCCL."""
    for free, largest in ((None, GIB), (10 * GIB, GIB), (11 * GIB, 4 * GIB)):
        plans = make_plans(ALL_REDUCE, ["GPU-a", "GPU-b"], python="python3", free=free)
        assert {max(plan.setting.sizes) for plan in plans} == {largest}


def test_cpu_sizes_fit_into_the_free_memory() -> None:
    """Sizes that exceed the free memory are omitted, except for the smallest."""
    for free, largest in ((None, 64 * MIB), (4 * GIB, 64 * MIB), (GIB, 16 * MIB), (0, KIB)):
        [plan] = make_plans(ALL_REDUCE, (), python="python3", free=free)
        assert max(plan.setting.sizes) == largest, free


def test_omitted_sizes_are_reported_with_the_reason() -> None:
    """The hint lists the sizes omitted for lack of memory, with the free and the needed memory."""
    [plan] = make_plans(ALL_REDUCE, (), python="python3", free=GIB)
    hint = conclude_pass(accounts(plan), plan=plan).hint
    assert hint.endswith(
        "Not measured for lack of memory: 64 MiB. 1024 MiB were free on the host, or in the agent's cgroup; "
        "for 64 MiB the 2 ranks need 1312."
    )
    for free in (None, 1312 * MIB):
        [plan] = make_plans(ALL_REDUCE, (), python="python3", free=free)
        assert "Left out" not in conclude_pass(accounts(plan), plan=plan).hint


def test_types_are_measured_in_sequence() -> None:
    [plan] = make_plans(ALL_REDUCE, (), python="python3", dtypes=("float32", "bfloat16"))
    assert [(measure.dtype, measure.sizes) for measure in plan.measures] == [
        (dtype, plan.setting.sizes) for dtype in ("float32", "bfloat16")
    ]


def test_the_configured_types_are_those_of_bandwidths() -> None:
    """A probe that moves no data measures the types of its row alone."""
    gemm = replace(ALL_REDUCE, dtypes=("float16", "float32"), size_unit="rows")
    [plan] = make_plans(gemm, (), python="python3", dtypes=("float32", "bfloat16"))
    assert [measure.dtype for measure in plan.measures] == ["float16", "float32"]


@each_case(
    ("name", "factor"),
    [("allreduce", 6 / 4), ("allgather", 3 / 4), ("reducescatter", 3 / 4), ("alltoall", 3 / 4), ("sendrecv", 1)],
)
def test_bus_factors_are_those_of_nccl_tests(name: str, factor: float) -> None:
    probe = PROBES[name]
    assert probe.raw_value is not None
    assert probe.value(MIB, 4, 1.0) == probe.raw_value(MIB, 4, 1.0) * factor
