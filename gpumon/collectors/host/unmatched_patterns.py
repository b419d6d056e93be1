"""Warn of patterns in the settings `links.exclude` and `links.fabric` that match no network adapter."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from gpumon.model.port_patterns import matches

log = logging.getLogger("gpumon.collectors.host")

AFTER_POLLS = 5
"""Number of polls, 15 s apart, after which the patterns are compared with the adapters. By then all adapters are
present, even after a boot.
"""


class UnmatchedPatterns:
    """Configured patterns, by setting. Logs once each pattern that matches no network adapter."""

    def __init__(self, patterns: Mapping[str, Collection[str]]) -> None:
        self._patterns = {setting: each for setting, each in patterns.items() if each}
        self._polls = 0

    @property
    def due(self) -> bool:
        """Count this poll, and return True in the poll in which the patterns are to be compared with the adapters."""
        self._polls += 1
        return bool(self._patterns) and self._polls == AFTER_POLLS

    def warn(self, adapters: Mapping[str, tuple[str, str]]) -> None:
        """Log patterns that match none of the adapters. `adapters`: PCI address and board id by device name."""
        for setting, patterns in self._patterns.items():
            for pattern in patterns:
                if not any(matches((pattern,), device, *others) for device, others in adapters.items()):
                    present = ", ".join(
                        f"{device} ({' '.join(filter(None, others))})" for device, others in adapters.items()
                    )
                    log.warning(
                        "a pattern matches no network adapter: correct or remove it",
                        extra={"setting": setting, "pattern": pattern, "adapters": present or "none"},
                    )
