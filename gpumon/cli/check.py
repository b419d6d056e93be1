"""`gpumon check`: report the health file as a line and an exit code, for Nagios, Slurm, node-problem-detector."""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from gpumon.cli import job_gpus
from gpumon.cli.command_parser import CommandParser, duration
from gpumon.cli.health_file import LEVELS, MAX_AGE_SECONDS, CheckError, Document, GpuHealth, NodeHealth, read_health
from gpumon.config import default_paths
from gpumon.health.verdict import FAIL, HISTORY_UNREAD, JOB, OK, UNKNOWN, WARN, Action, Clearance, Level

HEALTH_FILE, STORE = "--health.file", "--store.path"
VARIABLES = {HEALTH_FILE: "GPUMON_HEALTH__FILE", STORE: "GPUMON_STORE__PATH"}
"""Environment variable for the path that a flag sets, by flag. A test compares both with the table of settings."""

EXIT_CODES = {OK: 0, WARN: 1, FAIL: 2, UNKNOWN: 3}
"""Exit codes by level, as Nagios defines them."""
PORT = "/"
"""A character that occurs in the name of every port, such as mlx5_0/1, and in no GPU's uuid."""
REPAIRED: Mapping[str | None, str] = {
    Clearance.REBOOT.value: "The node was rebooted",
    Clearance.RESET.value: "The GPU was reset",
}
"""Text about the repair that was made after the fault was last observed, by the member `repair` of a verdict."""
SILENCE = frozenset(
    {"gpu_denied", "gpu_init_failed", "gpu_lost", "gpu_missing", "gpu_reset_required", "gpu_stuck", "gpu_unreadable"}
)
"""Checks that report why a GPU does not answer. If one is ignored, that GPU does not make the result unknown."""
COUNTING = frozenset({"gpu_count_mismatch", "gpu_missing"})
"""Checks that report missing GPUs. If one of them is ignored, missing GPUs do not make the result unknown."""
CERTAIN_ORDER = (OK, UNKNOWN, WARN, FAIL)
"""Levels in ascending order of priority if the current state of the node is known."""
UNCERTAIN_ORDER = (OK, WARN, UNKNOWN, FAIL)
"""The same if the current state is unknown, which has priority over a warning, but not over a failure."""


def add(parser: CommandParser) -> None:
    parser.usage_error, parser.on_error = EXIT_CODES[UNKNOWN], _print_unknown
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
    add_health_flags(parser)


def add_health_flags(parser: CommandParser) -> None:
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
    path = health_path(args)
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


def health_path(args: argparse.Namespace) -> str:
    """Return the path of the health file, by the flags, their environment variables or the default."""
    return default_paths.find_health_file(_path(HEALTH_FILE, args), _path(STORE, args), os.environ)


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


class CheckResult(NamedTuple):
    """The result of `gpumon check`: the line to print, the level for the exit code, and the details for --json."""

    level: Level
    line: str
    health: NodeHealth
    verdicts: tuple[Document, ...] = ()
    gpus: tuple[GpuHealth, ...] = ()
    """The GPUs of the job, if one was given, else all GPUs of the node."""

    @property
    def code(self) -> int:
        return EXIT_CODES[self.level]

    def document(self, file: str | None) -> dict[str, Any]:
        """Return the JSON object that --json prints. `file` is the path of the health file."""
        return {
            "level": self.level.word,
            "exit_code": self.code,
            "line": self.line,
            "file": file,
            "stale": self.health.stale or None,
            "maintenance": self.health.maintenance,
            "gpus": [{"gpu": gpu.number, "uuid": gpu.uuid, "pci_bus_id": gpu.bus_id} for gpu in self.gpus],
            "verdicts": list(self.verdicts),
        }


def unknown(reason: str) -> CheckResult:
    """Return a result of level unknown. `reason` states why the health cannot be determined."""
    return CheckResult(level=UNKNOWN, line=_one_line(f"GPU UNKNOWN: {reason}"), health=NodeHealth(stale=reason))


def check_result(
    health: NodeHealth, job: Collection[GpuHealth] | None = None, ignored: Collection[str] = ()
) -> CheckResult:
    """Return the result for the node, or for a `job` with these GPUs. `ignored`: checks that do not count."""
    excused = {verdict["device"] for verdict in health.verdicts if verdict["check"] in SILENCE.intersection(ignored)}
    gpus = tuple(
        gpu._replace(unwatched="") if gpu.uuid in excused else gpu for gpu in (health.gpus if job is None else job)
    )
    verdicts = [verdict for verdict in health.verdicts if verdict["check"] not in ignored]
    if job is not None:
        verdicts = list(_of_job(verdicts, {gpu.uuid for gpu in job}))
    if job is not None or COUNTING.intersection(ignored):
        health = health._replace(missing_gpus=0)
    uncertain = bool(health.stale or _unknown_state(health, gpus))
    history_unread = any(verdict["check"] == HISTORY_UNREAD for verdict in verdicts)
    order = UNCERTAIN_ORDER if uncertain or history_unread else CERTAIN_ORDER
    verdicts.sort(key=lambda verdict: -order.index(LEVELS[verdict["level"]]))
    levels = [OK, *(LEVELS[verdict["level"]] for verdict in verdicts)]
    levels += [health.level] if job is None and not ignored else []
    levels += [UNKNOWN] if uncertain else []
    level = max(levels, key=order.index)
    words = _words(health, gpus, verdicts, for_job=job is not None, uncertain=level is UNKNOWN)
    maintenance = f" [maintenance {health.maintenance}]" if health.maintenance else ""
    line = _one_line(f"GPU {level.name}: {words}{maintenance}")
    return CheckResult(level=level, line=line, health=health, verdicts=tuple(verdicts), gpus=gpus)


