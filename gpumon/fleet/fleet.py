"""`gpumon fleet`: list the bad nodes of a fleet, the worst first, with reason and action.

The problems, who works on them, and which nodes are drained come from Prometheus, the agents and Slurm.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from gpumon import DEFAULT_PORT, JOB
from gpumon.cli.client import Client, ClientError
from gpumon.cli.command_parser import CommandParser
from gpumon.cli.config_arguments import url
from gpumon.cli.live_view import add_watch_flag, in_color, watch
from gpumon.cli.readiness.host_facts import count, run_bounded
from gpumon.fleet.prometheus_api import MALFORMED, get_json, instant
from gpumon.fleet.recording_rules import LAST_INFO, LAST_SEEN, LAST_VERDICT, VERDICT
from gpumon.fleet.sd import ADDRESS, ALL, read_hosts, with_port
from gpumon.health.verdict import Level, device_of
from gpumon.model.durations import from_rfc3339
from gpumon.model.printable import printable
from gpumon.outputs.formatting import ABSENT, columns, duration
from gpumon.outputs.terminal import DIM, RED, YELLOW, cut, paint

SECONDS, AT_ONCE, MAX_ALERTMANAGERS = 10.0, 32, 8
"""Maximum seconds for one request, number of agents that are queried at the same time, and number of Alertmanagers."""
NO_ANSWER = "no answer"  # instead of a level
MAX_TIME = 1e11  # in seconds: the year 5138
WORDS = tuple(level.word for level in Level if level is not Level.OK)
"""The levels that a problem has."""
KEY = ("instance", "check", "uuid", "device", "port", "job_id")  # labels that identify a verdict, and its alert
Key = tuple[str, ...]
_SLURM_NODE = re.compile(r"^NodeName=(?P<node>\S+) .*?\bState=\S*DRAIN\S* (?:.* Reason=(?P<reason>.*))?")


class FleetProblem(NamedTuple):
    """A problem of a node: a verdict on it or on `device` (a GPU, a port or a job), or an agent that does not answer.

    `since`: Unix time. `owner`: who silenced or maintains it, and why; empty if there is none, None if that is unknown.
    """

    node: str
    device: str
    level: str
    reason: str
    action: str = ""
    since: float | None = None
    owner: str | None = None


class FleetState(NamedTuple):
    """The nodes of a fleet and their problems. `drains`: reason of each drained node, by node; None if unknown."""

    nodes: Sequence[str]
    problems: Sequence[FleetProblem]
    drains: Mapping[str, str] | None = None


def from_agents(agents: Mapping[str, Client]) -> FleetState:
    """Return the state of a fleet as its agents report it. `agents`: a client for each agent, by name of its node."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        by_node = pool.map(_agent_problems, agents, agents.values())
        return FleetState(list(agents), [problem for problems in by_node for problem in problems])


def _agent_problems(node: str, agent: Client) -> list[FleetProblem]:
    try:
        return list(_problems(node, agent.get("/api/v1/health", ("verdicts", "maintenance"))))
    except (ClientError, *MALFORMED) as error:  # also for an invalid name or port, or an agent of another version
        return [FleetProblem(node, "", NO_ANSWER, f"{error}" if isinstance(error, ClientError) else repr(error))]


def _problems(node: str, health: Any) -> Iterator[FleetProblem]:
    window = health["maintenance"]
    owner = f"maintenance by {window['by']}: {window['reason']}" if window else ""
    for verdict in health["verdicts"]:
        device = f"GPU {verdict['gpu']}" if verdict["gpu"] is not None else verdict["device"] or ""
        since = from_rfc3339(verdict["since"]).timestamp()
        texts = device, verdict["level"], verdict["reason"], verdict["action"]
        if texts[1] not in WORDS or not all(isinstance(text, str) for text in texts):
            raise ValueError(f"a verdict of another version: {texts}")
        yield FleetProblem(node, *texts, since, owner)


