"""Writes the health file, which contains the verdicts of this node for `gpumon check`, prologs and plugins."""

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
from gpumon.outputs.responses.health import CurrentHealthResponse
from gpumon.state.report import Report
from gpumon.supervisor.loop import Loop

_log = logging.getLogger("gpumon")

MODE = 0o644
POLL_SECONDS = 1.0
"""Interval in seconds at which the agent checks whether the file must be written. Checks are evaluated every 5 s."""
RESTORE_SECONDS = 10.0
"""Maximum seconds that the start of the agent waits until verdicts are read from the store. The store's disk may hang.
"""
DISK_SECONDS = 1.0
"""Maximum seconds that the agent, when it stops, waits for a write of the health file to a disk."""
IN_MEMORY = Path("/run")
"""Directory in memory (tmpfs). A health file below it is written in the loop's thread, because this cannot block."""


class AgentIdentity(ResponseModel):
    """The member `agent` of the health file: which agent wrote the file, and whether it is still running."""

    version: str
    pid: int
    running: bool
    socket: str
    """Path of the unix socket at which programs on this host reach the agent."""
    store: str


class MaintenanceWindow(ResponseModel):
    """The member `maintenance` of the health file: the maintenance window in force."""

    until: str
    until_boottime_seconds: float
    """End of the maintenance in seconds of CLOCK_BOOTTIME, for readers. After a reboot they use `until` instead."""
    reason: str
    by: str


class HealthFileContent(CurrentHealthResponse):
    """Content of the health file. Verdicts and GPUs have the same form as in `/api/v1/health`."""

    version: int
    boot_id: str
    evaluated: str | None
    """RFC 3339 time at which the checks were last evaluated; null if this agent has not evaluated them yet."""
    evaluated_boottime_seconds: float | None
    """CLOCK_BOOTTIME in seconds at the last evaluation of the checks; null if this agent has not evaluated them yet.
    Readers compute the age of the verdicts from it.
    """
    agent: AgentIdentity
    maintenance: MaintenanceWindow | None

    @classmethod
    def from_report(cls, report: Report, agent: AgentIdentity) -> HealthFileContent:
        evaluated, window = report.health.evaluated, report.maintenance
        return cls(
            version=HEALTH_FILE_VERSION,
            boot_id=report.boot_id,
            evaluated=rfc3339(evaluated.wall) if evaluated else None,
            evaluated_boottime_seconds=evaluated.at if evaluated else None,
            agent=agent,
            **dict(CurrentHealthResponse.current(report)),
            maintenance=None
            if window is None
            else MaintenanceWindow(
                until=rfc3339(window.deadline.wall),
                until_boottime_seconds=window.deadline.at,
                reason=window.reason,
                by=window.by,
            ),
        )


class HealthFile:
    """Service that writes the health file whenever checks were evaluated, or verdicts or time windows changed.

    It writes nothing before verdicts are read from the store or checks are evaluated. Use from the loop's thread. A
    file on a disk is written in a separate thread, because a hung disk must not block the loop; a file below /run,
    which is in memory, is not.
    """

    def __init__(self, loop: Loop, path: Path, *, latest: Callable[[], Report], store: Path, socket: Path) -> None:
        """Create the service. `socket` is the path at which programs on this host reach the agent."""
        self._loop = loop
        self._path = path
        self._latest = latest
        self._store = store
        self._socket = socket
        self._written: tuple[object, ...] = ()
        self._writing = threading.Thread()
        """The last thread that was started to replace a file on a disk; it may have ended."""
        self._on_restored: Callable[[], object] | None = None
        self.notice: str | None = None
        """Why the last write of the file failed; None if it succeeded."""

    def start(self, on_restored: Callable[[], object] = lambda: None) -> None:
        """Begin to update the file periodically.

        `on_restored` is called once: after the first attempt to write the file with the verdicts from the store, at the
        latest after RESTORE_SECONDS.
        """
        self._on_restored = on_restored
        self._loop.call_after(RESTORE_SECONDS, self._report_restored)
        self._loop.every(POLL_SECONDS, self.update)

    def stop(self) -> None:
        """Write the file with `running: false`, unless an earlier write still hangs after DISK_SECONDS."""
        self._wait_for_disk()
        self._write(running=False)
        self._wait_for_disk()

    def update(self) -> None:
        """Write the file if verdicts or windows changed or checks were evaluated again, and no earlier write runs."""
        report = self._latest()
        sources = (report.health, report.windows, report.agent.restored)
        unchanged = len(self._written) == len(sources) and all(map(operator.is_, sources, self._written))
        if not unchanged and not self._writing.is_alive():
            self._written = sources
            self._write(running=True)

    def _write(self, *, running: bool) -> None:
        report = self._latest()
        restored = report.agent.restored
        if not (restored or report.health.evaluated) or self._writing.is_alive():
            return  # keep the previous agent's file: it may have a failure that is not read from the store yet
        agent = AgentIdentity(
            version=__version__, pid=os.getpid(), running=running, socket=str(self._socket), store=str(self._store)
        )
        text = HealthFileContent.from_report(report, agent).model_dump_json(indent=1) + "\n"
        if self._path.is_relative_to(IN_MEMORY):
            self._settle(self._replace(text), restored=restored)
            return

        def write() -> None:
            notice = self._replace(text)
            self._loop.post(lambda: self._settle(notice, restored=restored))

        self._writing = threading.Thread(target=write, name="health file", daemon=True)
        self._writing.start()

    def _replace(self, text: str) -> str | None:
        """Replace the file. Return why that failed; None if it succeeded."""
        try:
            replace_file(self._path, text)
        except OSError as error:
            return f"{self._path} cannot be written ({error.strerror}), so gpumon check exits 3: set health.file"
        return None

    def _settle(self, notice: str | None, *, restored: bool) -> None:
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


def replace_file(path: Path, text: str) -> None:
    """Replace a file atomically, so that no reader gets a partly written file. Raise OSError if that fails."""
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, MODE)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        os.fchmod(descriptor, MODE)  # whatever the umask
        file.write(text)
    new.replace(path)
