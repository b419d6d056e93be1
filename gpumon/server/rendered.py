"""Caches documents that take milliseconds to render: each is rendered once per Report instead of once per request."""

from __future__ import annotations

import threading
from collections.abc import Callable

from gpumon.state.report import Report


class RenderedDocuments:
    """Cache of the last rendering of each document. While one thread renders, others that must render wait for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._documents: dict[str, tuple[Report | None, bytes]] = {}

    def get(self, name: str, report: Report | None, render: Callable[[], bytes]) -> bytes:
        """Return the document `name`, from the cache if it was rendered from this Report, else from `render`.

        `report` is None for a document that never changes.
        """
        rendered = self._documents.get(name)
        if rendered is not None and rendered[0] is report:
            return rendered[1]
        with self._lock:
            rendered = self._documents.get(name)
            if rendered is None or rendered[0] is not report:
                rendered = self._documents[name] = (report, render())
        return rendered[1]
