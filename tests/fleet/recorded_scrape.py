"""The recorded scrape of a healthy h100x8: real names, labels and values for the tests of rules."""

from __future__ import annotations

from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from gpumon.model.reading import Sample

RECORDING = Path(__file__).parents[1] / "golden" / "scrape_h100x8.txt"

TARGET = (("instance", "node-1:17400"), ("job", "gpumon"))
"""What Prometheus adds to each series that it scrapes."""


def recorded_samples() -> list[Sample]:
    """The series as Prometheus would store them, with the `up` that it makes itself."""
    families = text_string_to_metric_families(RECORDING.read_text())
    scraped = [
        Sample(sample.name, (*sample.labels.items(), *TARGET), sample.value)
        for family in families
        for sample in family.samples
    ]
    return [*scraped, Sample("up", TARGET, 1.0)]
