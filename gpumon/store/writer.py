"""One thread owns the store, so that no disk, however slow or hung, ever keeps the main loop waiting."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from gpumon.clock import boot_clock
from gpumon.store.errors import StoreError
from gpumon.store.store import Retention, Store

T = TypeVar("T")

LIMIT = 1000
"""Most pieces of work that wait."""
PATIENCE = 10.0
"""Seconds after which a piece of work counts as hung."""
BACK_OFF = (1.0, 60.0)
"""Seconds between attempts to open, doubling from the first to the second."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Work:
    do: Callable[[Store], Any]
    done: Callable[[Any], None]
    failed: Callable[[StoreError], None]


class Writer:
    """Opens the store, does work on it in the order given, and opens it anew after an error."""

    def __init__(
        self,
        path: Path,
        *,
        retention: Retention | None = None,
        post: Callable[[Callable[[], None]], None],
        on_open: Callable[[Store], None] = lambda _: None,
        back_off: tuple[float, float] = BACK_OFF,
    ) -> None:
        """`post` brings a callback to the caller's thread, as Loop.post does.

        `on_open` runs in the writer's thread when the store can first be read and whenever it can be written again
        after an error. It reads what must be restored, and posts it.
        """
        self._path = path
        self._retention = retention
        self._post = post
        self._on_open = on_open
        self._back_off = back_off
        self._delay = back_off[0]
        self._retry_at = 0.0
        self.moved_aside: Path | None = None
        """Where the last damaged file went in whose place a new one was begun. From any thread."""
        self.other = False
        """The file is not the one that was open before, and must be told all that is known. From the store's thread."""
        self._queue: queue.Queue[_Work | None] = queue.Queue(LIMIT)
        self._store: Store | None = None
        self._restored = False
        self._error: StoreError | None = None
        self._busy_since: float | None = None
        self._thread = threading.Thread(target=self._run, name="store", daemon=True)

    def start(self) -> None:
        """Open the store. What was submitted before waits for that."""
        self._thread.start()

    def submit(
        self,
        work: Callable[[Store], T],
        done: Callable[[T], None] = lambda _: None,
        failed: Callable[[StoreError], None] = lambda _: None,
    ) -> None:
        """Never blocks. Posts `done` with what `work` returned once it is durable, or `failed`: nothing was done."""
        one = _Work(work, done, failed)
        try:
            self._queue.put_nowait(one)
        except queue.Full:
            wrong = f"{LIMIT} pieces of work are waiting already"
            self._fail(one, StoreError(self._path, wrong, "look for a slow or hung disk in the kernel log"))

    def trouble(self) -> StoreError | None:
        """Why nothing can be written now; None while all is well. From any thread."""
        since = self._busy_since
        if since is not None and boot_clock() - since > PATIENCE:
            wrong = f"the disk has not answered for {boot_clock() - since:.0f} s"
            return StoreError(self._path, wrong, "look for a hung disk in the kernel log")
        return self._error

    def close(self, timeout: float) -> bool:
        """Finish what waits and close the store. False when that took too long; the thread is then left behind."""
        deadline = boot_clock() + timeout
        try:
            self._queue.put(None, timeout=timeout)
        except queue.Full:
            return False
        self._thread.join(max(0.0, deadline - boot_clock()))
        return not self._thread.is_alive()

    def _run(self) -> None:
        ended = False
        while not ended:
            if self._store is None and boot_clock() >= self._retry_at:
                self._attempt(self._open, self._lose)
            try:
                work = self._queue.get(timeout=self._wait())
            except queue.Empty:
                continue
            ended = work is None
            if work is not None:
                self._do(work)
        self._attempt(self._close, self._lose)

    def _wait(self) -> float | None:
        return max(0.0, self._retry_at - boot_clock()) if self._store is None else None

    def _open(self) -> None:
        store = Store.open(self._path, retention=self._retention)
        if store.moved_aside is not None:
            self.moved_aside = store.moved_aside
            log.error("the store was damaged and is begun anew", extra={"moved_to": str(store.moved_aside)})
        self.other = self.other or store.begun_anew
        with contextlib.ExitStack() as unless_writable:
            unless_writable.callback(store.close)
            refusal = _refusal(store)
            if refusal is None:
                store.prune()
                self._recover()
            if refusal is None or not self._restored:
                self._on_open(store)
                self._restored = True
            if refusal is not None:
                raise refusal
            unless_writable.pop_all()
            self.other = False
        self._store = store

    def _recover(self) -> None:
        if self._error is not None:
            log.info("the store can be written again", extra={"path": str(self._path)})
        self._error, self._delay = None, self._back_off[0]

    def _lose(self, error: StoreError) -> None:
        """Out of order until it has been opened anew."""
        if self._error is None or self._error.wrong != error.wrong:
            log.error("the store is out of order", extra={"error": str(error)})
        self._error = error
        self._retry_at = boot_clock() + self._delay
        self._delay = min(2 * self._delay, self._back_off[1])

    def _do(self, work: _Work) -> None:
        if self._store is None:
            self._fail(work, self._error or StoreError(self._path, "it is not open", "try again"))
        else:
            self._attempt(partial(self._carry_out, self._store, work), partial(self._give_up, work))

    def _carry_out(self, store: Store, work: _Work) -> None:
        done = partial(work.done, work.do(store))
        self._in_place(store)
        self._post(done)

    def _in_place(self, store: Store) -> None:
        """After the work: what is told as done went into the file that the next agent will open."""
        try:
            store.prove_in_place()
        except StoreError:
            self.other = True
            raise

    def _give_up(self, work: _Work, error: StoreError) -> None:
        """Whoever is told that it failed can already learn why nothing can be written."""
        self._lose(error)
        self._fail(work, error)
        self._attempt(self._close, lambda _: None)

    def _fail(self, work: _Work, error: StoreError) -> None:
        self._post(partial(work.failed, error))

    def _close(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            store.close()

    def _attempt(self, action: Callable[[], None], failed: Callable[[StoreError], None]) -> None:
        self._busy_since = boot_clock()
        try:
            action()
        except StoreError as error:
            failed(error)
        except Exception as error:  # a mistake in one piece of work must not end the thread
            log.exception("work on the store failed")
            failed(StoreError(self._path, f"it failed ({error!r})", "report it"))
        finally:
            self._busy_since = None


def _refusal(store: Store) -> StoreError | None:
    try:
        store.prove_writable()
    except StoreError as error:
        return error
    return None
