"""`gpumon runbook`: print what to do about an alert. Works without an agent."""

from __future__ import annotations

import argparse
import textwrap

from gpumon.cli.command_parser import CommandParser, UserError
from gpumon.config.configuration_error import did_you_mean
from gpumon.health.alert_texts import alert_texts
from gpumon.outputs.runbook import Runbook, runbooks

WIDTH = 100


def add(parser: CommandParser) -> None:
    parser.set_examples("gpumon runbook GpuLost", "gpumon runbook")
    parser.add_argument("alert", nargs="?", metavar="ALERT", help="name of an alert; without it all are listed")


def run(args: argparse.Namespace) -> int:
    if args.alert is None:
        print("\n".join(f"{name:<27} {runbook.description}" for name, runbook in runbooks().items()))
        return 0
    section = {rule.name.lower(): rule.section for rule in alert_texts()}.get(args.alert.lower())
    if section is None:
        raise UserError(f"there is no alert {args.alert!r}: {did_you_mean(args.alert, runbooks())}")
    print(_text(runbooks()[section]))
    return 0


def _text(runbook: Runbook) -> str:
    steps = (
        textwrap.fill(f"{number}. {step}", WIDTH, initial_indent="  ", subsequent_indent="     ")
        for number, step in enumerate(runbook.steps, 1)
    )
    return "\n".join((f"{runbook.name}: {runbook.description}", f"  {runbook.facts}.", *steps))
