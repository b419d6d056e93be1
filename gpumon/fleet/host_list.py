"""Reads host names: Slurm node names such as gpu[001-032,040], host lists and Ansible inventories."""

from __future__ import annotations

import itertools
import json
import math
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gpumon.cli.command_parser import UserError

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
    """Return the variables of each host of a group by host name, from a file or, for `-`, from standard input.

    The text is a host list or the JSON of `ansible-inventory --list`. Raise UserError if it cannot be read, is invalid,
    or has no such group or no host.
    """
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
        hosts = _hosts(json.loads(text) if text.lstrip().startswith("{") else _of_lines(text), group)
    except (OSError, ValueError, AttributeError, TypeError, RecursionError, UserError) as error:
        raise UserError(f"cannot read {file}: {' '.join(str(error).split())}") from error
    if not hosts:
        raise UserError(f"there is no host in {file}")
    return hosts


def _of_lines(text: str) -> Inventory:
    """Return a host list as an inventory. A line has host names, followed by their variables as name=value.

    Host names may be Slurm expressions. Raise UserError if one is invalid, or for an Ansible inventory as INI or YAML.
    """
    if _INI_OR_YAML.search(text):
        raise UserError("this is an Ansible inventory: use ansible-inventory --inventory FILE --list > hosts.json")
    variables: dict[str, Variables] = {}
    for line in text.splitlines():
        words = shlex.split(line, comments=True)
        own = dict(word.split("=", 1) for word in words if "=" in word)
        variables |= dict.fromkeys(expand(" ".join(word for word in words if "=" not in word)), own)
    return {"_meta": {"hostvars": variables}, ALL: {"hosts": list(variables)}}


def _hosts(inventory: Inventory, wanted: str) -> dict[str, Variables]:
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
