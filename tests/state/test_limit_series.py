"""Series above the limits are dropped and counted; the largest remain."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import example_parts
import pytest
import sample_reports as samples
from changed_report import changed

from gpumon.model.gpu import Gpu
from gpumon.model.nvlink import Nvlink
from gpumon.model.reading import MAX_SERIES
from gpumon.state.limit_series import limit_gpu, limit_node
from gpumon.state.report import Report


def with_gpu(**changes: object) -> Report:
    report = samples.healthy(1)
    return changed(report, gpus=(replace(report.gpus[0], **changes),))  # type: ignore[arg-type]


def limit_series(report: Report) -> Report:
    """Return the Report as far as it is exported."""
    dropped: Counter[str] = Counter()
    states = tuple(limit_gpu(state, dropped) for state in report.gpus)
    return changed(report, gpus=states, node=limit_node(report.node, dropped))


def dropped_series(report: Report) -> dict[str, float]:
    return {reason: count for reason, count in (report.node.dropped_series_total or {}).items() if count}


def test_a_report_within_the_limits_is_unchanged() -> None:
    """Reports of real nodes are not limited, and every reason has a count of 0."""
    for report in (samples.healthy(16), samples.partitioned_node(), samples.grace(), samples.troubled_node()):
        after = limit_series(report)
        assert (after.gpus, after.ports) == (report.gpus, report.ports)
        assert after.node.dropped_series_total == dict.fromkeys(MAX_SERIES, 0.0)


def test_the_most_frequent_xids_remain() -> None:
    counts = {str(xid): float(xid % 100) for xid in range(200)}
    times = dict.fromkeys(counts, 1.7e9)
    after = limit_series(with_gpu(gpu=Gpu(up=1.0, xid_errors_total=counts, xid_last_timestamp_seconds=times)))
    shown = after.gpus[0].gpu.xid_errors_total or {}

    assert len(shown) == MAX_SERIES["xids"]
    assert min(shown.values()) >= max(count for xid, count in counts.items() if xid not in shown)
    assert list(shown) == sorted(shown, key=int)
    assert set(after.gpus[0].gpu.xid_last_timestamp_seconds or {}) == set(shown)
    assert dropped_series(after) == {"xids": 136.0}


@pytest.mark.parametrize(
    ("changes", "reason", "cut"),
    [
        ({"migs": (example_parts.mig(),) * 20}, "migs", 4 * 8),
        ({"links": {str(link): Nvlink(up=1.0) for link in range(40)}}, "links", 4),
        ({"gpu": Gpu(processes=70.0, process_memory_bytes={"1,a": 1.0, "2,b": 1.0})}, "processes", 68),
    ],
)
def test_dropped_series_are_counted_by_reason(changes: dict[str, object], reason: str, cut: float) -> None:
    after = limit_series(with_gpu(**changes))
    state = after.gpus[0]
    assert max(len(state.migs), len(state.links)) <= MAX_SERIES["links"]
    assert dropped_series(after) == {reason: cut}


def test_the_count_of_dropped_series_does_not_fall() -> None:
    worst = limit_series(with_gpu(migs=(example_parts.mig(),) * 20))
    healed = changed(worst, gpus=samples.healthy(1).gpus)
    assert dropped_series(limit_series(healed)) == dropped_series(worst) == {"migs": 32.0}


def test_nvswitch_errors_are_limited_to_the_most_frequent() -> None:
    report = samples.healthy(1)
    counts = {f"00000000:05:00.0,{sxid}": float(sxid) for sxid in range(100)}
    after = limit_series(changed(report, node=replace(report.node, nvswitch_errors_total=counts)))
    assert len(after.node.nvswitch_errors_total or ()) == MAX_SERIES["sxids"]
    assert "00000000:05:00.0,99" in (after.node.nvswitch_errors_total or {})
    assert dropped_series(after) == {"sxids": 36.0}
