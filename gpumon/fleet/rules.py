"""`gpumon rules`: print the alert rules for Prometheus, or write the runbooks as web pages."""

from __future__ import annotations

import argparse
from pathlib import Path

from gpumon.cli.command_parser import CommandParser, duration
from gpumon.fleet.alert_rules import KINDS, STALE_SECONDS, render, rules
from gpumon.fleet.recording_rules import KEEP_SECONDS


def add(parser: CommandParser) -> None:
    examples = ("gpumon rules render > gpumon.yml", "gpumon rules render --format prometheusrule --stale-after 2m")
    pages = "gpumon rules runbooks /var/www/gpumon", "gpumon rules runbooks ./runbooks"
    parser.set_examples(examples[0], pages[0])
    _add_render(parser.add_action("render", "print the alert rules", *examples))
    runbooks = parser.add_action("runbooks", "write the runbooks as web pages", *pages)
    runbooks.add_argument("folder", type=Path, metavar="DIR", help="folder for the pages; created if it does not exist")


def _add_render(parser: CommandParser) -> None:
    parser.add_argument(
        "--stale-after",
        type=duration,
        default=STALE_SECONDS,
        metavar="DURATION",
        help="age of the last complete poll above which GpumonStale fires (default: %(default)gs)",
    )
    parser.add_argument(
        "--keep-for",
        type=duration,
        default=KEEP_SECONDS,
        metavar="DURATION",
        help="time for which the verdicts of an agent that cannot be scraped are kept (default: %(default)gs)",
    )
    parser.add_argument(
        "--format",
        choices=KINDS,
        default="prometheus",
        help="rule file, or object for the operator of Prometheus or VictoriaMetrics (default: %(default)s)",
    )
    parser.add_argument(
        "--runbooks",
        default="",
        metavar="URL",
        help="URL below which the runbooks are (default: the agent's own pages)",
    )


def run(args: argparse.Namespace) -> int:
    if args.action == "render":
        print(render(rules(args.stale_after), args.keep_for, kind=args.format, runbooks=args.runbooks), end="")
        return 0
    from gpumon.server.page import static_pages  # noqa: PLC0415 - imports the web framework

    for path, content in static_pages():
        file = args.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    print(f"wrote the runbooks to {args.folder / 'index.html'}")
    return 0
