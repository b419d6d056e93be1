"""What was tried on a device against causes of what it has now. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpumon.health.answered import repaired
from gpumon.health.check import Check, Xids
from gpumon.health.terms import Way
from gpumon.health.verdict import Verdict


def rebooted(verdicts: Iterable[Verdict], check: Check, device: str, boot_id: str) -> Iterator[Verdict]:
    """Causes of what this check finds on the device now, for which the node was rebooted: in vain, if it finds any."""
    for one in verdicts:
        cause = check.follows.get(one.check) if check.because is None and one.device == device else None
        where, codes = (cause.where, cause.codes) if isinstance(cause, Xids) else (cause, None)
        concerned = where == "same" and (codes is None or one.evidence.get("xid") in codes)
        if concerned and repaired(one, boot_id) is Way.REBOOT:
            yield one