def _of_job(verdicts: Iterable[Document], job: Collection[str]) -> Iterator[Document]:
    """Yield the verdicts on the node, on ports and on a job's GPUs, also those that one on another GPU inhibits."""
    for verdict in verdicts:
        device = verdict["device"]
        if device is None or device in job or (PORT in device and not device.startswith(JOB)):
            yield verdict
        else:
            yield from (inhibited for inhibited in verdict["consequences"] if inhibited["device"] in job)


def _words(
    health: NodeHealth, gpus: Collection[GpuHealth], verdicts: Sequence[Document], *, for_job: bool, uncertain: bool
) -> str:
    if health.stale and verdicts:
        worst = _worst_level(verdicts)
        failed = LEVELS[verdicts[0]["level"]] is FAIL
        return f"{worst} Stale: {health.stale}" if failed else f"{health.stale} Last reported: {worst}"
    if health.stale:
        return health.stale
    unknown_state = _unknown_state(health, gpus)
    if unknown_state and all(LEVELS[verdict["level"]] is WARN for verdict in verdicts):
        return unknown_state + (f" (+{len(verdicts)} more)" if verdicts else "")
    if verdicts:
        return _worst_level(verdicts)
    if uncertain:
        return "the agent has not evaluated its checks for every GPU yet. Check again soon."
    names = ", ".join(gpu.name for gpu in gpus) if for_job else f"{len(gpus)} GPU{'s' * (len(gpus) != 1)}"
    return f"{names} healthy." if names else "the job has no GPU; the node is healthy."


def _unknown_state(health: NodeHealth, gpus: Iterable[GpuHealth]) -> str:
    """Return why the state of GPUs is unknown: none is detected, one is not read or not counted; "" if it is known."""
    if not health.gpus:
        return "the agent detects no GPU: check that the driver is loaded."
    blind = next((gpu for gpu in gpus if gpu.unwatched), None)
    if blind is not None:
        return f"{blind.name}: {blind.unwatched}, so its health is unknown."
    if not health.missing_gpus:
        return ""
    count = f"{health.missing_gpus} expected GPU{'s' * (health.missing_gpus != 1)}"
    return f"the driver does not count {count} yet: `gpumon inventory` lists them. Check again soon."


def _worst_level(verdicts: Sequence[Document]) -> str:
    first, *more = verdicts
    device = first["device"] if first["gpu"] is None else f"GPU {first['gpu']}"
    where = f"{device}: " if device else ""
    action = "" if first["action"] == Action.NONE else f" Do: {first['action_text']}."
    if repaired := REPAIRED.get(first.get("repair")):
        action = f" {repaired} since: {first['action_text']}."
    others = f" (+{len(more)} more)" if more else ""
    return f"{where}{first['reason'].rstrip('.')}.{action}{others}"


def _one_line(text: str) -> str:
    """Return the text as one line without control characters and `|`, after which Nagios expects performance data."""
    return "".join(char for char in " ".join(text.replace("|", "/").split()) if char.isprintable())


DRIVER = "gpu.nvidia.com"
"""Name of the DRA driver whose devices are tainted. It names each pool after its node, and a GPU `gpu-<minor>`."""
MAX_LABEL = 63
RULE = """\
apiVersion: resource.k8s.io/v1
kind: DeviceTaintRule
metadata:
  name: {name}
  labels: {{app.kubernetes.io/managed-by: gpumon, gpumon.io/node: {label}}}
  annotations: {{gpumon.io/reason: {reason}}}
spec:
  deviceSelector: {selector}
  taint: {{key: gpumon.io/unhealthy, value: {check}, effect: NoSchedule}}
"""


def device_taint_rules(result: CheckResult, node: str) -> str:
    """Return, as YAML, a DeviceTaintRule for each failed GPU; one for all GPUs if the node or a port has failed."""
    failed = [verdict for verdict in result.verdicts if LEVELS[verdict["level"]] is FAIL]
    uuids = {gpu.uuid for gpu in result.health.gpus}
    whole = next((verdict for verdict in failed if verdict["device"] not in uuids), None)
    if whole is not None:
        return _rule(whole, node, None)
    rules, first = [], {verdict["device"]: verdict for verdict in reversed(failed)}
    for gpu in result.health.gpus:
        if gpu.uuid in first and gpu.minor is None:
            reason = "It has no rule, because its device number was never read."
            rules.append(f"# {gpu.name} ({gpu.uuid}) has failed. {reason}\n")
        elif gpu.uuid in first:
            rules.append(_rule(first[gpu.uuid], node, f"gpu-{gpu.minor}"))
    return "---\n".join(rules)


def _rule(verdict: Document, node: str, device: str | None) -> str:
    selector = {"driver": DRIVER, "pool": node} | ({} if device is None else {"device": device})
    values = {
        "name": "-".join(filter(None, ("gpumon", node, device))),
        "label": node[:MAX_LABEL].rstrip("-."),
        "reason": verdict["reason"],
        "selector": selector,
        "check": verdict["check"],
    }
    return RULE.format_map({name: json.dumps(value) for name, value in values.items()})  # JSON is valid YAML
