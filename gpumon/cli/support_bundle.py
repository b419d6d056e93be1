"""Writes the support archive of `gpumon doctor --bundle`: data to diagnose a problem, without secrets."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import io
import json
import os
import platform
import tarfile
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from gpumon import __version__, trusted_file
from gpumon.cli.client import Client, ClientError
from gpumon.cli.errors import UserError
from gpumon.cli.readiness.bounded_child import run_bounded
from gpumon.cli.readiness.host_facts import HostFacts
from gpumon.cli.readiness.unit_facts import COMMAND_SECONDS, UNIT
from gpumon.config.effective_configuration import show
from gpumon.config.model import Configuration
from gpumon.config.redact import REDACTED, redact_file, redact_text
from gpumon.config.settings_table import settings
from gpumon.outputs import terminal
from gpumon.store.database_file import examine
from gpumon.store.error_events import read_recent
from gpumon.store.store_error import StoreError

EVENTS, LOG_LINES, MAX_LOG = 1000, 2000, 4 << 20
"""Maximum numbers of events, of lines of the log, and of characters of the log."""
FROM_AGENT = {"inventory.json": "/api/v1/inventory", "events.json": f"/api/v1/events?limit={EVENTS}"}
VERSIONS = ("gpumon", "python", "system", "packages", "torch", "unit")
MAX_SECRETS = 1 << 16
"""Maximum bytes of a file with secrets. A larger file is not read."""
MIN_SECRET = 6
"""Minimum number of characters of a secret to redact in all members. Shorter secrets may be parts of other words."""


@contextlib.contextmanager
def bundle(path: Path) -> Iterator[tarfile.TarFile]:
    """Create the archive with mode 0600 for use within a context. Raise UserError if the file exists.

    If the context ends with an exception, delete the file.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise UserError(f"cannot create {path}: {error.strerror}. Name a new file after --bundle.") from error
    with contextlib.ExitStack() as on_failure:
        on_failure.callback(path.unlink, missing_ok=True)
        with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
            yield archive
        on_failure.pop_all()


def fill(archive: tarfile.TarFile, facts: HostFacts, report: Mapping[str, str]) -> None:
    """Add all members (files) to the archive. `report`: members with the answers of doctor, as text by name."""
    members = {**report, **dict(_members(facts)), **dict(_agent_members(facts))}
    secrets = sorted(_secrets(facts.configuration), key=len, reverse=True)
    folder = f"gpumon-{platform.node()}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
    for name, text in members.items():
        content = _remove_secrets(text, secrets).encode(errors="replace")
        member = tarfile.TarInfo(f"{folder}/{name}")
        member.size, member.mode, member.mtime = len(content), 0o600, int(time.time())
        archive.addfile(member, io.BytesIO(content))


def _members(facts: HostFacts) -> Iterator[tuple[str, str]]:
    broken = facts.invalid_file
    text = redact_file(broken.read_text(errors="replace")) if broken and os.access(broken, os.R_OK) else ""
    yield "configuration.yml", text or show(facts.configuration)
    yield "report.json", json.dumps(facts.report, indent=1)
    yield "gpus.txt", terminal.table(facts.report, 160, color=False)
    log = run_bounded(
        ["journalctl", "--unit", UNIT, f"--lines={LOG_LINES}", "--no-pager", "--output=short-iso"], COMMAND_SECONDS
    )
    yield "journal.txt", redact_text(log.text[-MAX_LOG:] + log.error)
    versions = {each.metadata["Name"]: each.version for each in importlib.metadata.distributions()}
    host = (__version__, platform.python_version(), platform.platform(), versions, facts.torch, facts.unit)
    yield "versions.json", json.dumps(dict(zip(VERSIONS, host, strict=True)), indent=1)


def _agent_members(facts: HostFacts) -> Iterator[tuple[str, str]]:
    """Yield name and text of the members with inventory and events. Without an agent, read the events in its store."""
    for name, path in FROM_AGENT.items():
        try:
            yield name, Client(facts.agent).fetch(path).body.decode(errors="replace")
        except ClientError as error:
            yield name, json.dumps({"error": str(error)})
    if "agent" in facts.errors:
        try:
            if (store := examine(facts.configuration.store.path)) is not None:
                with contextlib.closing(store):
                    events = [dataclasses.asdict(event) for event in read_recent(store, EVENTS)]
                yield "events.json", json.dumps(events, indent=1)
        except (StoreError, OSError) as error:
            yield "events.json", json.dumps({"error": str(error)})


def _secrets(configuration: Configuration) -> Iterator[str]:
    """Yield the words of each configured file with secrets, such as web.token_file, that this user may read."""
    for name in settings():
        path = configuration.value(name)
        if name.endswith("_file") and name != "web.config_file" and isinstance(path, Path):
            with contextlib.suppress(OSError, UnicodeDecodeError):
                words = trusted_file.read(path, MAX_SECRETS).decode().split()
                yield from (word for word in words if len(word) >= MIN_SECRET)


def _remove_secrets(text: str, secrets: Iterable[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, REDACTED)
    return text
