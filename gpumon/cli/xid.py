"""`gpumon xid`: what a code means on this host and what to do about it, and what a line of the kernel log says."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from typing import Any

from gpumon.cli.config_arguments import add_flags, configuration
from gpumon.cli.errors import UserError
from gpumon.collectors.kernel_log.lines import parse_quoted, without_processes
from gpumon.config.component_settings import catalogue
from gpumon.config.xid_file import KEYS
from gpumon.health.catalogue import Catalogue, Explanation
from gpumon.model.error_event import SXID, XID


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("code", nargs="?", metavar="CODE", help="number of an Xid; without one: all")
    parser.add_argument("--text", help="a line of the kernel log, or what stands in it after the number")
    parser.add_argument("--json", action="store_true", help="as JSON")
    add_flags(parser)


@dataclass(frozen=True, slots=True)
class Asked:
    """A code with a line's text, or alone."""

    kind: str
    code: int
    text: str
    means: Explanation


def run(chosen: argparse.Namespace) -> int:
    known = catalogue(configuration(chosen))
    if chosen.code is None and chosen.text is None:
        rows = [_of_code(known, code) for code in sorted(known.rows)]
        print(json.dumps([_document(known, one) for one in rows], indent=2) if chosen.json else _table(known, rows))
        return 0
    asked = _asked(known, chosen.code, chosen.text)
    print(json.dumps(_document(known, asked), indent=2) if chosen.json else _words(known, asked))
    return 0


def _asked(known: Catalogue, code: str | None, text: str | None) -> Asked:
    line = None if text is None else parse_quoted(text)
    if code is None and line is None:
        raise UserError("that line names no error: give its number too, as in `gpumon xid 149 --text ...`")
    if code is not None and not code.isdecimal():
        raise UserError(f"{code!r} is not the number of an Xid: give one, as in `gpumon xid 79`")
    if line is None:
        return _of_code(known, int(code or 0), without_processes(text or ""))
    if code is not None and int(code) != line.code:
        raise UserError(f"the line tells of {line.code}, not of {code}: leave one of them out")
    return Asked(line.kind, line.code, line.text, known.read(line.kind, line.code, (line.text,), fatal=line.fatal))


def _of_code(known: Catalogue, code: int, text: str = "") -> Asked:
    return Asked(XID, code, text, known.read(XID, code, (text,)))


def _document(known: Catalogue, asked: Asked) -> dict[str, Any]:
    row = known.xid(asked.code) if asked.kind == XID else None
    return {
        asked.kind: asked.code,
        "name": asked.means.name,
        "severity": str(asked.means.severity),
        "class": None if row is None else str(row.kind),
        "action": asked.means.action,
        "if_it_recurs": asked.means.if_it_recurs,
        "detail": asked.means.detail,
        "text": asked.text,
        "known": row is None or asked.code in known.rows,
        "changed": [] if row is None else [key for key, attribute in KEYS.items() if attribute in row.ordered],
    }


def _words(known: Catalogue, asked: Asked) -> str:
    told = _document(known, asked)
    lines = [f"{'SXid' if asked.kind == SXID else 'Xid'} {asked.code}: {told['name']}"]
    rows = (
        ("Severity", told["severity"]),
        ("Class", told["class"]),
        ("Do at once", told["action"]),
        ("If it recurs", told["if_it_recurs"]),
        ("The text", told["text"]),
        ("It says", told["detail"]),
        ("From xids.file", ", ".join(told["changed"])),
    )
    return "\n".join([*lines, *(f"  {name + ':':<15} {text}" for name, text in rows if text)])


def _table(known: Catalogue, rows: list[Asked]) -> str:
    return "\n".join(
        f"{one.code:>4}  {one.means.severity:<8}  {known.xid(one.code).kind:<11}  {one.means.name}."
        f" Do: {one.means.action}"
        for one in rows
    )
