"""Between the main loop and the store: which maintenances and holds it knows, and how."""

from __future__ import annotations

from collections.abc import Iterable

from gpumon.model.time_window import Span
from gpumon.store.writer import Writer


class KeptSpans:
    """Use from the loop's thread."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._known: dict[tuple[type[Span], object], Span] = {}
        """Stored, or about to be."""

    def begun_anew(self) -> None:
        """The store knows nothing: all of them are news to it."""
        self._known.clear()

    def keep(self, spans: Iterable[Span]) -> None:
        """Store what time has changed, and what could not be stored before."""
        news = {(type(one), one.key): one for one in spans}
        news = {key: one for key, one in news.items() if self._known.get(key) != one}
        if news:
            self._known |= news
            rows = tuple(news.values())
            self._writer.submit(lambda store: store.keep_spans(rows), failed=lambda _: self._forget(news))

    def _forget(self, lost: dict[tuple[type[Span], object], Span]) -> None:
        """Not stored: they are news again."""
        for key, one in lost.items():
            if self._known.get(key) == one:
                del self._known[key]
