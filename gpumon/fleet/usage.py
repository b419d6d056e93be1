"""`gpumon usage`: how long owners held the GPUs of a node or fleet, and how much of that time the GPUs were idle."""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from functools import partial
from urllib.parse import urlsplit

from gpumon.cli.client import Client, ClientError
from gpumon.cli.command_parser import CommandParser, UserError
from gpumon.cli.config_arguments import add_client_flags, client, url
from gpumon.fleet.prometheus_api import instant
from gpumon.fleet.recording_rules import BUSY, HELD, IDLE, POWER, sum_over
from gpumon.model.durations import from_rfc3339, moment
from gpumon.model.printable import printable
from gpumon.outputs.formatting import HOUR, columns
from gpumon.outputs.node_text import IDLE as LEVELS
from gpumon.outputs.responses.base import Document

PATH, MEMBERS = "/api/v1/allocations", ("allocations", "complete")
BY = ("user", "account", "namespace", "job", "gpu")
NONE = "(none)"
"""The name of owners that have no name of the kind by which uses are added up, or whose name may not be read."""
JOULES_PER_KWH = 3.6e6
FLEET_SECONDS = 60.0
"""Maximum seconds for one query about a fleet, which may read weeks."""
_RECORDED = {
    HELD: ("gpu_hours", HOUR),
    BUSY: ("busy_hours", HOUR),
    IDLE: ("{level}_hours", HOUR),
    POWER: ("kwh", JOULES_PER_KWH),
}
"""Attribute of Use, and what its unit is in seconds or joules, for each recorded series."""


@dataclass(slots=True, kw_only=True)
class Use:
    """What one user, account, namespace or job used, or what was used of one GPU. Times are in GPU hours."""

    name: str
    gpu_hours: float = 0.0
    busy_hours: float = 0.0
    no_process_hours: float = 0.0
    no_kernel_hours: float = 0.0
    cold_hours: float = 0.0
    kwh: float = 0.0
    cost: float | None = None

    @property
    def idle_hours(self) -> float:
        return self.no_process_hours + self.no_kernel_hours + self.cold_hours


def add(parser: CommandParser) -> None:
    parser.set_examples(
        "gpumon usage --since 30d --by account --price 2.50",
        "gpumon usage --since 7d --by user --prometheus http://prometheus:9090",
    )
    parser.add_argument("--since", default="7d", metavar="WHEN", help="from then on (default 7d)")
    parser.add_argument(
        "--by",
        choices=BY,
        default="job",
        help="what to add up (default job); those with the most idle hours, which can be reclaimed, are first",
    )
    parser.add_argument("--price", type=_price, metavar="P", help="price of a GPU hour, for the column COST")
    parser.add_argument("--output", choices=("table", "csv", "json"), default="table", help="format (default table)")
    add_client_flags(parser).add_argument(
        "--prometheus", type=url, metavar="URL", help="add up a fleet, from the recording rules of this Prometheus"
    )


def run(args: argparse.Namespace) -> int:
    uses = _of_fleet(args) if args.prometheus else _of_node(args)
    for use in uses:
        use.cost = None if args.price is None else args.price * use.gpu_hours
    if args.by in {"user", "account"} and {use.name for use in uses} == {NONE}:
        print(
            f"gpumon: no {args.by} can be read: run the command as root or in the agent's group, give --token-file, or "
            f"add {args.by} to jobs.labels.",
            file=sys.stderr,
        )
    print(_FORMATS["json" if args.json else args.output](uses, args.by), end="")
    return 0


def _price(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 <= float(text) < math.inf:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text} is not a price: write a number from 0 on, such as 2.50")


def _of_node(args: argparse.Namespace) -> list[Use]:
    answer = client(args).get(PATH, MEMBERS, since=args.since)
    if not answer["complete"]:
        rows = len(answer["allocations"])
        print(
            f"gpumon: the hours are too low: only the last {rows} allocations could be read. Shorten --since; if it is "
            "short, `gpumon doctor` shows why the store does not answer.",
            file=sys.stderr,
        )
    return added_up(answer["allocations"], args.by, moment(args.since, time.time()) or 0.0)


