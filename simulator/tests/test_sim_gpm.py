"""GPU performance monitoring (GPM): metrics between two samples."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pynvml
import pytest
from simulated import SimulatedNvml, answer, simulated_node

SM, OCCUPANCY, TENSOR, DRAM, NVLINK = 2, 3, 5, 10, 60
ENGINES = (1, 2, 3, 4, 5, 10, 11, 12, 13)


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    return tmp_path / "scenario.yml"


def gpm_request(earlier: Any, later: Any, metrics: Sequence[int]) -> Any:
    question = pynvml.c_nvmlGpmMetricsGet_t()
    question.version, question.numMetrics = pynvml.NVML_GPM_METRICS_GET_VERSION, len(metrics)
    question.sample1, question.sample2 = earlier, later
    for entry, metric in zip(question.metrics, metrics, strict=False):
        entry.metricId = metric
    return question


def between(earlier: Any, later: Any, *metrics: int) -> list[Any]:
    """Return the values, or the return code of a metric without a value."""
    answered = pynvml.nvmlGpmMetricsGet(gpm_request(earlier, later, metrics))
    return [f"code {m.nvmlReturn}" if m.nvmlReturn else m.value for m in answered.metrics[: len(metrics)]]


def sample(handle: Any) -> Any:
    return pynvml.nvmlGpmSampleGet(handle, pynvml.nvmlGpmSampleAlloc())


def later(simulation: SimulatedNvml, handle: Any, seconds: float) -> tuple[Any, Any]:
    """Return two samples with this time between them."""
    first = sample(handle)
    simulation.now += seconds
    return first, sample(handle)


def test_values_are_the_mean_between_two_samples(scenario: Path) -> None:
    """Half of the time at full load gives half of the full value, in percent; no load gives 0."""
    text = "jobs: [{start: 10, end: 20, load: 1.0}]"
    with simulated_node(scenario=scenario, text=text) as simulation:
        handle = simulation.handles()[0]
        simulation.now = 12.0
        full = between(*later(simulation, handle, 5.0), *ENGINES)
        simulation.now = 15.0
        half = between(*later(simulation, handle, 10.0), *ENGINES)
        none = between(*later(simulation, handle, 1.0), *ENGINES)
    assert all(0 < value <= 100 for value in full)
    assert half == pytest.approx([value / 2 for value in full])
    assert none == [0.0] * len(ENGINES)


def test_each_metric_of_a_call_has_its_own_return_code() -> None:
    """An unknown metric has a return code in its own entry; names and units are set."""
    with simulated_node(now=100.0) as simulation:
        pair = later(simulation, simulation.handles()[0], 1.0)
        assert [type(value) for value in between(*pair, SM, 999, DRAM)] == [float, str, float]
        names = pynvml.nvmlGpmMetricsGet(gpm_request(*pair, [SM, NVLINK])).metrics
        assert [(m.metricInfo.shortName, m.metricInfo.unit) for m in names[:2]] == [
            (b"sm_util", b"%"),
            (b"nvlink_total_rx_per_sec", b"MiB/s"),
        ]


def test_traffic_metrics_match_the_counters() -> None:
    """Traffic in MiB/s over all NVLinks matches the counters of the same time."""
    with simulated_node(now=100.0) as simulation:
        handle = simulation.handles()[0]

        def received_bytes() -> int:
            return int(pynvml.nvmlDeviceGetFieldValues(handle, [(139, 0xFFFFFFFF)])[0].value.ullVal)

        before = received_bytes()
        [rate] = between(*later(simulation, handle, 2.0), NVLINK)
        assert rate == pytest.approx((received_bytes() - before) / 1024 / 2, rel=1e-6)


def test_a_sample_has_one_time(scenario: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample has one time however long it takes, so that no engine is busier than 100 %."""
    with simulated_node(scenario=scenario, text="jobs: [{load: 1.0}]", now=100.0) as simulation:
        handle = simulation.handles()[0]
        before = sample(handle)
        simulation.now += 1.0
        passing = iter(range(1_000_000))  # the clock advances with every read
        started = simulation.now
        monkeypatch.setattr(simulation.node._node, "_clock", lambda: started + next(passing) * 0.15)
        after = sample(handle)
        monkeypatch.undo()
        assert between(before, after, 1) == pytest.approx([100.0])


def test_samples_of_the_same_time_give_nan() -> None:
    with simulated_node(now=100.0) as simulation:
        [value] = between(*later(simulation, simulation.handles()[0], 0.0), SM)
        assert math.isnan(value)


