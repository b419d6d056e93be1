"""`gpumon fleet`: list the bad nodes of a fleet, the worst first, with reason and action."""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

from gpumon import DEFAULT_PORT
from gpumon.cli.client import Client
from gpumon.cli.command_parser import CommandParser
from gpumon.cli.config_arguments import url
from gpumon.cli.live_view import add_watch_flag, in_color, watch
from gpumon.cli.readiness.host_facts import count
from gpumon.fleet.host_list import ALL, read_hosts
from gpumon.fleet.sd import ADDRESS, with_port
from gpumon.fleet.sources import NO_ANSWER, SECONDS, FleetState, from_agents, from_prometheus, slurm_drains
from gpumon.outputs.formatting import ABSENT, columns, duration
from gpumon.outputs.terminal import DIM, RED, YELLOW, cut, paint, printable

LEVELS = {"fail": RED, NO_ANSWER: YELLOW, "warn": YELLOW, "unknown": DIM}
"""Color of each level of a problem. The worst level is first."""
MAX_CELL = 24  # maximum width of the columns DRAINED and OWNER
MAX_HEALTH = 2 << 20  # maximum bytes of the answer of an agent


def add(parser: CommandParser) -> None:
    parser.set_examples(
        "gpumon fleet --prometheus http://prometheus:9090 --watch 30s", "gpumon fleet --hosts hosts.txt"
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--prometheus", type=url, metavar="URL", help="read the verdicts from this Prometheus")
    source.add_argument(
        "--hosts", metavar="FILE", help="ask each agent: host list or ansible-inventory --list; - for stdin"
    )
    parser.add_argument(
        "--token-file", type=Path, metavar="FILE", help="bearer token for Prometheus, or for the agents"
    )
    parser.add_argument("--tls", action="store_true", help="the agents of --hosts use TLS")
    parser.add_argument("--group", default=ALL, help="group of the inventory (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print all of it as JSON")
    add_watch_flag(parser)


def run(args: argparse.Namespace) -> int:
    ask, color = _source(args), in_color()
    if args.watch is not None:
        return watch(lambda size: "\n".join(_lines(_sort_problems(ask()), size.columns, color=color)), args.watch)
    state = _sort_problems(ask())
    if args.json:
        problems = [{**problem._asdict(), "drained": _drain_reason(state, problem.node)} for problem in state.problems]
        print(json.dumps({"nodes": state.nodes, "problems": problems}, indent=2))
    else:
        print("\n".join(_lines(state, shutil.get_terminal_size((160, 24)).columns, color=color)))
    return 0


def _source(args: argparse.Namespace) -> Callable[[], FleetState]:
    """Return the function that reads the state of the fleet. Raise UserError if the arguments are invalid."""
    if args.hosts:
        scheme, hosts = "https" if args.tls else "http", read_hosts(args.hosts, args.group).items()
        addresses = {name: f"{scheme}://{with_port(each.get(ADDRESS, name), DEFAULT_PORT)}" for name, each in hosts}
        agents = {name: Client(each, args.token_file, SECONDS, MAX_HEALTH) for name, each in addresses.items()}
        return lambda: from_agents(agents)
    client = Client(args.prometheus, args.token_file, SECONDS)
    return lambda: from_prometheus(client, urlsplit(args.prometheus).path)


def _sort_problems(state: FleetState) -> FleetState:
    """Return the state with the problems sorted, the worst first, and with Slurm's drained nodes added to `drains`."""
    slurm, order = slurm_drains(), list(LEVELS)
    problems = sorted(state.problems, key=lambda each: (order.index(each.level), each.since or 0.0, each.node))
    has_drains = state.drains is not None or slurm is not None
    return FleetState(state.nodes, problems, {**(state.drains or {}), **(slurm or {})} if has_drains else None)


def _drain_reason(state: FleetState, node: str) -> str | None:
    """Return why the node is drained or cordoned; an empty string if it is neither, None if that is unknown."""
    host = node.rpartition(":")[0] or node
    return None if state.drains is None else state.drains.get(host, state.drains.get(host.partition(".")[0], ""))


def _lines(state: FleetState, width: int, *, color: bool) -> Iterator[str]:
    """Yield a summary line and, if there are problems, a table with one line per problem. Cut lines to `width`."""
    worst = {problem.node: problem.level for problem in reversed(state.problems)}  # a node's first problem is the worst
    counts = [f"{list(worst.values()).count(level)} {level}" for level in LEVELS if level in worst.values()]
    yield ", ".join([f"{count(len(state.nodes), 'node')}: {len(set(state.nodes) - set(worst))} ok", *counts])
    now, cells = time.time(), [["NODE", "DEVICE", "VERDICT", "FOR", "DO", "DRAINED", "OWNER", "REASON"]]
    for node, device, level, reason, action, since, owner in state.problems:
        age = ABSENT if since is None else duration(now - since)
        ends = (ABSENT if text is None else cut(text or "no", MAX_CELL) for text in (_drain_reason(state, node), owner))
        row = (node, device or "-", level, age, action or "-", *ends, reason)
        cells.append([printable(cell) for cell in row])
    colors = [DIM, *(LEVELS[problem.level] for problem in state.problems)]
    if state.problems:
        yield from (
            paint(cut(line, width), code, color=color) for line, code in zip(columns(cells), colors, strict=True)
        )
