"""What a person accepts: as many GPUs as are here now are all there should be."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from concurrent.futures import Future

from gpumon.model.release import Answer
from gpumon.services.persistence import Persistence
from gpumon.state import acceptance
from gpumon.state.report import Report
from gpumon.store.errors import StoreError
from gpumon.supervisor.loop import Loop

_log = logging.getLogger("gpumon")


class InventoryAcceptance:
    """`request` may be called from any thread; all else happens in the loop's."""

    def __init__(self, loop: Loop, persistence: Persistence, latest: Callable[[], Report]) -> None:
        self._loop = loop
        self._persistence = persistence
        self._latest = latest

    def request(self, parts: Collection[str] = ()) -> Future[Answer]:
        """Answers when it is stored, and in force; or why nothing was changed.

        `parts`: those alone that are accepted as gone; all that are where none is named.
        """
        answered: Future[Answer] = Future()
        answered.set_running_or_notify_cancel()  # whoever waited no longer must not be told so
        self._loop.post(lambda: self._accept(parts, answered))
        return answered

    def _accept(self, parts: Collection[str], answered: Future[Answer]) -> None:
        report = self._latest()
        refusal = acceptance.refusal(report, parts)
        if refusal is not None:
            answered.set_result(refusal)
            return

        def failed(error: StoreError) -> None:
            answered.set_result(Answer(refused=f"It cannot be stored: {error.wrong}.", remedy=f"{error.remedy}."))

        told = acceptance.acceptance(report, parts)

        def stored() -> None:
            words = {"gpus": told.count, "gone": ",".join(told.gone), "ports": ",".join((*told.ports, *told.slow))}
            _log.info(
                "accepted: what is gone is missed no more",
                extra={name: word for name, word in words.items() if word},
            )
            answered.set_result(Answer())

        self._persistence.keep_acceptance(told, stored, failed)
