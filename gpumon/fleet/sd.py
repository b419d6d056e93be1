"""`gpumon sd`: print the scrape targets of a fleet for Prometheus's file_sd, or serve them for its http_sd.

The hosts are Slurm node names such as gpu[001-032,040], a host list or an Ansible inventory.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import re
import shlex
import socket
import sys
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from gpumon import DEFAULT_PORT
from gpumon.cli.command_parser import CommandParser, UserError

MAX_HOSTS = 100_000
"""Maximum number of hosts that one expression may name."""
ALL = "all"
"""Group that Ansible has in every inventory: all hosts."""
_WORD = re.compile(r"(?:[^\s,\[\]]|\[[^\[\]]*\])+")
_INI_OR_YAML = re.compile(r"^(\[[\w.-]+(:\w+)?\]|[\w.-]+:)\s*([#;].*)?$", re.MULTILINE)

Variables = Mapping[str, str]
Inventory = Mapping[str, Any]
"""Groups by name, and the variables of the hosts, in the format of `ansible-inventory --list`."""


def expand(expression: str) -> list[str]:
    """Return the host names of a Slurm expression, such as gpu[001-032,040],login. Raise UserError if it is invalid."""
    if left := _WORD.sub("", expression).strip(", \t\n"):
        raise UserError(f"{expression!r} is not a list of hosts, because of {left!r}: write it as gpu[001-032,040]")
    return [name for word in _WORD.findall(expression) for name in _names(word)]


def _names(word: str) -> Iterator[str]:
    if re.match(r"\[[^\]]*:", word):  # an address of IPv6
        return iter([word])
    parts = re.split(r"\[([^\[\]]*)\]", word)  # odd parts were in brackets
    choices = [_numbers(part, word) if number % 2 else [part] for number, part in enumerate(parts)]
    if math.prod(map(len, choices)) > MAX_HOSTS:
        raise UserError(f"{word!r} names more than {MAX_HOSTS} hosts: check its ranges")
    return map("".join, itertools.product(*choices))


def _numbers(brackets: str, word: str) -> list[str]:
    """Return the numbers of the ranges between two brackets, padded as the first."""
    numbers: list[str] = []
    for text in brackets.split(","):
        bounds = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", text.strip())
        first, last = (int(bounds[1]), int(bounds[2] or bounds[1])) if bounds else (1, 0)
        if bounds is None or not 0 <= last - first < MAX_HOSTS:
            raise UserError(f"{text!r} in {word!r} is not a range of numbers: write it as gpu[001-032,040]")
        numbers += [str(number).zfill(len(bounds[1])) for number in range(first, last + 1)]
    return numbers


def read_hosts(file: str, group: str) -> dict[str, Variables]:
    """Return the variables of each host of a group by name, from a file or standard input (`-`).

    The text is a host list or the JSON of `ansible-inventory --list`. Raise UserError if it is invalid or has no host.
    """
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
        hosts = _group_hosts(json.loads(text) if text.lstrip().startswith("{") else _host_list(text), group)
    except (OSError, ValueError, AttributeError, TypeError, RecursionError, UserError) as error:
        raise UserError(f"cannot read {file}: {' '.join(str(error).split())}") from error
    if not hosts:
        raise UserError(f"there is no host in {file}")
    return hosts


def _host_list(text: str) -> Inventory:
    """Return lines of host names or Slurm expressions, followed by variables as name=value, as an inventory."""
    if _INI_OR_YAML.search(text):
        raise UserError("this is an Ansible inventory: use ansible-inventory --inventory FILE --list > hosts.json")
    variables: dict[str, Variables] = {}
    for line in text.splitlines():
        words = shlex.split(line, comments=True)
        own = dict(word.split("=", 1) for word in words if "=" in word)
        variables |= dict.fromkeys(expand(" ".join(word for word in words if "=" not in word)), own)
    return {"_meta": {"hostvars": variables}, ALL: {"hosts": list(variables)}}


def _group_hosts(inventory: Inventory, wanted: str) -> dict[str, Variables]:
    """Return, by host name, the variables of the hosts of a group and of its child groups."""
    if wanted not in inventory:
        raise UserError(f"there is no group {wanted!r}, but: {', '.join(sorted(set(inventory) - {'_meta'}))}")
    groups = [wanted]
    for name in groups:  # the loop appends the child groups of each group
        groups += [child for child in inventory.get(name, {}).get("children", ()) if child not in groups]
    variables = inventory.get("_meta", {}).get("hostvars", {})
    hosts = [host for name in groups for host in inventory.get(name, {}).get("hosts", ())]
    return {
        host: {key: str(value) for key, value in variables.get(host, {}).items() if value is not None} for host in hosts
    }


ADDRESS = "ansible_host"
"""Variable of an inventory with the address of a host, if it differs from the host's name."""
ADDRESSES = re.compile(r"[\w.-]+(:\d+)?|[\da-fA-F:.]+(%\w+)?|\[[\da-fA-F:.]+\](:\d+)?")


