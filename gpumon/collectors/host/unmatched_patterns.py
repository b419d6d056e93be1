"""Warn of patterns in the settings `links.exclude` and `links.fabric` that match no network adapter."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from gpumon.model.infiniband import matches
from gpumon.model.orders import HostOrders

log = logging.getLogger("gpumon.collectors.host")

AFTER_POLLS = 5
"""Number of polls, 15 s apart, after which the patterns are compared with the adapters. By then all adapters are
present, even after a boot.
"""


class UnmatchedPatterns:
    """Logs once each configured pattern that matches no network adapter."""

    def __init__(self) -> None:
        self._polls = 0

    def check(self, orders: HostOrders, read_adapters: Callable[[], Mapping[str, tuple[str, str]]]) -> None:
        """Count a poll. In poll AFTER_POLLS, log the patterns that match no adapter.

        `read_adapters` returns PCI address and board id by device name.
        """
        self._polls += 1
        patterns = {"links.exclude": orders.exclude, "links.fabric": orders.fabric}
        if self._polls == AFTER_POLLS and any(patterns.values()):
            adapters = read_adapters()
            present = ", ".join(f"{device} ({' '.join(filter(None, names))})" for device, names in adapters.items())
            for setting, pattern in ((setting, each) for setting, of_it in patterns.items() for each in of_it):
                if not any(matches((pattern,), device, *names) for device, names in adapters.items()):
                    log.warning(
                        "a pattern matches no network adapter: correct or remove it",
                        extra={"setting": setting, "pattern": pattern, "adapters": present or "none"},
                    )
