"""`gpumon check`: report the health file as a line and an exit code, for Nagios, Slurm, node-problem-detector."""

from __future__ import annotations

import argparse
import io
import json
import os
import sys

from gpumon.cli import job_gpus
from gpumon.cli.check_result import CheckResult, check_result, device_taint_rules, unknown
from gpumon.cli.command_parser import CommandParser, duration
from gpumon.cli.health_file import MAX_AGE_SECONDS, CheckError, read_health
from gpumon.config import default_paths
from gpumon.health.verdict import UNKNOWN

HEALTH_FILE, STORE = "--health.file", "--store.path"
VARIABLES = {HEALTH_FILE: "GPUMON_HEALTH__FILE", STORE: "GPUMON_STORE__PATH"}
"""Environment variable for the path that a flag sets, by flag. A test compares both with the table of settings."""
UNKNOWN_HEALTH = 3


def add(parser: CommandParser) -> None:
    parser.usage_error, parser.on_error = UNKNOWN_HEALTH, _print_unknown
    parser.set_examples("gpumon check", "gpumon check --for-job --json")
    parser.description = (
        "Report the health of this node, or of a job's GPUs, in one line. Exit code: 0 ok, 1 warn, 2 fail, 3 unknown."
    )
    parser.add_argument(
        "--output",
        choices=("line", "json", "devicetaint"),
        default="line",
        help="print one line, JSON, or a DeviceTaintRule of Kubernetes for each failed GPU (line)",
    )
    parser.add_argument("--json", action="store_const", const="json", dest="output", help="short for --output json")
    parser.add_argument(
        "--for-job",
        action="store_true",
        help="report only on the GPUs of this job (from CUDA_VISIBLE_DEVICES or Slurm's variables) and on what "
        "concerns every job",
    )
    parser.add_argument(
        "--gpu",
        action="append",
        default=[],
        metavar="GPU",
        help="GPU of the job by index, uuid or PCI address; repeatable; implies --for-job",
    )
    parser.add_argument("--ignore", action="append", default=[], metavar="CHECK", help="ignore this check; repeatable")
    parser.add_argument(
        "--maintenance-ok", action="store_true", help="exit 0 during a maintenance window, whatever the line reports"
    )
    parser.add_argument(
        "--max-age",
        type=duration,
        default=MAX_AGE_SECONDS,
        metavar="DURATION",
        help=f"age from which the health file is stale ({MAX_AGE_SECONDS:g}s)",
    )
    parser.add_argument(
        HEALTH_FILE,
        dest=HEALTH_FILE,
        metavar="PATH",
        help=f"health file to read (default {default_paths.RUNTIME_DIRECTORY}/{default_paths.HEALTH_FILE}; environment "
        f"{VARIABLES[HEALTH_FILE]})",
    )
    parser.add_argument(
        STORE,
        dest=STORE,
        metavar="PATH",
        help="read the health file beside this store, of an agent that systemd did not start "
        f"(environment {VARIABLES[STORE]})",
    )


def _print_unknown(message: str) -> None:
    # on the first line of standard output, which Nagios reads
    print(f"GPU UNKNOWN: {' '.join(message.replace('|', '/').split())}: see `gpumon check --help`.")


def run(args: argparse.Namespace) -> int:
    path = default_paths.find_health_file(_path(HEALTH_FILE, args), _path(STORE, args), os.environ)
    result, text = _result(path, args)
    if isinstance(sys.stdout, io.TextIOWrapper):  # a reason may contain characters that the locale cannot encode
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        if args.output == "devicetaint" and result.level is UNKNOWN:
            print(result.line, file=sys.stderr)  # no rule would mean that nothing has failed
        print(text, flush=True, end="")
    except OSError:  # the pipe is closed or the disk is full: the exit code must still be that of the result
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0 if args.maintenance_ok and result.health.maintenance else result.code


def _text(result: CheckResult, path: str, output: str) -> str:
    if output == "devicetaint":
        return device_taint_rules(result, os.environ.get("NODE_NAME") or os.uname().nodename.lower())
    return (json.dumps(result.document(path), indent=2) if output == "json" else result.line) + "\n"


def _path(flag: str, args: argparse.Namespace) -> str | None:
    named = vars(args)[flag] or os.environ.get(VARIABLES[flag])
    return os.path.expanduser(named) if named else None


def _result(path: str, args: argparse.Namespace) -> tuple[CheckResult, str]:
    try:
        _check_names(args.ignore)
        job = job_gpus.from_job(args.gpu, os.environ) if args.gpu or args.for_job else None
        health = read_health(path, args.max_age)
        result = check_result(health, None if job is None else job_gpus.resolve(job, health), args.ignore)
        return result, _text(result, path, args.output)
    except CheckError as error:
        result = unknown(str(error))
    except Exception as error:  # noqa: BLE001 - Python's exit code for an error, 1, would mean a warning
        sys.excepthook(*sys.exc_info())
        result = unknown(f"gpumon check itself failed: {error!r}. This is a bug: report it with the traceback.")
    return result, _text(result, path, args.output)


def _check_names(names: list[str]) -> None:
    if names:
        from gpumon.health.table import BY_NAME  # noqa: PLC0415 - takes 0.2 s, and is needed only with --ignore

        wrong = [name for name in names if name not in BY_NAME]
        if wrong:
            raise CheckError(f"--ignore {wrong[0]}: there is no such check; there are: {', '.join(sorted(BY_NAME))}.")
