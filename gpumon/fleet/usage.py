"""`gpumon usage`: how long owners held the GPUs of this node, and how much of that time the GPUs were idle."""

from __future__ import annotations

import argparse
import csv
import io
import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields

from gpumon.cli.command_parser import CommandParser
from gpumon.cli.config_arguments import add_client_flags, client
from gpumon.model.durations import from_rfc3339, moment
from gpumon.outputs.formatting import HOUR, columns
from gpumon.outputs.node_text import IDLE
from gpumon.outputs.responses.base import Document

PATH, MEMBERS = "/api/v1/allocations", ("allocations", "complete")
BY = ("user", "account", "namespace", "job", "gpu")
NONE = "(none)"
"""The name of owners that have no name of the kind by which uses are added up, or whose name may not be read."""
JOULES_PER_KWH = 3.6e6


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
    parser.set_examples("gpumon usage --since 7d --by user", "gpumon usage --since 30d --by account --price 2.50")
    parser.add_argument("--since", default="7d", metavar="WHEN", help="from then on (default 7d)")
    parser.add_argument("--by", choices=BY, default="job", help="what to add up (default job)")
    parser.add_argument("--price", type=float, metavar="P", help="price of a GPU hour, for the column COST")
    parser.add_argument("--output", choices=("table", "csv", "json"), default="table", help="format (default table)")
    add_client_flags(parser)


def run(args: argparse.Namespace) -> int:
    answer = client(args).get(PATH, MEMBERS, since=args.since)
    since = moment(args.since, time.time()) or 0.0
    uses = added_up(answer["allocations"], args.by, since, args.price)
    print(_FORMATS["json" if args.json else args.output](uses, args.by), end="")
    return 0


def added_up(allocations: Iterable[Document], by: str, since: float, price: float | None = None) -> list[Use]:
    """Return the uses since then (Unix time), the one with the most idle hours first.

    An allocation that began earlier counts with the share of its time that is later.
    """
    uses: dict[str, Use] = {}
    for each in allocations:
        name = _name(each, by)
        use, part = uses.setdefault(name, Use(name=name)), _part_since(each, since) / HOUR
        held: Mapping[str, float] = each["allocation"]
        use.gpu_hours += held["held_seconds"] * part
        for attribute in ("busy_seconds", *IDLE):
            hours = attribute.replace("_seconds", "_hours")
            setattr(use, hours, getattr(use, hours) + held[attribute] * part)
        use.kwh += held["energy_joules"] * part * HOUR / JOULES_PER_KWH
    for use in uses.values():
        use.cost = None if price is None else price * use.gpu_hours
    return sorted(uses.values(), key=lambda use: (-use.idle_hours, use.name))


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