def from_prometheus(client: Client, prefix: str) -> FleetState:
    """Return the state of a fleet, with verdicts from a Prometheus below `prefix` and silences from its Alertmanagers.

    Agents that cannot be scraped have verdicts only if it evaluates alert_rules/gpumon.yml. Raise ClientError if
    Prometheus does not answer.
    """
    ask = partial(instant, client, prefix)
    up = {_key(labels)[0]: value for labels, value in ask(f'up{{job="{JOB}"}}')}
    if not up:
        raise ClientError(f"Prometheus has no target with the job {JOB!r}: docs/fleet.md shows how to scrape agents")
    last_seen = {_key(labels)[0]: _time(value) for labels, value in ask(LAST_SEEN)}
    why = "Prometheus cannot scrape its agent: its last verdicts are listed."
    problems = [
        FleetProblem(node, "", NO_ANSWER, why, since=last_seen.get(node)) for node, value in up.items() if value != 1
    ]
    newest = sorted(ask(f"{LAST_INFO} or timestamp({VERDICT}_info)"), key=lambda sample: sample[1])
    texts = {_key(labels): labels for labels, _ in newest}
    since = {_key(labels): _time(value) for labels, value in ask(f"min by ({', '.join(KEY)}) (ALERTS_FOR_STATE)")}
    owners = _silences(client, prefix)
    for labels, level in ask(f"{LAST_VERDICT} > 0 or {VERDICT}"):
        key, gpu = _key(labels), labels.get("gpu")
        device = f"GPU {gpu}" if gpu else device_of(labels)
        reason, action = (texts.get(key, {}).get(name, "") for name in ("reason", "action"))
        of_fleet = ("", *key[1:])  # an alert about a job has no instance
        began = since.get(key) or since.get(of_fleet)
        owner = None if owners is None else owners.get(key) or owners.get(of_fleet, "")
        word = next((each.word for each in Level if each == level), Level.UNKNOWN.word)  # also for NaN
        if word in WORDS:
            problems.append(FleetProblem(key[0], device, word, reason or key[1], action, began, owner))
    unschedulable = ask("kube_node_spec_unschedulable")
    drains = {labels.get("node", ""): "cordoned" for labels, value in unschedulable if value}
    return FleetState(sorted(up), problems, drains if unschedulable else None)


def _silences(prometheus: Client, prefix: str) -> Mapping[Key, str] | None:
    """Return who silenced an alert and why, by its values of the labels KEY; None if no Alertmanager answers."""
    owners: dict[Key, str] | None = None
    try:
        alertmanagers = get_json(prometheus, f"{prefix}/api/v1/alertmanagers", "data", "activeAlertmanagers")
        addresses = [urlsplit(each["url"]) for each in alertmanagers[:MAX_ALERTMANAGERS]]
    except (ClientError, *MALFORMED):  # Mimir and Thanos do not have this path
        return None
    for address in addresses:
        client = Client(f"{address.scheme}://{address.netloc}", timeout=SECONDS / len(addresses))
        path = address.path.rpartition("/")[0]
        try:
            names = {
                each["id"]: f"{each['createdBy']}: {each['comment']}" for each in get_json(client, f"{path}/silences")
            }
            owners = owners or {}
            for alert in get_json(client, f"{path}/alerts?active=false&inhibited=false&silenced=true"):
                owners[_key(alert["labels"])] = "; ".join(
                    names.get(each, each) for each in alert["status"]["silencedBy"]
                )
        except (ClientError, *MALFORMED):  # this host may not reach the address that Prometheus uses
            continue
    return owners


def _time(value: float) -> float | None:
    return value if 0 <= value < MAX_TIME else None


def _key(labels: Mapping[str, str]) -> Key:
    return tuple(labels.get(name, "") for name in KEY)


def slurm_drains() -> Mapping[str, str] | None:
    """Return, by node, why Slurm drains it. Return None if this host has no scontrol or Slurm does not answer."""
    output = run_bounded(["scontrol", "--oneliner", "show", "node"], SECONDS)
    matches = (_SLURM_NODE.match(line) for line in output.text.splitlines())
    return None if output.error else {each["node"]: each["reason"] or "drained" for each in matches if each}


LEVELS = {"fail": RED, NO_ANSWER: YELLOW, "warn": YELLOW, "unknown": DIM}
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
    color = in_color()
    if args.hosts:
        scheme, hosts = "https" if args.tls else "http", read_hosts(args.hosts, args.group).items()
        addresses = {name: f"{scheme}://{with_port(each.get(ADDRESS, name), DEFAULT_PORT)}" for name, each in hosts}
        agents = {name: Client(each, args.token_file, SECONDS, MAX_HEALTH) for name, each in addresses.items()}
        ask = partial(from_agents, agents)
    else:
        client = Client(args.prometheus, args.token_file, SECONDS)
        ask = partial(from_prometheus, client, urlsplit(args.prometheus).path)
    if args.watch is not None:
        return watch(lambda size: "\n".join(_lines(_sort_problems(ask()), size.columns, color=color)), args.watch)
    state = _sort_problems(ask())
    if args.json:
        problems = [{**problem._asdict(), "drained": _drain_reason(state, problem.node)} for problem in state.problems]
        print(json.dumps({"nodes": state.nodes, "problems": problems}, indent=2))
    else:
        print("\n".join(_lines(state, shutil.get_terminal_size((160, 24)).columns, color=color)))
    return 0


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
