"""`gpumon xid`: explain an Xid, or a line of the kernel log, and what to do about it on this host."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from typing import Any

from gpumon.cli.command_parser import CommandParser
from gpumon.cli.config_arguments import add_flags, configuration
from gpumon.cli.errors import UserError
from gpumon.collectors.kernel_log.lines import parse_quoted, without_processes
from gpumon.config.component_settings import xid_catalogue
from gpumon.config.settings_table import CONFIG_FILE
from gpumon.config.xid_file import KEYS
from gpumon.health.catalogue import Catalogue, Explanation
from gpumon.model.error_event import SXID, XID


def add(parser: CommandParser) -> None:
    parser.set_examples("gpumon xid 79", 'gpumon xid --text "NVRM: Xid (PCI:0000:18:00): 48, pid=4711, DBE"')
    parser.add_argument("code", nargs="?", metavar="CODE", help="number of an Xid; without it all are listed")
    parser.add_argument("--text", help="a line of the kernel log, or its part after the number")
    parser.add_argument("--json", action="store_true", help="print the explanation as JSON")
    add_flags(parser, CONFIG_FILE.name)


@dataclass(frozen=True, slots=True)
class ErrorCode:
    """An Xid or SXid with its explanation. `text`: its text in the kernel log; empty if no text was given."""

    kind: str
    code: int
    text: str
    means: Explanation


def run(args: argparse.Namespace) -> int:
    xids = xid_catalogue(configuration(args))
    if args.code is None and args.text is None:
        rows = [_explain_code(xids, code) for code in sorted(xids.rows)]
        print(json.dumps([_document(xids, row) for row in rows], indent=2) if args.json else _table(xids, rows))
        return 0
    error = _error_code(xids, args.code, args.text)
    print(json.dumps(_document(xids, error), indent=2) if args.json else _words(xids, error))
    return 0


def _error_code(xids: Catalogue, code: str | None, text: str | None) -> ErrorCode:
    line = None if text is None else parse_quoted(text)
    if line is not None and line.kind not in {XID, SXID}:
        line = None
    if code is None and line is None:
        raise UserError("the line contains no error code: give it too, as in `gpumon xid 149 --text ...`")
    if code is not None and not code.isdecimal():
        raise UserError(f"{code!r} is not the number of an Xid: give a number, as in `gpumon xid 79`")
    if line is None:
        return _explain_code(xids, int(code or 0), without_processes(text or ""))
    if code is not None and int(code) != line.code:
        raise UserError(f"the line contains {line.code}, not {code}: omit one of them")
    return ErrorCode(line.kind, line.code, line.text, xids.read(line.kind, line.code, (line.text,), fatal=line.fatal))


def _explain_code(xids: Catalogue, code: int, text: str = "") -> ErrorCode:
    return ErrorCode(XID, code, text, xids.read(XID, code, (text,)))


def _document(xids: Catalogue, error: ErrorCode) -> dict[str, Any]:
    row = xids.xid(error.code) if error.kind == XID else None
    return {
        error.kind: error.code,
        "name": error.means.name,
        "severity": str(error.means.severity),
        "class": None if row is None else str(row.kind),
        "action": error.means.action,
        "if_it_recurs": error.means.if_it_recurs,
        "detail": error.means.detail,
        "text": error.text,
        "known": row is None or error.code in xids.rows,
        "changed": [] if row is None else [key for key, attribute in KEYS.items() if attribute in row.ordered],
    }


def _words(xids: Catalogue, error: ErrorCode) -> str:
    document = _document(xids, error)
    lines = [f"{'SXid' if error.kind == SXID else 'Xid'} {error.code}: {document['name']}"]
    rows = (
        ("Severity", document["severity"]),
        ("Class", document["class"]),
        ("Do at once", document["action"]),
        ("If it recurs", document["if_it_recurs"]),
        ("Text", document["text"]),
        ("Meaning", document["detail"]),
        ("From xids.file", ", ".join(document["changed"])),
    )
    return "\n".join([*lines, *(f"  {name + ':':<15} {text}" for name, text in rows if text)])


def _table(xids: Catalogue, rows: list[ErrorCode]) -> str:
    return "\n".join(
        f"{row.code:>4}  {row.means.severity:<8}  {xids.xid(row.code).kind:<11}  {row.means.name}."
        f" Do: {row.means.action}"
        for row in rows
    )
