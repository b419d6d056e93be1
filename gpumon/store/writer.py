"""The thread that reads and writes the store, so that a slow or hung disk never blocks the main loop."""

from __future__ import annotations

import contextlib
import logging
import queue
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from gpumon.clock import boot_clock
from gpumon.store.store import Store
from gpumon.store.store_error import StoreError

T = TypeVar("T")

MAX_QUEUED = 1000
"""Maximum number of queued reads and writes. Further reads and writes fail at once."""
HUNG_SECONDS = 10.0
"""Seconds that a read or write may take before the disk is reported as hung."""
BACK_OFF = (1.0, 60.0)
"""Seconds between attempts to open the store: minimum and maximum. The delay doubles after each failure."""

log = logging.getLogger("gpumon.store")


_Job = tuple[Callable[[sqlite3.Connection], Any], Future[Any]]


class StoreWriter:
    """A thread that runs queued reads and writes in order, each in a transaction, and opens the store for them."""

    def __init__(
        self,
        path: Path,
        *,
        on_open: Callable[[Store], None],
        on_reopen: Callable[[], None],
        back_off: tuple[float, float] = BACK_OFF,
    ) -> None:
        """Create the thread. `back_off`: as BACK_OFF.

        The thread calls `on_open` when it opens the store for the first time, even if only for reading, and `on_reopen`
        each time that the store can be written again after an error.
        """
        self.path = path
        self._on_open = on_open
        self._on_reopen = on_reopen
        self._back_off = back_off
        self._delay = back_off[0]
        self._retry_at = 0.0
        self.moved_aside: Path | None = None
        """New path of the last damaged file; None if no file was damaged. Any thread may read it."""
        self._queue: queue.Queue[_Job | None] = queue.Queue(MAX_QUEUED)
        self._store: Store | None = None
        self._was_read = False
        self._error: StoreError | None = None
        self._busy_since: float | None = None
        self._thread = threading.Thread(target=self._run, name="store", daemon=True)

    def start(self) -> None:
        """Start the thread, which opens the store. Work that was submitted before waits for the first attempt."""
        self._thread.start()

    def submit(self, work: Callable[[sqlite3.Connection], T]) -> Future[T]:
        """Queue `work`. Return a future with its result when its changes are durable, or StoreError. Any thread."""
        answer: Future[T] = Future()
        answer.set_running_or_notify_cancel()  # otherwise a client that disconnects would cancel the future
        try:
            self._queue.put_nowait((work, answer))
        except queue.Full:
            problem, remedy = f"{MAX_QUEUED} writes are queued", "read the kernel log for a slow or hung disk"
            answer.set_exception(StoreError(self.path, problem, remedy))
        return answer

    def error(self) -> StoreError | None:
        """Return why the store cannot be written now; None if it can be written. Any thread may call this."""
        since = self._busy_since
        hangs = since is not None and boot_clock() - since > HUNG_SECONDS
        return self.late() if hangs else self._error

    def late(self) -> StoreError:
        """Return the error of a read or write that has not ended."""
        seconds = boot_clock() - (self._busy_since or boot_clock())
        problem = f"the disk has not answered for {seconds:.0f} s"
        return StoreError(self.path, problem, "read the kernel log for a hung disk")

    def close(self, timeout: float) -> bool:
        """Finish the queued work and close the store. Return False if the thread has not ended in `timeout` seconds."""
        deadline = boot_clock() + timeout
        try:
            self._queue.put(None, timeout=timeout)
        except queue.Full:
            return False
        self._thread.join(max(0.0, deadline - boot_clock()))
        return not self._thread.is_alive()

    # In the writer's thread

    def _run(self) -> None:
        ended = False
        while not ended:
            if self._store is None and boot_clock() >= self._retry_at:
                with self._attempt():
                    self._open()
            timeout = max(0.0, self._retry_at - boot_clock()) if self._store is None else None
            with contextlib.suppress(queue.Empty):
                job = self._queue.get(timeout=timeout)
                ended = job is None
                if job is not None:
                    self._process(*job)
        with self._attempt():
            self._close()

    def _open(self) -> None:
        store = Store.open(self.path)
        if store.moved_aside is not None:
            self.moved_aside = store.moved_aside
            log.error("the store was damaged and is re-created", extra={"moved_to": str(store.moved_aside)})
        with contextlib.ExitStack() as unless_writable:
            unless_writable.callback(store.close)
            refusal: StoreError | None = None
            try:
                store.prove_writable()
            except StoreError as error:
                refusal = error
            else:
                if self._error is not None:
                    log.info("the store can be written again", extra={"path": str(self.path)})
                self._error, self._delay = None, self._back_off[0]
            if not self._was_read:
                self._on_open(store)
                self._was_read = True
            elif refusal is None:
                self._on_reopen()
            if refusal is not None:
                raise refusal
            unless_writable.pop_all()
        self._store = store

    def _process(self, work: Callable[[sqlite3.Connection], T], answer: Future[T]) -> None:
        if self._store is None:
            answer.set_exception(self._error or StoreError(self.path, "it is not open", "try again"))
            return
        with self._attempt(answer):
            with self._store.writing() as connection:
                result = work(connection)
            self._store.prove_in_place()  # after the commit: the rows are in the file that the next agent opens
            answer.set_result(result)

    def _close(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            store.close()

    @contextlib.contextmanager
    def _attempt(self, answer: Future[Any] | None = None) -> Iterator[None]:
        """Log a failure of the block, give it to `answer`, close the store, and set when it may be opened again."""
        self._busy_since = boot_clock()
        try:
            yield
        except Exception as error:  # a defect in one job must not end the thread
            if not isinstance(error, StoreError):
                log.exception("a job of the store failed: report this bug")
                error = StoreError(self.path, f"it failed ({error!r})", "report it")
            elif self._error is None or self._error.problem != error.problem:
                log.error("the store cannot be written", extra={"error": str(error)})  # noqa: TRY400 - the operator's, not ours
            self._error = error
            self._retry_at = boot_clock() + self._delay
            self._delay = min(2 * self._delay, self._back_off[1])
            if answer is not None:
                answer.set_exception(error)
            with contextlib.suppress(StoreError):
                self._close()
        finally:
            self._busy_since = None
