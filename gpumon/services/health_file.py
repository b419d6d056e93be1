"""Writes the health file: the verdicts of this node for `gpumon check`, prologs and plugins."""

from __future__ import annotations

import logging
import operator
import os
import threading
from collections.abc import Callable
from pathlib import Path

from gpumon import __version__
from gpumon.config.default_paths import HEALTH_FILE_VERSION
from gpumon.outputs.formatting import rfc3339
from gpumon.outputs.responses.base import ResponseModel
from gpumon.outputs.responses.verdicts import CurrentHealthResponse
from gpumon.state.report import Report
from gpumon.supervisor.loop import Loop

_log = logging.getLogger("gpumon")

MODE = 0o644
POLL_SECONDS = 1.0
"""Interval at which the Report is compared with the file; checks are evaluated every 5 s."""
RESTORE_SECONDS = 10.0
"""Maximum wait for the store: a disk that hangs must not block the start of the agent."""
DISK_SECONDS = 1.0
"""Maximum wait for a disk when the agent stops."""
IN_MEMORY = Path("/run")
"""Files below it are not on a disk."""


class AgentIdentity(ResponseModel):
    """The agent that wrote the file."""

    version: str
    pid: int
    running: bool
    socket: str
    """Where a program on this host reaches it."""
    store: str


class MaintenanceWindow(ResponseModel):
    """The active maintenance window."""

    until: str
    until_boottime_seconds: float
    """The same by CLOCK_BOOTTIME, which decides when it ends."""
    reason: str
    by: str


class HealthFileContent(CurrentHealthResponse):
    """The content of the file. Verdicts and GPUs are those of `/api/v1/health`."""

    version: int
    boot_id: str
    evaluated: str | None
    """When the checks were last evaluated; null if this agent has not evaluated them yet."""
    evaluated_boottime_seconds: float | None
    """The same by CLOCK_BOOTTIME, from which readers compute the age."""
    agent: AgentIdentity
    maintenance: MaintenanceWindow | None

    @classmethod
    def from_report(cls, report: Report, agent: AgentIdentity) -> HealthFileContent:
        health, window = report.health, report.maintenance
        return cls(
            version=HEALTH_FILE_VERSION,
            boot_id=report.boot_id,
            evaluated=rfc3339(health.evaluated_wall),
            evaluated_boottime_seconds=health.evaluated_at,
            agent=agent,
            **dict(CurrentHealthResponse.current(report)),
            maintenance=None
            if window is None
            else MaintenanceWindow(
                until=rfc3339(window.until),
                until_boottime_seconds=window.deadline,
                reason=window.reason,
                by=window.by,
            ),
        )


class HealthFile:
    """The file, replaced whenever the verdicts were evaluated or changed. Use from the loop's thread.

    A thread replaces a file on a disk, because a hung disk must not block the loop. /run is in memory.
    """

    def __init__(self, loop: Loop, path: Path, *, latest: Callable[[], Report], store: Path, socket: Path) -> None:
        """`socket` is where a program on this host reaches the agent."""
        self._loop = loop
        self._path = path
        self._latest = latest
        self._store = store
        self._socket = socket
        self._written: tuple[object, ...] = ()
        self._writing = threading.Thread()
        """The last replacement on a disk."""
        self._on_restored: Callable[[], object] | None = None
        self.notice: str | None = None
        """Why the file could not be written."""

    def start(self, on_restored: Callable[[], object] = lambda: None) -> None:
        """Update the file from now on.

        `on_restored` is called once: when the file holds what the store had, or when the store takes too long.
        """
        self._on_restored = on_restored
        self._loop.call_after(RESTORE_SECONDS, self._report_restored)
        self._loop.every(POLL_SECONDS, self.update)

    def stop(self) -> None:
        """Write `running: false`, so that readers need not wait until the file is stale."""
        self._wait_for_disk()
        self._write(running=False)
        self._wait_for_disk()

    def update(self) -> None:
        """Write the file if what it reports has changed or was evaluated again."""
        report = self._latest()
        sources = (report.health, report.windows, report.internal.restored)
        unchanged = len(self._written) == len(sources) and all(map(operator.is_, sources, self._written))
        if not unchanged and not self._writing.is_alive():
            self._written = sources
            self._write(running=True)

    def _write(self, *, running: bool) -> None:
        report = self._latest()
        restored = report.internal.restored
        if not (restored or report.health.evaluated) or self._writing.is_alive():
            return  # the file of the previous agent may report a failure that this one has not read from the store yet
        agent = AgentIdentity(
            version=__version__, pid=os.getpid(), running=running, socket=str(self._socket), store=str(self._store)
        )
        text = HealthFileContent.from_report(report, agent).model_dump_json(indent=1) + "\n"
        if self._path.is_relative_to(IN_MEMORY):
            self._settle(_replacement_error(self._path, text), restored=restored)
            return

        def write() -> None:
            error = _replacement_error(self._path, text)
            self._loop.post(lambda: self._settle(error, restored=restored))

        self._writing = threading.Thread(target=write, name="health file", daemon=True)
        self._writing.start()

    def _settle(self, error: OSError | None, *, restored: bool) -> None:
        notice = None
        if error is not None:
            notice = f"{self._path} cannot be written ({error.strerror}), so gpumon check exits 3: set health.file"
        if notice is not None and notice != self.notice:
            _log.error(notice)
        self.notice = notice
        if restored:
            self._report_restored()

    def _report_restored(self) -> None:
        callback, self._on_restored = self._on_restored, None
        if callback is not None:
            callback()

    def _wait_for_disk(self) -> None:
        if self._writing.is_alive():
            self._writing.join(DISK_SECONDS)


def _replacement_error(path: Path, text: str) -> OSError | None:
    try:
        replace_file(path, text)
    except OSError as error:
        return error
    return None


def replace_file(path: Path, text: str) -> None:
    """Replace the file at once, so that no reader sees a part of it. Raises OSError."""
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, MODE)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        os.fchmod(descriptor, MODE)  # whatever the umask
        file.write(text)
    new.replace(path)
