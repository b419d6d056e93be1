"""`gpumon doctor`: check whether this host is ready for the agent and its probes, and print remedies."""

from __future__ import annotations

import argparse
import json
import platform
import textwrap
from collections.abc import Sequence
from typing import Any

from gpumon import __version__, log
from gpumon.cli.check_result import EXIT_CODES
from gpumon.cli.command_parser import CommandParser
from gpumon.cli.config_arguments import add_flags, configuration_to_start
from gpumon.cli.duration_arguments import duration
from gpumon.cli.errors import UserError
from gpumon.cli.readiness import agent_checks, hardware_checks, torch_checks
from gpumon.cli.readiness.host_facts import HostFacts, gather
from gpumon.cli.readiness.readiness_check import Readiness, ReadinessCheck
from gpumon.config.load import load
from gpumon.config.settings_table import CONFIG_FILE
from gpumon.health.verdict import OK, UNKNOWN, Level

CHECKS: tuple[ReadinessCheck, ...] = (*agent_checks.CHECKS, *hardware_checks.CHECKS, *torch_checks.CHECKS)
DEADLINE_SECONDS = 60.0
WIDTH = 100
Answers = Sequence[tuple[ReadinessCheck, Readiness]]


def add(parser: CommandParser) -> None:
    parser.usage_error = EXIT_CODES[UNKNOWN]
    parser.set_examples("gpumon doctor", "gpumon doctor --json --timeout 2m")
    parser.description = (
        "Check whether this host is ready for the agent and its probes, and print a remedy for each problem: "
        "docs/doctor.md. Exit code: 0 ok, 1 warn, 2 fail, 3 unknown."
    )
    parser.add_argument("--json", action="store_true", help="print the answers as JSON")
    parser.add_argument(
        "--timeout",
        type=duration,
        default=DEADLINE_SECONDS,
        metavar="DURATION",
        help=f"maximum time for the driver, and for PyTorch, to answer ({DEADLINE_SECONDS:g}s)",
    )
    add_flags(parser, CONFIG_FILE.name, "--simulate", "--simulate.scenario", "--store.path", "--web.listen-address")


def run(args: argparse.Namespace) -> int:
    log.configure(level="error", format="logfmt")
    facts = _facts(args)
    answers = diagnose(facts)
    print(json.dumps(document(answers), indent=2) if args.json else table(answers))
    return EXIT_CODES[worst(answers)]


def _facts(args: argparse.Namespace) -> HostFacts:
    """Return the facts. An invalid configuration is one of them; the defaults then replace it."""
    try:
        return gather(configuration_to_start(args), "", args.timeout)
    except UserError as error:
        return gather(load(None, {}, {}), str(error), args.timeout)


def diagnose(facts: HostFacts) -> Answers:
    """Return the answer of every check. A check that fails itself is unknown, and does not end the others."""
    return [(check, _answer(check, facts)) for check in CHECKS]


def _answer(check: ReadinessCheck, facts: HostFacts) -> Readiness:
    try:
        return check.answer(facts)
    except Exception as error:  # noqa: BLE001 - the other answers are wanted all the more
        return Readiness(UNKNOWN, f"The check itself failed: {error!r}. This is a bug.", "gpumon doctor --json")


def worst(answers: Answers) -> Level:
    """Return the worst level. Absent is no level."""
    return max((answer.level for _, answer in answers if answer.level is not None), default=OK)


def document(answers: Answers) -> dict[str, Any]:
    """Return the JSON object that --json prints."""
    level = worst(answers)
    return {
        "host": platform.node(),
        "version": __version__,
        "level": level.word,
        "exit_code": EXIT_CODES[level],
        "checks": [
            {
                "name": check.name,
                "question": check.question,
                "level": answer.word,
                "detail": answer.detail,
                "remedy": answer.remedy or None,
            }
            for check, answer in answers
        ],
    }


def table(answers: Answers) -> str:
    """Return a line for each check, the remedy of each problem below it, and a summary."""
    lines: list[str] = []
    for check, answer in answers:
        first = f"{answer.word:<8}{check.name:<17}"
        lines += textwrap.wrap(answer.detail, WIDTH, initial_indent=first, subsequent_indent=" " * len(first))
        lines += [f"{'':<8}do: {answer.remedy}"] if answer.remedy else []  # in one line, to be pasted
    words = [answer.word for _, answer in answers]
    counts = ", ".join(
        f"{words.count(word)} {word}" for word in ("fail", "warn", "unknown", "ok", "absent") if word in words
    )
    return "\n".join((*lines, "", f"{platform.node()}: {counts}"))
