"""A run of a probe, and all of them, on a terminal."""

from __future__ import annotations

from dataclasses import replace

import example_node as example
import pytest
from sample_reports import run_document

from gpumon.outputs.probe_text import NO_RUNS, comparison_sentence, history, table
from gpumon.probe.core.probes import PROBES
from gpumon.probe.core.result import OUTCOMES, Comparison, Conditions, Location, Pair, ProbeResult

OK = example.run()
SOME = example.part(0, 4, 5, 6, 7)
SKIP = ProbeResult(
    id="two", probe="allreduce", outcome="skipped", reason="busy", hint="GPU 3 by 2", started=0.0, simulated=True
)


def test_the_columns_are_those_of_nccl_tests_and_more() -> None:
    """Size, count, type, microseconds, spread, GB/s and wrong elements on one line; a heading for each algorithm."""
    lines = table(OK).splitlines()
    assert lines[0] == (
        "# all-reduce, nccl, 8 ranks, NVIDIA H100 80GB HBM3, driver 580.95.05, torch 2.13.0, nccl 2.30.7"
    )
    assert lines[2].split() == [
        "#",
        "size",
        "count",
        "type",
        "min",
        "p50",
        "p95",
        "p99",
        "cv",
        "algbw",
        "busbw",
        "#wrong",
    ]
    assert [line for line in lines if line.startswith("# all_reduce,") and ":" not in line] == [
        "# all_reduce, default",
        "# all_reduce, ring",
    ]
    rows = [line.split() for line in lines if not line.startswith("#")]
    assert [row[0] for row in rows] == [str(size) for size in example.LADDER] * 2
    assert " ".join(rows[3]) == ("8589934592 2147483648 float32 31060.3 31694.2 32645.0 34863.6 0.012 271.03 474.29 0")
    assert len({len(line) for line in lines if not line.startswith("#")}) == 1
    assert lines[-1] == "# ok, after 11.4 s"


def test_comparisons_are_sentences() -> None:
    """Each compares with this host's median and the published figure, or shows how many runs are missing."""
    assert (
        "# all_reduce, default at 8 GiB: 474 GB/s, 100 % of 474 GB/s (this host's median of 30 runs),"
        " 99 % of 480 GB/s (NVIDIA/nccl#2140)"
    ) in table(OK).splitlines()
    young = Comparison(
        operation="all_reduce",
        algorithm="ring",
        dtype="bfloat16",
        size=1 << 30,
        value=3e11,
        runs=2,
        runs_needed=5,
    )
    low = replace(young, dtype="float32", baseline=4e11, runs=9, below_reference="baseline")
    lines = table(replace(OK, comparisons=(young, low))).splitlines()
    assert "# all_reduce, ring, bfloat16 at 1 GiB: 300 GB/s, no baseline yet (2 of 5 runs)" in lines
    assert (
        "# all_reduce, ring at 1 GiB: 300 GB/s, 75 % of 400 GB/s (this host's median of 9 runs): low against baseline"
    ) in lines


def test_another_quantity_is_shown_in_its_own_unit() -> None:
    """Columns, sizes and comparisons have the units of the measurement."""
    gemm = {"operation": "matmul", "quantity": "compute", "unit": "flops_per_second", "size_unit": "rows"}
    measured = replace(OK.measurements[0], **gemm, size=8192, value=6.2e14, raw_value=None)  # type: ignore[arg-type]
    compared = replace(OK.comparisons[0], **gemm, size=8192, value=6.2e14, baseline=6.4e14, expected=None)  # type: ignore[arg-type]
    text = table(replace(OK, probe="gemm", measurements=(measured,), comparisons=(compared,)))
    assert "(TFLOP/s)" in text
    assert "(rows)" in text
    assert " 620.00 " in text
    assert "matmul, default at 8192 rows: 620 TFLOP/s, 97 % of 640 TFLOP/s" in text


