"""Between the main loop and the store: which GPUs it knows, so that they are missed when they are not there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from gpumon.model.stored_gpu import StoredGpu
from gpumon.state.gpu_inventory import Removal
from gpumon.state.report import Report
from gpumon.store.writer import Writer

BOARD_SECONDS = 3600.0
"""How old what is stored of a GPU that answers may become."""


class KeptBoards:
    """Use from the loop's thread."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._known: dict[str, StoredGpu] = {}
        """Stored, or to be; by uuid."""
        self._unstored: set[str] = set()
        """Those of them that the store does not know, or not as they are."""

    def recalled(self, boards: Iterable[StoredGpu]) -> None:
        """What the store knew at start."""
        self._known = {board.uuid: board for board in boards} | self._known

    def begun_anew(self) -> None:
        """The store knows nothing: all of them are news to it, those that are here no more as well."""
        self._unstored |= self._known.keys()

    def keep(self, report: Report, *, all_of_them: bool = False) -> None:
        """Store the GPUs that have told their names, where that is news.

        `all_of_them`: how far their counters are as well, which is worth a row only when the agent ends.
        """
        new = [board for board in self._told(report) if all_of_them or self._is_news(board)]
        self._known |= {board.uuid: board for board in new}
        self._unstored |= {board.uuid for board in new}
        if self._unstored:
            uuids, self._unstored = self._unstored, set()
            rows = [self._known[uuid] for uuid in uuids]
            self._writer.submit(lambda store: store.keep_boards(rows), failed=lambda _: self._unstored.update(uuids))

    def expect_no_more(self, uuids: Iterable[str]) -> None:
        """A person has accepted that these are gone, and the store knows it."""
        self._known |= {uuid: replace(self._known[uuid], expected=False) for uuid in uuids if uuid in self._known}

    def _told(self, report: Report) -> Iterator[StoredGpu]:
        for state in report.gpus:
            if state.stored is not None:
                yield state.stored
        for uuid, gone in report.internal.inventory.removed.items():
            if gone.why is Removal.REPLACED and uuid in self._known:
                yield replace(self._known[uuid], expected=False)

    def _is_news(self, board: StoredGpu) -> bool:
        known = self._known.get(board.uuid)
        if known is None or board.last_wall - known.last_wall > BOARD_SECONDS:
            return True
        moving = {name: getattr(board, name) for name in ("first_wall", "last_wall", "energy")}
        return replace(known, **moving) != board
