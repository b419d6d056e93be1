"""`gpumon xid`: explain an Xid, or a line of the kernel log, and what to do about it on this host."""

from __future__ import annotations

import argparse
import json

from gpumon.cli.command_parser import CommandParser, UserError
from gpumon.cli.config_arguments import add_flags, configuration
from gpumon.collectors.kernel_log.lines import parse_quoted, without_processes
from gpumon.config.component_settings import xid_catalogue
from gpumon.config.settings_table import CONFIG_FILE
from gpumon.config.xid_file import KEYS
from gpumon.health.catalogue import Catalogue
from gpumon.health.xids import RETIRED
from gpumon.model.error_event import SXID, XID
from gpumon.outputs.responses.base import Document


def add(parser: CommandParser) -> None:
    parser.set_examples("gpumon xid 79", 'gpumon xid --text "NVRM: Xid (PCI:0000:18:00): 48, pid=4711, DBE"')
    parser.add_argument("code", nargs="?", metavar="CODE", help="number of an Xid; without it all are listed")
    parser.add_argument("--text", help="a line of the kernel log, or its part after the number")
    parser.add_argument("--json", action="store_true", help="print the explanation as JSON")
    add_flags(parser, CONFIG_FILE.name)


def run(args: argparse.Namespace) -> int:
    xids = xid_catalogue(configuration(args))
    if args.code is None and args.text is None:
        rows = [_explain(xids, XID, code) for code in sorted(xids.rows, key=lambda code: (code in RETIRED, code))]
        print(json.dumps(rows, indent=2) if args.json else _table(rows))
        return 0
    line = None if args.text is None else parse_quoted(args.text)
    if line is not None and line.kind not in {XID, SXID}:
        line = None
    if args.code is None and line is None:
        raise UserError("the line contains no error code: give it too, as in `gpumon xid 149 --text ...`")
    if args.code is not None and not args.code.isdecimal():
        raise UserError(f"{args.code!r} is not the number of an Xid: give a number, as in `gpumon xid 79`")
    if line is not None and args.code is not None and int(args.code) != line.code:
        raise UserError(f"the line contains {line.code}, not {args.code}: omit one of them")
    if line is None:
        explanation = _explain(xids, XID, int(args.code), without_processes(args.text or ""))
    else:
        explanation = _explain(xids, line.kind, line.code, line.text, fatal=line.fatal)
    print(json.dumps(explanation, indent=2) if args.json else _words(explanation))
    return 0


def _explain(xids: Catalogue, kind: str, code: int, text: str = "", *, fatal: bool | None = None) -> Document:
    """Return the JSON object that --json prints. `text`: the text in the kernel log; empty if none was given."""
    means = xids.read(kind, code, (text,), fatal=fatal)
    row = xids.xid(code) if kind == XID else None
    return {
        kind: code,
        "name": means.name,
        "severity": str(means.severity),
        "class": None if row is None else str(row.kind),
        "action": means.action,
        "if_it_recurs": means.if_it_recurs,
        "detail": means.detail,
        "text": text,
        "known": row is None or code in xids.rows,
        "changed": [] if row is None else [key for key, attribute in KEYS.items() if attribute in row.ordered],
    }


def _words(explanation: Document) -> str:
    kind, code = next(iter(explanation.items()))
    lines = [f"{'SXid' if kind == SXID else 'Xid'} {code}: {explanation['name']}"]
    rows = (
        ("Severity", explanation["severity"]),
        ("Class", explanation["class"]),
        ("Do at once", explanation["action"]),
        ("If it recurs", explanation["if_it_recurs"]),
        ("Text", explanation["text"]),
        ("Meaning", explanation["detail"]),
        ("From xids.file", ", ".join(explanation["changed"])),
    )
    return "\n".join([*lines, *(f"  {name + ':':<15} {text}" for name, text in rows if text)])


def _table(rows: list[Document]) -> str:
    return "\n".join(
        f"{row[XID]:>4}  {row['severity']:<8}  {row['class']:<11}  {row['name']}. Do: {row['action']}" for row in rows
    )