def _of_fleet(args: argparse.Namespace) -> list[Use]:
    now = time.time()
    since = moment(args.since, now)
    if since is None or since >= now:
        raise UserError(f"--since {args.since}: not a time before now. Write it as 7d, or as 2026-11-01T00:00Z.")
    if args.by == "gpu":
        raise UserError("--by gpu is about one node: ask its agent with --url instead of --prometheus.")
    prometheus = Client(args.prometheus, args.token_file, FLEET_SECONDS)
    uses = fleet_uses(partial(instant, prometheus, urlsplit(args.prometheus).path), args.by, f"{now - since:.0f}s")
    if not uses:
        raise ClientError(
            f"Prometheus has no series {HELD} since then. No owner held a GPU, or it does not evaluate the rules of "
            "`gpumon rules render` (docs/jobs.md)."
        )
    return uses


def fleet_uses(ask: Callable[[str], list[tuple[Mapping[str, str], float]]], by: str, since: str) -> list[Use]:
    """Return the uses of a fleet since then (a duration), the one with the most idle hours first.

    `ask`: returns labels and value of each result of a PromQL query.
    """
    uses: dict[str, Use] = {}
    label = {"namespace": "pod_namespace", "job": "job_id"}.get(by, by)
    for metric, (attribute, seconds) in _RECORDED.items():
        for labels, value in ask(f"sum by (level, {label}) ({sum_over(metric, since)})"):
            name = printable(labels.get(label, "")) or NONE
            use, own = uses.setdefault(name, Use(name=name)), attribute.format(level=labels.get("level", ""))
            if own in {field.name for field in fields(Use)} and math.isfinite(value):  # else it is not our series
                setattr(use, own, getattr(use, own) + value / seconds)
    return _sorted(uses)


def _sorted(uses: Mapping[str, Use]) -> list[Use]:
    return sorted(uses.values(), key=lambda use: (-use.idle_hours, use.name))


def added_up(allocations: Iterable[Document], by: str, since: float) -> list[Use]:
    """Return the uses since then (Unix time), the one with the most idle hours first.

    An allocation that began earlier counts with the share of its time that is later.
    """
    uses: dict[str, Use] = {}
    for each in allocations:
        name = _name(each, by)
        use, part = uses.setdefault(name, Use(name=name)), _part_since(each, since) / HOUR
        held: Mapping[str, float] = each["allocation"]
        use.gpu_hours += held["held_seconds"] * part
        for attribute in ("busy_seconds", *LEVELS):
            hours = attribute.replace("_seconds", "_hours")
            setattr(use, hours, getattr(use, hours) + held[attribute] * part)
        use.kwh += held["energy_joules"] * part * HOUR / JOULES_PER_KWH
    return _sorted(uses)


def _name(each: Document, by: str) -> str:
    if by == "job":
        return str(each["job"])
    if by == "gpu":
        gpu = each["allocation"]["gpu"]
        return each["allocation"]["uuid"] if gpu is None else str(gpu)
    return each["owner"]["pod_namespace" if by == "namespace" else by] or NONE


def _part_since(each: Document, since: float) -> float:
    """Return the share of an allocation's time that is after `since`."""
    began, until = (from_rfc3339(text).timestamp() for text in (each["allocation"]["since"], each["until"]))
    return 1.0 if began >= since or until <= began else max(0.0, until - since) / (until - began)


def _table(uses: Iterable[Use], by: str) -> str:
    lines: list[tuple[str, ...]] = [(by.upper(), "GPU HOURS", "BUSY", "NO PROCESS", "NO KERNEL", "COLD", "KWH", "COST")]
    for use in uses:
        hours = (use.gpu_hours, use.busy_hours, use.no_process_hours, use.no_kernel_hours, use.cold_hours, use.kwh)
        cost = "" if use.cost is None else f"{use.cost:.2f}"
        lines.append((use.name, *(f"{value:.2f}" for value in hours), cost))
    return "\n".join(columns(lines)) + "\n" if len(lines) > 1 else "No owner held a GPU in this time.\n"


def _csv(uses: Iterable[Use], by: str) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([by, *(field.name for field in fields(Use)[1:])])
    writer.writerows([_harmless(use.name), *[*asdict(use).values()][1:]] for use in uses)
    return text.getvalue()


def _harmless(name: str) -> str:
    """Return a name that a spreadsheet does not take for a formula."""
    return f"'{name}" if name[:1] in {"=", "+", "-", "@"} else name


def _json(uses: Iterable[Use], by: str) -> str:
    return json.dumps([{**asdict(use), "by": by} for use in uses], indent=2) + "\n"


_FORMATS = {"table": _table, "csv": _csv, "json": _json}
