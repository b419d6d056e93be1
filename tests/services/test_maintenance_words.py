"""A maintenance in words: how long it lasts, and what is said when the clock cannot tell."""

from __future__ import annotations

import pytest

from gpumon.outputs.maintenance import sentences

DOCUMENT = {
    "since": "2026-11-20T20:02:34.344Z",
    "until": "2026-11-20T22:02:34.344Z",
    "reason": "new power supply.",
    "by": "command",
}
SAID = "In maintenance until 2026-11-20 22:02:34 UTC{}, by command: new power supply. No alert pages."


@pytest.mark.parametrize(
    ("now", "words"),
    [
        (None, ""),
        ("2026-11-20T20:12:34.344Z", ", for 1 h 50 min more"),
        ("2026-11-20T22:02:36.000Z", ", for 0 s more"),
        ("1970-01-01T00:02:00.000Z", " (the clock says otherwise, and is not believed yet after the boot)"),
        ("2027-11-20T22:02:36.000Z", " (the clock says otherwise, and is not believed yet after the boot)"),
    ],
    ids=["no-clock", "within", "at-its-end", "behind", "ahead"],
)
def test_a_time_that_cannot_be_true_is_not_told(now: str | None, words: str) -> None:
    """After a boot with a wrong clock nobody is told of 56 years more, nor of none."""
    assert sentences(DOCUMENT, now) == [SAID.format(words)]
    assert sentences(None, now) == []