def test_metrics_can_be_zero_wrong_or_missing(scenario: Path) -> None:
    """Metrics can be 0 under load, above their maximum, NaN, or not supported."""
    text = """
busy: true
gpus:
  0: {gpm: {"*": 0}}
  1: {gpm: {sm_util: 300, dram_bw_util: .nan, any_tensor_util: null}}
  2: {set: {utilization: 50}}
"""
    with simulated_node(scenario=scenario, text=text, now=100.0) as simulation:
        silent, wrong, half = (later(simulation, handle, 1.0) for handle in simulation.handles()[:3])
        assert between(*silent, *ENGINES) == [0.0] * len(ENGINES)
        assert pynvml.nvmlDeviceGetUtilizationRates(simulation.handles()[0]).gpu > 90
        high, nothing, lacking, usual = between(*wrong, SM, DRAM, TENSOR, OCCUPANCY)
        assert high == 300
        assert math.isnan(nothing)
        assert lacking == "code 3"
        assert 0 < usual <= 100
        assert between(*half, SM) == [46.0]


@pytest.mark.parametrize(("profile", "supported"), [("h100x8", 1), ("b200x8", 1), ("a100x8", 0), ("h100guestx2", 0)])
def test_gpm_is_supported_on_hopper_and_later_except_in_guests(profile: str, supported: int) -> None:
    """Support can be queried; without support no sample can be taken."""
    with simulated_node(profile) as simulation:
        handle = simulation.handles()[0]
        assert pynvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice == supported
        assert answer(sample, handle) == (0 if supported else pynvml.NVML_ERROR_NOT_SUPPORTED)


def test_samples_are_invalid_after_another_initialisation() -> None:
    """Samples from before an initialization, and freed samples, are invalid arguments."""
    with simulated_node() as simulation:
        old = sample(simulation.handles()[0])
        pynvml.nvmlShutdown()
        pynvml.nvmlInit()
        handle = simulation.handles()[0]
        assert answer(pynvml.nvmlGpmSampleGet, handle, old) == pynvml.NVML_ERROR_INVALID_ARGUMENT
        freed = sample(handle)
        pynvml.nvmlGpmSampleFree(freed)
        assert answer(pynvml.nvmlGpmSampleGet, handle, freed) == pynvml.NVML_ERROR_INVALID_ARGUMENT
        assert answer(pynvml.nvmlGpmSampleFree, freed) == pynvml.NVML_ERROR_INVALID_ARGUMENT


def test_invalid_arguments_are_refused() -> None:
    """A wrong version is 25; samples of two GPUs, an empty sample, and too many metrics are errors."""
    with simulated_node() as simulation:
        first, second = (sample(handle) for handle in simulation.handles()[:2])
        question = gpm_request(first, first, [SM])
        question.version = 2
        assert answer(pynvml.nvmlGpmMetricsGet, question) == pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH
        invalid = pynvml.NVML_ERROR_INVALID_ARGUMENT
        assert answer(pynvml.nvmlGpmMetricsGet, gpm_request(first, second, [SM])) == invalid
        assert answer(pynvml.nvmlGpmMetricsGet, gpm_request(first, pynvml.nvmlGpmSampleAlloc(), [SM])) == invalid
        question = gpm_request(first, first, [SM])
        question.numMetrics = 211
        assert answer(pynvml.nvmlGpmMetricsGet, question) == invalid


def test_permission_can_be_missing(scenario: Path) -> None:
    """Missing permission for one GPU, as in some containers, does not affect the others."""
    text = "gpus: {1: {fail: {nvmlGpmSampleGet: NO_PERMISSION}}}"
    with simulated_node(scenario=scenario, text=text) as simulation:
        assert [answer(sample, handle) for handle in simulation.handles()[:3]] == [0, 4, 0]


def test_mig_instances_have_their_own_samples(scenario: Path) -> None:
    """Instances are sampled by GPU and number, or by MIG device; other instances are errors."""
    text = "busy: true\ngpus: {0: {mig: [3g.40gb, {profile: 2g.20gb, compute: []}]}}"
    with simulated_node(scenario=scenario, text=text, now=100.0) as simulation:
        gpu = simulation.handles()[0]
        part = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0)
        number = pynvml.nvmlDeviceGetGpuInstanceId(part)

        def of_instance(instance: int) -> Any:
            return pynvml.nvmlGpmMigSampleGet(gpu, ctypes.c_uint(instance), pynvml.nvmlGpmSampleAlloc())

        before = [of_instance(number), sample(part), of_instance(3)]
        simulation.now += 1.0
        after = [of_instance(number), sample(part), of_instance(3)]
        by_number, by_handle, empty = (between(*pair, SM) for pair in zip(before, after, strict=True))
        assert by_number == by_handle
        assert 50 < by_number[0] <= 100
        assert empty == [f"code {pynvml.NVML_ERROR_NO_DATA}"]
        assert answer(of_instance, 9) == pynvml.NVML_ERROR_INVALID_ARGUMENT
        whole = simulation.handles()[1]
        assert answer(pynvml.nvmlGpmMigSampleGet, whole, ctypes.c_uint(0), before[0]) == pynvml.NVML_ERROR_NOT_SUPPORTED
