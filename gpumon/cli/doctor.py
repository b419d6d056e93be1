"""`gpumon doctor`: check whether this host is ready for the agent and its probes, and print remedies."""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import sys
import textwrap
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpumon import __version__
from gpumon.cli.check import EXIT_CODES
from gpumon.cli.command_parser import CommandParser, UserError
from gpumon.cli.config_arguments import add_flags, configuration_to_start
from gpumon.cli.readiness import agent_checks, hardware_checks
from gpumon.cli.readiness.host_facts import HostFacts, Readiness, ReadinessCheck, gather, read_units
from gpumon.cli.support_bundle import fill, new_bundle
from gpumon.config.load import configuration_file, load
from gpumon.config.settings_table import CONFIG_FILE
from gpumon.health.verdict import OK, UNKNOWN

CHECKS: tuple[ReadinessCheck, ...] = (*agent_checks.CHECKS, *hardware_checks.CHECKS)
WIDTH = 100
WORDS = ("fail", "warn", "unknown", "ok", "absent")
Answers = Sequence[tuple[ReadinessCheck, Readiness]]


def add(parser: CommandParser) -> None:
    parser.usage_error = EXIT_CODES[UNKNOWN]
    parser.set_examples("gpumon doctor", "gpumon doctor --bundle gpumon-support.tar.gz")
    parser.description = (
        "Check whether this host is ready for the agent and its probes, and print a remedy for each problem. "
        "Exit code: 0 ok, 1 warn, 2 fail, 3 unknown."
    )
    parser.add_argument("--json", action="store_true", help="print the answers as JSON")
    parser.add_argument(
        "--bundle", type=Path, metavar="FILE", help="write a support archive without secrets too (tar.gz, a new file)"
    )
    add_flags(parser, CONFIG_FILE.name, "--simulate", "--simulate.scenario", "--store.path", "--web.listen-address")


def run(args: argparse.Namespace) -> int:
    logging.disable()  # the answers contain the errors that a reading of the GPUs would log
    try:
        with nullcontext() if args.bundle is None else new_bundle(args.bundle) as archive:
            facts = _facts(args)
            answers = diagnose(facts)
            result = document(answers)
            if archive is not None:
                fill(archive, facts, {"doctor.txt": table(answers), "doctor.json": json.dumps(result, indent=1)})
    except OSError as error:
        print(f"gpumon: cannot create {args.bundle}: {error.strerror}. Name a new file.", file=sys.stderr)
        return EXIT_CODES[UNKNOWN]
    if args.bundle is not None:
        print(f"gpumon: wrote {args.bundle}. Read it before you send it: it names this host.", file=sys.stderr)
    print(json.dumps(result, indent=2) if args.json else table(answers))
    return int(result["exit_code"])


def _facts(args: argparse.Namespace) -> HostFacts:
    """Return the facts about this host. If the configuration is invalid, add its error and use the defaults."""
    unit = read_units()
    environ = {**unit.environment, **os.environ}
    try:
        return gather(configuration_to_start(args, environ), "", unit)
    except UserError as error:
        file = configuration_file(getattr(args, CONFIG_FILE.name), environ)
        return replace(gather(load(None, {}, {}), str(error), unit), invalid_file=file)


def diagnose(facts: HostFacts) -> Answers:
    """Return the answer of every check. If a check raises an exception, its answer is unknown."""
    answers = []
    for check in CHECKS:
        try:
            answer = check.answer(facts)
        except Exception as error:  # noqa: BLE001 - the other checks must still be answered
            detail = f"The check itself failed: {error!r}."
            answer = Readiness(UNKNOWN, detail, "gpumon doctor --bundle gpumon-support.tar.gz")
        answers.append((check, answer))
    return answers


def document(answers: Answers) -> dict[str, Any]:
    """Return the JSON object that --json prints. Its `level` is the worst level of the answers."""
    level = max((answer.level for _, answer in answers if answer.level is not None), default=OK)
    return {
        "host": platform.node(),
        "version": __version__,
        "level": level.word,
        "exit_code": EXIT_CODES[level],
        "checks": [
            {"name": check.name, "question": check.question, **answer._asdict(), "level": answer.word}
            for check, answer in answers
        ],
    }


def table(answers: Answers) -> str:
    """Return a text with a line for each check, the remedy of each problem below its line, and a summary."""
    lines: list[str] = []
    for check, answer in answers:
        first = f"{answer.word:<8}{check.name:<17}"
        lines += textwrap.wrap(answer.detail, WIDTH, initial_indent=first, subsequent_indent=" " * len(first))
        lines += [f"{'':<8}do: {answer.remedy}"] if answer.remedy else []  # not wrapped, so that it can be pasted
    words = [answer.word for _, answer in answers]
    counts = ", ".join(f"{words.count(word)} {word}" for word in WORDS if word in words)
    return "\n".join((*lines, "", f"{platform.node()}: {counts}"))
