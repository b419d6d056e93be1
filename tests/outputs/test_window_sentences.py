"""A maintenance in words: how long it lasts, with a right clock and a wrong one."""

from __future__ import annotations

from each_case import each_case

from gpumon.outputs.node_text import maintenance

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
