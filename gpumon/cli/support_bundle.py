"""Writes the support archive of `gpumon doctor --bundle`: data to diagnose a problem, without secrets."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import io
import json
import os
import platform
import re
import tarfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gpumon import __version__
from gpumon.cli.client import Client, ClientError
from gpumon.cli.readiness.host_facts import COMMAND_SECONDS, UNIT, HostFacts, run_bounded
from gpumon.config.redact import REDACTED, redact, redact_file, redact_text
from gpumon.config.settings_table import show
from gpumon.model.allocation import Owner
from gpumon.outputs import terminal
from gpumon.state.allocations import ALWAYS_SHOWN
from gpumon.store.error_events import read_recent
from gpumon.store.store import examine
from gpumon.store.store_error import StoreError

EVENTS, LOG_LINES, MAX_LOG = 1000, 2000, 4 << 20
"""Maximum numbers of events, of lines of the log, and of characters of the log."""


@contextlib.contextmanager
def new_bundle(path: Path) -> Iterator[tarfile.TarFile]:
    """Create the archive with mode 0600 for use within a context, and delete it if that ends with an exception."""
    os.umask(0o077)
    with contextlib.ExitStack() as on_failure, tarfile.open(path, "x:gz") as archive:
        on_failure.callback(path.unlink, missing_ok=True)
        yield archive
        archive.close()  # fails on a full disk
        on_failure.pop_all()


def fill(archive: tarfile.TarFile, facts: HostFacts, report: Mapping[str, str]) -> None:
    """Add all members (files) to the archive. `report`: members with the answers of doctor, as text by name."""
    members = {**report, "configuration.yml": _configuration(facts)}  # in these, secrets are redacted already
    for name, text in _members(facts):
        members[name] = redact_text(text)
        if name.endswith(".json"):  # it remains valid JSON: its keys show which values are secret
            with contextlib.suppress(ValueError, RecursionError):  # the answer may be that of another program
                members[name] = json.dumps(redact("", _without_owner_names(json.loads(text))), indent=1)
    add_members(archive, {name: _OWNER_ID.sub(rf"\1/{REDACTED}", text) for name, text in members.items()})


_OWNER_NAMES = {each.name for each in dataclasses.fields(Owner)} - ALWAYS_SHOWN
_OWNER_ID = re.compile(
    r"(?<![\w/.-])((?:job/)?(?:pod|unit|user|slurm(?!/(?:\d+|s[0-9A-Z]{13})\b)))/[^\s\"',;()<>]*[^\s\"',;()<>.\\]"
)
"""Id of an owner that has its name, such as unit/jupyter-ann.service; a prolog may also name a Slurm job."""


def _without_owner_names(value: Any) -> Any:
    """Return JSON without the names of owners, which may be those of persons and projects."""
    if isinstance(value, list):
        return list(map(_without_owner_names, value))
    if not isinstance(value, dict):
        return value
    return {
        key: REDACTED
        if key in _OWNER_NAMES and isinstance(entry, str) and not entry.isdecimal()
        else _without_owner_names(entry)
        for key, entry in value.items()
    }


def add_members(archive: tarfile.TarFile, members: Mapping[str, str]) -> None:
    """Add files with these texts to the archive, in a folder with the name of the host and the time."""
    folder = f"gpumon-{platform.node()}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
    for name, text in members.items():
        content = text.encode(errors="replace")
        member = tarfile.TarInfo(f"{folder}/{name}")
        member.size, member.mode, member.mtime = len(content), 0o600, int(time.time())
        archive.addfile(member, io.BytesIO(content))


def _configuration(facts: HostFacts) -> str:
    """Return the effective configuration; if it is invalid, the keys in its file or, without one, its problems."""
    file = facts.invalid_file
    if file is not None and os.access(file, os.R_OK) and file.is_file():
        return redact_file(file.read_text(errors="replace"))
    return facts.errors.get("configuration") or show(facts.configuration)


def _members(facts: HostFacts) -> Iterator[tuple[str, str]]:
    yield "report.json", json.dumps(facts.report, indent=1)
    yield "gpus.txt", terminal.table(facts.report, 160, color=False)
    yield "events.json", _events(facts)
    log = run_bounded(
        ["journalctl", "--unit", UNIT, f"--lines={LOG_LINES}", "--no-pager", "--output=short-iso"], COMMAND_SECONDS
    )
    yield "journal.txt", log.text[-MAX_LOG:] + log.error
    versions = {
        "gpumon": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "packages": [f"{each.metadata['Name']} {each.version}" for each in importlib.metadata.distributions()],
        "torch": facts.torch,
        "unit": facts.unit,
    }
    yield "versions.json", json.dumps(versions, indent=1)


def _events(facts: HostFacts) -> str:
    """Return the last events as JSON: those that the agent reports or, if it does not answer, those in its store."""
    try:
        if "agent" not in facts.errors:
            return Client(facts.agent).fetch(f"/api/v1/events?limit={EVENTS}").body.decode(errors="replace")
        if (store := examine(facts.configuration.store.path)) is None:
            return "[]"
        with contextlib.closing(store):
            return json.dumps([dataclasses.asdict(event) for event in read_recent(store, EVENTS)], indent=1)
    except (ClientError, StoreError, OSError) as error:
        return json.dumps({"error": str(error)})
