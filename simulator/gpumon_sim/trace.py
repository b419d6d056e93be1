"""Counts the calls of functions of the simulated library, for tests and measurements."""

from __future__ import annotations

import atexit
import json
import os
import threading
import time
from collections import Counter
from pathlib import Path


class Trace:
    """Counts calls, by function and in total, and adds up their duration.

    Writes the counts to `<path>-<pid>.json` after a call, at most once per second, and at exit; no file if `path` is
    None. In it, `seconds` is the wall time of all returned calls, `cpu_seconds` the CPU time of the calling threads.
    """

    def __init__(self, path: Path | None) -> None:
        self._file = None if path is None else path.with_name(f"{path.name}-{os.getpid()}.json")
        self._lock = threading.Lock()
        self._calls: Counter[str] = Counter()
        self._seconds = 0.0
        self._cpu_seconds = 0.0
        self._written = 0
        if path is not None:
            atexit.register(self.write)

    def count_call(self, function: str) -> None:
        with self._lock:
            self._calls[function] += 1

    def add_duration(self, seconds: float, cpu_seconds: float) -> None:
        with self._lock:
            self._seconds += seconds
            self._cpu_seconds += cpu_seconds
        if self._file is not None and int(time.monotonic()) != self._written:
            self.write()

    def write(self) -> None:
        """Write the current counts to the file, atomically. Do nothing without a file."""
        if self._file is None:
            return
        with self._lock:
            self._written = int(time.monotonic())
            counts = {
                "calls": dict(self._calls),
                "total": self._calls.total(),
                "seconds": self._seconds,
                "cpu_seconds": self._cpu_seconds,
            }
            new = self._file.with_suffix(".new")
            new.write_text(json.dumps(counts))
            new.replace(self._file)
