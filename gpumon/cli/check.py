"""`gpumon check`: one line and an exit code, for Nagios, Slurm and node-problem-detector. Imports nothing slow."""

from __future__ import annotations

import argparse
import io
import json
import os
import sys

from gpumon.cli.errors import UserError
from gpumon.cli.fitness import agent_location, ask_agent, job_gpus
from gpumon.cli.fitness.conclusion import Answer, answer
from gpumon.cli.fitness.node_health import Known, Unknowable
from gpumon.health.terms import UNKNOWN


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = "exit code: 0 ok, 1 warn, 2 fail, 3 nobody can tell"
    parser.add_argument("--json", action="store_true", help="the answer as JSON")
    parser.add_argument("--for-job", action="store_true", help="only what concerns the GPUs of this job, and every job")
    parser.add_argument(
        "--gpu",
        action="append",
        default=[],
        metavar="GPU",
        help="a GPU of the job (index, uuid or PCI address; repeatable) in place of what CUDA and Slurm say of it; "
        "implies --for-job",
    )
    parser.add_argument(
        "--ignore", action="append", default=[], metavar="CHECK", help="leave out this check; repeatable"
    )
    parser.add_argument(
        "--maintenance-ok", action="store_true", help="exit 0 during maintenance, whatever the line says"
    )
    for flag, variable in agent_location.VARIABLES.items():
        parser.add_argument(
            flag, dest=flag, metavar="VALUE", help=f"as of `gpumon serve`; in the environment {variable}"
        )


def run(chosen: argparse.Namespace) -> int:
    found = _found(chosen)
    if isinstance(sys.stdout, io.TextIOWrapper):  # a reason may have letters that the locale has not
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        print(json.dumps(found.document, indent=2) if chosen.json else found.line, flush=True)
    except OSError:  # nobody hears it, or the disk is full: the exit code says it still
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0 if chosen.maintenance_ok and found.known.maintenance else found.code


def _found(chosen: argparse.Namespace) -> Answer:
    try:
        return _answered(chosen)
    except Unknowable as error:
        return _unknown(str(error))
    except Exception as error:  # noqa: BLE001 - python's own exit code of a mistake, 1, would be a warning
        return _unknown(f"gpumon check itself failed: {error!r}. Report it.")


def _unknown(words: str) -> Answer:
    known = Known(source="none", trouble=words)
    return Answer(level=UNKNOWN, line=answer(known).line, known=known)


def _answered(chosen: argparse.Namespace) -> Answer:
    _known_checks(chosen.ignore)
    asked = job_gpus.named(chosen.gpu, os.environ) if chosen.gpu or chosen.for_job else None
    known = _known(agent_location.find(vars(chosen), os.environ, lambda: _configured(chosen)))
    try:
        gpus = None if asked is None else job_gpus.chosen(asked, known.gpus)
    except Unknowable as error:
        from gpumon.outputs.words import sentence  # noqa: PLC0415 - only for who asked wrongly

        raise Unknowable(f"{error} {sentence(known.trouble)}".strip()) from error
    return answer(known, gpus, chosen.ignore)


def _known(where: agent_location.Place) -> Known:
    """What the agent says; if it says nothing, what its store holds."""
    try:
        return ask_agent.ask(where.host, where.port)
    except Unknowable as error:
        return _stored(where.store, str(error))


def _stored(store: str | None, trouble: str) -> Known:
    from gpumon.cli.fitness import stored_health  # noqa: PLC0415 - only without an agent

    if store is None:
        return Known(
            source="none", trouble=f"{trouble} What it knew is in its store: name it with {agent_location.STORE}."
        )
    try:
        return stored_health.read(store)._replace(trouble=trouble)
    except Unknowable as error:
        return Known(source="none", trouble=f"{trouble} What it knew cannot be read: {error}")


def _configured(chosen: argparse.Namespace) -> tuple[tuple[str, int], str]:
    """The slow way: no agent has left word."""
    from gpumon.cli.config_arguments import configuration  # noqa: PLC0415 - it takes longer than all the rest

    try:
        settings = configuration(chosen)
    except UserError as error:
        raise Unknowable(str(error)) from error
    return settings.web.address, str(settings.store.path)


def _known_checks(names: list[str]) -> None:
    """A misspelt check would be ignored in vain."""
    if names:
        from gpumon.health.table import BY_NAME  # noqa: PLC0415 - slow, and seldom asked for

        wrong = [name for name in names if name not in BY_NAME]
        if wrong:
            raise Unknowable(f"--ignore {wrong[0]}: there is no such check; there are: {', '.join(sorted(BY_NAME))}.")
