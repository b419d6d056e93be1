"""Numbers, times and the remaining time of a maintenance as text."""

from __future__ import annotations

import pytest
from each_case import each_case

from gpumon.outputs import formatting
from gpumon.outputs.node_text import maintenance


@each_case(
    ("seconds", "text"),
    [
        (0.2, "0 s"),
        (59.4, "59 s"),
        (60, "1 min"),
        (3599, "59 min"),
        (3600, "1 h"),
        (7500, "2 h 5 min"),
        (86400, "1 d"),
        (273_600, "3 d 4 h"),
        (-3, "0 s"),
        (None, "n/a"),
    ],
)
def test_duration_has_its_two_largest_units(seconds: float | None, text: str) -> None:
    """For example 3 d 4 h, not 273600 s."""
    assert formatting.duration(seconds) == text


@each_case(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1 << 20, "1 MiB"), (85_520_809_984, "79.6 GiB"), (1 << 40, "1 TiB"), (None, "n/a")],
)
def test_size_is_in_binary_units(count: float | None, text: str) -> None:
    """Memory sizes are powers of two."""
    assert formatting.size(count) == text


@pytest.mark.parametrize(("rate", "text"), [(4.82e11, "482 GB/s"), (7.4e9, "7.4 GB/s"), (0, "0 B/s")])
def test_bandwidth_is_in_decimal_units(rate: float, text: str) -> None:
    """nccl-tests count GB as 1e9 bytes."""
    assert formatting.quantity(rate, "bytes_per_second") == text


@pytest.mark.parametrize(("seconds", "text"), [(0.0317, "31.7 ms"), (2.5e-4, "250 µs"), (3, "3 s"), (4e-7, "0.4 µs")])
def test_latency_keeps_three_digits(seconds: float, text: str) -> None:
    """From microseconds to seconds."""
    assert formatting.latency(seconds) == text


@each_case(
    ("text", "sentence"),
    [
        ("no longer on the PCI bus", "No longer on the PCI bus."),
        ("NVML: GPU is lost.", "NVML: GPU is lost."),
        ("nvmlInit_v2 has not returned", "nvmlInit_v2 has not returned."),
        ("stuck", "Stuck."),
        ("", ""),
    ],
)
def test_detail_becomes_a_sentence(text: str, sentence: str) -> None:
    """With a capital and one full stop; the name of a function keeps its letters."""
    assert formatting.sentence(text) == sentence


def test_times_survive_a_round_trip() -> None:
    """`seconds_between` reads what `rfc3339` writes, to the millisecond."""
    earlier, later = formatting.rfc3339(1763640000.25), formatting.rfc3339(1763640001.5)
    assert earlier == "2025-11-20T12:00:00.250Z"
    assert later is not None
    assert formatting.seconds_between(earlier, later) == pytest.approx(1.25)
    assert formatting.seconds_between(None, later) is None
    assert formatting.rfc3339(None) is None


def test_invalid_time_does_not_break_the_page() -> None:
    """A time outside the calendar, from a damaged store, becomes the first or the last possible time."""
    assert formatting.rfc3339(-1e300) == "1970-01-01T00:00:00.000Z"
    assert str(formatting.rfc3339(1e300)).startswith("9892-")


DOCUMENT = {
    "since": "2026-11-20T20:02:34.344Z",
    "until": "2026-11-20T22:02:34.344Z",
    "reason": "new power supply.",
    "by": "command",
}
UNTRUSTED = " (the wall clock contradicts this and is not trusted yet after the boot)"
SAID = "In maintenance until 2026-11-20 22:02:34 UTC{}, by command: new power supply. No alert pages."


@each_case(
    ("now", "words"),
    [
        (None, ""),
        ("2026-11-20T20:12:34.344Z", ", for 1 h 50 min more"),
        ("2026-11-20T21:57:35.000Z", ", for 5 min more"),
        ("2026-11-20T22:02:36.000Z", ", for 0 s more"),
        ("1970-01-01T00:02:00.000Z", UNTRUSTED),
        ("2027-11-20T22:02:36.000Z", UNTRUSTED),
    ],
    ids=["no-clock", "within", "rounded-to-minutes", "at-its-end", "behind", "ahead"],
)
def test_a_time_that_cannot_be_true_is_not_told(now: str | None, words: str) -> None:
    """After a boot with a wrong clock, neither a remainder of 56 years nor of 0 is shown."""
    assert maintenance(DOCUMENT, now) == [SAID.format(words)]
    assert maintenance(None, now) == []