def test_each_type_of_a_probe_of_several_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A heading, a comparison and a column of the history have it. A type that the row lacks is not in the history."""
    monkeypatch.setitem(PROBES, "gemm", replace(PROBES["copy"], name="gemm", dtypes=("float32", "bfloat16")))
    own = [
        replace(OK.measurements[0], dtype=dtype, value=value)
        for dtype, value in (("float32", 1e9), ("bfloat16", 2e9), ("float64", 3e9))
    ]
    result = replace(OK, probe="gemm", ranks=1, conditions=Conditions(), measurements=tuple(own), comparisons=())
    lines = table(result).splitlines()
    assert lines[0].startswith("# host-GPU copy, nccl, 1 rank, ")
    assert [line for line in lines if line.startswith("# all_reduce")] == [
        f"# all_reduce, default, {dtype}" for dtype in ("bfloat16", "float32", "float64")
    ]
    assert comparison_sentence(OK.comparisons[0], "gemm").startswith("all_reduce, default, float32 at 8 GiB: ")
    titles, values = history([run_document(result)]).splitlines()
    assert "  1 nccl  " in values
    assert titles.split()[4:-2] == ["FLOAT32", "OF", "MEDIAN", "BFLOAT16", "OF", "MEDIAN"]
    assert ("1 GB/s" in values, "2 GB/s" in values, "3 GB/s" in values) == (True, True, False)


def test_location_is_shown_below_the_table() -> None:
    """It has what the hint lacks, and the bandwidth of each pair; wrong data is marked."""
    pairs = tuple(
        Pair(ranks=(a, b), bandwidth_bytes_per_second=1e9 if b == 2 else 2e10, wrong_elements=(0, int(b == 2)))
        for b in range(3)
        for a in range(b)
    )
    location = Location(message="rank 2 is slow with every other.", ranks=(2,), pairs=pairs, evidence=("It was hot.",))
    result = replace(OK, outcome="degraded", reason="baseline", hint="It is low.", location=location)
    lines = table(result).splitlines()
    start = lines.index("# degraded: baseline, after 11.4 s")
    assert lines[start + 1 :] == [
        "# It is low.",
        "# rank 2 is slow with every other.",
        "# It was hot.",
        "#",
        "# pairs of GPUs, one pair at a time, GB/s in each direction:",
        "#              0       1       2",
        "#      0       -   20.00   1.00!",
        "#      1   20.00       -   1.00!",
        "#      2   1.00!   1.00!       -",
    ]
    told = table(replace(result, hint="Look: rank 2 is slow with every other.")).splitlines()
    assert "# rank 2 is slow with every other." not in told


def test_pairs_of_a_partial_run_have_gpu_indexes() -> None:
    """Rank 0 of GPUs 4 to 7 is GPU 4."""
    pairs = tuple(Pair(ranks=(a, b), bandwidth_bytes_per_second=1e9) for b in range(4) for a in range(b))
    lines = table(replace(SOME, location=Location(message="GPU 5.", pairs=pairs))).splitlines()
    assert lines[0].startswith("# all-reduce, nccl, 4 of 8 GPUs (4 to 7), NVIDIA")
    assert lines[-4].split()[:2] == ["#", "4"]
    assert lines[-5].split() == ["#", "4", "5", "6", "7"]


def test_skip_is_shown_with_reason_and_hint() -> None:
    """There is no empty table."""
    assert table(SKIP).splitlines() == [
        "# all-reduce, simulated node",
        "# skipped: busy, after 0.0 s",
        "# GPU 3 by 2",
    ]


def test_history_is_a_line_a_run() -> None:
    """Outcome, bandwidth of the largest size by algorithm, its ratio to the median at that time, and the reason."""
    default = replace(OK, id="one", measurements=OK.measurements[:4], comparisons=())
    lines = history([run_document(each) for each in (SKIP, OK, default, SOME)]).splitlines()
    assert [line.split("  ") for line in lines] == [line.rstrip().split("  ") for line in lines]
    assert [" ".join(line.split()) for line in lines] == [
        "STARTED PROBE OUTCOME RANKS DEFAULT OF MEDIAN RING OF MEDIAN REASON ID",
        "1970-01-01 00:00:00Z allreduce skipped - - - - - busy two",
        f"2025-11-20 11:45:00Z allreduce ok 8 nccl 474 GB/s 100 % 363 GB/s 100 % - {OK.id}",
        "2025-11-20 11:45:00Z allreduce ok 8 nccl 474 GB/s - - - - one",
        f"2025-11-20 11:45:00Z allreduce ok 4 of 8 GPUs (4 to 7) nccl 474 GB/s 100 % 363 GB/s 100 % - {OK.id}",
    ]


def test_a_run_that_did_not_measure_to_its_end_has_no_bandwidth_in_the_history() -> None:
    """Its largest size is not comparable with that of the other runs."""
    ended = [replace(OK, outcome=outcome, measurements=OK.measurements[:1]) for outcome in OUTCOMES]
    lines = history([run_document(each) for each in ended]).splitlines()
    shown = {outcome: "B/s" in line for outcome, line in zip(OUTCOMES, lines[1:], strict=True)}
    assert shown == {outcome: outcome in ("ok", "degraded", "wrong") for outcome in OUTCOMES}


def test_collectives_have_columns_of_their_own() -> None:
    both = tuple(
        replace(measurement, operation=name)
        for name in ("host_to_device", "device_to_host")
        for measurement in OK.measurements[:4]
    )
    titles = history([run_document(replace(OK, probe="copy", measurements=both))]).splitlines()[0]
    assert " ".join(titles.split()) == (
        "STARTED PROBE OUTCOME RANKS HOST_TO_DEVICE OF MEDIAN DEVICE_TO_HOST OF MEDIAN REASON ID"
    )


def test_empty_history_is_a_sentence() -> None:
    """No empty table is printed."""
    assert history([]) == NO_RUNS + "\n"