def add(parser: CommandParser) -> None:
    parser.set_examples(
        "gpumon sd 'gpu[001-032,040]' --label cluster=east > targets/gpumon.json",
        "gpumon sd --hosts hosts.json --group gpu_nodes --label-from rack --listen 127.0.0.1:17401",
    )
    parser.add_argument("nodes", nargs="*", metavar="NODES", help="node names as Slurm writes them: gpu[001-032,040]")
    parser.add_argument("--hosts", metavar="FILE", help="host list or ansible-inventory --list; - for stdin")
    parser.add_argument("--group", default=ALL, help="group of the inventory (default: %(default)s)")
    parser.add_argument("--port", type=int, default=DEFAULT_PORT, help="port of the agents (default: %(default)s)")
    parser.add_argument("--label", action="append", default=[], metavar="NAME=VALUE", help="label of all targets")
    meaning = "variable of the hosts that becomes a label"
    parser.add_argument("--label-from", action="append", default=[], metavar="NAME", help=meaning)
    parser.add_argument("--listen", metavar="HOST:PORT", help="serve the list for http_sd instead of printing it")


def run(args: argparse.Namespace) -> int:
    if bool(args.nodes) == bool(args.hosts):
        raise UserError("give either node names, as in gpumon sd 'gpu[001-032]', or a file by --hosts")
    for label in [*args.label, *(f"{name}=" for name in args.label_from)]:
        if not re.fullmatch(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*=.*", label):
            raise UserError(f"{label!r} is not a label: write it as cluster=east")
    text = targets(args)
    if args.listen:
        return _serve(args)
    sys.stdout.write(text)
    return 0


def targets(args: argparse.Namespace) -> str:
    """Return the targets as JSON. Raise UserError if node names or the file are invalid or name no host."""
    hosts = read_hosts(args.hosts, args.group) if args.hosts else {name: {} for name in expand(",".join(args.nodes))}
    if not hosts:
        raise UserError(f"{' '.join(args.nodes)!r} names no host: write it as gpu[001-032]")
    fixed = dict(label.split("=", 1) for label in args.label)
    groups: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for name, variables in hosts.items():
        if lacking := [label for label in args.label_from if label not in variables]:
            raise UserError(f"host {name} has no variable {lacking[0]!r}, which --label-from names")
        labels = fixed | {label: variables[label] for label in args.label_from}
        address = variables.get(ADDRESS, name)
        if not ADDRESSES.fullmatch(address):
            raise UserError(f"{address!r} is not the address of a host: write its name or IP address, and no more")
        if address != name:
            labels["instance"] = with_port(name, args.port)  # so that alerts show the host's name, not its address
        groups.setdefault(tuple(labels.items()), []).append(with_port(address, args.port))
    target_groups = [{"targets": addresses, "labels": dict(labels)} for labels, addresses in groups.items()]
    return json.dumps(target_groups, indent=1) + "\n"


def with_port(host: str, port: int) -> str:
    """Return HOST:PORT; if the host already has a port, return it unchanged."""
    if host.count(":") > 1 and not host.startswith("["):
        host = f"[{host}]"  # an address of IPv6
    return host if ":" in host.rpartition("]")[2] else f"{host}:{port}"


def _serve(args: argparse.Namespace) -> int:
    if args.hosts == "-":
        raise UserError("--listen reads its file for each request: name a file by --hosts instead of -")
    host, _, port = args.listen.rpartition(":")

    class TargetsServer(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

    try:
        server = TargetsServer((host.strip("[]"), int(port)), _handler(args))
    except (OSError, ValueError, OverflowError) as error:
        raise UserError(f"cannot listen at {args.listen!r} ({error}): write it as 127.0.0.1:17401") from error
    with server:
        print(f"serving targets at http://{host}:{server.server_address[1]}/", file=sys.stderr, flush=True)
        server.serve_forever()
    return 0


def _handler(args: argparse.Namespace) -> type[BaseHTTPRequestHandler]:
    class TargetsHandler(BaseHTTPRequestHandler):
        """Responds with the targets; on an error with status 500, so that Prometheus keeps the previous targets."""

        timeout = 10.0

        def do_GET(self) -> None:
            try:
                status, kind, body = 200, "application/json", targets(args)
            except UserError as error:
                status, kind, body = 500, "text/plain; charset=utf-8", f"{error}\n"
                self.log_error("%s", error)
            self.send_response_only(status)
            self.send_header("Content-Type", kind)
            self.end_headers()
            self.wfile.write(body.encode())

    return TargetsHandler
