"""Order and tense of problems while readings are missing."""

from __future__ import annotations

from dataclasses import replace

from changed_report import changed
from judging import Ward

from gpumon.model.gpu import Gpu
from gpumon.outputs.problems import problems
from gpumon.outputs.responses.health import CurrentHealthResponse


def hot_before_the_outage() -> Ward:
    """Return a node with a GPU that was too hot when its driver stopped to answer seven minutes ago."""
    ward = Ward(gpus=4, ports=0)
    ward.gpu(2, name="NVIDIA H100 80GB HBM3", thermal_margin_celsius=-4.0, temperature_celsius=70.0)
    ward.go_on(600)
    assert problems(ward.report)[0].title.startswith("GPU 2: ")
    assert "Last observed" not in problems(ward.report)[0].detail
    ward.node(nvml_up=0.0)
    unread = [replace(state, fault="unknown", gpu=Gpu(name=state.gpu.name)) for state in ward.report.gpus]
    ward.report = changed(ward.report, gpus=tuple(unread))
    return ward.go_on(420)


def test_an_outage_of_the_driver_is_above_what_was_observed_before() -> None:
    """Status and page begin with the outage; a GPU that was hot before is stated with the time of that reading."""
    ward = hot_before_the_outage()
    outage, hot, *_ = problems(ward.report)
    assert outage.title.startswith("The NVIDIA driver does not respond")
    assert hot.title.startswith("GPU 2: ")
    assert hot.detail.startswith("Last observed at 2027-01-16 08:10:00 UTC: ")


def test_the_health_file_has_the_same_order_and_tense() -> None:
    """`gpumon check` prints the first verdict of the file, which is the outage."""
    outage, hot, *_ = CurrentHealthResponse.current(hot_before_the_outage().report).verdicts
    assert outage.check == "gpu_driver_down"
    assert hot.check == "gpu_thermal_margin_low"
    assert hot.reason.startswith("Last observed at ")
